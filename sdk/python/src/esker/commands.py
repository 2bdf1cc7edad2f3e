"""Commands and terminals in a sandbox: the blocking API."""

from __future__ import annotations

import builtins
import signal as _signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Optional, Union, overload

from . import _command_ops as ops
from ._capture import DEFAULT_CAPTURE
from ._engine import iterate, run
from ._transport import Transport
from ._types import Command, CommandInfo, CommandResult, OutputEvent

OnText = Optional[Callable[[str], Any]]
OnBytes = Optional[Callable[[bytes], Any]]
Stdin = Union[str, bytes, bool, None]

# bash where the image has one, like a terminal's login; never looked for on the server's side.
SHELL = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi"


def stdin_data(stdin: Stdin, background: bool) -> Optional[bytes]:
    """What to send at once; None: nothing. ValueError for a stdin that nobody could write to."""
    if isinstance(stdin, str):
        return stdin.encode()
    if isinstance(stdin, bytes):
        return stdin
    if stdin and not background:
        raise ValueError("stdin=True needs background=True: nothing could be sent before the end")
    return None


class CommandHandle:
    """A command that runs, or ran, in a sandbox.

    Iterating over it gives its output as OutputEvents until it ends. Everything may be done more than
    once, in any order, and from several threads.

    Attributes:
        id: of the command. sandbox_id: of its sandbox. pid: inside the sandbox (0: unknown).
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

    def wait(
        self,
        timeout: Optional[float] = None,
        *,
        check: bool = False,
        on_stdout: OnText = None,
        on_stderr: OnText = None,
    ) -> CommandResult:
        """Waits until the command ends; its result, with the output from its beginning on.

        Args:
            timeout: seconds to wait; then DeadlineExceededError (a TimeoutError), and the command goes
                on. None: as long as it takes.
            check: CommandExitError when the exit code is not 0.
            on_stdout, on_stderr: called with each piece of output, in this thread.

        Raises:
            CommandTimeoutError (the command's own timeout=), SandboxEndedError.
        """
        callbacks = on_stdout or self._callbacks[0], on_stderr or self._callbacks[1]
        output = ops.Output(*callbacks, self._capture, self._raw)
        follow = self._follow(output, timeout)
        try:
            return run(self._transport, ops.wait(follow, self._start, check))
        finally:
            self._follows.discard(follow)

    def __iter__(self) -> Iterator[OutputEvent]:
        follow = self._follow(ops.Emitting(), None)
        try:
            yield from iterate(self._transport, ops.events(follow))
        finally:
            self._follows.discard(follow)

    def disconnect(self) -> None:
        """Stops waits and iterations of this handle (they raise CancelledError); the command goes on."""
        for follow in list(self._follows):
            follow.stopped = True
            stream = follow.stream
            if stream is not None:
                stream.cancel()

    def get_info(self) -> CommandInfo:
        """Its state now, without its output."""
        return CommandInfo.from_proto(run(self._transport, ops.get(self.sandbox_id, self.id)))

    def kill(self) -> bool:
        """SIGKILL to it and everything it started. False: it had ended."""
        return run(self._transport, ops.kill(self.sandbox_id, self.id))

    def send_signal(self, number: int = _signal.SIGTERM) -> bool:
        """A signal to the command's first process only. False: it had ended."""
        return run(self._transport, ops.send_signal(self.sandbox_id, self.id, int(number)))

    def send_stdin(self, data: Union[str, bytes], *, eof: bool = False) -> None:
        """Writes to its stdin; returns when its pipe has taken everything.

        Raises FailedPreconditionError when it has no stdin, or does not read it any more.
        """
        data = data.encode() if isinstance(data, str) else data
        run(self._transport, ops.send_stdin(self.sandbox_id, self.id, data, eof, self._feeding))

    def close_stdin(self) -> None:
        """End of file."""
        self.send_stdin(b"", eof=True)


class Commands:
    """`sandbox.commands`."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport, self._sandbox_id = transport, sandbox_id
        self._feedings = ops.new_feedings()

    @overload
    def run(
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
    def run(
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
    ) -> CommandHandle: ...

    def run(
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
        """Runs a command to its end, or starts it.

        A lost connection and a restart of the server in between are not noticed. If this is interrupted
        (KeyboardInterrupt, a cancelled task) or a callback raises, the command and everything it
        started is killed.

        Args:
            cmd: str: a line for bash -c (sh where the image has no bash); list: program and arguments.
            background: return a CommandHandle at once; the command has no hidden time limit.
            envs: added to the sandbox's environment.
            user: name, uid, user:group or uid:gid; "": the image's user, else root.
            cwd: "": the image's working directory, else the user's home.
            on_stdout, on_stderr: called with pieces of decoded output (background: by wait()).
            stdin: str or bytes: what it reads, then end of file; True (background only): send_stdin()
                writes; None: /dev/null.
            timeout: seconds, then everything it started is killed and CommandTimeoutError raised, which
                has the output so far. None: no limit.
            check: CommandExitError when the exit code is not 0.
            tag: free text, to find it in list().
            capture_limit: bytes kept of each stream (default 64 MiB): the head; the result says so.

        Returns:
            CommandResult, or CommandHandle with background=True.
        """
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
            return run(self._transport, ops.run(start, data, output, check))
        command, feeding = run(self._transport, ops.start_background(start, data))
        return CommandHandle(
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

    def connect(
        self,
        command_id: str,
        *,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        on_stdout: OnText = None,
        on_stderr: OnText = None,
        capture_limit: int = DEFAULT_CAPTURE,
    ) -> CommandHandle:
        """A command that was started earlier; its output from the given offsets (bytes) on.

        Raises NotFoundError when there is no such command.
        """
        command = run(self._transport, ops.get(self._sandbox_id, command_id))
        return CommandHandle(
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

    def list(self, include_ended: bool = False) -> builtins.list[CommandInfo]:
        """The commands that run. include_ended: and those that ran."""
        return run(self._transport, ops.list_commands(self._sandbox_id, include_ended))

    def kill(self, command_id: str) -> bool:
        """SIGKILL to a command and everything it started. False: it had ended."""
        return run(self._transport, ops.kill(self._sandbox_id, command_id))

    def send_stdin(self, command_id: str, data: Union[str, bytes], *, eof: bool = False) -> None:
        """Writes to a command's stdin (see CommandHandle.send_stdin). One sender at a time."""
        feeding = self._feedings.setdefault(command_id, ops.Feeding(None))
        data = data.encode() if isinstance(data, str) else data
        run(self._transport, ops.send_stdin(self._sandbox_id, command_id, data, eof, feeding))


class PtyHandle(CommandHandle):
    """A terminal. `on_data` gets bytes; iterating gives OutputEvents of stream "stdout"."""

    _raw = True

    def send_input(self, data: Union[str, bytes]) -> None:
        """Types. "\\x03" is control-C, "\\x04" end of file."""
        self.send_stdin(data)

    def resize(self, rows: int, cols: int) -> None:
        """Tells the terminal's new size; the programs in it get SIGWINCH."""
        run(self._transport, ops.resize(self.sandbox_id, self.id, rows, cols))


def pty_start(
    sandbox_id: str,
    cmd: Optional[Command],
    rows: int,
    cols: int,
    envs: Optional[Mapping[str, str]],
    user: str,
    cwd: str,
    timeout: Optional[float],
) -> ops.Start:
    return ops.Start(
        sandbox_id,
        SHELL if cmd is None else cmd,
        {"TERM": "xterm-256color", **(envs or {})},
        user,
        cwd,
        stdin=True,
        timeout=timeout,
        background=True,
        pty=(rows, cols),
    )


class Pty:
    """`sandbox.pty`."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport, self._sandbox_id = transport, sandbox_id
        self._feedings = ops.new_feedings()

    def create(
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
    ) -> PtyHandle:
        """Starts a command on a terminal of its own; None: an interactive shell.

        on_data is called with output by wait(). The rest is as in Commands.run().
        """
        start = pty_start(self._sandbox_id, cmd, rows, cols, envs, user, cwd, timeout)
        command, feeding = run(self._transport, ops.start_background(start, None))
        return PtyHandle(
            self._transport,
            self._sandbox_id,
            command.id,
            command.pid,
            start=start,
            on_stdout=on_data,
            capture_limit=capture_limit,
            feeding=self._feedings.setdefault(command.id, feeding),
        )

    def connect(self, command_id: str, *, offset: int = 0, on_data: OnBytes = None) -> PtyHandle:
        """A terminal that was started earlier, its output from `offset` (bytes) on."""
        command = run(self._transport, ops.get(self._sandbox_id, command_id))
        return PtyHandle(
            self._transport,
            self._sandbox_id,
            command_id,
            command.pid,
            offsets=(offset, 0),
            on_stdout=on_data,
            feeding=self._feedings.setdefault(command_id, ops.Feeding(None)),
        )

    def send_input(self, command_id: str, data: Union[str, bytes]) -> None:
        """Types."""
        feeding = self._feedings.setdefault(command_id, ops.Feeding(None))
        data = data.encode() if isinstance(data, str) else data
        run(self._transport, ops.send_stdin(self._sandbox_id, command_id, data, False, feeding))

    def resize(self, command_id: str, rows: int, cols: int) -> None:
        """Tells the terminal's new size."""
        run(self._transport, ops.resize(self._sandbox_id, command_id, rows, cols))

    def kill(self, command_id: str) -> bool:
        """SIGKILL to the terminal's command and everything it started. False: it had ended."""
        return run(self._transport, ops.kill(self._sandbox_id, command_id))
