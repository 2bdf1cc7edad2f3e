"""Channels to a server, shared by all sandboxes of a client; and the methods that they carry."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import Any, NamedTuple, Optional

# A child made by os.fork() opens channels of its own; gRPC's threads survive a fork only if it has
# been told before it is loaded that one may come.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")

import grpc  # noqa: E402
import grpc.aio  # noqa: E402
from google.protobuf import message_factory  # noqa: E402

from ._proto.esker.v1 import admin_pb2, command_pb2, file_pb2, image_pb2, sandbox_pb2  # noqa: E402

DEFAULT_ADDRESS = "unix:/var/lib/esker/run/esker.sock"
_CONNECTIONS = 4
_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 8 << 20),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # several channels are several connections
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
]


class Rpc(NamedTuple):
    path: str
    kind: str  # unary_unary, unary_stream or stream_unary
    request: Any
    response: Any


def _collect() -> dict[str, Rpc]:
    table = {}
    for module in (admin_pb2, command_pb2, file_pb2, image_pb2, sandbox_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                kind = ("stream" if method.client_streaming else "unary") + (
                    "_stream" if method.server_streaming else "_unary"
                )
                table[f"{service.name}.{method.name}"] = Rpc(
                    f"/{service.full_name}/{method.name}",
                    kind,
                    message_factory.GetMessageClass(method.input_type),
                    message_factory.GetMessageClass(method.output_type),
                )
    return table


RPCS = _collect()


class _ChannelSet:
    """A few connections; calls about one sandbox take the same one."""

    def __init__(self, make_channel: Any) -> None:
        self._make_channel = make_channel
        self._channels: list[Any] = [None] * _CONNECTIONS
        self._methods: dict[tuple[int, str], Any] = {}

    def method(self, name: str, key: str) -> Any:
        index = hash(key) % _CONNECTIONS if key else 0
        found = self._methods.get((index, name))
        if found is None:
            if self._channels[index] is None:
                self._channels[index] = self._make_channel()
            rpc = RPCS[name]
            found = getattr(self._channels[index], rpc.kind)(
                rpc.path,
                request_serializer=rpc.request.SerializeToString,
                response_deserializer=rpc.response.FromString,
            )
            self._methods[(index, name)] = found
        return found

    def take(self) -> list[Any]:
        channels = [channel for channel in self._channels if channel is not None]
        self._channels, self._methods = [None] * _CONNECTIONS, {}
        return channels


def normalise_address(address: str) -> str:
    """A gRPC target from unix:PATH, /PATH, HOST:PORT or http://HOST:PORT."""
    if address.startswith("/"):
        return "unix:" + address
    for scheme in ("http://", "grpc://"):
        if address.startswith(scheme):
            return address[len(scheme) :].rstrip("/")
    if address.startswith("https://"):
        raise ValueError(f"{address}: the server speaks no TLS; use HOST:PORT on loopback")
    return address


class Transport:
    """Thread-safe. Blocking calls and each event loop have channels of their own."""

    def __init__(self, address: Optional[str], api_key: Optional[str]) -> None:
        self.address = normalise_address(address or os.environ.get("ESKER_ADDRESS") or DEFAULT_ADDRESS)
        key = api_key if api_key is not None else os.environ.get("ESKER_API_KEY", "")
        self.call_metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._blocking = _ChannelSet(lambda: grpc.insecure_channel(self.address, _OPTIONS))
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _ChannelSet] = (
            weakref.WeakKeyDictionary()
        )

    def _check_fork(self) -> None:
        if self._pid != os.getpid():
            self._lock = threading.Lock()  # another thread of the parent may have held the old one
            self._abandoned = (self._blocking, self._loops)  # closing them is the parent's business
            self._reset()

    def blocking_method(self, name: str, key: str) -> Any:
        self._check_fork()
        with self._lock:
            return self._blocking.method(name, key)

    def async_method(self, name: str, key: str) -> Any:
        """For calls of the running event loop."""
        self._check_fork()
        loop = asyncio.get_running_loop()
        channels = self._loops.get(loop)
        if channels is None:
            channels = _ChannelSet(lambda: grpc.aio.insecure_channel(self.address, _OPTIONS))
            with self._lock:
                self._loops[loop] = channels
        return channels.method(name, key)

    def close(self) -> None:
        self._check_fork()
        with self._lock:
            channels = self._blocking.take()
        for channel in channels:
            channel.close()

    async def aclose(self) -> None:
        channels = self._loops.pop(asyncio.get_running_loop(), None)
        for channel in channels.take() if channels else ():
            await channel.close()
