"""One logic for the blocking and the async SDK.

An operation is a generator that yields effects (call this, wait that long) and returns its result. A
driver performs them: `run` by blocking, `arun` on the event loop. So retries, resuming streams and
cancellation exist once. `iterate` and `aiterate` drive operations that also yield Emit(value).

An interruption (KeyboardInterrupt, a cancelled task, an iterator that is closed) is raised in the
operation at its present effect; effects it yields afterwards, to clean up, are performed.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, NamedTuple, Optional

import grpc

from . import _errors
from ._errors import EskerError
from ._transport import Transport

Op = Generator[Any, Any, Any]
INTERRUPTIONS = (KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit)


class Call(NamedTuple):
    """A unary call; the effect's value is the response. `timeout` in seconds."""

    name: str
    request: Any
    timeout: float
    key: str = ""
    path: Any = None  # of the file it is about, for errors


class Open(NamedTuple):
    """Begins a call with a streamed response; the value is a stream for Next and Cancel."""

    name: str
    request: Any
    key: str = ""
    path: Any = None
    timeout: Optional[float] = None
    idle: Optional[float] = None  # fails when no message comes for so long


class Next(NamedTuple):
    """The next message of a stream, or None at its end."""

    stream: Any


class Settle(NamedTuple):
    """Like Next, but an interruption leaves the stream alone, so that Next still gets the message."""

    stream: Any


class Cancel(NamedTuple):
    stream: Any


class Upload(NamedTuple):
    """A call with streamed requests: `first`, then make(chunk) of each chunk."""

    name: str
    first: Any
    make: Callable[[bytes], Any]
    chunks: Any
    key: str
    path: Any
    idle: float


class Sleep(NamedTuple):
    seconds: float


class Invoke(NamedTuple):
    """Calls a function of the user; the async driver also awaits what it returns."""

    function: Callable[..., Any]
    argument: Any


class Spawn(NamedTuple):
    """Runs another operation beside this one; the value is for Join."""

    operation: Op


class Join(NamedTuple):
    """Waits for a spawned operation, at most so long; afterwards it is left to itself (blocking) or
    cancelled (async)."""

    spawned: Any
    timeout: float


class Emit(NamedTuple):
    value: Any


# --- retries --------------------------------------------------------------------------------------


def backoff(attempt: int, error: Optional[EskerError] = None) -> float:
    """Seconds before the next attempt; 0.05 to 1 s, a server's hint goes before."""
    if error is not None and error.retry_after is not None:
        return error.retry_after * random.uniform(0.8, 1.2)
    return min(1.0, 0.05 * 2**attempt) * random.uniform(0.5, 1.0)


def retrying(
    name: str, request: Any, timeout: float, key: str = "", path: Any = None, losses: Any = None
) -> Op:
    """A unary call, repeated (same request id) until it is answered or `timeout` has passed.

    `losses`, if given, is a list that gets the errors of attempts whose effect is not known.
    """
    end = time.monotonic() + timeout
    attempt = 0
    while True:
        left = max(end - time.monotonic(), 0.001)
        try:
            return (yield Call(name, request, left, key, path))
        except EskerError as error:
            again = _errors.is_connection_loss(error) or (error.code == "ABORTED" and error.retryable)
            pause = backoff(attempt, error)
            if not again or time.monotonic() + pause >= end:
                raise
            if losses is not None:
                losses.append(error)
        attempt += 1
        yield Sleep(pause)


# --- what both drivers share ----------------------------------------------------------------------


class _Idle:
    """Cancels a call when nothing moved for `seconds`; `expired` says so afterwards."""

    def __init__(self, seconds: Optional[float]) -> None:
        self.seconds = seconds
        self.expired = False
        self.call: Any = None
        self.due = 0.0
        self._timer: Any = None

    def touch(self) -> None:
        if self.seconds is not None:
            self.due = time.monotonic() + self.seconds

    def check(self) -> bool:
        """False: no more checks are needed."""
        if self.call is None:
            return False
        if time.monotonic() < self.due:
            return True
        self.expired = True
        self.call.cancel()
        return False

    def stop(self) -> None:
        self.call = None


class _Watchdog:
    """One thread for all blocking transfers of the process."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._watched: list[_Idle] = []
        self._running = False

    def watch(self, idle: _Idle) -> None:
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            self._watched.append(idle)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="esker-watchdog", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(0.25)
            with self._lock:
                self._watched = [idle for idle in self._watched if idle.check()]
                if not self._watched:
                    self._running = False
                    return


_watchdog = _Watchdog()


def _idle_error(idle: _Idle, name: str) -> EskerError:
    error = _errors.DeadlineExceededError(f"{name}: nothing moved for {idle.seconds:g} s")
    error.reason, error.retryable = "NOTHING_MOVED", True
    return error


def _blocking_error(error: grpc.RpcError, path: Any) -> EskerError:
    trailers = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    return _errors.from_rpc(error.code(), error.details() or "", trailers, path)


def _async_error(error: grpc.aio.AioRpcError, path: Any) -> EskerError:
    return _errors.from_rpc(error.code(), error.details() or "", error.trailing_metadata(), path)


# --- blocking -------------------------------------------------------------------------------------


class _BlockingStream:
    def __init__(self, call: Any, effect: Any) -> None:
        self.call, self.effect = call, effect
        self.idle = _Idle(effect.idle)
        if effect.idle is not None:
            self.idle.call = call
            self.idle.touch()
            _watchdog.watch(self.idle)

    def next(self) -> Any:
        try:
            message = next(self.call)
        except StopIteration:
            self.idle.stop()
            return None
        except grpc.RpcError as error:
            self.idle.stop()
            if self.idle.expired:
                raise _idle_error(self.idle, self.effect.name) from None
            raise _blocking_error(error, self.effect.path) from error
        self.idle.touch()
        return message

    def cancel(self) -> None:
        self.idle.stop()
        self.call.cancel()


class _Thread:
    """A spawned operation of a blocking caller."""

    def __init__(self, transport: Transport, operation: Op) -> None:
        self.error: Optional[BaseException] = None
        self.thread = threading.Thread(
            target=self._run, args=(transport, operation), name="esker-spawned", daemon=True
        )
        self.thread.start()

    def _run(self, transport: Transport, operation: Op) -> None:
        try:
            run(transport, operation)
        except BaseException as error:
            self.error = error

    def join(self, timeout: float) -> None:
        self.thread.join(timeout)
        if self.error is not None:
            raise self.error


def _perform(transport: Transport, effect: Any) -> Any:
    if isinstance(effect, Call):
        method = transport.blocking_method(effect.name, effect.key)
        try:
            return method(effect.request, timeout=effect.timeout, metadata=transport.call_metadata)
        except grpc.RpcError as error:
            raise _blocking_error(error, effect.path) from error
    if isinstance(effect, (Next, Settle)):
        return effect.stream.next()
    if isinstance(effect, Open):
        method = transport.blocking_method(effect.name, effect.key)
        call = method(effect.request, timeout=effect.timeout, metadata=transport.call_metadata)
        return _BlockingStream(call, effect)
    if isinstance(effect, Invoke):
        return effect.function(effect.argument)
    if isinstance(effect, Cancel):
        return effect.stream.cancel()
    if isinstance(effect, Sleep):
        return time.sleep(effect.seconds)
    if isinstance(effect, Upload):
        return _blocking_upload(transport, effect)
    if isinstance(effect, Spawn):
        return _Thread(transport, effect.operation)
    if isinstance(effect, Join):
        return effect.spawned.join(effect.timeout)
    raise TypeError(f"unknown effect {effect!r}")


def _blocking_upload(transport: Transport, effect: Upload) -> Any:
    idle = _Idle(effect.idle)
    source_error: list[BaseException] = []

    def requests() -> Iterator[Any]:
        idle.touch()
        yield effect.first
        try:
            for chunk in effect.chunks:
                idle.touch()
                yield effect.make(chunk)
        except GeneratorExit:
            raise  # the call is over: the server ended it early
        except BaseException as error:
            # Ending here in peace would commit half a file.
            source_error.append(error)
            if idle.call is not None:
                idle.call.cancel()
            raise
        idle.touch()

    method = transport.blocking_method(effect.name, effect.key)
    call = method.future(requests(), metadata=transport.call_metadata)
    idle.call = call
    idle.touch()
    _watchdog.watch(idle)
    try:
        return call.result()
    except grpc.FutureCancelledError:
        if source_error:
            raise source_error[0] from None
        raise _idle_error(idle, effect.name) from None
    except grpc.RpcError as error:
        if source_error:
            raise source_error[0] from None
        if idle.expired:
            raise _idle_error(idle, effect.name) from None
        raise _blocking_error(error, effect.path) from error
    except INTERRUPTIONS:
        call.cancel()
        raise
    finally:
        idle.stop()


def run(transport: Transport, operation: Op) -> Any:
    """Performs an operation by blocking."""
    send: Callable[..., Any] = operation.send
    value: Any = None
    while True:
        try:
            effect = send(value)
        except StopIteration as stop:
            return stop.value
        try:
            value, send = _perform(transport, effect), operation.send
        except BaseException as error:
            value, send = error, operation.throw


def iterate(transport: Transport, operation: Op) -> Iterator[Any]:
    """The values that an operation emits."""
    send: Callable[..., Any] = operation.send
    value: Any = None
    while True:
        try:
            effect = send(value)
        except StopIteration:
            return
        try:
            if isinstance(effect, Emit):
                yield effect.value
                value, send = None, operation.send
            else:
                value, send = _perform(transport, effect), operation.send
        except GeneratorExit as error:
            _clean_up(transport, operation, error)
            raise
        except BaseException as error:
            value, send = error, operation.throw


def _clean_up(transport: Transport, operation: Op, error: BaseException) -> None:
    send: Callable[..., Any] = operation.throw
    value: Any = error
    while True:
        try:
            effect = send(value)
        except (StopIteration, GeneratorExit):
            return
        try:
            value, send = _perform(transport, effect), operation.send
        except BaseException as failure:
            value, send = failure, operation.throw


# --- async ----------------------------------------------------------------------------------------


class _AsyncStream:
    def __init__(self, call: Any, effect: Any) -> None:
        self.call, self.effect = call, effect
        self.idle = _Idle(effect.idle)
        self.pending: Optional[asyncio.Future[Any]] = None
        if effect.idle is not None:
            self.idle.call = call
            self.idle.touch()
            _watch_on_loop(self.idle)

    async def next(self) -> Any:
        try:
            if self.pending is not None:
                pending, self.pending = self.pending, None
                message = await pending
            else:
                message = await self.call.read()
        except grpc.aio.AioRpcError as error:
            self.idle.stop()
            raise self._translate(error) from error
        except asyncio.CancelledError:
            # gRPC says so too when it was the idle limit or the server that ended the call.
            task = asyncio.current_task()
            asked = getattr(task, "cancelling", None)
            if self.call.cancelled() and asked is not None and not asked():
                raise self._cancelled() from None
            if self.idle.expired:
                raise self._cancelled() from None
            raise
        if message is grpc.aio.EOF:
            self.idle.stop()
            await self._check_end()
            return None
        self.idle.touch()
        return message

    async def settle(self) -> Any:
        if self.pending is None:
            self.pending = asyncio.ensure_future(self.call.read())
        await asyncio.wait([self.pending])
        return await self.next()

    async def _check_end(self) -> None:
        code = await self.call.code()
        if code is grpc.StatusCode.OK:
            return
        if self.idle.expired:
            raise _idle_error(self.idle, self.effect.name)
        raise _errors.from_rpc(
            code,
            await self.call.details() or "",
            await self.call.trailing_metadata(),
            self.effect.path,
        )

    def _translate(self, error: grpc.aio.AioRpcError) -> EskerError:
        if self.idle.expired:
            return _idle_error(self.idle, self.effect.name)
        return _async_error(error, self.effect.path)

    def _cancelled(self) -> EskerError:
        if self.idle.expired:
            return _idle_error(self.idle, self.effect.name)
        return _errors.CancelledError(f"{self.effect.name}: the call was cancelled")

    def cancel(self) -> None:
        self.idle.stop()
        self.call.cancel()
        if self.pending is not None:
            self.pending.add_done_callback(_consume)


def _consume(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _watch_on_loop(idle: _Idle) -> None:
    loop = asyncio.get_running_loop()

    def look() -> None:
        if idle.check():
            loop.call_later(0.25, look)

    loop.call_later(0.25, look)


class _Task:
    def __init__(self, transport: Transport, operation: Op) -> None:
        self.task = asyncio.ensure_future(arun(transport, operation))
        self.task.add_done_callback(_consume)

    async def join(self, timeout: float) -> None:
        done, _ = await asyncio.wait([self.task], timeout=timeout)
        if done:
            self.task.result()
        else:
            self.task.cancel()


async def _aperform(transport: Transport, effect: Any) -> Any:
    if isinstance(effect, Call):
        method = transport.async_method(effect.name, effect.key)
        try:
            return await method(effect.request, timeout=effect.timeout, metadata=transport.call_metadata)
        except grpc.aio.AioRpcError as error:
            raise _async_error(error, effect.path) from error
    if isinstance(effect, Next):
        return await effect.stream.next()
    if isinstance(effect, Settle):
        return await effect.stream.settle()
    if isinstance(effect, Open):
        method = transport.async_method(effect.name, effect.key)
        call = method(effect.request, timeout=effect.timeout, metadata=transport.call_metadata)
        return _AsyncStream(call, effect)
    if isinstance(effect, Invoke):
        result = effect.function(effect.argument)
        return await result if inspect.isawaitable(result) else result
    if isinstance(effect, Cancel):
        return effect.stream.cancel()
    if isinstance(effect, Sleep):
        return await asyncio.sleep(effect.seconds)
    if isinstance(effect, Upload):
        return await _async_upload(transport, effect)
    if isinstance(effect, Spawn):
        return _Task(transport, effect.operation)
    if isinstance(effect, Join):
        return await effect.spawned.join(effect.timeout)
    raise TypeError(f"unknown effect {effect!r}")


async def _async_chunks(chunks: Any) -> AsyncIterator[bytes]:
    if hasattr(chunks, "__aiter__"):
        async for chunk in chunks:
            yield chunk
        return
    for chunk in chunks:
        yield chunk


async def _async_upload(transport: Transport, effect: Upload) -> Any:
    idle = _Idle(effect.idle)
    call = transport.async_method(effect.name, effect.key)(metadata=transport.call_metadata)
    idle.call = call
    idle.touch()
    _watch_on_loop(idle)
    try:
        try:
            await call.write(effect.first)
            async for chunk in _async_chunks(effect.chunks):
                await call.write(effect.make(chunk))
                idle.touch()
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the server ended the call early; awaiting it says why
        return await call
    except grpc.aio.AioRpcError as error:
        if idle.expired:
            raise _idle_error(idle, effect.name) from None
        raise _async_error(error, effect.path) from error
    except asyncio.CancelledError:
        call.cancel()
        if idle.expired:
            raise _idle_error(idle, effect.name) from None
        raise
    except BaseException:
        call.cancel()  # ending in peace would commit half a file
        raise
    finally:
        idle.stop()


async def arun(transport: Transport, operation: Op) -> Any:
    """Performs an operation on the running event loop."""
    send: Callable[..., Any] = operation.send
    value: Any = None
    while True:
        try:
            effect = send(value)
        except StopIteration as stop:
            return stop.value
        try:
            value, send = await _aperform(transport, effect), operation.send
        except BaseException as error:
            value, send = error, operation.throw


async def aiterate(transport: Transport, operation: Op) -> AsyncIterator[Any]:
    """The values that an operation emits."""
    send: Callable[..., Any] = operation.send
    value: Any = None
    while True:
        try:
            effect = send(value)
        except StopIteration:
            return
        try:
            if isinstance(effect, Emit):
                yield effect.value
                value, send = None, operation.send
            else:
                value, send = await _aperform(transport, effect), operation.send
        except BaseException as error:
            value, send = error, operation.throw
