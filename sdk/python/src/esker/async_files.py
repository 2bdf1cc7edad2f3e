"""Files in a sandbox: the async API. The same names as in files.py."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Literal, Optional, Union, overload

from . import _file_ops as ops
from ._engine import aiterate, arun
from ._same import documented_like
from ._transport import Transport
from ._types import FileInfo, Path
from .files import Data, Files, check_format


@documented_like(Files)
class AsyncFiles:
    """`sandbox.files`; see Files.

    write() also takes async iterables. read(format="stream") gives, once awaited, an async iterator.
    """

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport, self._sandbox_id = transport, sandbox_id

    @overload
    async def read(self, path: Path, format: Literal["text"] = "text", *, user: str = "") -> str: ...
    @overload
    async def read(self, path: Path, format: Literal["bytes"], *, user: str = "") -> bytes: ...
    @overload
    async def read(
        self, path: Path, format: Literal["stream"], *, user: str = ""
    ) -> AsyncIterator[bytes]: ...

    async def read(self, path: Path, format: str = "text", *, user: str = "") -> Any:
        if format == "stream":
            return aiterate(self._transport, ops.read_stream(self._sandbox_id, path, user))
        check_format(format)
        content = await arun(self._transport, ops.read(self._sandbox_id, path, user))
        return content.decode() if format == "text" else bytes(content)

    async def write(
        self,
        path: Path,
        data: Union[Data, AsyncIterable[bytes]],
        *,
        user: str = "",
        mode: Optional[int] = None,
    ) -> FileInfo:
        return await arun(self._transport, ops.write(self._sandbox_id, path, data, user, mode))

    async def list(
        self, path: Path, *, depth: int = 1, user: str = "", limit: int = 10_000
    ) -> builtins.list[FileInfo]:
        operation = ops.list_files(self._sandbox_id, path, depth, user, limit)
        return await arun(self._transport, operation)

    async def exists(self, path: Path, *, user: str = "") -> bool:
        return await arun(self._transport, ops.exists(self._sandbox_id, path, user))

    async def get_info(self, path: Path, *, user: str = "") -> FileInfo:
        return await arun(self._transport, ops.get_info(self._sandbox_id, path, user))

    async def rename(self, old_path: Path, new_path: Path, *, user: str = "") -> FileInfo:
        return await arun(self._transport, ops.rename(self._sandbox_id, old_path, new_path, user))

    async def remove(self, path: Path, *, recursive: bool = False, user: str = "") -> None:
        await arun(self._transport, ops.remove(self._sandbox_id, path, user, recursive))

    async def make_dir(self, path: Path, *, user: str = "", mode: int = 0o755) -> bool:
        return await arun(self._transport, ops.make_dir(self._sandbox_id, path, user, mode))
