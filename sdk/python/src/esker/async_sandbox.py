"""AsyncSandbox: the async API. The same names as in sandbox.py."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping
from typing import Optional

from . import _sandbox_ops as ops
from ._client import AsyncClient, default_async_client
from ._engine import aiterate, arun
from ._same import documented_like
from ._transport import Transport
from ._types import Description, Metrics, PauseInfo, SandboxInfo, Snapshot
from .async_commands import AsyncCommands, AsyncPty
from .async_files import AsyncFiles
from .sandbox import Sandbox


@documented_like(Sandbox)
class AsyncSandbox:
    """A sandbox on the server; see Sandbox. As an async context manager killed on exit.

        async with await AsyncSandbox.create("debian-py:1") as sandbox:
            print((await sandbox.commands.run("python3 --version")).stdout)

    Holds no thread and no connection of its own: thousands fit in one process. Cancelling a task that
    awaits commands.run() kills the command; cancelling one that awaits create() deletes the sandbox.
    """

    def __init__(self, sandbox_id: str, client: Optional[AsyncClient] = None) -> None:
        self.id = sandbox_id
        self._client = client or default_async_client()
        self.commands = AsyncCommands(self._transport, sandbox_id)
        self.files = AsyncFiles(self._transport, sandbox_id)
        self.pty = AsyncPty(self._transport, sandbox_id)

    @property
    def _transport(self) -> Transport:
        return self._client._transport

    def __repr__(self) -> str:
        return f"AsyncSandbox({self.id!r})"

    @classmethod
    async def create(
        cls,
        image: str,
        *,
        tier: str = "container",
        ttl: Optional[float] = None,
        idle_ttl: Optional[float] = None,
        create_timeout: Optional[float] = None,
        metadata: Optional[Mapping[str, str]] = None,
        envs: Optional[Mapping[str, str]] = None,
        cpu: Optional[float] = None,
        memory_mb: Optional[int] = None,
        disk_mb: Optional[int] = None,
        pids: Optional[int] = None,
        project: str = "",
        job: str = "",
        hostname: str = "",
        idempotency_key: str = "",
        client: Optional[AsyncClient] = None,
    ) -> AsyncSandbox:
        client = client or default_async_client()
        request = ops.create_request(
            image,
            tier,
            ttl,
            idle_ttl,
            create_timeout,
            metadata,
            envs,
            cpu,
            memory_mb,
            disk_mb,
            pids,
            project,
            job,
            hostname,
            idempotency_key,
        )
        info = await arun(client._transport, ops.create(request))
        return cls(info.id, client)

    @classmethod
    async def connect(cls, sandbox_id: str, *, client: Optional[AsyncClient] = None) -> AsyncSandbox:
        client = client or default_async_client()
        await arun(client._transport, ops.connect(sandbox_id))
        return cls(sandbox_id, client)

    @staticmethod
    def list(
        *,
        metadata: Optional[Mapping[str, str]] = None,
        project: str = "",
        job: str = "",
        include_ended: bool = False,
        client: Optional[AsyncClient] = None,
    ) -> AsyncIterator[SandboxInfo]:
        client = client or default_async_client()
        operation = ops.list_sandboxes(metadata, project, job, include_ended)
        return aiterate(client._transport, operation)

    async def kill(self) -> bool:
        return await arun(self._transport, ops.kill(self.id))

    async def get_info(self) -> SandboxInfo:
        return await arun(self._transport, ops.get_info(self.id))

    async def get_metrics(self) -> Metrics:
        return await arun(self._transport, ops.get_metrics(self.id))

    async def describe(self) -> Description:
        return await arun(self._transport, ops.describe(self.id))

    async def set_timeout(
        self, ttl: Optional[float] = None, idle_ttl: Optional[float] = None
    ) -> SandboxInfo:
        return await arun(self._transport, ops.set_timeout(self.id, ttl, idle_ttl))

    async def pause(self) -> PauseInfo:
        return await arun(self._transport, ops.pause(self.id))

    async def resume(self) -> None:
        await arun(self._transport, ops.resume(self.id))

    async def snapshot(self, name: str = "", keep: str = "files") -> Snapshot:
        return await arun(self._transport, ops.snapshot(self.id, name, keep))

    async def fork(
        self,
        n: int = 1,
        keep: str = "files",
        *,
        ttl: Optional[float] = None,
        metadata: Optional[Mapping[str, str]] = None,
    ) -> builtins.list[AsyncSandbox]:
        operation = ops.fork(self.id, n, keep, ttl, metadata)
        made, failures = await arun(self._transport, operation)
        children = [AsyncSandbox(info.id, self._client) for info in made]
        if failures:
            raise ops.fork_error(children, failures)
        return children

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
