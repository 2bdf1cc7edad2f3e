"""Layers that are read lazily: metrics, recorded starts, and a blob server that dies, hangs or is replaced."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from esker import Client, Sandbox
from esker_server import Server, free_port, programs, wait_until
from small_image import make_tar, pseudo_random

IMAGE = "lazy:1"
MIB = 1 << 20
BLOB = 192 * MIB


class LazyServer(Server):
    def __init__(self, directory: Path, store: Path) -> None:
        self.metrics_port = free_port()
        super().__init__(directory, store=str(store))
        with self.config.open("a") as config:
            config.write(f'[metrics]\nlisten = "127.0.0.1:{self.metrics_port}"\n')

    def metrics(self) -> dict[str, float]:
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            return parse_strictly(answer.read().decode())

    def blob_server(self) -> int:
        return wait_until(lambda: int(self.status().get("blob_server_pid", 0)), what="a blob server")


def parse_strictly(text: str) -> dict[str, float]:
    """Samples by name and labels; AssertionError for whatever the text format does not allow."""
    assert text.endswith("\n")
    types: dict[str, str] = {}
    samples: dict[str, float] = {}
    label = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
    sample = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{{{label}(?:,{label})*\}})? ([-+0-9.eE]+|\+Inf|NaN)")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types and kind in ("counter", "gauge", "histogram", "summary"), line
            types[name] = kind
            continue
        if line.startswith("exposer_"):  # the HTTP library's own figures; it writes "Nan"
            continue
        match = sample.fullmatch(line)
        assert match, line
        name = match[1]
        assert name in types or re.sub(r"_(bucket|sum|count)$", "", name) in types, line
        key = name + (match[2] or "")
        assert key not in samples, line
        samples[key] = float(match[3])
    return samples


@pytest.fixture(scope="module")
def blob() -> bytes:
    return pseudo_random(BLOB, seed=7)


@pytest.fixture(scope="module")
def store(work, blob) -> Path:
    """With the image; no server runs on it."""
    path = work / "lazy-store"
    tar = work / "lazy.tar"
    make_tar(tar, blob)
    server = LazyServer(work / "lazy-push", path)
    server.start()
    server.cli("image", "push", f"tar:{tar}", IMAGE)
    end(server)
    tar.unlink()
    return path


def end(server: Server) -> None:
    left = server.end_all()
    assert not left, "left behind:\n" + "\n".join(left)
    shutil.rmtree(server.directory)


@pytest.fixture
def cold(work, store, request):
    """A node that has nothing of the image yet."""
    server = LazyServer(work / f"cold-{request.node.name[:40]}", store)
    server.start()
    yield server
    end(server)


def digest_of(blob: bytes, start: int, size: int) -> str:
    return hashlib.md5(blob[start : start + size]).hexdigest()


def read_part(sandbox: Sandbox, start: int, size: int) -> str:
    command = f"dd if=/data/blob bs=65536 skip={start // 65536} count={size // 65536} 2>/dev/null | md5sum"
    result = sandbox.commands.run(command, timeout=120)
    assert result.exit_code == 0, result
    return result.stdout.split()[0]


def test_metrics_count_what_happens(cold, blob):
    before = cold.metrics()
    with Client(cold.address) as client:
        sandbox = Sandbox.create(IMAGE, client=client)
        assert read_part(sandbox, 0, MIB) == digest_of(blob, 0, MIB)
        during = cold.metrics()
        sandbox.kill()
    after = cold.metrics()
    assert before["esker_blob_server_up"] == 1
    assert during['esker_sandboxes{state="running"}'] == 1
    assert after['esker_sandboxes{state="running"}'] == 0
    assert after["esker_sandbox_creates_total"] == before["esker_sandbox_creates_total"] + 1
    assert after['esker_sandbox_ends_total{reason="DELETED"}'] >= 1
    assert after['esker_commands_ended_total{outcome="exited_zero"}'] >= 1
    assert during["esker_blob_read_bytes_total"] >= MIB
    assert during["esker_blob_fetched_bytes_total"] > 0
    reads = 'esker_blob_read_seconds_count{source="%s"}'
    assert during[reads % "store"] + during[reads % "cache"] > 0
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://127.0.0.1:{cold.metrics_port}/../etc/passwd", timeout=10)


def test_what_a_start_read_is_fetched_ahead_at_the_next_cold_start(work, store, blob, cold):
    records = store / "records" / "prefetch"
    before = set(records.rglob("*")) if records.exists() else set()
    with Client(cold.address) as client:
        sandbox = Sandbox.create(IMAGE, client=client)
        assert read_part(sandbox, 64 * MIB, 4 * MIB) == digest_of(blob, 64 * MIB, 4 * MIB)
        wait_until(
            lambda: records.exists() and [p for p in set(records.rglob("*")) - before if p.is_file()],
            timeout=30, what="a record of the start",
        )
    cold.stop()  # a store has one index
    other = LazyServer(work / "second-node", store)
    other.start()
    try:
        with Client(other.address) as client:
            sandbox = Sandbox.create(IMAGE, client=client)
            wait_until(
                lambda: other.metrics()["esker_blob_prefetched_bytes_total"] >= 4 * MIB,
                timeout=30, what="the prefetch",
            )
            assert read_part(sandbox, 64 * MIB, 4 * MIB) == digest_of(blob, 64 * MIB, 4 * MIB)
            # A damaged record fails nothing.
            sandbox.kill()
            newest = max((p for p in records.rglob("*") if p.is_file()), key=lambda p: int(p.name))
            newest.chmod(0o600)
            newest.write_bytes(os.urandom(200))
            sandbox = Sandbox.create(IMAGE, client=client)
            assert read_part(sandbox, 0, MIB) == digest_of(blob, 0, MIB)
    finally:
        shutil.rmtree(records, ignore_errors=True)
        end(other)
        cold.start()


def test_the_blob_server_is_killed_while_fifty_sandboxes_read(cold, blob):
    count, part = 50, BLOB // 50 // 65536 * 65536
    with Client(cold.address) as client:
        made: list[Sandbox] = [Sandbox.create(IMAGE, client=client) for _ in range(count)]
        outcomes: dict[int, tuple[str, float]] = {}

        def read(number: int) -> None:
            began = time.monotonic()
            got = read_part(made[number], number * part, part)
            outcomes[number] = (got, time.monotonic() - began)

        readers = [threading.Thread(target=read, args=(n,)) for n in range(count)]
        for reader in readers:
            reader.start()
        kills = 0
        while kills < 8 and any(reader.is_alive() for reader in readers):
            pid = cold.blob_server()
            try:
                os.kill(pid, signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                pass
            time.sleep(1)  # the pace of the kills
        for reader in readers:
            reader.join()
        assert kills >= 1
        for number in range(count):
            assert outcomes[number][0] == digest_of(blob, number * part, part), number
        print(f"{kills} kills, slowest reader {max(took for _, took in outcomes.values()):.1f} s")
        # No mount was lost.
        for sandbox in made:
            assert sandbox.commands.run("ls /data/blob").exit_code == 0


def test_a_blob_server_that_hangs_is_replaced_while_sandboxes_read(cold, blob):
    with Client(cold.address) as client:
        sandbox = Sandbox.create(IMAGE, client=client)
        assert read_part(sandbox, 0, MIB) == digest_of(blob, 0, MIB)
        hung = cold.blob_server()
        os.kill(hung, signal.SIGSTOP)
        began = time.monotonic()
        assert read_part(sandbox, 100 * MIB, MIB) == digest_of(blob, 100 * MIB, MIB)
        assert time.monotonic() - began < 15
        assert cold.blob_server() != hung


def test_an_upgraded_blob_server_takes_over_when_the_server_starts(cold, blob):
    with Client(cold.address) as client:
        sandbox = Sandbox.create(IMAGE, client=client)
        before = cold.blob_server()
        program = cold.bin / "esker-imagefs"
        shutil.copy2(program, cold.bin / "new")
        (cold.bin / "new").rename(program)
    cold.stop()
    cold.start()
    wait_until(lambda: cold.blob_server() != before, what="the new blob server")
    assert os.readlink(f"/proc/{cold.blob_server()}/exe") == str(program)
    with Client(cold.address) as client:
        sandbox = Sandbox(sandbox.id, client)
        assert read_part(sandbox, 32 * MIB, MIB) == digest_of(blob, 32 * MIB, MIB)
    # Nothing changed: it stays.
    stays = cold.blob_server()
    cold.stop()
    cold.start()
    assert cold.blob_server() == stays


@pytest.fixture
def fault_store(work, store):
    """The store through a file system whose reads hang while `hang(True)`."""
    program = programs().parent / "test-programs" / "esker-fault-fs"
    if not program.exists():
        pytest.skip(f"no {program}")
    mountpoint = work / "fault-store"
    mountpoint.mkdir()
    rules = work / "fault.rules"
    rules.write_text("")
    process = subprocess.Popen([program, "--backing", store, "--rules", rules, mountpoint])

    def hang(on: bool) -> None:
        replacement = rules.with_suffix(".new")
        replacement.write_text("read packs/* hang\n" if on else "")
        replacement.rename(rules)

    wait_until(mountpoint.is_mount, what="the fault file system")
    yield mountpoint, hang
    hang(False)
    subprocess.run(["umount", "-l", mountpoint], check=True)
    process.wait(20)
    mountpoint.rmdir()


def test_a_blob_server_all_of_whose_threads_hang_in_the_store_is_replaced(work, blob, fault_store):
    mountpoint, hang = fault_store
    server = LazyServer(work / "hung-store", mountpoint)
    server.start()
    try:
        with Client(server.address) as client:
            sandbox = Sandbox.create(IMAGE, client=client)
            assert read_part(sandbox, 0, MIB) == digest_of(blob, 0, MIB)
            stuck = server.blob_server()
            hang(True)
            began = time.monotonic()
            readers = "for i in $(seq 1 24); do dd if=/data/blob of=/dev/null bs=4096 count=1 skip=$((i * 1900 + 400)) & done; wait"
            failing = sandbox.commands.run(readers, background=True)
            wait_until(lambda: server.blob_server() != stuck, timeout=90, what="a new blob server")
            assert time.monotonic() - began < 60
            hang(False)
            failing.wait(timeout=120)
            assert read_part(sandbox, 150 * MIB, MIB) == digest_of(blob, 150 * MIB, MIB)
    finally:
        hang(False)
        end(server)
