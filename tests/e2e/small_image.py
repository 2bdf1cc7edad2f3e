"""A tar of a small root file system: static busybox, two users, no bash."""

from __future__ import annotations

import io
import random
import subprocess
import tarfile
from pathlib import Path

BUSYBOX = Path("/usr/bin/busybox")
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n"
GROUP = b"root:x:0:\nagent:x:1000:\n"
DIRECTORIES = [
    # name, mode, owner
    ("bin", 0o755, 0),
    ("dev", 0o755, 0),
    ("etc", 0o755, 0),
    ("home", 0o755, 0),
    ("home/agent", 0o755, 1000),
    ("proc", 0o755, 0),
    ("root", 0o700, 0),
    ("sys", 0o755, 0),
    ("tmp", 0o1777, 0),
    ("usr", 0o755, 0),
    ("usr/bin", 0o755, 0),
]


def _add(tar: tarfile.TarFile, name: str, **fields) -> None:
    data = fields.pop("data", b"")
    info = tarfile.TarInfo(name)
    info.mtime = 1_600_000_000
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(data))


def make_tar(path: Path, blob: bytes | None = None) -> None:
    """Also has /data/blob, by default 16 MiB that do not compress, for reading lazily."""
    applets = subprocess.run(
        [BUSYBOX, "--list"], check=True, capture_output=True, text=True, timeout=20
    ).stdout.split()
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, mode, owner in DIRECTORIES:
            _add(tar, name, type=tarfile.DIRTYPE, mode=mode, uid=owner, gid=owner)
        _add(tar, "bin/busybox", mode=0o755, data=BUSYBOX.read_bytes())
        for applet in applets:
            if applet != "busybox":
                _add(tar, f"bin/{applet}", type=tarfile.SYMTYPE, linkname="busybox", mode=0o777)
        _add(tar, "etc/passwd", mode=0o644, data=PASSWD)
        _add(tar, "etc/group", mode=0o644, data=GROUP)
        _add(tar, "etc/plain", mode=0o644, data=b"not executable\n")
        _add(tar, "root/secret", mode=0o600, data=b"root only\n")
        _add(tar, "data", type=tarfile.DIRTYPE, mode=0o755)
        _add(tar, "data/blob", mode=0o644, data=pseudo_random(16 << 20) if blob is None else blob)


def pseudo_random(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)
