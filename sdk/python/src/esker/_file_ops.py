"""Operations on files in a sandbox (see _engine.py for what an operation is)."""

from __future__ import annotations

import io
import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Optional

from . import _errors
from ._command_ops import RECONNECT_TIMEOUT, REQUEST_TIMEOUT
from ._engine import Cancel, Emit, Next, Op, Open, Sleep, Upload, backoff, retrying
from ._errors import EskerError
from ._proto.esker.v1 import file_pb2 as pb
from ._types import FileInfo

IDLE_TIMEOUT = 60.0
CHUNK = 1 << 20


def path_bytes(path: Any) -> bytes:
    encoded = os.fsencode(path)
    if not encoded:
        raise ValueError("the path is empty")
    return encoded


# --- reading --------------------------------------------------------------------------------------


def read_chunks(sandbox_id: str, path: Any, user: str, sink: Callable[[bytes], Op]) -> Op:
    """Gives each piece of a file to `sink`, going on at the right place after a lost connection."""
    request = pb.ReadFileRequest(sandbox_id=sandbox_id, path=path_bytes(path), user=user)
    seen: Optional[pb.FileInfo] = None
    stream: Any = None
    attempt, lost_at = 0, None
    try:
        while True:
            try:
                if stream is None:
                    stream = yield Open("FileService.Read", request, sandbox_id, path, idle=IDLE_TIMEOUT)
                message = yield Next(stream)
            except EskerError as error:
                lost_at = lost_at or time.monotonic()
                pause = backoff(attempt, error)
                late = time.monotonic() + pause > lost_at + RECONNECT_TIMEOUT
                if late or not _errors.is_connection_loss(error):
                    raise
                stream = None
                attempt += 1
                yield Sleep(pause)
                continue
            if message is None:
                return
            attempt, lost_at = 0, None
            if message.HasField("info"):
                _check_same(seen, message.info, path)
                seen = message.info
            if message.data:
                request.offset += len(message.data)
                yield from sink(message.data)
    finally:
        if stream is not None:
            yield Cancel(stream)


def _check_same(before: Optional[pb.FileInfo], now: pb.FileInfo, path: Any) -> None:
    if before is None or (before.size, before.mtime_ns) == (now.size, now.mtime_ns):
        return
    error = _errors.AbortedError(f"{path}: changed while it was read, and the connection was lost")
    error.reason, error.retryable = "FILE_CHANGED", True
    raise error


def read(sandbox_id: str, path: Any, user: str) -> Op:
    """The value is the whole file, as a bytearray."""
    content = bytearray()

    def keep(data: bytes) -> Op:
        content.extend(data)
        return
        yield

    yield from read_chunks(sandbox_id, path, user, keep)
    return content


def read_stream(sandbox_id: str, path: Any, user: str) -> Op:
    def emit(data: bytes) -> Op:
        yield Emit(data)

    return read_chunks(sandbox_id, path, user, emit)


# --- writing --------------------------------------------------------------------------------------


class Source:
    """Data to upload: can it be read again for a second attempt?"""

    def __init__(self, data: Any) -> None:
        if isinstance(data, str):
            data = data.encode()
        self.data = data
        self.start: Optional[int] = None
        self.used = False
        if isinstance(data, (bytes, bytearray, memoryview)):
            self.repeatable = True
        elif hasattr(data, "read"):
            if isinstance(data, io.TextIOBase):
                raise TypeError("open the file in binary mode")
            self.repeatable = bool(getattr(data, "seekable", lambda: False)())
            self.start = data.tell() if self.repeatable else None
        elif hasattr(data, "__iter__") or hasattr(data, "__aiter__"):
            self.repeatable = False
        else:
            raise TypeError(f"cannot write a {type(data).__name__}: want str, bytes, file or iterable")

    def chunks(self) -> Any:
        self.used = True
        if hasattr(self.data, "__aiter__"):
            return self.data
        if isinstance(self.data, (bytes, bytearray, memoryview)):
            view = memoryview(self.data).cast("B")
            return (bytes(view[at : at + CHUNK]) for at in range(0, len(view), CHUNK))
        if self.start is not None:
            self.data.seek(self.start)
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        if hasattr(self.data, "read"):
            while chunk := self.data.read(CHUNK):
                yield chunk
            return
        for piece in self.data:
            piece = piece.encode() if isinstance(piece, str) else piece
            for at in range(0, len(piece), CHUNK):
                yield bytes(piece[at : at + CHUNK])


def write(sandbox_id: str, path: Any, data: Any, user: str, mode: Optional[int]) -> Op:
    source = Source(data)
    opening = pb.WriteFileRequest.Open(
        sandbox_id=sandbox_id,
        path=path_bytes(path),
        user=user,
        mode=mode or 0,
        request_id=f"req-{uuid.uuid4().hex}",
    )
    end = time.monotonic() + RECONNECT_TIMEOUT
    attempt = 0
    while True:
        try:
            answer = yield Upload(
                "FileService.Write",
                pb.WriteFileRequest(open=opening),
                lambda chunk: pb.WriteFileRequest(data=chunk),
                source.chunks(),
                sandbox_id,
                path,
                IDLE_TIMEOUT,
            )
            return FileInfo.from_proto(answer)
        except EskerError as error:
            pause = backoff(attempt, error)
            again = _errors.is_connection_loss(error) and source.repeatable
            if not again or time.monotonic() + pause > end:
                raise
        attempt += 1
        yield Sleep(pause)


# --- the rest -------------------------------------------------------------------------------------


def get_info(sandbox_id: str, path: Any, user: str) -> Op:
    request = pb.StatFileRequest(sandbox_id=sandbox_id, path=path_bytes(path), user=user)
    answer = yield from retrying("FileService.Stat", request, REQUEST_TIMEOUT, sandbox_id, path)
    return FileInfo.from_proto(answer)


def exists(sandbox_id: str, path: Any, user: str) -> Op:
    try:
        yield from get_info(sandbox_id, path, user)
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False


def list_files(sandbox_id: str, path: Any, depth: int, user: str, limit: int) -> Op:
    if depth < 1:
        raise ValueError(f"depth must be at least 1, not {depth}")
    request = pb.ListFilesRequest(
        sandbox_id=sandbox_id, path=path_bytes(path), user=user, depth=depth, limit=limit
    )
    answer = yield from retrying("FileService.List", request, REQUEST_TIMEOUT, sandbox_id, path)
    if answer.truncated:
        error = _errors.ResourceExhaustedError(
            f"{path}: more than {len(answer.entries)} entries; ask for a higher limit or less depth"
        )
        error.reason, error.blame = "LIST_TRUNCATED", "limit"
        raise error
    return [FileInfo.from_proto(entry) for entry in answer.entries]


def make_dir(sandbox_id: str, path: Any, user: str, mode: int) -> Op:
    """True: it was made; False: it was there."""
    request = pb.MakeDirRequest(sandbox_id=sandbox_id, path=path_bytes(path), user=user, mode=mode)
    # The server does not mind a directory that is there, so it has to be asked before.
    there = yield from exists(sandbox_id, path, user)
    yield from retrying("FileService.MakeDir", request, REQUEST_TIMEOUT, sandbox_id, path)
    return not there


def remove(sandbox_id: str, path: Any, user: str, recursive: bool) -> Op:
    request = pb.RemoveFileRequest(
        sandbox_id=sandbox_id, path=path_bytes(path), user=user, recursive=recursive
    )
    losses: list[EskerError] = []
    try:
        yield from retrying("FileService.Remove", request, REQUEST_TIMEOUT, sandbox_id, path, losses)
    except FileNotFoundError:
        if not losses:  # otherwise an attempt whose answer was lost has removed it
            raise


def rename(sandbox_id: str, old: Any, new: Any, user: str) -> Op:
    request = pb.RenameFileRequest(
        sandbox_id=sandbox_id, to=path_bytes(new), user=user, **{"from": path_bytes(old)}
    )
    losses: list[EskerError] = []
    try:
        answer = yield from retrying(
            "FileService.Rename", request, REQUEST_TIMEOUT, sandbox_id, old, losses
        )
        return FileInfo.from_proto(answer)
    except FileNotFoundError:
        if not losses:
            raise
    return (yield from get_info(sandbox_id, new, user))
