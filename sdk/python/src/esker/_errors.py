"""Exceptions, and how a failed call becomes one.

Each class also derives from the built-in exception that fits, so code that knows nothing of Esker
(`except TimeoutError`, `except FileNotFoundError`) does the right thing.
"""

from __future__ import annotations

import errno as _errno
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from ._proto.esker.v1 import common_pb2

if TYPE_CHECKING:
    from ._types import CommandResult

_BLAMES = {1: "command", 2: "limit", 3: "user", 4: "platform"}


class EskerError(Exception):
    """Base of everything the SDK raises on behalf of the server or the connection.

    Attributes:
        code: name of the gRPC code ("NOT_FOUND", ...).
        reason: stable upper snake case ("SANDBOX_NOT_FOUND", ...); "" when only the connection failed.
        blame: "command", "limit", "user", "platform" or "" (not known).
        retryable: the same call may work later.
        retry_after: seconds to wait before that, or None.
        trace_id: also in the server's log.
        error_number: errno on the server's side, or 0.
        metadata: names of what was involved.
    """

    code = "UNKNOWN"
    reason = ""
    blame = ""
    retryable = False
    retry_after: float | None = None
    trace_id = ""
    error_number = 0
    metadata: Mapping[str, str] = {}

    def __init__(self, message: str = "") -> None:
        # OSError and its children would otherwise parse their arguments.
        Exception.__init__(self, message)
        self.message = message

    def __str__(self) -> str:
        text = self.message or self.__class__.__name__
        return f"{text} [trace {self.trace_id}]" if self.trace_id else text

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        if isinstance(self, OSError):
            state.update(errno=self.errno, strerror=self.strerror)
        return (_rebuild, (self.__class__, self.message, state))


def _rebuild(cls: type[EskerError], message: str, state: dict[str, Any]) -> EskerError:
    error = cls.__new__(cls)
    EskerError.__init__(error, message)
    for name, value in state.items():
        setattr(error, name, value)
    return error


class InvalidArgumentError(EskerError, ValueError):
    """The request makes no sense; INVALID_ARGUMENT and OUT_OF_RANGE."""

    code = "INVALID_ARGUMENT"


class NotFoundError(EskerError, LookupError):
    """What was named does not exist."""

    code = "NOT_FOUND"


class SandboxNotFoundError(NotFoundError):
    """There is no such sandbox (any more)."""


class ImageNotFoundError(NotFoundError):
    """There is no such image or snapshot."""


class AlreadyExistsError(EskerError):
    """Also: another request was made under the same idempotency key or request id."""

    code = "ALREADY_EXISTS"


class PermissionDeniedError(EskerError, PermissionError):
    """Not allowed: by the API key, or by file permissions inside the sandbox."""

    code = "PERMISSION_DENIED"


class UnauthenticatedError(EskerError, PermissionError):
    """No API key, or one that the server does not know."""

    code = "UNAUTHENTICATED"


class ResourceExhaustedError(EskerError):
    """A limit was hit: the node is full, a quota, the sandbox's disk."""

    code = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(EskerError):
    """Not possible in the present state."""

    code = "FAILED_PRECONDITION"


class AbortedError(EskerError):
    """Lost a race; may be tried again."""

    code = "ABORTED"


class UnimplementedError(EskerError, NotImplementedError):
    """This node or tier cannot do it."""

    code = "UNIMPLEMENTED"


class UnavailableError(EskerError, ConnectionError):
    """The server could not be reached, or went away, for as long as the call was tried."""

    code = "UNAVAILABLE"


class DeadlineExceededError(EskerError, TimeoutError):
    """The call did not end in time. Its effect is not known."""

    code = "DEADLINE_EXCEEDED"


class CancelledError(EskerError):
    """The server gave the call up."""

    code = "CANCELLED"


class DataLossError(EskerError):
    """Stored bytes are damaged."""

    code = "DATA_LOSS"


class InternalError(EskerError):
    """A fault of the platform."""

    code = "INTERNAL"


class SandboxEndedError(EskerError):
    """The sandbox ended while a command ran in it. `result`: the command's output so far."""

    result: CommandResult | None = None


class CommandError(EskerError):
    """Base of what a command itself did wrong. `result`: all of its output and its exit code."""

    def __init__(self, message: str, result: CommandResult) -> None:
        super().__init__(message)
        self.code, self.blame = "COMMAND_FAILED", "command"
        self.result = result

    @property
    def stdout(self) -> str:
        return self.result.stdout

    @property
    def stderr(self) -> str:
        return self.result.stderr


class CommandTimeoutError(CommandError, TimeoutError):
    """The command ran out of its `timeout`; all that it started was killed. Has the output so far."""

    def __init__(self, message: str, result: CommandResult) -> None:
        super().__init__(message, result)
        self.code, self.reason, self.blame = "DEADLINE_EXCEEDED", "COMMAND_TIMED_OUT", "limit"


class CommandExitError(CommandError):
    """With check=True: the command's exit code was not 0."""

    def __init__(self, message: str, result: CommandResult) -> None:
        super().__init__(message, result)
        self.reason = "COMMAND_EXIT_CODE"
        if result.oom_killed:
            self.blame = "limit"

    @property
    def exit_code(self) -> int:
        return self.result.exit_code


class ForkError(EskerError):
    """Some children could not be made. `children`: the ones that run (yours to kill); `failures`."""

    def __init__(self, message: str, children: list[Any], failures: list[EskerError]) -> None:
        super().__init__(message)
        self.code, self.reason = failures[0].code, "FORK_INCOMPLETE"
        self.blame = failures[0].blame
        self.children = children
        self.failures = failures


class FileError(EskerError, OSError):
    """A file operation failed. `errno` and `filename` as OSError has them."""

    filename: Any = None

    def __init__(self, message: str = "") -> None:
        EskerError.__init__(self, message)  # before that of FileNotFoundError and its like

    def __str__(self) -> str:
        return EskerError.__str__(self)


class NoSuchFileError(FileError, FileNotFoundError, NotFoundError):
    """No such file or directory in the sandbox."""


class FileExistsInSandboxError(FileError, AlreadyExistsError, FileExistsError):
    """The name is taken."""


class FilePermissionError(FileError, PermissionDeniedError):
    """The user of the sandbox may not do this."""


class FileIsADirectoryError(FileError, FailedPreconditionError, IsADirectoryError):
    """A file was wanted."""


class FileNotADirectoryError(FileError, FailedPreconditionError, NotADirectoryError):
    """A directory was wanted."""


class OutOfSpaceError(FileError, ResourceExhaustedError):
    """The sandbox's disk is full (errno ENOSPC or EDQUOT); what was there before is intact."""


class FileArgumentError(FileError, InvalidArgumentError):
    """The path cannot be: too long, a loop of symlinks, ..."""


_BY_CODE: dict[grpc.StatusCode, type[EskerError]] = {
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgumentError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.ABORTED: AbortedError,
    grpc.StatusCode.UNIMPLEMENTED: UnimplementedError,
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DATA_LOSS: DataLossError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
}
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}
_BY_REASON: dict[str, type[EskerError]] = {
    "SANDBOX_NOT_FOUND": SandboxNotFoundError,
    "IMAGE_NOT_FOUND": ImageNotFoundError,
    "SNAPSHOT_NOT_FOUND": ImageNotFoundError,
}
_BY_ERRNO: dict[int, type[FileError]] = {
    _errno.ENOENT: NoSuchFileError,
    _errno.EEXIST: FileExistsInSandboxError,
    _errno.EACCES: FilePermissionError,
    _errno.EPERM: FilePermissionError,
    _errno.EISDIR: FileIsADirectoryError,
    _errno.ENOTDIR: FileNotADirectoryError,
    _errno.ENOSPC: OutOfSpaceError,
    _errno.EDQUOT: OutOfSpaceError,
    _errno.EINVAL: FileArgumentError,
    _errno.ENAMETOOLONG: FileArgumentError,
    _errno.ELOOP: FileArgumentError,
}


def _detail(trailers: Iterable[Any] | None) -> common_pb2.ErrorDetail | None:
    for key, value in trailers or ():
        if key == "esker-error-bin":
            try:
                return common_pb2.ErrorDetail.FromString(value)
            except Exception:  # a broken detail must not hide the failure itself
                return None
    return None


def _file_class(detail: common_pb2.ErrorDetail) -> type[EskerError] | None:
    if not detail.reason.startswith("FILE_") or not detail.error_number:
        return None
    return _BY_ERRNO.get(detail.error_number, FileError)


def from_code(number: int, message: str) -> EskerError:
    """An error that came as a plain code, as in a fork's answer."""
    code = _BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN)
    error = _BY_CODE.get(code, EskerError)(message)
    error.code = code.name
    error.retryable = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
    return error


def from_rpc(
    code: grpc.StatusCode, message: str, trailers: Iterable[Any] | None, path: Any = None
) -> EskerError:
    """The exception for a failed call. `path`: the file it was about, if any."""
    detail = _detail(trailers)
    if detail is None:
        error = _BY_CODE.get(code, EskerError)(message)
        error.code = code.name
        error.retryable = error.code == "UNAVAILABLE"
        if error.retryable or error.code in ("UNKNOWN", "INTERNAL"):
            error.blame = "platform"
        return error
    cls = _file_class(detail) or _BY_REASON.get(detail.reason) or _BY_CODE.get(code, EskerError)
    error = cls(detail.message or message)
    error.code, error.reason = code.name, detail.reason
    error.blame = _BLAMES.get(detail.blame, "")
    error.retryable = detail.retryable
    error.retry_after = detail.retry_after_ms / 1000 if detail.retry_after_ms else None
    error.trace_id = detail.trace_id
    error.error_number = detail.error_number
    error.metadata = dict(detail.metadata)
    if isinstance(error, OSError) and detail.error_number:
        error.errno = detail.error_number
        error.strerror = os.strerror(detail.error_number)
        error.filename = path
    return error


def is_connection_loss(error: EskerError) -> bool:
    """The connection or the server went away, as opposed to the server answering."""
    if error.reason:
        return error.code == "UNAVAILABLE"
    if error.code in ("UNAVAILABLE", "CANCELLED"):
        return True
    return error.code in ("UNKNOWN", "INTERNAL") and (
        "RST_STREAM" in error.message or "Stream removed" in error.message
    )
