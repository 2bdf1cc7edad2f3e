"""The life of sandboxes: create, list, pause, snapshot, fork, time to live."""

from __future__ import annotations

import asyncio
import uuid

import esker
import pytest
from conftest import IMAGE
from esker import AsyncSandbox, Sandbox
from esker_server import wait_until
from steps import tree_hash

def test_info_and_metrics(new, client):
    sandbox = new(metadata={"a": "b"}, memory_mb=96, pids=77, disk_mb=64, job="j", cpu=0.5)
    info = Sandbox.connect(sandbox.id, client=client).get_info()
    assert (info.id, info.state, info.tier, info.image_name) == (
        sandbox.id,
        "running",
        "container",
        IMAGE,
    )
    assert (info.resources.memory_mb, info.resources.pids, info.resources.disk_mb) == (96, 77, 64)
    assert (info.metadata, info.project, info.job) == ({"a": "b"}, "default", "j")
    assert 3500 < (info.expires - info.created).total_seconds() < 3700
    metrics = sandbox.get_metrics()
    assert metrics.memory_limit_bytes == 96 << 20
    assert metrics.disk_limit_bytes == 64 << 20
    assert metrics.pids >= 1


def test_context_manager_kills_and_describe_remembers(client):
    with Sandbox.create(IMAGE, client=client) as sandbox:
        sandbox.commands.run("true")
    assert not sandbox.kill()
    description = sandbox.describe()
    assert (description.info.state, description.info.end_reason) == ("ended", "DELETED")
    what = [event.what for event in description.events]
    assert "RUNNING" in what
    assert what[-1] == "ENDED"
    with pytest.raises(esker.SandboxNotFoundError):
        Sandbox.connect(sandbox.id, client=client)
    with pytest.raises(esker.EskerError) as caught:
        sandbox.commands.run("true")
    assert sandbox.id in str(caught.value)
    with pytest.raises(esker.SandboxNotFoundError):
        Sandbox.connect("no-such-sandbox", client=client)


def test_list_by_metadata_project_and_job(new, client):
    mark = uuid.uuid4().hex
    ids = {new(metadata={"mark": mark, "n": str(n)}, project="p1", job=mark).id for n in range(3)}
    new(metadata={"mark": "other"})
    found = list(Sandbox.list(metadata={"mark": mark}, client=client))
    assert {info.id for info in found} == ids
    assert len(list(Sandbox.list(metadata={"mark": mark, "n": "1"}, client=client))) == 1
    assert {info.id for info in Sandbox.list(project="p1", job=mark, client=client)} == ids
    assert not list(Sandbox.list(project="p2", job=mark, client=client))
    Sandbox(found[0].id, client).kill()
    assert len(list(Sandbox.list(job=mark, client=client))) == 2
    assert len(list(Sandbox.list(job=mark, include_ended=True, client=client))) == 3


def test_idempotency_key(new):
    key = uuid.uuid4().hex
    first = new(idempotency_key=key, metadata={"a": "1"})
    assert new(idempotency_key=key, metadata={"a": "1"}).id == first.id
    with pytest.raises(esker.AlreadyExistsError):
        new(idempotency_key=key, metadata={"a": "2"})


def test_what_this_node_cannot_do(new, sandbox):
    for tier in ("function", "microvm", "vm"):
        with pytest.raises(NotImplementedError):
            new(tier=tier)
    with pytest.raises(NotImplementedError, match="files"):
        sandbox.snapshot(keep="memory")
    with pytest.raises(NotImplementedError):
        sandbox.fork(1, keep="memory")


def test_isolation_from_the_host_and_each_other(new):
    one, two = new(), new()
    one.files.write("/tmp/mine", b"1")
    assert not two.files.exists("/tmp/mine")
    assert one.commands.run("hostname").stdout.strip() == one.id
    assert len(one.commands.run(["ps", "-o", "pid"]).stdout.split()) < 8
    assert one.commands.run("ls /sys/class/net 2>/dev/null; cat /proc/net/dev | grep -c :").stdout
    for command in ("mount -t tmpfs none /tmp", "mknod /tmp/d b 8 0", "chroot / true || false"):
        assert one.commands.run(command).exit_code != 0 or command.startswith("chroot")


def test_pause_freezes_and_use_resumes(sandbox, client):
    sandbox.commands.run(
        "i=0; while :; do i=$((i+1)); echo $i > /tmp/i; sleep 0.01; done", background=True
    )
    wait_until(lambda: sandbox.files.exists("/tmp/i"))
    before = sandbox.get_metrics().memory_bytes
    sandbox.pause()
    assert sandbox.get_info().state == "paused"
    assert sandbox.get_metrics().memory_bytes <= before + (1 << 20)
    assert sandbox.get_info().state == "paused"  # looking does not resume
    sandbox.pause()  # twice is fine
    first = int(sandbox.files.read("/tmp/i") or 0)
    assert sandbox.get_info().state == "running"
    wait_until(lambda: int(sandbox.files.read("/tmp/i") or 0) > first)
    sandbox.pause()
    sandbox.resume()
    assert sandbox.get_info().state == "running"
    sandbox.pause()
    assert sandbox.kill()


def test_ten_pauses_keep_every_byte(sandbox):
    sandbox.commands.run(
        "head -c 3000000 /dev/urandom > /tmp/r; truncate -s 9000000 /tmp/sparse;"
        " echo x >> /tmp/sparse; truncate -s 5 /tmp/r2",
        check=True,
    )
    before = tree_hash(sandbox)
    for _ in range(10):
        sandbox.pause()
        sandbox.resume()
    assert tree_hash(sandbox) == before


def test_snapshot_is_what_was_there(new, sandbox, client):
    sandbox.commands.run(
        "echo kept > /tmp/kept; rm /etc/group; mkdir /new; ln -s kept /tmp/l; ln /tmp/kept /tmp/h;"
        " chown 1000:1000 /new; chmod 2770 /new; mv /data /moved; rm -r /usr; mkdir /usr;"
        " echo '' > /tmp/.wh.kept; mkfifo /tmp/fifo; truncate -s 1000000 /tmp/sparse",
        check=True,
    )
    before = tree_hash(sandbox)
    snapshot = sandbox.snapshot(name="snap:1")
    sandbox.commands.run("echo changed > /tmp/kept; rm -r /new", check=True)
    restored = new(snapshot.id)
    assert tree_hash(restored) == before
    assert restored.files.read("/tmp/kept") == "kept\n"
    assert restored.commands.run("stat -c %h /tmp/kept").stdout == "2\n"
    assert tree_hash(new("snap:1")) == before
    (image,) = [i for i in client.images(include_snapshots=True) if i.id == snapshot.id]
    assert (image.kind, image.origin["sandbox"]) == ("snapshot", sandbox.id)
    again = restored.snapshot()  # a snapshot of what came from a snapshot
    assert tree_hash(new(again.id)) == before


def test_a_sandbox_that_wrecks_itself_is_still_served(new, sandbox):
    """Nothing that the platform does runs a program of the image."""
    sandbox.files.write("/tmp/kept", b"kept")
    sandbox.commands.run("rm -rf /bin /usr /etc /lib 2>/dev/null; kill -9 1; kill -9 -1")
    assert sandbox.files.read("/tmp/kept") == "kept"
    assert sandbox.commands.run("true").exit_code == 127
    snapshot = sandbox.snapshot()
    sandbox.pause()
    sandbox.resume()
    assert new(snapshot.id).files.read("/tmp/kept") == "kept"
    assert sandbox.get_info().state == "running"


def test_a_snapshot_under_load_leaves_the_command_running(new, sandbox):
    writer = sandbox.commands.run(
        "i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i > /tmp/$((i % 50)); done; echo fine",
        background=True,
    )
    wait_until(lambda: sandbox.files.exists("/tmp/49"))
    snapshots = [sandbox.snapshot() for _ in range(5)]
    sandbox.files.write("/tmp/stop", b"")
    assert writer.wait(timeout=30).stdout == "fine\n"
    for snapshot in snapshots:
        files = new(snapshot.id).files.list("/tmp")
        assert len(files) == 50
    assert all(snapshot.frozen < 5 for snapshot in snapshots)


def test_an_unchanged_sandbox_snapshots_and_restores(new, sandbox):
    assert tree_hash(new(sandbox.snapshot().id)) == tree_hash(sandbox)


def test_forks_are_alike_and_apart(sandbox):
    sandbox.commands.run("echo parent > /tmp/f; head -c 1000000 /dev/urandom > /tmp/r", check=True)
    children = sandbox.fork(8, metadata={"child": "yes"})
    try:
        before = tree_hash(sandbox)
        assert {tree_hash(child) for child in children} == {before}
        assert len({child.id for child in children} | {sandbox.id}) == 9
        assert all(child.get_info().metadata["child"] == "yes" for child in children)
        for n, child in enumerate(children):
            child.commands.run(f"echo {n} > /tmp/f; rm /tmp/r", check=True)
        assert [child.files.read("/tmp/f") for child in children] == [f"{n}\n" for n in range(8)]
        assert tree_hash(sandbox) == before
    finally:
        for child in children:
            child.kill()


def test_time_to_live_ends_it(new, client):
    sandbox = new(ttl=1)
    wait_until(lambda: sandbox.get_info().state == "ended", what="its time to live has passed")
    assert sandbox.get_info().end_reason == "TTL"
    longer = new(ttl=2)
    longer.set_timeout(ttl=600)
    info = longer.get_info()
    assert (info.expires - info.created).total_seconds() > 500
    endless = new(ttl=-1)
    assert endless.get_info().expires is None
    idle = new(idle_ttl=1)
    wait_until(lambda: idle.get_info().state == "ended", what="its idle time has passed")
    assert idle.get_info().end_reason == "IDLE_TTL"


async def test_cancelled_create_leaves_nothing(async_client):
    mark = uuid.uuid4().hex

    async def alive() -> int:
        infos = AsyncSandbox.list(metadata={"mark": mark}, client=async_client)
        return len([info async for info in infos])

    tasks = [
        asyncio.ensure_future(AsyncSandbox.create(IMAGE, metadata={"mark": mark}, client=async_client))
        for _ in range(5)
    ]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    pending = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    await asyncio.wait_for(asyncio.gather(*pending, return_exceptions=True), 60)
    assert await alive() == 0


async def test_many_sandboxes_at_once(async_client):
    sandboxes = await asyncio.gather(
        *(AsyncSandbox.create(IMAGE, client=async_client) for _ in range(30))
    )
    try:
        results = await asyncio.gather(*(s.commands.run("hostname") for s in sandboxes))
        assert [r.stdout.strip() for r in results] == [s.id for s in sandboxes]
    finally:
        await asyncio.gather(*(s.kill() for s in sandboxes))


def test_pause_kill_and_timeout_racing_end_in_a_legal_state(new):
    import threading

    for _ in range(5):
        sandbox = new()
        failures = []

        def attempt(call):
            try:
                call()
            except esker.EskerError as error:
                if error.code == "INTERNAL":
                    failures.append(error)

        calls = [
            sandbox.pause,
            sandbox.resume,
            lambda: sandbox.set_timeout(ttl=100),
            lambda: sandbox.commands.run("true", timeout=20),
            sandbox.pause,
            sandbox.kill,
        ]
        threads = [threading.Thread(target=attempt, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
            assert not thread.is_alive()
        assert not failures
        assert sandbox.get_info().state == "ended"
