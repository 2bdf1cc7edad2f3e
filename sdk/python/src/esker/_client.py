"""Clients: a server's address, a key, and the connections to it."""

from __future__ import annotations

import os
from typing import Optional

from . import _sandbox_ops as ops
from ._engine import arun, run
from ._transport import Transport
from ._types import ImageInfo


class _BaseClient:
    def __init__(self, address: Optional[str] = None, api_key: Optional[str] = None) -> None:
        """Nothing is connected yet: the first call does that.

        Args:
            address: unix:PATH or HOST:PORT; default $ESKER_ADDRESS, else
                unix:/var/lib/esker/run/esker.sock.
            api_key: for TCP addresses; default $ESKER_API_KEY.
        """
        self._transport = Transport(address, api_key)

    @property
    def address(self) -> str:
        return self._transport.address

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"


class Client(_BaseClient):
    """For `Sandbox`. Thread-safe, and safe after os.fork(); one client serves any number of sandboxes."""

    def images(
        self, prefix: str = "", include_snapshots: bool = False, project: str = ""
    ) -> list[ImageInfo]:
        """The images that this client's key may see, of which a name begins with `prefix`; `project`:
        only what belongs to it."""
        return run(self._transport, ops.images(prefix, include_snapshots, project))

    def inspect_image(self, reference: str, project: str = "") -> ImageInfo:
        """One image, by [@project/]name[:tag] or hex id. A plain name is the project's (the key's, or
        `project`, or "default"), or else a shared one. Raises ImageNotFoundError."""
        return run(self._transport, ops.inspect_image(reference, project))

    def remove_image(self, reference: str, force: bool = False, project: str = "") -> bool:
        """By name: removes the name, and the image with its last name. By id: the image (force: and
        its names). A plain name is the project's (the key's, or `project`), or else a shared one.
        True: the image does not exist any more, for this client."""
        return run(self._transport, ops.remove_image(reference, force, project))

    def server_version(self, timeout: float = 60) -> str:
        """The server's version; waits up to `timeout` seconds for the server to be there."""
        return run(self._transport, ops.server_version(timeout))

    def close(self) -> None:
        """Closes the connections; a later call opens new ones."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_BaseClient):
    """For `AsyncSandbox`; the same as Client. May be used from several event loops."""

    async def images(
        self, prefix: str = "", include_snapshots: bool = False, project: str = ""
    ) -> list[ImageInfo]:
        return await arun(self._transport, ops.images(prefix, include_snapshots, project))

    async def inspect_image(self, reference: str, project: str = "") -> ImageInfo:
        return await arun(self._transport, ops.inspect_image(reference, project))

    async def remove_image(self, reference: str, force: bool = False, project: str = "") -> bool:
        return await arun(self._transport, ops.remove_image(reference, force, project))

    async def server_version(self, timeout: float = 60) -> str:
        return await arun(self._transport, ops.server_version(timeout))

    async def close(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


_defaults: dict[tuple[type, str, str], _BaseClient] = {}


def _default(cls: type) -> _BaseClient:
    # By environment, so that a changed variable is not ignored.
    key = (cls, os.environ.get("ESKER_ADDRESS", ""), os.environ.get("ESKER_API_KEY", ""))
    return _defaults.setdefault(key, _defaults.get(key) or cls())


def default_client() -> Client:
    """The client of calls that name none: made from the environment, once."""
    client = _default(Client)
    assert isinstance(client, Client)
    return client


def default_async_client() -> AsyncClient:
    """The same for AsyncSandbox."""
    client = _default(AsyncClient)
    assert isinstance(client, AsyncClient)
    return client
