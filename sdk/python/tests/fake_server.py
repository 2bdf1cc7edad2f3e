"""An in-process gRPC server whose answers a test scripts."""

from __future__ import annotations

import threading
from concurrent import futures

import grpc

from esker._proto.esker.v1 import common_pb2
from esker._transport import RPCS


class Fail(Exception):
    """Raised by a scripted handler: the call fails so."""

    def __init__(self, code: grpc.StatusCode, message: str = "scripted", **detail) -> None:
        super().__init__(message)
        self.code, self.message, self.detail = code, message, detail


class FakeServer(grpc.GenericRpcHandler):
    """`server.on["Service.Method"] = handler(request, context)`; calls are kept in `server.calls`."""

    def __init__(self) -> None:
        self.on = {}
        self.calls = []
        self._lock = threading.Lock()
        self._by_path = {rpc.path: name for name, rpc in RPCS.items()}
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        self._server.add_generic_rpc_handlers((self,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait(10)

    def requests(self, name):
        with self._lock:
            return [request for called, request in self.calls if called == name]

    def service(self, details):
        name = self._by_path.get(details.method)
        if name is None or name not in self.on:
            return None
        rpc = RPCS[name]
        make = getattr(grpc, f"{rpc.kind}_rpc_method_handler")
        run = self._stream if rpc.kind.endswith("_stream") else self._unary
        return make(
            lambda request, context: run(name, request, context),
            request_deserializer=rpc.request.FromString,
            response_serializer=rpc.response.SerializeToString,
        )

    def _unary(self, name, request, context):
        if RPCS[name].kind == "unary_unary":
            self._note(name, request)
        try:
            return self.on[name](request, context)
        except Fail as fail:
            self._abort(context, fail)

    def _stream(self, name, request, context):
        self._note(name, request)
        try:
            yield from self.on[name](request, context)
        except Fail as fail:
            self._abort(context, fail)

    def _note(self, name, request) -> None:
        kept = type(request)()
        kept.CopyFrom(request)
        with self._lock:
            self.calls.append((name, kept))

    @staticmethod
    def _abort(context, fail: Fail) -> None:
        if fail.detail:
            detail = common_pb2.ErrorDetail(message=fail.message, **fail.detail)
            context.set_trailing_metadata((("esker-error-bin", detail.SerializeToString()),))
        context.abort(fail.code, fail.message)
