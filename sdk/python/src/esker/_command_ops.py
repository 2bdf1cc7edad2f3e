"""Operations on commands (see _engine.py for what an operation is)."""

from __future__ import annotations

import os
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from . import _errors
from ._capture import DEFAULT_CAPTURE, Capture, Utf8Stream
from ._engine import (
    Call,
    Cancel,
    Emit,
    Invoke,
    Join,
    Next,
    Op,
    Open,
    Settle,
    Sleep,
    Spawn,
    backoff,
    retrying,
)
from ._errors import EskerError
from ._proto.esker.v1 import command_pb2 as pb
from ._types import CommandInfo, CommandResult, OutputEvent

REQUEST_TIMEOUT = 60.0
RECONNECT_TIMEOUT = 60.0
KILL_TIMEOUT = 5.0
STDIN_CHUNK = 256 << 10
_NAMES = {pb.STREAM_STDOUT: "stdout", pb.STREAM_STDERR: "stderr"}


def as_bytes(text: Any) -> bytes:
    return text if isinstance(text, bytes) else os.fsencode(text)


def milliseconds(seconds: Optional[float], name: str) -> int:
    """0 for None. At least 1: a limit that was asked for must not become "none"."""
    if seconds is None:
        return 0
    if seconds <= 0:
        raise ValueError(f"{name} must be more than 0 seconds, not {seconds!r}")
    return max(1, round(seconds * 1000))


@dataclass
class Start:
    """What is needed to start a command."""

    sandbox_id: str
    command: Any
    envs: Optional[dict[str, str]] = None
    user: str = ""
    cwd: str = ""
    stdin: bool = False
    timeout: Optional[float] = None
    tag: str = ""
    background: bool = False
    pty: Optional[tuple[int, int]] = None
    output_limit: int = 0

    def request(self) -> pb.StartCommandRequest:
        message = pb.StartCommandRequest(
            sandbox_id=self.sandbox_id,
            request_id=f"req-{uuid.uuid4().hex}",
            envs=self.envs or {},
            user=self.user,
            cwd=os.fspath(self.cwd),
            stdin=self.stdin,
            timeout_ms=milliseconds(self.timeout, "timeout"),
            tag=self.tag,
            background=self.background,
            output_limit=self.output_limit,
        )
        if self.pty is not None:
            message.pty.rows, message.pty.cols = self.pty
        if isinstance(self.command, (str, bytes)):
            message.shell = as_bytes(self.command)
            empty = not message.shell
        else:
            message.argv.extend(as_bytes(word) for word in self.command)
            empty = not message.argv
        if empty:
            raise ValueError("the command is empty")
        return message


class Output:
    """Takes a command's output: keeps it, decodes it, hands it to the user's callbacks."""

    def __init__(
        self,
        on_stdout: Optional[Callable[[str], Any]] = None,
        on_stderr: Optional[Callable[[str], Any]] = None,
        capture: int = DEFAULT_CAPTURE,
        raw: bool = False,
    ) -> None:
        self.captures = {"stdout": Capture(capture), "stderr": Capture(capture)}
        self._callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        self._decoders = {"stdout": Utf8Stream(), "stderr": Utf8Stream()}
        self._raw = raw

    def begin_at(self, stdout_offset: int, stderr_offset: int) -> None:
        self.captures["stdout"].position = stdout_offset
        self.captures["stderr"].position = stderr_offset

    def take(self, output: pb.CommandEvent.Output) -> Op:
        name = _NAMES.get(output.stream)
        if name is None:
            return
        data = self.captures[name].add(output.offset, output.data)
        callback = self._callbacks[name]
        if data and callback is not None:
            piece = data if self._raw else self._decoders[name].feed(data)
            if piece:
                yield Invoke(callback, piece)

    def finish(self) -> Op:
        for name, callback in self._callbacks.items():
            rest = self._decoders[name].finish()
            if rest and callback is not None and not self._raw:
                yield Invoke(callback, rest)

    def result(self, command: Optional[pb.Command]) -> CommandResult:
        out, err = self.captures["stdout"], self.captures["stderr"]
        ended = command.exit if command is not None else pb.Exit(exit_code=-1)
        sizes = {
            "stdout": max(ended.stdout_bytes, out.position),
            "stderr": max(ended.stderr_bytes, err.position),
        }
        return CommandResult(
            exit_code=ended.exit_code,
            stdout=out.text(),
            stderr=err.text(),
            stdout_bytes=out.content(),
            stderr_bytes=err.content(),
            stdout_size=sizes["stdout"],
            stderr_size=sizes["stderr"],
            stdout_truncated=out.truncated or sizes["stdout"] > out.position,
            stderr_truncated=err.truncated or sizes["stderr"] > err.position,
            timed_out=ended.timed_out,
            oom_killed=ended.oom_killed,
            signal=ended.signal,
            error=ended.error,
        )


class Emitting(Output):
    """Emits each piece instead, for iteration; keeps nothing."""

    def __init__(self) -> None:
        super().__init__(capture=0)

    def take(self, output: pb.CommandEvent.Output) -> Op:
        name = _NAMES.get(output.stream)
        if name is None:
            return
        capture = self.captures[name]
        offset = max(output.offset, capture.position)
        lost = max(0, output.offset - capture.position)
        data = capture.add(output.offset, output.data)
        if data:
            text = self._decoders[name].feed(data)
            yield Emit(OutputEvent(name, data, text, offset, lost))  # type: ignore[arg-type]

    def finish(self) -> Op:
        return
        yield


class Follow:
    """Follows one command until it ends, over as many connections as that takes."""

    def __init__(
        self, sandbox_id: str, command_id: str, output: Output, timeout: Optional[float] = None
    ) -> None:
        self.sandbox_id, self.command_id, self.output = sandbox_id, command_id, output
        self.stream: Any = None
        self.stopped = False  # by disconnect(): a broken stream is then the end
        self.end = None if timeout is None else time.monotonic() + timeout

    def start(self, request: pb.StartCommandRequest) -> Op:
        """Runs a new command, until it is known to have begun; the value is its pb.Command."""
        deadline = time.monotonic() + REQUEST_TIMEOUT
        attempt = 0
        while True:
            self.stream = yield Open("CommandService.Run", request, self.sandbox_id)
            try:
                event = yield Settle(self.stream)
                if event is not None:
                    self.command_id = event.started.id
                    return event.started
                raise _errors.UnavailableError("the server ended the call before the command began")
            except EskerError as error:
                pause = backoff(attempt, error)
                if not _errors.is_connection_loss(error) or time.monotonic() + pause > deadline:
                    raise
            attempt += 1
            yield Sleep(pause)

    def until_end(self) -> Op:
        """The value is the ended pb.Command. TimeoutError after the `timeout` of this object."""
        attempt, lost_at = 0, None
        while True:
            try:
                if self.stream is None:
                    self.stream = yield self._attach()
                event = yield Next(self.stream)
                if event is None:
                    raise _errors.UnavailableError("the server ended the call early")
            except EskerError as error:
                if error.code == "DEADLINE_EXCEEDED" and self._expired():
                    raise _wait_timeout(self.command_id) from None
                if self.stopped or not _errors.is_connection_loss(error):
                    raise
                lost_at = lost_at or time.monotonic()
                pause = backoff(attempt, error)
                if time.monotonic() + pause > lost_at + RECONNECT_TIMEOUT:
                    raise
                if self._expired(pause):
                    raise _wait_timeout(self.command_id) from None
                self.stream = None
                attempt += 1
                yield Sleep(pause)
                continue
            attempt, lost_at = 0, None
            if event.HasField("output"):
                yield from self.output.take(event.output)
            elif event.HasField("exited"):
                self.stream = None
                yield from self.output.finish()
                return event.exited

    def _expired(self, ahead: float = 0.1) -> bool:
        return self.end is not None and time.monotonic() + ahead >= self.end

    def _attach(self) -> Open:
        captures = self.output.captures
        request = pb.AttachCommandRequest(
            sandbox_id=self.sandbox_id,
            command_id=self.command_id,
            stdout_offset=captures["stdout"].position,
            stderr_offset=captures["stderr"].position,
        )
        left = None if self.end is None else max(self.end - time.monotonic(), 0.001)
        return Open("CommandService.Attach", request, self.sandbox_id, timeout=left)

    def leave(self) -> Op:
        if self.stream is not None:
            yield Cancel(self.stream)
            self.stream = None


def _wait_timeout(command_id: str) -> EskerError:
    error = _errors.DeadlineExceededError(
        f"command {command_id} did not end while it was waited for; it goes on"
    )
    error.reason, error.blame = "WAIT_TIMED_OUT", "user"
    return error


# --- whole operations -----------------------------------------------------------------------------


def run(start: Start, data: Optional[bytes], output: Output, check: bool) -> Op:
    """Runs a command to its end; the value is a CommandResult."""
    request = start.request()
    follow = Follow(start.sandbox_id, "", output)
    pump: Any = None
    feeding = Feeding()
    try:
        yield from follow.start(request)
        if data is not None:
            pump = yield Spawn(feed(start.sandbox_id, follow.command_id, data, feeding))
        ended = yield from follow.until_end()
    except BaseException:
        # Interrupted, lost for good, or a callback failed: nobody waits for the command any more.
        feeding.stop = True
        yield from abandon(follow)
        raise
    feeding.stop = True
    if pump is not None:
        yield Join(pump, KILL_TIMEOUT)
    return judge(ended, output, start, check)


def judge(ended: pb.Command, output: Output, start: Optional[Start], check: bool) -> CommandResult:
    """The result of an ended command, or the exception that it deserves."""
    result = output.result(ended)
    what = describe(ended)
    if ended.exit.reason:
        error = _errors.SandboxEndedError(f"{what}: {ended.exit.reason}")
        error.code, error.reason, error.blame = "ABORTED", "SANDBOX_ENDED", "platform"
        error.metadata = {"sandbox": ended.sandbox_id, "reason": ended.exit.reason}
        error.result = result
        raise error
    if result.timed_out:
        limit = f"{start.timeout:g} s" if start is not None and start.timeout else "its time limit"
        raise _errors.CommandTimeoutError(f"{what}: killed after {limit}", result)
    if check and result.exit_code != 0:
        text = f"{what}: exit code {result.exit_code}"
        if result.error:
            text += f" ({result.error})"
        elif result.oom_killed:
            text += " (the sandbox's memory limit was hit)"
        elif result.stderr:
            text += f": {result.stderr[-500:].strip()}"
        raise _errors.CommandExitError(text, result)
    return result


def describe(command: pb.Command) -> str:
    line = CommandInfo.from_proto(command).command
    return f"command {line[:80]!r}{'...' if len(line) > 80 else ''}"


def abandon(follow: Follow) -> Op:
    """Kills the command that nobody follows any more, and all that it started."""
    try:
        if not follow.command_id and follow.stream is not None:
            event = yield Settle(follow.stream)  # it was being started: learn which it is
            if event is not None:
                follow.command_id = event.started.id
        if follow.command_id:
            yield from kill(follow.sandbox_id, follow.command_id, KILL_TIMEOUT)
    except EskerError:
        pass  # the interruption goes before; the sandbox's time to live ends what is left
    finally:
        yield from follow.leave()


def wait(follow: Follow, start: Optional[Start], check: bool) -> Op:
    """Waits for a command that goes on if this is interrupted."""
    try:
        ended = yield from follow.until_end()
    except BaseException:
        yield from follow.leave()
        raise
    return judge(ended, follow.output, start, check)


def events(follow: Follow) -> Op:
    """Emits OutputEvents until the command ends."""
    try:
        yield from follow.until_end()
    finally:
        yield from follow.leave()


def start_background(start: Start, data: Optional[bytes]) -> Op:
    """The value is (pb.Command, Feeding of its stdin)."""
    request = start.request()
    command = yield from retrying("CommandService.Start", request, REQUEST_TIMEOUT, start.sandbox_id)
    feeding = Feeding()
    if data is not None:
        yield Spawn(feed(start.sandbox_id, command.id, data, feeding))
    return command, feeding


def get(sandbox_id: str, command_id: str) -> Op:
    request = pb.GetCommandRequest(sandbox_id=sandbox_id, command_id=command_id)
    return retrying("CommandService.Get", request, REQUEST_TIMEOUT, sandbox_id)


def list_commands(sandbox_id: str, include_ended: bool) -> Op:
    request = pb.ListCommandsRequest(sandbox_id=sandbox_id, include_ended=include_ended)
    answer = yield from retrying("CommandService.List", request, REQUEST_TIMEOUT, sandbox_id)
    return [CommandInfo.from_proto(command) for command in answer.commands]


def kill(sandbox_id: str, command_id: str, timeout: float = REQUEST_TIMEOUT) -> Op:
    request = pb.SignalCommandRequest(
        sandbox_id=sandbox_id, command_id=command_id, signal=9, whole_tree=True
    )
    answer = yield from retrying("CommandService.Signal", request, timeout, sandbox_id)
    return answer.was_running


def send_signal(sandbox_id: str, command_id: str, number: int) -> Op:
    # Not repeated after a lost connection: a second SIGINT may mean something else.
    request = pb.SignalCommandRequest(sandbox_id=sandbox_id, command_id=command_id, signal=number)
    answer = yield Call("CommandService.Signal", request, REQUEST_TIMEOUT, sandbox_id)
    return answer.was_running


def resize(sandbox_id: str, command_id: str, rows: int, cols: int) -> Op:
    request = pb.ResizeRequest(
        sandbox_id=sandbox_id, command_id=command_id, pty=pb.Pty(rows=rows, cols=cols)
    )
    yield from retrying("CommandService.Resize", request, REQUEST_TIMEOUT, sandbox_id)


# --- standard input -------------------------------------------------------------------------------


class Feeding:
    """Where one command's stdin stands. Sends are numbered by offset, so repeats do no harm."""

    def __init__(self, offset: Optional[int] = 0) -> None:
        self.offset = offset  # None: not known yet
        self.stop = False


def new_feedings() -> weakref.WeakValueDictionary[str, Feeding]:
    """By command id, shared by the handles of a command; gone with the last of them."""
    return weakref.WeakValueDictionary()


def send_stdin(sandbox_id: str, command_id: str, data: bytes, eof: bool, at: Feeding) -> Op:
    """Returns when the command's pipe has taken everything, however long that takes."""
    if at.offset is None:
        request = pb.SendStdinRequest(sandbox_id=sandbox_id, command_id=command_id)
        answer = yield from retrying("CommandService.SendStdin", request, REQUEST_TIMEOUT, sandbox_id)
        at.offset = answer.accepted
    sent = 0
    while sent < len(data) or eof:
        piece = data[sent : sent + STDIN_CHUNK]
        last = sent + len(piece) == len(data)
        yield from _send_piece(sandbox_id, command_id, piece, eof and last, at)
        sent += len(piece)
        if last:
            return


def _send_piece(sandbox_id: str, command_id: str, piece: bytes, eof: bool, at: Feeding) -> Op:
    request = pb.SendStdinRequest(
        sandbox_id=sandbox_id,
        command_id=command_id,
        data=piece,
        eof=eof,
        offset=at.offset,
        has_offset=True,
    )
    attempt, lost_at = 0, None
    while not at.stop:
        try:
            yield Call("CommandService.SendStdin", request, REQUEST_TIMEOUT, sandbox_id)
            at.offset = request.offset + len(piece)
            return
        except EskerError as error:
            # The command may be slow to read; that is not a failure.
            waits = error.code in ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
            if not waits:
                lost_at = lost_at or time.monotonic()
                if not _errors.is_connection_loss(error):
                    raise
                if time.monotonic() > lost_at + RECONNECT_TIMEOUT:
                    raise
            yield Sleep(backoff(attempt, error))
            attempt += 1


def feed(sandbox_id: str, command_id: str, data: bytes, at: Feeding) -> Op:
    """All of a command's stdin. A command that does not read it to its end is no failure."""
    try:
        yield from send_stdin(sandbox_id, command_id, data, True, at)
    except EskerError as error:
        if error.code not in ("FAILED_PRECONDITION", "NOT_FOUND"):
            if not at.stop:
                raise
