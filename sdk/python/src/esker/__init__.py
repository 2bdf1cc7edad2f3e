"""Esker: sandboxes for agents.

    from esker import Sandbox

    with Sandbox.create("debian-py:1") as sandbox:
        print(sandbox.commands.run("python3 --version").stdout)

`Sandbox` blocks, `AsyncSandbox` has the same names for asyncio. See the README of the package.
"""

from ._client import AsyncClient, Client, default_async_client, default_client
from ._errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    CommandError,
    CommandExitError,
    CommandTimeoutError,
    DataLossError,
    DeadlineExceededError,
    EskerError,
    FailedPreconditionError,
    FileError,
    ForkError,
    ImageNotFoundError,
    InternalError,
    InvalidArgumentError,
    NoSuchFileError,
    NotFoundError,
    OutOfSpaceError,
    PermissionDeniedError,
    ResourceExhaustedError,
    SandboxEndedError,
    SandboxNotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from ._types import (
    CommandInfo,
    CommandResult,
    Description,
    FileInfo,
    ImageInfo,
    ImageName,
    Metrics,
    OutputEvent,
    PauseInfo,
    Resources,
    SandboxEvent,
    SandboxInfo,
    Snapshot,
)
from .async_commands import AsyncCommandHandle, AsyncCommands, AsyncPty, AsyncPtyHandle
from .async_files import AsyncFiles
from .async_sandbox import AsyncSandbox
from .commands import CommandHandle, Commands, Pty, PtyHandle
from .files import Files
from .sandbox import Sandbox

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "AsyncClient",
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncFiles",
    "AsyncPty",
    "AsyncPtyHandle",
    "AsyncSandbox",
    "CancelledError",
    "Client",
    "CommandError",
    "CommandExitError",
    "CommandHandle",
    "CommandInfo",
    "CommandResult",
    "CommandTimeoutError",
    "Commands",
    "DataLossError",
    "DeadlineExceededError",
    "Description",
    "EskerError",
    "FailedPreconditionError",
    "FileError",
    "FileInfo",
    "Files",
    "ForkError",
    "ImageInfo",
    "ImageName",
    "ImageNotFoundError",
    "InternalError",
    "InvalidArgumentError",
    "Metrics",
    "NoSuchFileError",
    "NotFoundError",
    "OutOfSpaceError",
    "OutputEvent",
    "PauseInfo",
    "PermissionDeniedError",
    "Pty",
    "PtyHandle",
    "ResourceExhaustedError",
    "Resources",
    "Sandbox",
    "SandboxEndedError",
    "SandboxEvent",
    "SandboxInfo",
    "SandboxNotFoundError",
    "Snapshot",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "default_async_client",
    "default_client",
]
