import asyncio
import threading

import grpc
import pytest
from fake_server import Fail

import esker
from esker._proto.esker.v1 import command_pb2 as pb

STARTED = pb.CommandEvent(started=pb.Command(id="c-1", running=True))


def output(offset, data, stream=pb.STREAM_STDOUT):
    return pb.CommandEvent(output=pb.CommandEvent.Output(stream=stream, offset=offset, data=data))


def exited(**fields):
    return pb.CommandEvent(
        exited=pb.Command(id="c-1", sandbox_id="sb-1", shell=b"job", exit=pb.Exit(**fields))
    )


def test_run_collects_streams_and_exit_code(server, sandbox):
    server.on["CommandService.Run"] = lambda request, context: iter(
        [
            STARTED,
            output(0, "h\u00e9"[:2].encode()[:2]),
            output(2, "h\u00e9".encode()[2:]),
            output(0, b"\xffe", pb.STREAM_STDERR),
            exited(exit_code=3, stdout_bytes=3, stderr_bytes=2),
        ]
    )
    pieces = []
    result = sandbox.commands.run("job", on_stdout=pieces.append)
    assert result.exit_code == 3
    assert result.stdout == "h\u00e9" == "".join(pieces)
    assert result.stderr_bytes == b"\xffe"
    assert result.stderr == "\ufffde"
    assert not result.stdout_truncated


def test_requests_carry_what_was_asked(server, sandbox):
    server.on["CommandService.Run"] = lambda request, context: iter([STARTED, exited()])
    sandbox.commands.run(["ls", b"\xff"], envs={"A": "1"}, user="agent", cwd="/w", timeout=1.5, tag="t")
    (request,) = server.requests("CommandService.Run")
    assert list(request.argv) == [b"ls", b"\xff"]
    assert (request.user, request.cwd, request.timeout_ms, request.tag) == ("agent", "/w", 1500, "t")
    assert dict(request.envs) == {"A": "1"}
    assert request.request_id


@pytest.mark.parametrize("bad", [{"timeout": 0}, {"timeout": -1}, {"stdin": True}])
def test_bad_arguments_never_reach_the_server(server, sandbox, bad):
    with pytest.raises(ValueError):
        sandbox.commands.run("job", **bad)
    with pytest.raises(ValueError):
        sandbox.commands.run([])
    assert not server.calls


def test_a_broken_stream_is_resumed_at_its_offsets(server, sandbox):
    def run(request, context):
        yield STARTED
        yield output(0, b"one ")
        yield output(0, b"err", pb.STREAM_STDERR)
        raise Fail(grpc.StatusCode.UNAVAILABLE)

    attached = []

    def attach(request, context):
        attached.append((request.stdout_offset, request.stderr_offset))
        if len(attached) < 3:
            raise Fail(grpc.StatusCode.UNAVAILABLE)
        yield STARTED
        yield output(4, b"two")
        yield exited(stdout_bytes=7, stderr_bytes=3)

    server.on["CommandService.Run"] = run
    server.on["CommandService.Attach"] = attach
    result = sandbox.commands.run("job")
    assert (result.stdout, result.stderr) == ("one two", "err")
    assert attached == [(4, 3)] * 3


def test_a_start_whose_answer_is_lost_is_repeated_with_its_request_id(server, sandbox):
    tries = []

    def run(request, context):
        tries.append(request.request_id)
        if len(tries) < 3:
            raise Fail(grpc.StatusCode.UNAVAILABLE)
        yield STARTED
        yield exited()

    server.on["CommandService.Run"] = run
    sandbox.commands.run("job")
    assert len(tries) == 3
    assert len(set(tries)) == 1


def test_an_answer_is_not_retried(server, sandbox):
    def run(request, context):
        raise Fail(grpc.StatusCode.NOT_FOUND, reason="SANDBOX_NOT_FOUND")
        yield

    server.on["CommandService.Run"] = run
    with pytest.raises(esker.SandboxNotFoundError):
        sandbox.commands.run("job")
    assert len(server.calls) == 1


def test_timeout_raises_with_the_output_so_far(server, sandbox):
    server.on["CommandService.Run"] = lambda request, context: iter(
        [STARTED, output(0, b"part"), exited(exit_code=137, timed_out=True, stdout_bytes=4)]
    )
    with pytest.raises(esker.CommandTimeoutError) as caught:
        sandbox.commands.run("job", timeout=2)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.stdout == "part"
    assert caught.value.result.timed_out
    assert "2 s" in str(caught.value)


def test_check_raises_with_the_result(server, sandbox):
    server.on["CommandService.Run"] = lambda request, context: iter(
        [STARTED, output(0, b"why", pb.STREAM_STDERR), exited(exit_code=5, stderr_bytes=3)]
    )
    with pytest.raises(esker.CommandExitError, match="exit code 5: why") as caught:
        sandbox.commands.run("job", check=True)
    assert caught.value.exit_code == 5


def test_the_end_of_the_sandbox_is_no_result(server, sandbox):
    server.on["CommandService.Run"] = lambda request, context: iter(
        [STARTED, output(0, b"x"), exited(exit_code=137, reason="SANDBOX_ENDED: TTL")]
    )
    with pytest.raises(esker.SandboxEndedError, match="TTL") as caught:
        sandbox.commands.run("job")
    assert caught.value.result.stdout == "x"


def test_the_capture_is_bounded_and_says_so(server, sandbox):
    server.on["CommandService.Run"] = lambda request, context: iter(
        [STARTED, output(0, b"abcdef"), output(6, b"ghi"), exited(stdout_bytes=9)]
    )
    result = sandbox.commands.run("job", capture_limit=4)
    assert (result.stdout, result.stdout_truncated, result.stdout_size) == ("abcd", True, 9)


def wait_cancelled(context):
    gone = threading.Event()
    context.add_callback(gone.set)
    gone.wait(20)


def signalled(server):
    asked = threading.Event()

    def signal(request, context):
        asked.set()
        return pb.SignalCommandResponse(was_running=True)

    server.on["CommandService.Signal"] = signal
    return asked


def test_a_callback_that_fails_kills_the_command(server, sandbox):
    def run(request, context):
        yield STARTED
        yield output(0, b"x")
        wait_cancelled(context)

    server.on["CommandService.Run"] = run
    asked = signalled(server)

    def fail(text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.commands.run("job", on_stdout=fail)
    assert asked.is_set()
    (request,) = server.requests("CommandService.Signal")
    assert request.whole_tree
    assert request.command_id == "c-1"


@pytest.mark.parametrize("begun", [True, False])
async def test_cancelling_the_task_kills_the_command(server, async_sandbox, begun):
    running, release = threading.Event(), threading.Event()

    def run(request, context):
        if begun:
            yield STARTED
            yield output(0, b"x")
        running.set()
        if not begun:
            release.wait(20)  # cancelled before the client knows which command it is
            yield STARTED
        wait_cancelled(context)

    server.on["CommandService.Run"] = run
    asked = signalled(server)
    seen = asyncio.Event()
    task = asyncio.ensure_future(async_sandbox.commands.run("job", on_stdout=lambda text: seen.set()))
    if begun:
        await asyncio.wait_for(seen.wait(), 20)
    assert await asyncio.to_thread(running.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asked.is_set()
    assert server.requests("CommandService.Signal")[0].whole_tree


async def test_async_resumes_too(server, async_sandbox):
    def run(request, context):
        yield STARTED
        yield output(0, b"one ")
        raise Fail(grpc.StatusCode.UNAVAILABLE)

    server.on["CommandService.Run"] = run
    server.on["CommandService.Attach"] = lambda request, context: iter(
        [STARTED, output(request.stdout_offset, b"two"), exited(stdout_bytes=7)]
    )
    pieces = []

    async def keep(text):
        pieces.append(text)

    result = await async_sandbox.commands.run("job", on_stdout=keep)
    assert result.stdout == "one two" == "".join(pieces)


def test_background_wait_time_limit_leaves_the_command_alone(server, sandbox):
    server.on["CommandService.Start"] = lambda request, context: STARTED.started

    def attach(request, context):
        yield STARTED
        wait_cancelled(context)

    server.on["CommandService.Attach"] = attach
    handle = sandbox.commands.run("job", background=True)
    assert handle.id == "c-1"
    with pytest.raises(TimeoutError):
        handle.wait(timeout=0.3)
    assert not server.requests("CommandService.Signal")


def test_disconnect_ends_a_wait(server, sandbox):
    server.on["CommandService.Start"] = lambda request, context: STARTED.started

    def attach(request, context):
        yield STARTED
        yield output(0, b"x")
        wait_cancelled(context)

    server.on["CommandService.Attach"] = attach
    handle = sandbox.commands.run("job", background=True)
    failures = []

    def wait():
        try:
            handle.wait(on_stdout=lambda text: seen.set())
        except esker.EskerError as error:
            failures.append(error)

    seen = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    assert seen.wait(20)
    handle.disconnect()
    thread.join(20)
    assert isinstance(failures[0], esker.CancelledError)


def test_stdin_is_sent_by_offset_and_repeats_are_harmless(server, sandbox):
    received, ended = bytearray(), threading.Event()
    flaky = iter([True, False, True, False, False, False])

    def send(request, context):
        assert request.has_offset
        fresh = request.data[len(received) - request.offset :]
        received.extend(fresh)
        if request.eof:
            ended.set()
        if next(flaky, False):
            raise Fail(grpc.StatusCode.UNAVAILABLE)  # taken, but the answer is lost
        return pb.SendStdinResponse(accepted=len(received))

    def run(request, context):
        assert request.stdin
        yield STARTED
        ended.wait(20)
        yield exited()

    server.on["CommandService.SendStdin"] = send
    server.on["CommandService.Run"] = run
    data = bytes(range(256)) * 3000
    sandbox.commands.run("cat", stdin=data)
    assert bytes(received) == data


def test_events_carry_offsets_and_losses(server, sandbox):
    server.on["CommandService.Get"] = lambda request, context: STARTED.started
    server.on["CommandService.Attach"] = lambda request, context: iter(
        [STARTED, output(50, b"abc"), exited(stdout_bytes=53)]
    )
    handle = sandbox.commands.connect("c-1", stdout_offset=10)
    (event,) = list(handle)
    assert (event.stream, event.data, event.offset, event.lost) == ("stdout", b"abc", 50, 40)
    assert server.requests("CommandService.Attach")[0].stdout_offset == 10
