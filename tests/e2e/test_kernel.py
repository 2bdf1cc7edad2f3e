"""A machine that lacks something: `esker serve` names it before it starts anything, and loses nothing."""

from __future__ import annotations

import errno
import subprocess
import time

import denied_calls
import leaks
import pytest
from conftest import IMAGE
from denied_calls import Call, Deny
from esker import Client, Sandbox
from esker_server import Server

pytestmark = pytest.mark.skipif(not denied_calls.supported(), reason="needs root on x86-64")

AT_EMPTY_PATH, OPEN_TREE_CLONE = 0x1000, 1
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
SET_FD, CMD_CREATE, ATTR_IDMAP = 5, 6, 0x00100000


def types(name: str):
    """fsopen() of that type."""
    return lambda call: call.text(0) == name


def clone3_flags(flags: int):
    def has(call: Call) -> bool:
        with open(f"/proc/{call.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(call.arguments[0])
            return bool(int.from_bytes(memory.read(8), "little") & flags)

    return has


def sets_idmap(call: Call) -> bool:
    with open(f"/proc/{call.pid}/mem", "rb", buffering=0) as memory:
        memory.seek(call.arguments[3])
        return bool(int.from_bytes(memory.read(8), "little") & ATTR_IDMAP)


def of_detached(call: Call) -> bool:
    """Clones by descriptor, as before Linux 6.15, where only attached mounts could be."""
    return bool(call.arguments[2] & AT_EMPTY_PATH and call.arguments[2] & OPEN_TREE_CLONE)


LACKING = {
    "openat2": (Deny("openat2"), ["openat2", "Linux 5.6"]),
    "pidfd_open": (Deny("pidfd_open"), ["pidfd", "Linux 5.4"]),
    "pidfd_send_signal": (Deny("pidfd_send_signal"), ["pidfd", "Linux 5.4"]),
    "memfd_create": (Deny("memfd_create"), ["sealed memory files", "memfd_create"]),
    "close_range": (Deny("close_range"), ["close_range", "Linux 5.9"]),
    "clone3": (Deny("clone3"), ["clone3", "Linux 5.7"]),
    # A container manager's filter; glibc then starts no thread either.
    "clone3 is not permitted": (Deny("clone3", errno.EPERM), ["clone3", "not permitted"]),
    "user namespaces": (
        Deny("clone3", errno.ENOSPC, clone3_flags(CLONE_NEWUSER)),
        ["user namespaces", "user.max_user_namespaces"],
    ),
    "entering user namespaces": (Deny("setns", errno.EPERM), ["user namespaces"]),
    "mount namespaces": (
        Deny("unshare", errno.EPERM, lambda call: call.arguments[0] & CLONE_NEWNS),
        ["mount namespaces", "CAP_SYS_ADMIN"],
    ),
    "network namespaces": (
        Deny("unshare", errno.EINVAL, lambda call: call.arguments[0] & CLONE_NEWNET),
        ["network namespaces", "CONFIG_NET_NS"],
    ),
    "seccomp": (Deny("seccomp"), ["seccomp", "CONFIG_SECCOMP_FILTER"]),
    "seccomp filters": (Deny("seccomp", errno.EINVAL), ["seccomp", "CONFIG_SECCOMP_FILTER"]),
    "fsopen": (Deny("fsopen"), ["mount API", "fsopen", "Linux 5.2"]),
    "fsconfig": (Deny("fsconfig"), ["mount API", "fsconfig", "Linux 5.2"]),
    "fsmount": (Deny("fsmount"), ["mount API", "fsmount", "Linux 5.2"]),
    "mount_setattr": (Deny("mount_setattr"), ["mount_setattr", "Linux 5.12"]),
    "move_mount": (Deny("move_mount", errno.EINVAL), ["detached mounts", "move_mount", "Linux 6.15"]),
    "clones of detached mounts": (
        Deny("open_tree", errno.EINVAL, of_detached),
        ["detached mounts", "open_tree", "Linux 6.15"],
    ),
    "mqueue": (Deny("fsopen", errno.ENODEV, types("mqueue")), ["mqueue", "CONFIG_POSIX_MQUEUE"]),
    "erofs": (Deny("fsopen", errno.ENODEV, types("erofs")), ["EROFS", "modprobe erofs"]),
    "id-mapped mounts": (
        Deny("mount_setattr", errno.EINVAL, sets_idmap),
        ["id-mapped mounts", "Linux 6.3"],
    ),
    "mounting FUSE": (
        Deny("mount", errno.ENODEV, lambda call: call.text(2).startswith("fuse")),
        ["FUSE", "modprobe fuse"],
    ),
    "overlay": (Deny("fsopen", errno.ENODEV, types("overlay")), ["overlay", "modprobe overlay"]),
    "layers by descriptor": (
        Deny("fsconfig", errno.EINVAL, lambda call: call.arguments[1] == SET_FD),
        ["overlayfs", "lowerdir+", "Linux 6.13"],
    ),
    # It falls back only where no pool exists.
    "btrfs": (Deny("fsopen", errno.ENODEV, types("btrfs")), ["btrfs", "modprobe btrfs"]),
}

HIDDEN = {
    "/dev/fuse": ("rm /dev/fuse", ["FUSE", "/dev/fuse", "modprobe fuse"]),
    "/dev/loop-control": ("rm /dev/loop-control", ["btrfs", "/dev/loop-control"]),
    "cgroups": ("umount -l -R /sys/fs/cgroup", ["cgroup", "cgroup2"]),
    "unwritable cgroups": (
        "for at in $(awk '$5 ~ \"^/sys/fs/cgroup\" {print $5}' /proc/self/mountinfo); do"
        " mount -o remount,bind,ro $at; done",
        ["cgroup", "ead-only", "Delegate=yes"],
    ),
}


@pytest.fixture(scope="module")
def lacking(work, image_tar):
    """A data directory with an image and a running sandbox, and no server on it."""
    server = Server(work / "lacking", pool_mb=1024)
    server.start()
    try:
        server.cli("image", "push", f"tar:{image_tar}", IMAGE)
        with Client(server.address) as client:
            sandbox = Sandbox.create(IMAGE, client=client)
            sandbox.files.write("/data/kept", "kept")
            server.sandbox = sandbox.id
            server.marker = sandbox.commands.run(["sleep", "3600"], background=True).id
        server.stop()
        yield server
        check_that_it_serves(server)
        server.start()
    finally:
        if server.process is not None:
            server.stop()
        server.drain()
    left = leaks.wait_for_none(str(server.directory), server.node)
    assert not left, "left behind:\n" + "\n".join(left)


def check_that_it_serves(server) -> None:
    """A normal start finds everything as it was."""
    server.start()
    try:
        with Client(server.address) as client:
            sandbox = Sandbox.connect(server.sandbox, client=client)
            assert sandbox.get_info().state == "running"
            assert sandbox.files.read("/data/kept") == "kept"
            assert [c.id for c in sandbox.commands.list() if c.running] == [server.marker]
            with Sandbox.create(IMAGE, client=client) as other:
                assert other.commands.run("echo works").stdout == "works\n"
    finally:
        server.stop()


def probing(server) -> list[str]:
    """What a probing could leave that does not carry the server's name."""
    done = subprocess.run(
        ["find", "/sys/fs/cgroup", "-maxdepth", "3", "-name", "esker-probe-*"], capture_output=True, text=True
    )
    return done.stdout.split() + [str(p) for p in (server.data / "run").glob("probe*")]


def refused(server, serve) -> str:
    """What `serve` says; it must fail, and leave the kernel and the data directory as they were."""

    def files() -> list[str]:
        found = (p for p in server.data.rglob("*") if "uppers" not in p.parts)
        return sorted(str(p) for p in found if p.name not in ("lock", "run") and p.exists())

    before, kernel = files(), sorted(leaks.look(str(server.directory), server.node))
    started = time.monotonic()
    done = serve()
    took = time.monotonic() - started
    message = done.stdout
    assert done.returncode == 1, (done.returncode, message)
    assert message.count("FAILED_PRECONDITION") == 1, message
    assert "esker doctor" in message
    assert took < 10
    assert sorted(leaks.look(str(server.directory), server.node)) == kernel
    assert files() == before
    assert probing(server) == []
    return message


@pytest.mark.parametrize("what", LACKING)
def test_a_kernel_without(lacking, what):
    deny, named = LACKING[what]
    command = [lacking.bin / "esker", "serve", "--config", lacking.config]
    message = refused(lacking, lambda: denied_calls.run(command, [deny]))
    first = message.split("missing too")[0]
    for word in named:
        assert word in first


def in_mount_namespace(server, change: str) -> list[str]:
    """`esker serve` where `change` was done to a private copy of /dev and of the mount table."""
    script = f"""set -e
        mount -t tmpfs none /mnt
        cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/fuse /dev/loop-control /mnt/
        mount --move /mnt /dev
        {change}
        exec {server.bin}/esker serve --config {server.config} 2>&1"""
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", script]


@pytest.mark.parametrize("what", HIDDEN)
def test_a_machine_that_hides(lacking, what):
    change, named = HIDDEN[what]
    command = in_mount_namespace(lacking, change)
    message = refused(
        lacking, lambda: subprocess.run(command, capture_output=True, text=True, timeout=60)
    )
    for word in named:
        assert word in message


def test_it_serves_after_each_refusal(lacking):
    check_that_it_serves(lacking)


def test_a_new_data_directory_stays_empty(work):
    """Refused on its first start, a server leaves no store and no index behind."""
    server = Server(work / "unborn", pool_mb=1024)
    command = [server.bin / "esker", "serve", "--config", server.config]
    done = denied_calls.run(command, [Deny("mount_setattr")])
    assert done.returncode == 1
    assert sorted(p.name for p in server.data.rglob("*")) == ["lock", "run"]
    assert leaks.look(str(server.directory), server.node) == []
    server.start()
    assert server.cli("image", "ls") is not None
    server.stop()
    server.drain()
    assert leaks.wait_for_none(str(server.directory), server.node) == []


def test_doctor_names_it_too(server, work):
    command = [server.bin / "esker", "doctor", "--data", work / "doctor"]
    done = denied_calls.run(command, [Deny("mount_setattr")])
    assert done.returncode == 1
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert "MISSING" in lines["mount_setattr"] and "Linux 5.12" in lines["mount_setattr"]
    assert "works" in lines["openat2"]
    assert not (work / "doctor").exists()


def test_layers_fall_back_to_loop_devices(server, work):
    """As before Linux 6.12, where EROFS mounts block devices only."""
    opened: list[str] = []

    def file_as_device(call: Call) -> bool:
        return call.arguments[1] == CMD_CREATE and opened[-1:] == ["erofs"] and opened.count("erofs") == 1

    rules = [
        Deny("fsopen", when=lambda call: opened.append(call.text(0)) or False),
        Deny("fsconfig", errno.ENOTBLK, file_as_device),
    ]
    done = denied_calls.run([server.bin / "esker", "doctor", "--data", work / "doctor"], rules)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("layers (EROFS)"))
    assert "falls back" in line and "loop device" in line and "Linux 6.12" in line
    assert done.returncode == 0, done.stdout
