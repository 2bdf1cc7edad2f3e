"""Two nodes, one index, one store: what one has the other uses, and neither takes what the other needs."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import threading
import time
from pathlib import Path

import esker
import pytest
from esker import Client, Sandbox
from esker_server import Server, programs, wait_until
from nodes import LEASE, STALENESS, TIMES, TwoNodes, collect, collect_all, wait_for_leases
from small_image import make_tar, pseudo_random
from steps import Background, tree_hash

ROUNDS = int(os.environ.get("ESKER_E2E_ROUNDS", "3"))
BLOB = hashlib.sha256(pseudo_random(16 << 20)).hexdigest()


@pytest.fixture(scope="module")
def area(work):
    path = work / "nodes"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def nodes(area):
    store = area / "store"
    nodes = TwoNodes(area)
    try:
        nodes.make_servers(store, store)
        nodes.start()
        yield nodes
    finally:
        left = nodes.close()
    assert not left, "left behind:\n" + "\n".join(left)


@pytest.fixture
def clients(nodes):
    with Client(nodes.a.address) as a, Client(nodes.b.address) as b:
        yield a, b


@pytest.fixture(autouse=True)
def show_logs(request, nodes):
    yield
    if getattr(request.node, "failed_report", None):
        for server in (nodes.a, nodes.b):
            print(f"--- {server.directory.name}:\n{server.log_tail(6000)}")


_pushed = 0


def push(server: Server, area: Path, blob: bytes | None = None) -> str:
    """A new image of its own content."""
    global _pushed
    _pushed += 1
    tar, name = area / f"image{_pushed}.tar", f"image{_pushed}:1"
    make_tar(tar, blob=blob if blob is not None else pseudo_random(4 << 20, seed=_pushed))
    server.cli("image", "push", f"tar:{tar}", name)
    tar.unlink()
    return name


def test_what_one_pushes_the_other_boots(nodes, clients, image_tar):
    for pusher, client in ((nodes.a, clients[1]), (nodes.b, clients[0])):
        name = f"from-{pusher.directory.name}:1"
        pusher.cli("image", "push", f"tar:{image_tar}", name)
        with Sandbox.create(name, client=client) as sandbox:
            assert sandbox.commands.run(["sha256sum", "/data/blob"]).stdout.split()[0] == BLOB
    # The second push found every chunk of the first.
    assert nodes.a.json("status")["images"] == nodes.b.json("status")["images"]


def test_a_snapshot_is_restored_on_the_other_node(nodes, clients):
    a, b = clients
    for here, there in ((a, b), (b, a)):
        with Sandbox.create("from-a:1", client=here) as sandbox:
            sandbox.commands.run("mkdir /w; for i in $(seq 50); do echo $i > /w/$i; done; rm /etc/plain")
            snapshot, wanted = sandbox.snapshot(), tree_hash(sandbox)
        with Sandbox.create(snapshot.id, client=there) as restored:
            assert tree_hash(restored) == wanted
            assert restored.commands.run("ls /w | wc -l").stdout.strip() == "50"
        there.remove_image(snapshot.id, force=True)


def test_the_other_nodes_sandbox_keeps_a_deleted_image(nodes, clients, area):
    collect_all(nodes.a)
    name = push(nodes.a, area)
    with Sandbox.create(name, client=clients[1]) as sandbox:
        nodes.a.cli("image", "rm", name)
        refused = nodes.a.run("gc", "--grace", "0")
        assert refused.returncode != 0
        assert f"node {nodes.b.node} holds" in refused.stderr.decode()
        collect(nodes.a)
        time.sleep(LEASE + STALENESS + 1)  # longer than a silent node would be believed
        assert collect(nodes.a)["packs_deleted"] == 0
        data = sandbox.commands.run(["sha256sum", "/data/blob"]).stdout.split()[0]
        wanted = pseudo_random(4 << 20, seed=_pushed)
        assert data == hashlib.sha256(wanted).hexdigest()
    wait_until(lambda: collect(nodes.a)["packs_deleted"] >= 1, 30)


def test_leases_outlive_a_killed_node(nodes, clients, area):
    collect_all(nodes.a)
    name = push(nodes.b, area)
    sandbox = Sandbox.create(name, client=clients[1])
    nodes.b.kill()
    nodes.a.cli("image", "rm", name)
    assert collect(nodes.a)["packs_deleted"] == 0
    nodes.b.start()
    wait_for_leases(nodes.a)
    time.sleep(LEASE + STALENESS + 1)
    assert collect(nodes.a)["packs_deleted"] == 0
    data = sandbox.commands.run(["sha256sum", "/data/blob"]).stdout.split()[0]
    assert data == hashlib.sha256(pseudo_random(4 << 20, seed=_pushed)).hexdigest()
    sandbox.kill()


def test_a_node_lives_while_the_index_is_away(nodes, clients):
    with Sandbox.create("from-a:1", client=clients[1]) as sandbox:
        nodes.a.kill()
        assert sandbox.commands.run("cat /etc/plain").stdout == "not executable\n"
        assert sandbox.commands.run(["sha256sum", "/data/blob"]).stdout.split()[0] == BLOB
        late = Background(lambda: Sandbox.create("from-b:1", client=clients[1]))
        nodes.a.start()
        with late.result() as second:
            assert second.commands.run("echo yes").stdout == "yes\n"
        refused = nodes.a.run("gc", "--grace", "3600")
        if refused.returncode != 0:
            assert "has not announced" in refused.stderr.decode()
        wait_for_leases(nodes.a)
        # A restart of the node alone, with the index away: its sandboxes are adopted.
        nodes.a.kill()
        nodes.b.kill()
        nodes.b.start()
        assert sandbox.commands.run("cat /etc/plain").stdout == "not executable\n"
        nodes.a.start()
        wait_for_leases(nodes.a)
    assert "lease_lost" not in nodes.b.log_tail(1_000_000)


def test_a_push_that_meets_a_restart_is_repeated(nodes, clients, area):
    tar = area / "big.tar"
    make_tar(tar, blob=pseudo_random(48 << 20, seed=99))
    first = Background(lambda: nodes.b.run("image", "push", f"tar:{tar}", "big:1"))
    packs = nodes.a.directory.parent / "store" / "tmp"
    wait_until(lambda: any(f.stat().st_size > 8 << 20 for f in packs.iterdir()), 60)
    nodes.a.kill()
    nodes.a.start()
    done = first.result(120)
    if done.returncode != 0:
        assert b"import again" in done.stderr, done.stderr
        nodes.b.cli("image", "push", f"tar:{tar}", "big:1")
    with Sandbox.create("big:1", client=clients[0]) as sandbox:
        data = sandbox.commands.run(["sha256sum", "/data/blob"]).stdout.split()[0]
    assert data == hashlib.sha256(pseudo_random(48 << 20, seed=99)).hexdigest()
    tar.unlink()


def test_a_node_that_is_cut_off_comes_back(nodes, clients):
    with Sandbox.create("from-a:1", client=clients[1]) as sandbox:
        nodes.network.cut("b")
        try:
            assert sandbox.commands.run("echo here").stdout == "here\n"
            wait_until(lambda: "node_silent_too_long" in nodes.a.log_tail(20_000), 30)
        finally:
            nodes.network.cut("b", False)
        # It holds its sandbox's image again.
        held = f"node {nodes.b.node} holds 1 image".encode()
        wait_until(lambda: held in nodes.a.run("gc", "--grace", "0").stderr, 30)


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_random_kills(nodes, clients, area, round_number):
    """Work on both nodes; one server is killed at a random moment; nothing acknowledged is lost."""
    dice = random.Random(round_number)
    stop = threading.Event()
    kept: dict[str, str] = {}

    def work(client: Client, seed: int) -> None:
        mine = random.Random(seed)
        while not stop.is_set():
            try:
                with Sandbox.create(mine.choice(["from-a:1", *kept]), client=client) as sandbox:
                    sandbox.commands.run(f"echo {mine.random()} > /mark; head -c 50000 /dev/urandom > /r")
                    snapshot = sandbox.snapshot()
                    kept[snapshot.id] = tree_hash(sandbox)
            except (esker.UnavailableError, esker.AbortedError):
                pass  # not acknowledged, and said so

    workers = [Background(lambda c=c, n=n: work(c, n)) for n, c in enumerate(clients)]
    wait_until(lambda: len(kept) >= 2, 60)
    victim = dice.choice([nodes.a, nodes.b])
    time.sleep(dice.random())  # a random moment is the point
    victim.kill()
    time.sleep(dice.random() * 2)
    victim.start()
    count = len(kept)
    wait_until(lambda: len(kept) >= count + 2, 60)
    stop.set()
    for worker in workers:
        worker.result(120)
    wait_for_leases(nodes.a)
    collect(nodes.a)
    for image, wanted in kept.items():
        with Sandbox.create(image, client=dice.choice(clients)) as restored:
            assert tree_hash(restored) == wanted
    for image in kept:
        clients[0].remove_image(image, force=True)


def test_a_name_that_is_not_visible_yet_is_waited_for(nodes, clients, area):
    """Node b's view of the store shows a new name a while later."""
    fault_fs = programs().parent / "test-programs" / "esker-fault-fs"
    if not fault_fs.exists():
        pytest.skip(f"no {fault_fs}")
    store, view, rules = area / "store", area / "view", area / "rules"
    view.mkdir()
    rules.write_text(f"names * delay={STALENESS * 1000 - 500}\n")
    mount = subprocess.Popen([fault_fs, "--backing", store, "--rules", rules, view])
    try:
        wait_until(lambda: view.is_mount(), 20)
        nodes.b.stop()
        nodes.b.drain()
        usual = nodes.b.config.read_text()
        nodes.b.config.write_text(usual.replace(f'store = "{store}"', f'store = "{view}"'))
        nodes.b.start()
        name = push(nodes.a, area)
        began = time.monotonic()
        with Sandbox.create(name, client=clients[1]) as sandbox:
            waited = time.monotonic() - began
            data = sandbox.commands.run(["sha256sum", "/data/blob"]).stdout.split()[0]
        assert data == hashlib.sha256(pseudo_random(4 << 20, seed=_pushed)).hexdigest()
        assert waited > 0.3, f"the name was visible at once: {waited}"
        with Sandbox.create("from-a:1", client=clients[0]) as sandbox:
            sandbox.commands.run("echo new > /new")
            snapshot, wanted = sandbox.snapshot(), tree_hash(sandbox)
        with Sandbox.create(snapshot.id, client=clients[1]) as restored:
            assert tree_hash(restored) == wanted
        nodes.b.stop()
        nodes.b.drain()
        nodes.b.config.write_text(usual)
        nodes.b.start()
    finally:
        subprocess.run(["umount", "-l", view], check=False)
        mount.terminate()
        mount.wait(20)


def test_a_second_index_is_kept_out_or_takes_over(nodes, area):
    store = area / "store"
    other = Server(area / "other")
    other.write_config(store=str(store), more=f"[index]\n{TIMES}", pool_mb=1024)
    other.prefix = nodes.network.prefix("c")
    refused = subprocess.run(
        [other.bin / "esker", "serve", "--config", other.config], capture_output=True, timeout=60
    )
    assert refused.returncode != 0
    assert b"already has an index" in refused.stderr and b"--take-over" in refused.stderr
    name = push(nodes.a, area)
    other.start(arguments=("--take-over",))
    try:
        assert any(name in image["tags"] for image in _images(other))
        wait_until(lambda: "store_taken_over" in nodes.a.log_tail(20_000), 20)
        for node in (nodes.a, nodes.b):
            tar = area / "late.tar"
            make_tar(tar, blob=b"late")
            late = node.run("image", "push", f"tar:{tar}", "late:1")
            assert late.returncode != 0 and b"is owned by" in late.stderr, late.stderr
        name = push(other, area)
    finally:
        other.stop()
        other.drain()
    # It was stopped properly, so the first may have its store back at once.
    nodes.a.kill()
    nodes.a.start()
    assert any(name in image["tags"] for image in _images(nodes.a))
    shutil.rmtree(other.directory)


def _images(server: Server) -> list[dict]:
    import json

    return [json.loads(line) for line in server.cli("--json", "image", "ls").splitlines()]
