"""Files in a sandbox: transfers, users, errors, and links that try to get out."""

from __future__ import annotations

import errno
import hashlib
import io
import os

import esker
import pytest
from small_image import pseudo_random


def test_round_trip_of_text_and_bytes(shared):
    info = shared.files.write("/tmp/a b", "h\u00e9\n")
    assert (info.path, info.type, info.size, info.user) == ("/tmp/a b", "file", 4, "root")
    assert shared.files.read("/tmp/a b") == "h\u00e9\n"
    shared.files.write("/tmp/raw", b"\xff\0")
    assert shared.files.read("/tmp/raw", "bytes") == b"\xff\0"
    with pytest.raises(UnicodeDecodeError):
        shared.files.read("/tmp/raw")
    shared.files.write("/tmp/raw", b"")
    assert shared.files.read("/tmp/raw", "bytes") == b""


def test_large_files_stream_both_ways(shared):
    data = pseudo_random(64 << 20, seed=7)
    assert shared.files.write("/tmp/large", io.BytesIO(data)).size == len(data)
    digest = shared.commands.run(["sha256sum", "/tmp/large"]).stdout.split()[0]
    assert digest == hashlib.sha256(data).hexdigest()
    back = hashlib.sha256()
    for piece in shared.files.read("/tmp/large", "stream"):
        back.update(piece)
    assert back.hexdigest() == digest
    shared.files.remove("/tmp/large")


async def test_async_files(async_sandbox):
    async def source():
        for n in range(100):
            yield b"%d\n" % n

    await async_sandbox.files.write("/tmp/n", source())
    pieces = [piece async for piece in await async_sandbox.files.read("/tmp/n", "stream")]
    assert b"".join(pieces).splitlines() == [b"%d" % n for n in range(100)]
    assert await async_sandbox.files.exists("/tmp/n")
    assert not await async_sandbox.files.exists("/tmp/m")


def test_missing_things_are_file_not_found(shared):
    for call in (
        lambda: shared.files.read("/nope"),
        lambda: shared.files.get_info("/nope"),
        lambda: shared.files.list("/nope"),
        lambda: shared.files.remove("/nope"),
        lambda: shared.files.rename("/nope", "/tmp/x"),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            call()
        assert caught.value.errno == errno.ENOENT
        assert caught.value.filename == "/nope"
        assert isinstance(caught.value, esker.EskerError)
    assert not shared.files.exists("/nope")
    assert not shared.files.exists("/etc/passwd/below")


def test_a_sandbox_that_is_not_there_is_no_missing_file(client):
    nowhere = esker.Sandbox("sb-no-such-sandbox", client)
    for call in (
        lambda: nowhere.files.read("/x"),
        lambda: nowhere.files.write("/x", b"data"),
        lambda: nowhere.files.write("/x", b""),
        lambda: nowhere.files.exists("/x"),
        lambda: nowhere.files.list("/"),
        lambda: nowhere.files.make_dir("/x"),
        lambda: nowhere.files.remove("/x"),
        lambda: nowhere.commands.run("true"),
        lambda: nowhere.commands.connect("c-1").wait(),
        lambda: nowhere.commands.list(),
        lambda: nowhere.commands.kill("c-1"),
        lambda: nowhere.commands.send_stdin("c-1", b"x"),
        lambda: nowhere.pty.create(),
        lambda: nowhere.pty.resize("c-1", 1, 1),
        lambda: nowhere.snapshot(),
        lambda: nowhere.get_info(),
    ):
        with pytest.raises(esker.SandboxNotFoundError):
            call()


def test_kinds_of_errors(shared):
    with pytest.raises(IsADirectoryError):
        shared.files.read("/etc")
    with pytest.raises(NotADirectoryError):
        shared.files.list("/etc/passwd")
    with pytest.raises(IsADirectoryError):
        shared.files.write("/etc", b"")
    with pytest.raises(OSError) as caught:
        shared.files.remove("/etc")
    assert caught.value.errno in (errno.ENOTEMPTY, errno.EISDIR)
    with pytest.raises(ValueError):
        shared.files.read("")
    with pytest.raises(ValueError):
        shared.files.read("/" + "x" * 300)


def test_as_a_user(shared):
    files = shared.files
    with pytest.raises(PermissionError) as caught:
        files.read("/root/secret", user="agent")
    assert caught.value.errno == errno.EACCES
    with pytest.raises(PermissionError):
        files.write("/etc/mine", b"", user="agent")
    info = files.write("deep/er/file", b"x", user="agent")  # relative: to the user's home
    assert (info.path, info.user, info.uid) == ("/home/agent/deep/er/file", "agent", 1000)
    assert files.get_info("/home/agent/deep").user == "agent"
    assert shared.commands.run("stat -c %U:%G deep/er", user="agent", cwd="/home/agent").stdout == (
        "agent:agent\n"
    )
    with pytest.raises(esker.EskerError, match="nobody-here"):
        files.read("/etc/passwd", user="nobody-here")


def test_modes(shared):
    assert shared.files.write("/tmp/m1", b"").mode == 0o644
    assert shared.files.write("/tmp/m2", b"", mode=0o750).mode == 0o750
    shared.commands.run("chmod 4711 /tmp/m2; chown 1000 /tmp/m2")
    shared.commands.run("chmod 711 /tmp/m2")
    info = shared.files.write("/tmp/m2", b"new")
    assert info.mode == 0o711  # an existing file keeps its mode


def test_listing_and_directories(shared):
    files = shared.files
    assert files.make_dir("/tmp/d/e/f")
    assert not files.make_dir("/tmp/d/e/f")
    files.write("/tmp/d/one", b"1")
    shared.commands.run("ln -s one /tmp/d/link")
    assert sorted(entry.name for entry in files.list("/tmp/d")) == ["e", "link", "one"]
    by_path = {entry.path: entry for entry in files.list("/tmp/d", depth=3)}
    assert sorted(by_path) == ["/tmp/d/e", "/tmp/d/e/f", "/tmp/d/link", "/tmp/d/one"]
    assert by_path["/tmp/d/link"].type == "symlink"
    assert by_path["/tmp/d/link"].symlink_target == "one"
    with pytest.raises(esker.ResourceExhaustedError):
        files.list("/bin", limit=10)
    files.rename("/tmp/d/one", "/tmp/d/two")
    assert files.read("/tmp/d/link", "bytes") == b"" if files.exists("/tmp/d/one") else True
    assert files.read("/tmp/d/two") == "1"
    with pytest.raises(OSError):
        files.remove("/tmp/d")
    files.remove("/tmp/d", recursive=True)
    assert not files.exists("/tmp/d")


def test_names_are_bytes(shared):
    name = b"/tmp/\xff\n"
    shared.files.write(name, b"x")
    assert shared.files.read(name) == "x"
    (entry,) = [e for e in shared.files.list("/tmp") if os.fsencode(e.path) == name]
    assert shared.files.get_info(entry.path).size == 1
    shared.files.remove(entry.path)


def test_links_lead_nowhere_else(shared, work):
    outside = work / "outside"
    outside.write_text("host's")
    run = shared.commands.run
    run(f"ln -s {outside} /tmp/out; ln -s {work} /tmp/outdir; ln -s ../../../../../.. /tmp/up")
    for path in ("/tmp/out", f"/tmp/outdir/{outside.name}", f"/tmp/up{outside}", f"/..{outside}"):
        with pytest.raises(FileNotFoundError):
            shared.files.read(path)
    shared.files.write("/tmp/up/planted", b"x")  # inside: up is the sandbox's own root
    assert shared.files.read("/planted") == "x"
    assert outside.read_text() == "host's"
    assert sorted(p.name for p in work.iterdir() if p.name == "planted") == []
    run("ln -s /proc/1/root /tmp/pid1; ln -s /proc/self/exe /tmp/exe; ln -s loop /tmp/loop")
    with pytest.raises(OSError):
        shared.files.read(f"/tmp/pid1{outside}")
    with pytest.raises((OSError, ValueError)):
        shared.files.read("/tmp/loop")


def test_files_whose_size_is_not_known_before(shared):
    assert "Name:" in shared.files.read("/proc/self/status")
    handle = shared.commands.run(
        "i=0; while [ $i -lt 3000 ]; do echo line >> /tmp/growing; i=$((i+1)); done", background=True
    )
    shared.files.write("/tmp/growing2", b"x")
    assert set(shared.files.read("/tmp/growing2")) == {"x"}
    handle.wait(timeout=60)
    assert shared.files.read("/tmp/growing") == "line\n" * 3000


def test_special_files_do_not_hang(shared):
    shared.commands.run("mkfifo /tmp/fifo")
    for path in ("/tmp/fifo", "/dev/zero"):
        with pytest.raises((OSError, esker.EskerError)):
            shared.files.read(path, "bytes")


def test_a_full_disk_is_typed_and_keeps_what_was_there(new):
    sandbox = new(disk_mb=32)
    sandbox.files.write("/tmp/keep", b"before")
    with pytest.raises(OSError) as caught:
        sandbox.files.write("/tmp/keep", pseudo_random(64 << 20))
    assert caught.value.errno in (errno.ENOSPC, errno.EDQUOT)
    assert isinstance(caught.value, esker.ResourceExhaustedError)
    assert sandbox.files.read("/tmp/keep") == "before"
    sandbox.files.write("/tmp/small", b"fits")
    result = sandbox.commands.run("dd if=/dev/urandom of=/big bs=1M count=64")
    assert result.exit_code != 0
    assert "o space" in result.stderr or "uota" in result.stderr


def test_a_broken_upload_leaves_what_was_there(shared):
    shared.files.write("/tmp/old", b"old")

    def source():
        yield b"x" * 3_000_000
        raise RuntimeError("source broke")

    with pytest.raises(RuntimeError, match="source broke"):
        shared.files.write("/tmp/old", source())
    assert shared.files.read("/tmp/old") == "old"
    names = [entry.name for entry in shared.files.list("/tmp")]
    assert [name for name in names if "old" in name] == ["old"]
