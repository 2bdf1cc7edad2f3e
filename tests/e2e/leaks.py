"""What a server left in the kernel. Looks only at what carries its directory or its node's id."""

from __future__ import annotations

import glob
import os
import time
from pathlib import Path


def _mounts(directory: str) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [f"mount: {line}" for line in lines if directory in line]


def _loops(directory: str) -> list[str]:
    found = []
    for name in glob.glob("/sys/block/loop*/loop/backing_file"):
        try:
            backing = Path(name).read_text().strip()
        except OSError:
            continue
        if backing.startswith(directory):
            found.append(f"loop device: {name.split('/')[3]} on {backing}")
    return found


def _cgroups(node: str) -> list[str]:
    found = []
    for root, names, _ in os.walk("/sys/fs/cgroup"):
        for name in names:
            if name == f"esker-{node}":
                found.append(f"cgroup: {root}/{name}")
    return found


def _processes(directory: str, node: str) -> list[str]:
    found = []
    for entry in glob.glob("/proc/[0-9]*"):
        if int(entry.rsplit("/", 1)[1]) in (os.getpid(), os.getppid()):
            continue
        try:
            state = Path(entry, "stat").read_text().rsplit(")", 1)[1].split()[0]
            command = Path(entry, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            cgroup = Path(entry, "cgroup").read_text()
        except OSError:
            continue
        if state != "Z" and (directory in command or f"esker-{node}" in cgroup):
            found.append(f"process: {entry} {command.strip()}")
    return found


def look(directory: str, node: str) -> list[str]:
    return _mounts(directory) + _loops(directory) + _cgroups(node) + _processes(directory, node)


def wait_for_none(directory: str, node: str, timeout: float = 15) -> list[str]:
    """What is left after at most `timeout` seconds; some of it goes asynchronously."""
    end = time.monotonic() + timeout
    while (left := look(directory, node)) and time.monotonic() < end:
        time.sleep(0.1)
    return left
