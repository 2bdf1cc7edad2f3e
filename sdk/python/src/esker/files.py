"""Files in a sandbox: the blocking API."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from typing import IO, Any, Literal, Optional, Union, overload

from . import _file_ops as ops
from ._engine import iterate, run
from ._transport import Transport
from ._types import FileInfo, Path

Data = Union[str, bytes, bytearray, memoryview, IO[bytes], Iterable[bytes]]


class Files:
    """`sandbox.files`. Calls act as a user of the sandbox, with that user's permissions.

    Paths are str, bytes or PathLike; relative ones start at the user's home. `user` is a name, uid,
    user:group or uid:gid; "" is the image's user, else root. Failures are OSErrors with errno and
    filename: FileNotFoundError, PermissionError, IsADirectoryError, ...
    """

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport, self._sandbox_id = transport, sandbox_id

    @overload
    def read(self, path: Path, format: Literal["text"] = "text", *, user: str = "") -> str: ...
    @overload
    def read(self, path: Path, format: Literal["bytes"], *, user: str = "") -> bytes: ...
    @overload
    def read(self, path: Path, format: Literal["stream"], *, user: str = "") -> Iterator[bytes]: ...

    def read(self, path: Path, format: str = "text", *, user: str = "") -> Any:
        """A file's content.

        Args:
            format: "text": str, as UTF-8 (UnicodeDecodeError if it is not); "bytes"; "stream": an
                iterator of pieces, in constant memory.

        A lost connection is not noticed. DeadlineExceededError when no byte comes for 60 s; there is no
        limit for the whole.
        """
        if format == "stream":
            return iterate(self._transport, ops.read_stream(self._sandbox_id, path, user))
        check_format(format)
        content = run(self._transport, ops.read(self._sandbox_id, path, user))
        return content.decode() if format == "text" else bytes(content)

    def write(self, path: Path, data: Data, *, user: str = "", mode: Optional[int] = None) -> FileInfo:
        """Writes a whole file; it appears at once when all is there, else what was there stays.

        Missing parents are made, owned by the user.

        Args:
            data: str (as UTF-8), bytes, a file opened in binary mode, or an iterable of bytes. A lost
                connection is made up for, but for iterables and files that cannot seek.
            mode: permission bits of a new file (default 0644); an existing one keeps its own.

        Raises:
            OutOfSpaceError: the sandbox's disk is full.
        """
        return run(self._transport, ops.write(self._sandbox_id, path, data, user, mode))

    def list(
        self, path: Path, *, depth: int = 1, user: str = "", limit: int = 10_000
    ) -> builtins.list[FileInfo]:
        """The entries below a directory, down to `depth`. Symlinks are not followed.

        Raises ResourceExhaustedError when there are more than `limit`.
        """
        return run(self._transport, ops.list_files(self._sandbox_id, path, depth, user, limit))

    def exists(self, path: Path, *, user: str = "") -> bool:
        """Whether the name exists (a symlink does, wherever it points)."""
        return run(self._transport, ops.exists(self._sandbox_id, path, user))

    def get_info(self, path: Path, *, user: str = "") -> FileInfo:
        """What it is; of a symlink, not of its target."""
        return run(self._transport, ops.get_info(self._sandbox_id, path, user))

    def rename(self, old_path: Path, new_path: Path, *, user: str = "") -> FileInfo:
        """Renames, replacing a file that is there."""
        return run(self._transport, ops.rename(self._sandbox_id, old_path, new_path, user))

    def remove(self, path: Path, *, recursive: bool = False, user: str = "") -> None:
        """Removes a file or an empty directory; recursive: with all that is in it."""
        run(self._transport, ops.remove(self._sandbox_id, path, user, recursive))

    def make_dir(self, path: Path, *, user: str = "", mode: int = 0o755) -> bool:
        """Makes a directory and its missing parents. False: it was there."""
        return run(self._transport, ops.make_dir(self._sandbox_id, path, user, mode))


def check_format(format: str) -> None:
    if format not in ("text", "bytes"):
        raise ValueError(f'format must be "text", "bytes" or "stream", not {format!r}')
