"""The store on a real distributed file system, two clients, and its servers killed under load."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest
from esker import Client, Sandbox
from esker_server import Server, wait_until
from nodes import LEASE, STALENESS, collect, wait_for_leases
from small_image import make_tar, pseudo_random
from steps import Background, tree_hash

MIB = 1 << 20


@pytest.fixture
def clients(cluster):
    with Client(cluster.nodes.a.address) as a, Client(cluster.nodes.b.address) as b:
        yield a, b


def push(server: Server, work: Path, name: str, mib: int = 4) -> str:
    """An image of its own content; the digest of its /data/blob."""
    blob = pseudo_random(mib * MIB, seed=sum(name.encode()) + mib)
    tar = work / f"{name}.tar"
    make_tar(tar, blob=blob)
    server.cli("image", "push", f"tar:{tar}", f"{name}:1")
    tar.unlink()
    return hashlib.sha256(blob).hexdigest()


def blob_digest(sandbox: Sandbox) -> str:
    return sandbox.commands.run(["sha256sum", "/data/blob"], timeout=120).stdout.split()[0]


def importing(store: Path) -> bool:
    """A pack of some MiB is being written."""
    try:
        return any(f.stat().st_size > 4 * MIB for f in (store / "tmp").iterdir())
    except FileNotFoundError:  # published in between
        return False


def test_what_one_node_has_the_other_uses(cluster, clients, work):
    a, b = clients
    wanted = push(cluster.nodes.a, work, "first")
    with Sandbox.create("first:1", client=b) as sandbox:
        assert blob_digest(sandbox) == wanted
        sandbox.commands.run("mkdir /w; for i in $(seq 30); do echo $i > /w/$i; done; rm /etc/plain")
        snapshot, tree = sandbox.snapshot(), tree_hash(sandbox)
        for fork in sandbox.fork(2):
            with fork:
                assert tree_hash(fork) == tree
    with Sandbox.create(snapshot.id, client=a) as restored:
        assert tree_hash(restored) == tree
        a.remove_image(snapshot.id, force=True)
        cluster.nodes.b.cli("image", "rm", "first:1")
        time.sleep(LEASE + STALENESS + 1)  # longer than a silent node would be believed
        collect(cluster.nodes.b)
        assert blob_digest(restored) == wanted
    for line in cluster.nodes.b.cli("--json", "snapshot", "ls").splitlines():  # what the forks began from
        a.remove_image(json.loads(line)["id"], force=True)
    wait_until(lambda: collect(cluster.nodes.a)["packs_live"] == 0, 60)


def test_a_chunk_server_killed_during_an_import(cluster, clients, work):
    push_it = Background(lambda: push(cluster.nodes.a, work, "imported", mib=96))
    wait_until(lambda: importing(cluster.dfs.mounts["a"] / "store"), 60)
    cluster.dfs.kill("cs1")
    wanted = push_it.result(120)
    with Sandbox.create("imported:1", client=clients[1]) as sandbox:
        assert blob_digest(sandbox) == wanted
    cluster.dfs.start_chunk_server(1)


def test_a_chunk_server_killed_during_a_burst_of_cold_starts(cluster, clients, work):
    names = [f"cold{n}" for n in range(6)]
    wanted = {name: push(cluster.nodes.a, work, name, mib=8) for name in names}

    def start_and_read(name: str, client: Client) -> str:
        with Sandbox.create(f"{name}:1", client=client) as sandbox:
            return blob_digest(sandbox)

    calls = [
        (name, Background(lambda n=name, c=client: start_and_read(n, c))) for name in names for client in clients
    ]
    wait_until(lambda: any(not call.is_alive() for _, call in calls), 60)
    cluster.dfs.kill("cs2")
    for name, call in calls:
        assert call.result(120) == wanted[name]
    cluster.dfs.start_chunk_server(2)


def test_the_master_killed_and_started_again(cluster, clients, work):
    wanted = push(cluster.nodes.b, work, "before", mib=8)
    cold = Background(lambda: push(cluster.nodes.a, work, "during", mib=64))
    wait_until(lambda: importing(cluster.dfs.mounts["a"] / "store"), 60)
    cluster.dfs.kill("master")

    def start_and_read() -> str:
        with Sandbox.create("before:1", client=clients[0], create_timeout=120) as sandbox:
            return blob_digest(sandbox)

    read = Background(start_and_read)
    time.sleep(1)  # the master is away for a while
    began = time.monotonic()
    cluster.dfs.start_master()
    during = cold.result(180)
    assert read.result(180) == wanted
    print(f"all waited and finished {time.monotonic() - began:.1f} s after the master's start")
    with Sandbox.create("during:1", client=clients[1]) as sandbox:
        assert blob_digest(sandbox) == during
        sandbox.commands.run("echo after > /after")
        snapshot, tree = sandbox.snapshot(), tree_hash(sandbox)
    with Sandbox.create(snapshot.id, client=clients[0]) as restored:
        assert tree_hash(restored) == tree
    wait_for_leases(cluster.nodes.a)
    assert all(cluster.dfs.alive().values())
