"""SIGKILL at bad moments: nothing acknowledged is lost, nothing leaks, clients hardly notice."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import threading
import time

import esker
import pytest
from conftest import IMAGE
from esker import AsyncSandbox, Sandbox
from esker_server import wait_until
from small_image import make_tar, pseudo_random
from steps import Background, tree_hash

ROUNDS = int(os.environ.get("ESKER_E2E_ROUNDS", "3"))


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_killed_server_loses_no_output(server, sandbox, round_number):
    lines, seen = 3000, threading.Event()
    script = (
        f"i=0; while [ $i -lt {lines} ]; do echo line $i; i=$((i+1));"
        " [ $((i % 100)) = 0 ] && usleep 20000; done; exit 17"
    )
    call = Background(
        lambda: sandbox.commands.run(script, on_stdout=lambda text: seen.set(), timeout=120)
    )
    assert seen.wait(30)
    server.kill()
    server.start()
    result = call.result()
    assert result.exit_code == 17
    assert result.stdout == "".join(f"line {n}\n" for n in range(lines))
    assert sandbox.get_info().state == "running"


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_async_calls_survive_too(server, async_client, how):
    sandboxes = await asyncio.gather(*(AsyncSandbox.create(IMAGE, client=async_client) for _ in range(5)))
    begun = [asyncio.Event() for _ in range(20)]
    script = "for i in $(seq 100); do echo $i; usleep 20000; done; exit 3"
    tasks = [
        asyncio.ensure_future(
            sandboxes[n % 5].commands.run(script, on_stdout=lambda text, e=event: e.set())
        )
        for n, event in enumerate(begun)
    ]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), 30)
    await asyncio.to_thread(getattr(server, how))
    more = [asyncio.ensure_future(sandbox.commands.run("echo more")) for sandbox in sandboxes]
    await asyncio.to_thread(server.start)
    for result in await asyncio.wait_for(asyncio.gather(*tasks), 60):
        assert (result.exit_code, result.stdout) == (3, "".join(f"{n}\n" for n in range(1, 101)))
    assert [r.stdout for r in await asyncio.gather(*more)] == ["more\n"] * 5
    await asyncio.gather(*(sandbox.kill() for sandbox in sandboxes))


def test_what_ends_while_the_server_is_away_is_collected(server, sandbox):
    handle = sandbox.commands.run(
        "echo begun; while [ ! -e /tmp/go ]; do usleep 10000; done; echo ended; exit 5",
        background=True,
    )
    limited = sandbox.commands.run("sleep 1000 & sleep 1000", background=True, timeout=2)
    for event in handle:
        if "begun" in event.text:
            break
    sandbox.commands.run("(usleep 500000; touch /tmp/go) > /dev/null 2>&1 &")
    server.kill()
    time.sleep(3)  # not a synchronisation: long enough for both to end with nobody there
    server.start()
    result = handle.wait(timeout=30)
    assert (result.stdout, result.exit_code) == ("begun\nended\n", 5)
    with pytest.raises(esker.CommandTimeoutError):
        limited.wait(timeout=30)
    assert "sleep 1000" not in sandbox.commands.run(["ps", "-o", "args"]).stdout


def test_calls_wait_for_the_server_to_come_back(server, new):
    sandbox = new()
    sandbox.files.write("/tmp/f", b"before")
    server.kill()
    calls = [
        Background(lambda: sandbox.commands.run("cat /tmp/f").stdout),
        Background(lambda: sandbox.files.read("/tmp/f")),
        Background(lambda: sandbox.get_info().state),
        Background(lambda: new().id),
        Background(lambda: sandbox.files.write("/tmp/g", b"x" * 5_000_000).size),
    ]
    server.start()
    assert [call.result() for call in calls[:3]] == ["before", "before", "running"]
    assert calls[3].result()
    assert calls[4].result() == 5_000_000


def test_an_upload_and_a_download_survive(server, sandbox):
    data = pseudo_random(48 << 20, seed=3)
    moved = threading.Event()

    def pieces():
        for piece in sandbox.files.read("/data/blob", "stream"):
            moved.set()
            yield piece

    digest = Background(lambda: hashlib.sha256(b"".join(pieces())).hexdigest())
    upload = Background(lambda: sandbox.files.write("/tmp/up", data))
    assert moved.wait(30)
    server.kill()
    server.start()
    assert upload.result().size == len(data)
    assert digest.result() == hashlib.sha256(pseudo_random(16 << 20)).hexdigest()
    there = sandbox.commands.run(["sha256sum", "/tmp/up"]).stdout.split()[0]
    assert there == hashlib.sha256(data).hexdigest()
    assert [e.name for e in sandbox.files.list("/tmp") if e.type == "file"] == ["up"]


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_kills_in_the_middle_of_everything(server, client, round_number):
    """Creates, snapshots, forks and deletes under way: what was acknowledged is there afterwards."""
    made: list[str] = []
    snapshots: list[tuple[str, str]] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            sandbox = Sandbox.create(IMAGE, client=client, metadata={"crash": "yes"})
            made.append(sandbox.id)
            sandbox.commands.run("head -c 100000 /dev/urandom > /tmp/r", timeout=60)
            snapshots.append((sandbox.snapshot().id, tree_hash(sandbox)))

    workers = [Background(work) for _ in range(2)]
    wait_until(lambda: len(snapshots) >= 2 + round_number, timeout=60)
    server.kill()
    server.start()
    stop.set()
    for worker in workers:
        worker.result(120)
    alive = {info.id for info in Sandbox.list(metadata={"crash": "yes"}, client=client)}
    assert alive == set(made)
    image, wanted = snapshots[-1]
    with Sandbox.create(image, client=client) as restored:
        assert tree_hash(restored) == wanted
    for sandbox_id in made:
        Sandbox(sandbox_id, client).kill()
    for image, _ in snapshots:
        client.remove_image(image, force=True)
    assert not list(Sandbox.list(metadata={"crash": "yes"}, client=client))


def test_a_stopped_server_leaves_sandboxes_running(server, sandbox):
    counting = sandbox.commands.run(
        "i=0; while :; do i=$((i+1)); echo $i > /tmp/i; usleep 10000; done", background=True
    )
    wait_until(lambda: sandbox.files.exists("/tmp/i"))
    server.stop()
    server.start()
    assert counting.get_info().running
    first = int(sandbox.files.read("/tmp/i") or 0)
    wait_until(lambda: int(sandbox.files.read("/tmp/i") or 0) > first)


def test_request_ids_hold_across_a_restart(server, new):
    first = new(idempotency_key="across", metadata={"a": "1"})
    server.kill()
    server.start()
    assert new(idempotency_key="across", metadata={"a": "1"}).id == first.id
    with pytest.raises(esker.AlreadyExistsError):
        new(idempotency_key="across", metadata={"a": "other"})


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_killed_blob_server_stalls_readers_only(server, new, work, round_number):
    # An image of its own, so that its data comes through the blob server and not from the cache.
    tar, name = work / f"lazy{round_number}.tar", f"lazy:{round_number}"
    blob = pseudo_random(24 << 20, seed=50 + round_number)
    make_tar(tar, blob)
    wanted = hashlib.sha256(blob).hexdigest()
    server.cli("image", "push", f"tar:{tar}", name)
    tar.unlink()
    sandboxes = [new(name) for _ in range(3)]
    # Piece by piece, so that there is always something left to read.
    script = (
        "i=0; while [ $i -lt 24 ]; do dd if=/data/blob bs=1M skip=$i count=1 2>/dev/null || exit 1;"
        " i=$((i+1)); usleep 50000; done | sha256sum"
    )
    calls = [Background(lambda s=s: s.commands.run(script, timeout=120).stdout) for s in sandboxes]
    for _ in range(2):
        assert all(call.is_alive() for call in calls)
        pid = int(server.status()["blob_server_pid"])
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: int(server.status().get("blob_server_pid", 0)) not in (0, pid),
            what="a new blob server",
        )
    assert {call.result().split()[0] for call in calls} == {wanted}
    for sandbox in sandboxes:
        sandbox.kill()
    server.cli("image", "rm", name)


def test_paused_sandboxes_and_time_to_live_outlive_a_restart(server, new):
    paused, short = new(), new(ttl=2)
    paused.commands.run("echo kept > /dev/shm/f 2>/dev/null || echo kept > /tmp/f", check=True)
    counting = paused.commands.run("while :; do usleep 10000; done", background=True)
    paused.pause()
    expires = short.get_info().expires.timestamp()
    server.kill()
    wait_until(lambda: time.time() > expires, what="its time has passed while nobody looked")
    server.start()
    assert paused.get_info().state == "paused"
    assert counting.get_info().running
    assert paused.commands.run("cat /dev/shm/f /tmp/f 2>/dev/null").stdout == "kept\n"
    assert paused.get_info().state == "running"
    wait_until(lambda: short.get_info().state == "ended", what="its time to live has ended it")
    assert short.get_info().end_reason == "TTL"


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_fork_under_way_is_done_once(server, client, new, round_number):
    parent = new()
    mark = f"fork{round_number}"
    call = Background(lambda: parent.fork(6, metadata={"mark": mark}))

    def made():
        try:
            return len(list(Sandbox.list(metadata={"mark": mark}, client=client)))
        except esker.EskerError:
            return 0

    wait_until(lambda: made() >= round_number, what="the fork is under way")
    server.kill()
    server.start()
    children = call.result()
    try:
        assert len({child.id for child in children}) == 6
        found = {info.id for info in Sandbox.list(metadata={"mark": mark}, client=client)}
        assert found == {child.id for child in children}
        assert all(child.commands.run("echo hi").stdout == "hi\n" for child in children)
    finally:
        for info in Sandbox.list(metadata={"mark": mark}, client=client):
            Sandbox(info.id, client).kill()


def test_a_killed_keeper_takes_its_sandboxes_and_says_so(server, new):
    before = [new() for _ in range(3)]
    call = Background(lambda: before[0].commands.run("echo x; sleep 1000"))
    wait_until(lambda: before[0].commands.list(), what="the command runs")
    os.kill(int(server.status()["keeper_pid"]), signal.SIGKILL)
    with pytest.raises(esker.EskerError):
        call.result()
    wait_until(
        lambda: all(sandbox.get_info().state == "ended" for sandbox in before),
        what="all are reported as ended",
    )
    assert {sandbox.get_info().end_reason for sandbox in before} <= {"INIT_DIED", "NODE_RESTART"}
    # Either the server has a new keeper, or a restart makes one; nothing is broken for good.
    try:
        after = new()
    except esker.EskerError:
        server.kill()
        server.start()
        after = new()
    assert after.commands.run("echo alive").stdout == "alive\n"


def test_a_push_that_is_killed_leaves_nothing_visible(server, work):
    tar = work / "half.tar"
    make_tar(tar, pseudo_random(200 << 20, seed=9))
    push = Background(lambda: server.run("image", "push", f"tar:{tar}", "half:1", timeout=120))
    store = server.data / "store"
    size = store_bytes(store)
    wait_until(lambda: store_bytes(store) > size + (8 << 20), what="the push is under way")
    server.kill()
    push.join(60)
    server.start()
    assert "half:1" not in server.cli("image", "ls")
    server.cli("image", "push", f"tar:{tar}", "half:1")
    assert "half:1" in server.cli("image", "ls")
    tar.unlink()
    server.cli("image", "rm", "half:1")
    server.cli("gc", "--grace", "0")
    assert store_bytes(store) < size + (1 << 20)


def store_bytes(store) -> int:
    total = 0
    for path in store.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            pass
    return total


def test_two_pushes_of_the_same_image_at_once(server, work):
    tar = work / "twice.tar"
    make_tar(tar, pseudo_random(32 << 20, seed=10))
    pushes = [
        Background(lambda n=n: server.cli("image", "push", f"tar:{tar}", f"twice:{n}")) for n in range(2)
    ]
    for push in pushes:
        push.result(120)
    ids = {server.json("image", "inspect", f"twice:{n}")["id"] for n in range(2)}
    assert len(ids) == 1
    for n in range(2):
        server.cli("image", "rm", f"twice:{n}")
