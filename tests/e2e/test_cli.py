"""The command line: every verb once, --json, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from conftest import IMAGE


@pytest.fixture
def box(server):
    sandbox_id = server.cli("sandbox", "create", IMAGE, "--metadata", "by=cli")
    yield sandbox_id
    server.cli("sandbox", "rm", sandbox_id)


def test_exec_has_the_exit_code_of_the_command(server, box):
    done = server.run("sandbox", "exec", box, "sh", "-c", "echo out; echo err >&2; exit 42")
    assert (done.returncode, done.stdout, done.stderr) == (42, b"out\n", b"err\n")
    assert server.run("sandbox", "exec", box, "true").returncode == 0
    assert server.run("sandbox", "exec", box, "no-such-program").returncode == 127
    assert server.run("sandbox", "exec", box, "/etc/plain").returncode == 126


def test_exec_options(server, box):
    assert server.cli("sandbox", "exec", "-s", box, "echo $((1+2))") == "3"
    done = server.run("sandbox", "exec", "-i", box, "cat", stdin=b"\xff\0in")
    assert done.stdout == b"\xff\0in"
    assert server.cli("sandbox", "exec", "-u", "agent", "-w", "/tmp", box, "pwd") == "/tmp"
    assert server.cli("sandbox", "exec", "-e", "A=b c", "-s", box, "echo $A") == "b c"
    done = server.run("sandbox", "exec", "--timeout", "1", box, "sleep", "100")
    assert done.returncode not in (0, 42)
    assert b"time" in done.stderr


def test_signals_are_forwarded(server, box):
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do usleep 10000; done"
    command = [server.bin / "esker", "--address", server.address, "sandbox", "exec", box]
    with subprocess.Popen([*command, "sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20)[0] == b"caught\n"
        assert process.returncode == 9


def test_copying(server, box, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(bytes(range(256)) * 10_000)
    server.cli("sandbox", "cp", str(source), f"{box}:/tmp/there")
    server.cli("sandbox", "cp", f"{box}:/tmp/there", str(back))
    assert back.read_bytes() == source.read_bytes()
    done = server.run("sandbox", "cp", f"{box}:/nope", str(back))
    assert done.returncode != 0
    assert b"/nope" in done.stderr
    assert back.read_bytes() == source.read_bytes()


def test_json_everywhere(server, box):
    assert server.json("version")["version"]
    ids = [json.loads(line)["id"] for line in server.cli("--json", "sandbox", "ls").splitlines()]
    assert box in ids
    info = server.json("sandbox", "inspect", box)
    assert (info["id"], info["metadata"]) == (box, {"by": "cli"})
    assert server.json("sandbox", "describe", box)["sandbox"]["id"] == box
    status = server.json("status")
    assert int(status["sandboxes"]) >= 1
    images = server.cli("--json", "image", "ls").splitlines()
    assert any(IMAGE in json.loads(line)["tags"] for line in images)
    assert server.json("image", "inspect", IMAGE)["id"]
    assert int(server.json("gc")["packs_live"]) >= 1


def test_errors_name_the_thing_and_are_json_too(server):
    done = server.run("sandbox", "inspect", "no-such-sandbox")
    assert done.returncode != 0
    assert b"no-such-sandbox" in done.stderr
    done = server.run("--json", "sandbox", "create", "no-such-image")
    assert done.returncode != 0
    error = json.loads((done.stderr or done.stdout).decode().splitlines()[-1])
    assert "no-such-image" in json.dumps(error)
    assert server.run("no-such-verb").returncode != 0


def test_pause_snapshot_fork_and_tags(server, box):
    server.cli("sandbox", "exec", "-s", box, "echo x > /tmp/x")
    server.cli("sandbox", "pause", box)
    assert "paused" in server.cli("sandbox", "inspect", box).lower()
    server.cli("sandbox", "resume", box)
    snapshot = server.cli("sandbox", "snapshot", box, "--name", "cli-snap:1")
    assert snapshot[:12] in server.cli("snapshot", "ls")
    children = server.cli("sandbox", "fork", box, "-n", "2").split()
    assert len(children) == 2
    for child in children:
        assert server.cli("sandbox", "exec", child, "cat", "/tmp/x") == "x"
    server.cli("sandbox", "rm", *children)
    server.cli("image", "tag", IMAGE, "other:2")
    assert "other:2" in server.cli("image", "ls")
    server.cli("image", "rm", "other:2")
    assert "other:2" not in server.cli("image", "ls")
    assert IMAGE in server.cli("image", "ls")
    server.cli("snapshot", "rm", snapshot)
    assert snapshot[:12] not in server.cli("snapshot", "ls")


def test_detached_and_index_rebuild(server, box):
    assert server.cli("sandbox", "exec", "-d", box, "sleep", "1000")
    server.cli("index", "rebuild")
    assert IMAGE in server.cli("image", "ls")
    assert server.cli("sandbox", "exec", box, "echo", "alive") == "alive"
