"""Commands and terminals in a sandbox: the async API. The same names as in commands.py."""

from __future__ import annotations

import builtins
import signal as _signal
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, Optional, Union, overload

from . import _command_ops as ops
from ._capture import DEFAULT_CAPTURE
from ._engine import aiterate, arun
from ._same import documented_like
from ._transport import Transport
from ._types import Command, CommandInfo, CommandResult, OutputEvent
from .commands import (
    CommandHandle,
    Commands,
    OnBytes,
    OnText,
    Pty,
    PtyHandle,
    Stdin,
    pty_start,
    stdin_data,
)


@documented_like(CommandHandle)
class AsyncCommandHandle:
    """A command that runs, or ran, in a sandbox; see CommandHandle. Iterate with `async for`.

    Cancelling wait() leaves the command running. Callbacks may be coroutine functions.
    """

    _raw = False

    def __init__(
        self,
        transport: Transport,
        sandbox_id: str,
        command_id: str,
        pid: int = 0,
        *,
        start: Optional[ops.Start] = None,
        offsets: tuple[int, int] = (0, 0),
        on_stdout: Any = None,
        on_stderr: Any = None,
        capture_limit: int = DEFAULT_CAPTURE,
        feeding: Optional[ops.Feeding] = None,
    ) -> None:
        self._transport = transport
        self.sandbox_id, self.id, self.pid = sandbox_id, command_id, pid
        self._start, self._offsets, self._capture = start, offsets, capture_limit
        self._callbacks = (on_stdout, on_stderr)
        self._feeding = feeding or ops.Feeding(None)
        self._follows: set[ops.Follow] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, sandbox_id={self.sandbox_id!r})"

    def _follow(self, output: ops.Output, timeout: Optional[float]) -> ops.Follow:
        output.begin_at(*self._offsets)
        follow = ops.Follow(self.sandbox_id, self.id, output, timeout)
        self._follows.add(follow)
        return follow

    async def wait(
        self,
        timeout: Optional[float] = None,
        *,
        check: bool = False,
        on_stdout: OnText = None,
        on_stderr: OnText = None,
    ) -> CommandResult:
        callbacks = on_stdout or self._callbacks[0], on_stderr or self._callbacks[1]
        output = ops.Output(*callbacks, self._capture, self._raw)
        follow = self._follow(output, timeout)
        try:
            return await arun(self._transport, ops.wait(follow, self._start, check))
        finally:
            self._follows.discard(follow)

    async def __aiter__(self) -> AsyncIterator[OutputEvent]:
        follow = self._follow(ops.Emitting(), None)
        try:
            async for event in aiterate(self._transport, ops.events(follow)):
                yield event
        finally:
            self._follows.discard(follow)

    def disconnect(self) -> None:
        for follow in list(self._follows):
            follow.stopped = True
            stream = follow.stream
            if stream is not None:
                stream.cancel()

    async def get_info(self) -> CommandInfo:
        return CommandInfo.from_proto(await arun(self._transport, ops.get(self.sandbox_id, self.id)))

    async def kill(self) -> bool:
        return await arun(self._transport, ops.kill(self.sandbox_id, self.id))

    async def send_signal(self, number: int = _signal.SIGTERM) -> bool:
        return await arun(self._transport, ops.send_signal(self.sandbox_id, self.id, int(number)))

    async def send_stdin(self, data: Union[str, bytes], *, eof: bool = False) -> None:
        data = data.encode() if isinstance(data, str) else data
        operation = ops.send_stdin(self.sandbox_id, self.id, data, eof, self._feeding)
        await arun(self._transport, operation)

    async def close_stdin(self) -> None:
        await self.send_stdin(b"", eof=True)


@documented_like(Commands)
class AsyncCommands:
    """`sandbox.commands`; see Commands."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport, self._sandbox_id = transport, sandbox_id
        self._feedings = ops.new_feedings()

    @overload
    async def run(
        self,
        cmd: Command,
        *,
        background: Literal[False] = False,
        envs: Optional[Mapping[str, str]] = None,
        user: str = "",
        cwd: str = "",
        on_stdout: OnText = None,
        on_stderr: OnText = None,
        stdin: Stdin = None,
        timeout: Optional[float] = None,
        check: bool = False,
        tag: str = "",
        capture_limit: int = DEFAULT_CAPTURE,
    ) -> CommandResult: ...

    @overload
    async def run(
        self,
        cmd: Command,
        *,
        background: Literal[True],
        envs: Optional[Mapping[str, str]] = None,
        user: str = "",
        cwd: str = "",
        on_stdout: OnText = None,
        on_stderr: OnText = None,
        stdin: Stdin = None,
        timeout: Optional[float] = None,
        check: bool = False,
        tag: str = "",
        capture_limit: int = DEFAULT_CAPTURE,
    ) -> AsyncCommandHandle: ...

    async def run(
        self,
        cmd: Command,
        *,
        background: bool = False,
        envs: Optional[Mapping[str, str]] = None,
        user: str = "",
        cwd: str = "",
        on_stdout: OnText = None,
        on_stderr: OnText = None,
        stdin: Stdin = None,
        timeout: Optional[float] = None,
        check: bool = False,
        tag: str = "",
        capture_limit: int = DEFAULT_CAPTURE,
    ) -> Any:
        data = stdin_data(stdin, background)
        start = ops.Start(
            self._sandbox_id,
            cmd,
            dict(envs or {}),
            user,
            cwd,
            data is not None or bool(stdin),
            timeout,
            tag,
            background,
        )
        if not background:
            output = ops.Output(on_stdout, on_stderr, capture_limit)
            return await arun(self._transport, ops.run(start, data, output, check))
        command, feeding = await arun(self._transport, ops.start_background(start, data))
        return AsyncCommandHandle(
            self._transport,
            self._sandbox_id,
            command.id,
            command.pid,
            start=start,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            capture_limit=capture_limit,
            feeding=self._feedings.setdefault(command.id, feeding),
        )

    async def connect(
        self,
        command_id: str,
        *,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        on_stdout: OnText = None,
        on_stderr: OnText = None,
        capture_limit: int = DEFAULT_CAPTURE,
    ) -> AsyncCommandHandle:
        command = await arun(self._transport, ops.get(self._sandbox_id, command_id))
        return AsyncCommandHandle(
            self._transport,
            self._sandbox_id,
            command_id,
            command.pid,
            offsets=(stdout_offset, stderr_offset),
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            capture_limit=capture_limit,
            feeding=self._feedings.setdefault(command_id, ops.Feeding(None)),
        )

    async def list(self, include_ended: bool = False) -> builtins.list[CommandInfo]:
        return await arun(self._transport, ops.list_commands(self._sandbox_id, include_ended))

    async def kill(self, command_id: str) -> bool:
        return await arun(self._transport, ops.kill(self._sandbox_id, command_id))

    async def send_stdin(self, command_id: str, data: Union[str, bytes], *, eof: bool = False) -> None:
        feeding = self._feedings.setdefault(command_id, ops.Feeding(None))
        data = data.encode() if isinstance(data, str) else data
        operation = ops.send_stdin(self._sandbox_id, command_id, data, eof, feeding)
        await arun(self._transport, operation)


@documented_like(PtyHandle)
class AsyncPtyHandle(AsyncCommandHandle):
    _raw = True

    async def send_input(self, data: Union[str, bytes]) -> None:
        await self.send_stdin(data)

    async def resize(self, rows: int, cols: int) -> None:
        await arun(self._transport, ops.resize(self.sandbox_id, self.id, rows, cols))


@documented_like(Pty)
class AsyncPty:
    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport, self._sandbox_id = transport, sandbox_id
        self._feedings = ops.new_feedings()

    async def create(
        self,
        cmd: Optional[Command] = None,
        *,
        rows: int = 24,
        cols: int = 80,
        on_data: OnBytes = None,
        envs: Optional[Mapping[str, str]] = None,
        user: str = "",
        cwd: str = "",
        timeout: Optional[float] = None,
        capture_limit: int = DEFAULT_CAPTURE,
    ) -> AsyncPtyHandle:
        start = pty_start(self._sandbox_id, cmd, rows, cols, envs, user, cwd, timeout)
        command, feeding = await arun(self._transport, ops.start_background(start, None))
        return AsyncPtyHandle(
            self._transport,
            self._sandbox_id,
            command.id,
            command.pid,
            start=start,
            on_stdout=on_data,
            capture_limit=capture_limit,
            feeding=self._feedings.setdefault(command.id, feeding),
        )

    async def connect(
        self, command_id: str, *, offset: int = 0, on_data: OnBytes = None
    ) -> AsyncPtyHandle:
        command = await arun(self._transport, ops.get(self._sandbox_id, command_id))
        return AsyncPtyHandle(
            self._transport,
            self._sandbox_id,
            command_id,
            command.pid,
            offsets=(offset, 0),
            on_stdout=on_data,
            feeding=self._feedings.setdefault(command_id, ops.Feeding(None)),
        )

    async def send_input(self, command_id: str, data: Union[str, bytes]) -> None:
        feeding = self._feedings.setdefault(command_id, ops.Feeding(None))
        data = data.encode() if isinstance(data, str) else data
        operation = ops.send_stdin(self._sandbox_id, command_id, data, False, feeding)
        await arun(self._transport, operation)

    async def resize(self, command_id: str, rows: int, cols: int) -> None:
        await arun(self._transport, ops.resize(self._sandbox_id, command_id, rows, cols))

    async def kill(self, command_id: str) -> bool:
        return await arun(self._transport, ops.kill(self._sandbox_id, command_id))
