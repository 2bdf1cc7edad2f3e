"""Commands: exit codes, streams, time-outs, background, stdin, users."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import esker
import pytest
from esker_server import wait_until


def test_exit_codes(shared):
    assert shared.commands.run("exit 0").exit_code == 0
    assert shared.commands.run("exit 7").exit_code == 7
    assert shared.commands.run(["false"]).exit_code == 1


def test_killed_by_a_signal_is_128_and_the_signal(shared):
    result = shared.commands.run("kill -TERM $$")
    assert (result.exit_code, result.signal) == (128 + signal.SIGTERM, signal.SIGTERM)


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["/nope"], 127), (["no-such-program"], 127), (["/etc/plain"], 126), (["/etc"], 126)],
)
def test_what_cannot_be_started_says_why(shared, argv, code):
    result = shared.commands.run(argv)
    assert result.exit_code == code
    assert argv[0] in result.error or os.path.basename(argv[0]) in result.error


def test_shell_falls_back_to_sh(shared):
    assert not shared.files.exists("/bin/bash")
    assert shared.commands.run("echo $((6*7))").stdout == "42\n"


def test_bytes_that_are_not_utf8_arrive_whole(shared):
    result = shared.commands.run(r"printf '\377\000a\303'; printf '\251' >&2")
    assert result.stdout_bytes == b"\xff\x00a\xc3"
    assert result.stderr_bytes == b"\xa9"
    assert result.stdout == "\ufffd\0a\ufffd"


def test_arguments_are_bytes(shared):
    result = shared.commands.run([b"printf", b"%s", b"\xff'\"$x "])
    assert result.stdout_bytes == b"\xff'\"$x "


def test_output_streams_while_the_command_runs(shared):
    seen = []

    def on_stdout(text):
        if "first" in text:
            seen.append("while running")
            shared.files.write("/tmp/go", b"")
        if "second" in text:
            seen.append("after")

    script = "echo first; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo second"
    shared.commands.run(script, on_stdout=on_stdout, timeout=30)
    assert seen == ["while running", "after"]


def test_much_output_is_whole(shared):
    size = 20_000_000
    result = shared.commands.run(f"yes abcdefghi | head -c {size}")
    assert result.stdout_size == size
    assert result.stdout_bytes == (b"abcdefghi\n" * (size // 10))
    assert not result.stdout_truncated


def test_the_capture_is_bounded_and_says_so(shared):
    result = shared.commands.run("yes | head -c 3000000", capture_limit=1000)
    assert result.stdout_truncated
    assert len(result.stdout_bytes) == 1000
    assert result.stdout_size == 3_000_000


def test_a_slow_reader_gets_everything(shared):
    """More than the server keeps: the command waits for its reader instead of losing output."""
    size, seen = 100_000_000, [0]

    def slowly(text):
        if seen[0] == 0:
            time.sleep(1)
        seen[0] += len(text)

    result = shared.commands.run(f"yes | head -c {size}", on_stdout=slowly, capture_limit=10)
    assert (seen[0], result.stdout_size) == (size, size)


def test_without_a_reader_the_newest_output_is_kept(shared):
    handle = shared.commands.run("yes abcdefghi | head -c 90000000; echo end", background=True)
    wait_until(lambda: not handle.get_info().running, timeout=60)
    events = list(handle)
    assert events[0].lost > 0
    assert events[0].offset == events[0].lost
    assert events[-1].text.endswith("end\n")
    assert sum(len(e.data) + e.lost for e in events) == 90_000_004
    result = handle.wait(timeout=30)
    assert result.stdout_truncated
    assert result.stdout_size == 90_000_004


def test_two_followers_see_the_same(shared):
    handle = shared.commands.run("for i in $(seq 500); do echo $i; usleep 1000; done", background=True)
    other = shared.commands.connect(handle.id)
    texts = []
    threads = [
        threading.Thread(target=lambda h=h: texts.append(h.wait(timeout=30).stdout))
        for h in (handle, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert texts == ["".join(f"{n}\n" for n in range(1, 501))] * 2


def test_environment_directory_and_user(new):
    sandbox = new(envs={"A": "sandbox", "B": "sandbox"})
    run = sandbox.commands.run
    assert run("echo $A $B", envs={"B": "command"}).stdout == "sandbox command\n"
    assert run("pwd", cwd="/usr").stdout == "/usr\n"
    assert run("id -u").stdout == "0\n"
    assert run("id -u; id -g; pwd", user="agent").stdout == "1000\n1000\n/home/agent\n"
    assert run("id -u; id -g", user="12:34").stdout == "12\n34\n"


def test_a_user_or_directory_that_is_missing_says_so(shared):
    for what in ({"user": "nobody-here"}, {"cwd": "/nope"}):
        result = shared.commands.run("true", **what)
        assert result.exit_code == 126
        assert next(iter(what.values())) in result.error


def processes(sandbox) -> str:
    return sandbox.commands.run(["ps", "-o", "args"]).stdout


@pytest.mark.parametrize("how", ["child", "setsid", "double fork"])
def test_a_timeout_kills_everything_that_was_started(sandbox, how):
    mark = "987.654"
    start = {
        "child": f"sleep {mark} & sleep {mark}",
        "setsid": f"setsid sleep {mark} & sleep {mark}",
        "double fork": f"(setsid sh -c 'sleep {mark} & sleep {mark}' &) ; sleep {mark}",
    }[how]
    begun = time.monotonic()
    with pytest.raises(esker.CommandTimeoutError) as caught:
        sandbox.commands.run(f"echo before; {start}", timeout=1)
    assert time.monotonic() - begun < 5
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.stdout == "before\n"
    assert caught.value.result.timed_out
    assert mark not in processes(sandbox)


def test_a_background_child_does_not_hold_the_call(shared):
    begun = time.monotonic()
    result = shared.commands.run("echo done; sleep 60 &")
    assert result.stdout == "done\n"
    assert time.monotonic() - begun < 20


def test_background_find_again_and_wait(shared):
    handle = shared.commands.run(
        "echo one; while [ ! -e /tmp/two ]; do sleep 0.02; done; echo two; exit 9",
        background=True,
        tag="mine",
    )
    assert handle.pid > 1
    (info,) = [info for info in shared.commands.list() if info.tag == "mine"]
    assert (info.id, info.running, info.background) == (handle.id, True, True)
    with pytest.raises(TimeoutError):
        handle.wait(timeout=0.3)
    again = shared.commands.connect(info.id)
    shared.files.write("/tmp/two", b"")
    result = again.wait(timeout=20)
    assert (result.stdout, result.exit_code) == ("one\ntwo\n", 9)
    assert handle.wait(timeout=20).stdout == "one\ntwo\n"  # and once more
    assert "mine" not in [info.tag for info in shared.commands.list()]
    (info,) = [i for i in shared.commands.list(include_ended=True) if i.tag == "mine"]
    assert (info.exit_code, info.running) == (9, False)


def test_attach_at_an_offset(shared):
    handle = shared.commands.run("printf 0123456789; printf abc >&2", background=True)
    handle.wait(timeout=20)
    later = shared.commands.connect(handle.id, stdout_offset=4, stderr_offset=1)
    result = later.wait(timeout=20)
    assert (result.stdout, result.stderr) == ("456789", "bc")
    events = list(shared.commands.connect(handle.id, stdout_offset=8))
    assert events[0].offset in (8, 0)
    with pytest.raises(ValueError):
        shared.commands.connect(handle.id, stdout_offset=99).wait(timeout=20)
    with pytest.raises(esker.NotFoundError):
        shared.commands.connect("no-such-command")


def test_signals(shared):
    handle = shared.commands.run(
        "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.02; done", background=True
    )
    for event in handle:
        if "ready" in event.text:
            assert handle.send_signal(signal.SIGUSR1)
    result = handle.wait(timeout=20)
    assert (result.stdout, result.exit_code) == ("ready\ncaught\n", 5)
    assert not handle.send_signal(signal.SIGUSR1)


def test_kill(shared):
    handle = shared.commands.run("sleep 100 & sleep 100", background=True)
    assert shared.commands.kill(handle.id)
    result = handle.wait(timeout=20)
    assert (result.exit_code, result.signal, result.timed_out) == (137, 9, False)
    assert not handle.kill()
    with pytest.raises(esker.NotFoundError):
        shared.commands.kill("no-such-command")


def test_stdin_as_data(shared):
    data = os.urandom(1 << 20)
    assert shared.commands.run(["cat"], stdin=data).stdout_bytes == data
    assert shared.commands.run("wc -c", stdin="").stdout.strip() == "0"
    assert shared.commands.run("cat").stdout == ""  # /dev/null


def test_stdin_that_nobody_reads_does_not_hang(shared):
    result = shared.commands.run("exec <&-; echo hi", stdin=b"x" * 10_000_000, timeout=30)
    assert result.stdout == "hi\n"


def test_stdin_piece_by_piece(shared):
    handle = shared.commands.run(["cat"], background=True, stdin=True)
    handle.send_stdin("one ")
    shared.commands.send_stdin(handle.id, b"two")
    handle.close_stdin()
    assert handle.wait(timeout=20).stdout == "one two"
    with pytest.raises(esker.FailedPreconditionError):
        shared.commands.connect(handle.id).send_stdin("late")


def test_check(shared):
    with pytest.raises(esker.CommandExitError, match="broken") as caught:
        shared.commands.run("echo broken >&2; exit 3", check=True)
    assert caught.value.exit_code == 3
    assert caught.value.blame == "command"


def test_memory_limit_is_named(new):
    sandbox = new(memory_mb=32)
    result = sandbox.commands.run("head -c 100000000 /dev/zero | tail", timeout=60)
    assert result.oom_killed
    assert sandbox.get_metrics().oom_kills >= 1
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_a_fork_bomb_stays_inside(new):
    sandbox = new(pids=32)
    try:
        sandbox.commands.run("b() { b | b & }; b; sleep 3", timeout=10)
    except esker.CommandTimeoutError:
        pass
    assert sandbox.get_metrics().pids_limit_hits > 0


def test_interrupt_kills_the_command(sandbox):
    def interrupt(text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandbox.commands.run("echo go; sleep 876.5 & sleep 876.5", on_stdout=interrupt)
    wait_until(lambda: "876.5" not in processes(sandbox), what="the command is gone")


def test_control_c_kills_the_command(server, sandbox):
    program = (
        "import esker, sys\n"
        "run = esker.Sandbox.connect(sys.argv[1]).commands.run\n"
        "run('echo go; sleep 654.3 & sleep 654.3', on_stdout=lambda t: print(t, flush=True))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, sandbox.id],
        env={**os.environ, "ESKER_ADDRESS": server.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"go\n"
        process.send_signal(signal.SIGINT)
        try:
            error = process.communicate(timeout=30)[1]
        finally:
            process.kill()
    assert b"KeyboardInterrupt" in error
    assert "654.3" not in processes(sandbox)


async def test_cancelling_the_task_kills_the_command(async_sandbox):
    running = asyncio.Event()
    task = asyncio.ensure_future(
        async_sandbox.commands.run(
            "echo go; setsid sleep 765.4 & sleep 765.4", on_stdout=lambda text: running.set()
        )
    )
    await asyncio.wait_for(running.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    listing = await async_sandbox.commands.run(["ps", "-o", "args"])
    assert "765.4" not in listing.stdout


async def test_many_commands_at_once(async_sandbox):
    results = await asyncio.gather(
        *(async_sandbox.commands.run(f"echo {n}; exit {n % 100}") for n in range(100))
    )
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(100)]
    assert [result.exit_code for result in results] == [n % 100 for n in range(100)]


def test_a_sandbox_that_ends_ends_its_calls(sandbox):
    failures, begun = [], threading.Event()

    def run():
        try:
            sandbox.commands.run("echo x; sleep 100", on_stdout=lambda text: begun.set())
        except esker.EskerError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(20)
    sandbox.kill()
    thread.join(20)
    assert not thread.is_alive()
    assert "DELETED" in str(failures[0])


def test_orphans_are_reaped(sandbox):
    sandbox.commands.run("for i in $(seq 200); do (true &) ; done")
    wait_until(
        lambda: "Z" not in sandbox.commands.run(["ps", "-o", "stat"]).stdout.replace("STAT", ""),
        what="no zombie is left",
    )
