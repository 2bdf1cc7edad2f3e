"""What Esker is measured against: the bare kernel, OCI runtimes, plain tools."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

from harness import BenchError, Workplace, run

# One slot of an OCI runtime's loop: overlay, `run`, umount, for a number of seconds; prints how often.
# A mount namespace for all slots hides cgroup2, which crun does not accept beside version 1.
RUNTIME_SLOT = r"""
set -e
slot=$1 end=$2 n=0
while [ "$(date +%s%N)" -lt "$end" ]; do
  rm -rf "$slot/upper" "$slot/work"
  mkdir "$slot/upper" "$slot/work"
  mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$slot/upper,workdir=$slot/work,volatile" "$slot/rootfs"
  "$RUNTIME" --root "$STATE" run --bundle "$slot" "bench-$$-$n" </dev/null >/dev/null
  umount "$slot/rootfs"
  n=$((n + 1))
done
echo "$n"
"""
RUNTIME_ALL = r"""
set -e
mount --make-rprivate /
umount /sys/fs/cgroup/unified 2>/dev/null || true
mount -t tmpfs tmpfs "$UPPERS"
start=$(date +%s%N)
end=$((start + $2 * 1000000000))
i=0
while [ "$i" -lt "$1" ]; do
  mkdir -p "$UPPERS/$i/rootfs"
  cp "$CONFIG" "$UPPERS/$i/config.json"
  sh -c "$SLOT" slot "$UPPERS/$i" "$end" &
  i=$((i + 1))
done
wait
echo "nanoseconds $(($(date +%s%N) - start))"
"""


def busybox_root(directory: Path) -> Path:
    """A small root file system: static busybox and its names."""
    if directory.exists():
        return directory
    for name in ("bin", "proc", "dev", "sys", "tmp", "etc", "root"):
        (directory / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise BenchError("busybox is missing; run: tools/dev setup")
    shutil.copy2(busybox, directory / "bin/busybox")
    for name in ("sh", "true", "echo", "cat", "sleep"):
        (directory / "bin" / name).symlink_to("busybox")
    (directory / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    return directory


class Floor:
    """esker-floor with the isolation that Esker's containers have by default."""

    ISOLATION = ("--idmap", "--masks", "12", "--net", "--cgroups", "--filter", "128")

    def __init__(self, place: Workplace):
        root = place.root / "floor-root"
        (root / "proc").mkdir(parents=True)
        shutil.copy2(place.programs / "esker-floor-tiny", root / "tiny")
        self._image = place.root / "floor.erofs"
        run(["mkfs.erofs", self._image, root])
        self._program = place.programs / "esker-floor"

    def measure(self, in_flight: int, seconds: float) -> dict[str, float]:
        """As many rounds as take about `seconds`; a short first run says how many."""
        guess = self._run(in_flight, 20 if in_flight > 4 else 60)
        count = max(20, int(guess["per_second"] * seconds / in_flight))
        return self._run(in_flight, count)

    def _run(self, workers: int, count: int) -> dict[str, float]:
        out = run([self._program, "--image", self._image, *self.ISOLATION, "--workers", str(workers),
                   "--count", str(count)]).stdout
        fields = dict(word.split("=", 1) for word in out.split())
        return {name: float(fields[name]) for name in ("per_second", "ready_p50_us", "ready_p99_us")}


class OciRuntime:
    """runc or crun, called from a shell loop with an overlay on the same root file system."""

    def __init__(self, place: Workplace, name: str, lower: Path):
        path = shutil.which(name)
        if path is None:
            raise BenchError(f"{name} is missing; run: tools/dev setup")
        base = place.root / name
        (base / "uppers").mkdir(parents=True)
        (base / "state").mkdir()
        run([path, "spec", "--bundle", base] if name == "runc" else [path, "spec"], cwd=base)
        config = json.loads((base / "config.json").read_text())
        config["process"]["args"] = ["true"]
        config["process"]["terminal"] = False
        config["root"] = {"path": "rootfs", "readonly": False}
        resources = config["linux"].setdefault("resources", {})
        resources["memory"] = {"limit": 512 << 20}
        resources["pids"] = {"limit": 1024}
        (base / "config.json").write_text(json.dumps(config))
        self._environment = dict(
            os.environ, RUNTIME=path, LOWER=str(lower), STATE=str(base / "state"),
            UPPERS=str(base / "uppers"), CONFIG=str(base / "config.json"), SLOT=RUNTIME_SLOT)

    def per_second(self, in_flight: int, seconds: float) -> float:
        argv = ["unshare", "--mount", "sh", "-c", RUNTIME_ALL, "all", str(in_flight), str(int(seconds))]
        counts = 0
        for line in run(argv, env=self._environment).stdout.splitlines():
            if line.startswith("nanoseconds "):
                return counts / (int(line.split()[1]) / 1e9)
            counts += int(line)
        raise BenchError("the runtime's loop did not end")


def durable_tar_ms(work: Path, tree: Path) -> float:
    """A tar of `tree`, published as durably as a snapshot is: fsync, link, fsync of the directory."""
    temporary, name = work / "tar.tmp", work / "tar.published"
    name.unlink(missing_ok=True)
    start = time.monotonic()
    with temporary.open("wb") as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(tree, arcname=".")
        file.flush()
        os.fsync(file.fileno())
    os.link(temporary, name)
    directory = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)
    elapsed = time.monotonic() - start
    temporary.unlink()
    return elapsed * 1000


def unpack_and_pack(work: Path, tar: Path) -> None:
    """The usual way from a tar to a compressed, named EROFS image, step by step."""
    root, image, packed = work / "unpacked", work / "unpacked.erofs", work / "unpacked.zst"
    root.mkdir()
    run(["tar", "-xf", tar, "-C", root, "--xattrs", "--xattrs-include=*"])
    run(["mkfs.erofs", image, root])
    run(["zstd", "-q", "-3", "-T1", image, "-o", packed])
    with image.open("rb") as file:
        hashlib.file_digest(file, "sha256")


def inflate(program: str, file: Path) -> None:
    """Inflates and looks at nothing: what no import from gzip can be faster than."""
    subprocess.run([program, "-dc", file], stdout=subprocess.DEVNULL, check=True)
