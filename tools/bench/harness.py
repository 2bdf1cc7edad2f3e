"""Programs, servers and temporary files of a benchmark run; all of them end with it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

READY_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 120.0


class BenchError(Exception):
    """A benchmark could not be run; the text says what was tried and what to do."""


def run(argv: Sequence[str | Path], *, timeout: float = 600, **kwargs) -> subprocess.CompletedProcess:
    words = [str(word) for word in argv]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, **kwargs)
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).strip()[-2000:]
        raise BenchError(f"{' '.join(words)[:300]} ended with {done.returncode}: {tail}")
    return done


def timed(argv: Sequence[str | Path], **kwargs) -> float:
    start = time.monotonic()
    run(argv, **kwargs)
    return time.monotonic() - start


@dataclass
class Cost:
    """What one command took: of the clock, and of all processors, its own children and the server's."""

    seconds: float
    cpu_seconds: float


def _cpu_here() -> float:
    """Of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def cost_of(work: Callable[[], object]) -> Cost:
    cpu, start = _cpu_here(), time.monotonic()
    work()
    return Cost(time.monotonic() - start, _cpu_here() - cpu)


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(int(ticks) for ticks in fields[11:13]) / os.sysconf("SC_CLK_TCK")


def enter_own_mount_namespace() -> None:
    """Starts this program anew in a mount namespace of its own.

    What a benchmark mounts is then seen, and held, by nothing else on the machine, and cannot outlive it.
    """
    if os.environ.get("ESKER_BENCH_NAMESPACE") == str(os.getpid()):
        return
    os.environ["ESKER_BENCH_NAMESPACE"] = str(os.getpid())  # unshare keeps the process
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])


class Programs:
    """The built programs, all in one directory."""

    def __init__(self, directory: Path):
        self.directory = directory
        for name in ("esker", "esker-load", "esker-floor", "esker-floor-tiny", "esker-floor-spawn",
                     "esker-read-files"):
            if not (directory / name).exists():
                raise BenchError(f"{directory / name} is missing; run: tools/dev build release")

    def __truediv__(self, name: str) -> Path:
        return self.directory / name


class Server:
    """One `esker serve` on a data directory of its own. close() ends it and all its sandboxes."""

    def __init__(self, programs: Programs, data: Path, store: Path | None = None, config: str = ""):
        """On a directory that an earlier one had, it finds what that one left."""
        self._programs = programs
        self.data = data
        self._store = store or data / "store"
        self._log = data.with_suffix(".log")
        self.address = f"unix:{data}/run/esker.sock"
        self._config = data.with_suffix(".toml")
        self._config.write_text(config)
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C reaches this program only, which then closes the server.
            self._process = subprocess.Popen(
                self._serve("--listen", "127.0.0.1:0"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._await_ready()

    def _serve(self, *more: str) -> list[str]:
        return [str(self._programs / "esker"), "serve", "--config", str(self._config),
                "--data", str(self.data), "--store", str(self._store), *more]

    def kill(self) -> None:
        """SIGKILL: the sandboxes live on, and start() finds them."""
        self._process.kill()
        self._process.wait()

    def pids(self) -> dict[str, int]:
        """The processes that serve, by name. Sandboxes are not among them."""
        found = {"esker": self._process.pid}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode().split("\0") if entry.name.isdigit() else [""]
                name = Path(words[0]).name
                if name in ("esker-keeper", "esker-imagefs") and any(str(self.data) in w for w in words):
                    found[name] = int(entry.name)
        return found

    @property
    def node_id(self) -> str:
        return (self.data / "node" / "node-id").read_text()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(BenchError, subprocess.TimeoutExpired):
                self.cli("status", timeout=5)
                return
            time.sleep(0.05)
        self.close()
        raise BenchError(f"esker serve did not become ready: {self._log.read_text()[-2000:]}")

    @property
    def store(self) -> Path:
        return self._store

    @property
    def cache(self) -> Path:
        return self.data / "cache"

    def cli(self, *argv: str | Path, timeout: float = 600) -> str:
        try:
            return run([self._programs / "esker", "--address", self.address, *argv], timeout=timeout).stdout
        except BenchError as error:
            if self._process.poll() is None:
                raise
            raise BenchError(f"{error}\nthe server has ended with {self._process.returncode}: "
                             f"{self._log.read_text()[-2000:]}") from error

    def load(self, image: str, what: str = "cycle", **options: float) -> dict:
        """Runs esker-load; options are its own, with _ for -."""
        argv = [self._programs / "esker-load", "--address", self.address, "--image", image, "--what", what]
        for name, value in options.items():
            argv += [f"--{name.replace('_', '-')}", str(value)]
        result = json.loads(run(argv).stdout)
        if result["failures"]:
            raise BenchError(f"{what} under load failed: {result['failures']}")
        return result

    def keeper_pid(self) -> int:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"/esker-keeper") and f"{self.data}/node".encode() in words:
                    return int(entry.name)
        raise BenchError(f"no keeper runs on {self.data}")

    def push(self, source: str | Path, tag: str) -> Cost:
        """`esker image push`, with the server's share of its price."""
        server = _cpu_of(self._process.pid)
        cost = cost_of(lambda: self.cli("image", "push", source, tag))
        return Cost(cost.seconds, cost.cpu_seconds + _cpu_of(self._process.pid) - server)

    def peak_memory(self) -> int:
        """The most that the server had in memory since its start or forget_peak(), in bytes."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise BenchError("the kernel does not tell the server's peak memory")

    def forget_peak(self) -> None:
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        run([*self._serve(), "--drain"], timeout=DRAIN_TIMEOUT_S)


class Workplace:
    """The temporary directory of a run."""

    def __init__(self, programs: Programs):
        self.programs = programs
        self.root = Path(tempfile.mkdtemp(prefix="esker-bench-", dir="/var/tmp"))
        self._servers = self._copies = 0

    @contextlib.contextmanager
    def server(self, store: Path | None = None, data: Path | None = None,
               config: str = "") -> Iterator[Server]:
        """On a new data directory, which goes with it, unless one is given."""
        self._servers += 1
        own = self.root / f"data-{self._servers}"
        server = Server(self.programs, data or own, store, config)
        try:
            yield server
        finally:
            server.close()
            if data is None:
                shutil.rmtree(own)

    @contextlib.contextmanager
    def copy_of(self, store: Path) -> Iterator[Path]:
        """A store of its own with the same content: published files never change, so they are linked. What
        starts leave beside an image stays in the copy."""
        self._copies += 1
        with self.directory(f"store-{self._copies}") as copy:
            run(["cp", "-al", f"{store}/.", copy])
            yield copy

    @contextlib.contextmanager
    def directory(self, name: str) -> Iterator[Path]:
        """An empty one, removed at the end."""
        path = self.root / name
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def remove(self) -> None:
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        left = [point for point in mounts if point.startswith(str(self.root))]
        if left:
            raise BenchError(f"still mounted, so {self.root} was left as it is: {', '.join(left)}")
        shutil.rmtree(self.root)


def drop_from_page_cache(tree: Path) -> None:
    """Later reads of these files come from the disk, without touching what others have cached."""
    for path in tree.rglob("*"):
        if not path.is_file() or path.is_symlink():
            continue
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def drop_all_caches() -> None:
    """Of the whole machine: names and pages."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def disk_bytes_written(directory: Path) -> int:
    """So far, by everybody, on the device that the directory lies on."""
    os.sync()
    device = directory.stat().st_dev
    counters = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(counters[6]) * 512


def disk_bytes(tree: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in tree.rglob("*") if path.is_file())
