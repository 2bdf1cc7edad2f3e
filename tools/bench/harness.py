"""Programs, servers and temporary files of a benchmark run; all of them end with it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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
        for name in ("esker", "esker-load", "esker-floor", "esker-floor-tiny", "esker-floor-spawn"):
            if not (directory / name).exists():
                raise BenchError(f"{directory / name} is missing; run: tools/dev build release")

    def __truediv__(self, name: str) -> Path:
        return self.directory / name


class Server:
    """One `esker serve` on a data directory of its own. close() ends it and all its sandboxes."""

    def __init__(self, programs: Programs, data: Path, store: Path | None = None):
        self._programs = programs
        self.data = data
        self._store = store or data / "store"
        self._log = data.with_suffix(".log")
        self.address = f"unix:{data}/run/esker.sock"
        with self._log.open("wb") as log:
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
        return [str(self._programs / "esker"), "serve", "--data", str(self.data),
                "--store", str(self._store), *more]

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
        return run([self._programs / "esker", "--address", self.address, *argv], timeout=timeout).stdout

    def load(self, image: str, what: str = "cycle", **options: float) -> dict:
        """Runs esker-load; options are its own, with _ for -."""
        argv = [self._programs / "esker-load", "--address", self.address, "--image", image, "--what", what]
        for name, value in options.items():
            argv += [f"--{name.replace('_', '-')}", str(value)]
        result = json.loads(run(argv).stdout)
        if result["failures"]:
            raise BenchError(f"{what} under load failed: {result['failures']}")
        return result

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
        self._servers = 0

    @contextlib.contextmanager
    def server(self, store: Path | None = None) -> Iterator[Server]:
        self._servers += 1
        server = Server(self.programs, self.root / f"data-{self._servers}", store)
        try:
            yield server
        finally:
            server.close()

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


def disk_bytes(tree: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in tree.rglob("*") if path.is_file())
