"""Esker's story on one machine: image, sandbox, commands, snapshot, forks, crashes, and nothing left.

Run by `tools/dev demo`. Every step goes through the public CLI or the Python SDK against a real
`esker serve`; every claim is checked, and a claim that does not hold ends the demo with exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import esker

ROOT = Path(__file__).resolve().parents[2]
# Every name, type, mode, owner, time, link target and byte. Sizes and link counts of directories are
# left out: they tell how a file system keeps them, not what is in them.
TREE_HASH = (
    "cd / && find . -xdev \\( -path ./proc -o -path ./sys -o -path ./dev \\) -prune -o "
    "\\( -type d -printf '%P %y %m %U %G %T@\\n' \\) -o "
    "\\( -printf '%P %y %m %U %G %T@ %s %n %l\\n' -type f -exec sha256sum {} + \\) "
    "| LC_ALL=C sort | sha256sum"
)

console = Console()


class DemoFailure(Exception):
    """Something that the demo promises did not hold."""


def check(condition: bool, claim: str) -> None:
    if not condition:
        raise DemoFailure(claim)


def wait_until(condition, claim: str, seconds: float = 30.0) -> None:
    """Polls a condition of another process, which cannot notify us."""
    deadline = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < deadline, f"{claim} within {seconds:.0f} s")
        time.sleep(0.02)


class Server:
    """One `esker serve` on a data directory of its own."""

    def __init__(self, programs: Path, data: Path) -> None:
        self.programs = programs
        self.data = data
        self.address = f"unix:{data}/run/esker.sock"
        self.log = data / "serve.log"
        self.process: subprocess.Popen[bytes] | None = None

    def _command(self, *more: str) -> list[str]:
        return [str(self.programs / "esker"), "serve", "--data", str(self.data),
                "--config", str(self.data / "esker.toml"), *more]

    def start(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        (self.data / "esker.toml").write_text(
            '[gateway]\nlisten = "127.0.0.1:0"\n[node]\nupper_pool_mb = 20000\n')
        seen = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command(), stdout=log, stderr=log,
                                            start_new_session=True)

        def ready() -> bool:
            check(self.process is not None and self.process.poll() is None,
                  f"the server starts (see {self.log})")
            return b" ready " in self.log.read_bytes()[seen:]

        wait_until(ready, "the server is ready")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)

    def drain(self) -> None:
        subprocess.run(self._command("--drain"), check=True, capture_output=True, timeout=120)

    def cli(self, *words: str) -> str:
        done = subprocess.run([str(self.programs / "esker"), "--address", self.address, *words],
                              capture_output=True, text=True, timeout=600)
        check(done.returncode == 0, f"esker {' '.join(words)} works: {done.stderr.strip()}")
        return done.stdout

    def status(self) -> dict:
        return json.loads(self.cli("--json", "status"))


class MachineState:
    """What must be the same before and after: mounts, cgroups, loop devices and processes."""

    def __init__(self) -> None:
        self.kinds = {
            "mounts": {line.split(" ", 5)[4] for line in
                       Path("/proc/self/mountinfo").read_text().splitlines()},
            "cgroups": {str(path) for path in Path("/sys/fs/cgroup").rglob("esker-*")},
            "loop devices": {path.read_text().strip() for path in
                             Path("/sys/block").glob("loop*/loop/backing_file")},
            "processes": set(self._processes()),
        }

    @staticmethod
    def _processes():
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                text = path.read_text(errors="replace")
                name = text.partition("(")[2].rpartition(")")[0]
                if name.startswith("esker") and text.rpartition(")")[2].split()[0] != "Z":
                    yield f"{path.parent.name} ({name})"

    def new_since(self, before: MachineState) -> list[str]:
        return [f"{kind}: {item}" for kind, items in self.kinds.items()
                for item in sorted(items - before.kinds[kind])]

    def __str__(self) -> str:
        return ", ".join(f"{len(items)} {kind}" for kind, items in self.kinds.items())


class Story:
    def __init__(self, server: Server, work: Path, image: Path) -> None:
        self.server = server
        self.work = work
        self.image = image
        self.table = Table(title="Esker demo")
        for column in ("step", "result", "time"):
            self.table.add_column(column)

    @contextlib.contextmanager
    def step(self, name: str):
        console.print(f"[bold]{name}[/bold]")
        start = time.monotonic()
        results: list[str] = []
        yield results
        seconds = time.monotonic() - start
        self.table.add_row(name, "\n".join(results), f"{seconds:.2f} s")
        for line in results:
            console.print(f"   {line}")

    def run(self) -> None:
        self.push_image()
        sandbox = self.use_sandbox()
        snapshot_id, tree = self.fork_eight(sandbox)
        self.kill_server(sandbox)
        self.kill_blob_server(sandbox)
        self.restore(snapshot_id, tree)
        self.delete_everything()

    def push_image(self) -> None:
        with self.step("image push (3 layers, OCI)") as out:
            done = json.loads(self.server.cli("--json", "image", "push", f"oci:{self.image}:1",
                                              "debian-py:1"))
            totals = {k: int(v) for k, v in done["totals"].items()}
            check(totals["layers"] >= 3, "the image has three layers or more")
            mib = 1 << 20
            out.append(f"{totals['layers']} layers, {totals['entries']} entries: "
                       f"{totals['bytes_read'] / mib:.1f} MiB read, "
                       f"{totals['bytes_stored'] / mib:.1f} MiB stored, "
                       f"{totals['bytes_deduplicated'] / mib:.1f} MiB deduplicated")
        with self.step("the same push again") as out:
            done = json.loads(self.server.cli("--json", "image", "push", f"oci:{self.image}:1",
                                              "debian-py:again"))
            check(int(done["totals"]["bytes_stored"]) == 0, "nothing is stored twice")
            self.server.cli("image", "rm", "debian-py:again")
            out.append("0 bytes stored")

    def use_sandbox(self) -> esker.Sandbox:
        with self.step("create, first Python") as out:
            start = time.monotonic()
            sandbox = esker.Sandbox.create("debian-py:1", ttl=3600, disk_mb=2048)
            created = time.monotonic() - start
            result = sandbox.commands.run("python3 -c 'print(6 * 7)'", check=True)
            check(result.stdout == "42\n", "Python computes 42")
            out.append(f"created in {created * 1000:.0f} ms, cold; python3 says 42")
        with self.step("stream output of a long command") as out:
            pieces: list[float] = []
            result = sandbox.commands.run("for i in $(seq 10); do echo line $i; sleep 0.1; done",
                                          on_stdout=lambda text: pieces.append(time.monotonic()))
            check(result.stdout.count("\n") == 10, "ten lines arrive")
            check(len(pieces) > 3 and pieces[-1] - pieces[0] > 0.4, "they arrive as they are written")
            out.append(f"10 lines in {len(pieces)} pieces over {pieces[-1] - pieces[0]:.1f} s")
        with self.step("files up and down") as out:
            payload = os.urandom(8 << 20)
            sandbox.files.write("/workspace/data.bin", payload)
            check(sandbox.files.read("/workspace/data.bin", format="bytes") == payload,
                  "the bytes come back as they went")
            out.append("8 MiB, equal")
        with self.step("background command, found again") as out:
            started = sandbox.commands.run("sleep 1; echo background done; exit 4", background=True)
            found = [c for c in sandbox.commands.list() if c.id == started.id]
            check(len(found) == 1, "the command is listed")
            result = sandbox.commands.connect(started.id).wait()
            check(result.exit_code == 4 and "background done" in result.stdout,
                  "its output and exit code are collected")
            out.append("exit code 4, output collected")
        with self.step("a time-out kills the whole tree") as out:
            start = time.monotonic()
            try:
                sandbox.commands.run("(setsid sleep 4242 &) ; sleep 4242", timeout=1.0)
                raise DemoFailure("the command is timed out")
            except TimeoutError:
                elapsed = time.monotonic() - start
            left = sandbox.commands.run(
                "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep[ ]4242'").stdout
            check(left.strip() == "0", "no process of it is left")
            out.append(f"reported after {elapsed:.2f} s, no process left")
        return sandbox

    def fork_eight(self, sandbox: esker.Sandbox) -> tuple[str, str]:
        with self.step("snapshot") as out:
            sandbox.commands.run("echo before > /workspace/state; rm -rf /usr/share/perl5", check=True)
            tree = sandbox.commands.run(TREE_HASH, check=True).stdout
            start = time.monotonic()
            snapshot = sandbox.snapshot()
            out.append(f"{(time.monotonic() - start) * 1000:.0f} ms, image {snapshot.id[:12]}")
        with self.step("fork eight") as out:
            start = time.monotonic()
            children = sandbox.fork(8)
            out.append(f"{(time.monotonic() - start) * 1000:.0f} ms for all")
            trees = {child.commands.run(TREE_HASH, check=True).stdout for child in children}
            check(trees == {tree}, "every child sees the same bytes as the parent")
            for number, child in enumerate(children):
                child.commands.run(f"echo child {number} > /workspace/state", check=True)
            states = [child.files.read("/workspace/state") for child in children]
            check(states == [f"child {n}\n" for n in range(8)], "no child sees another's writes")
            check(sandbox.files.read("/workspace/state") == "before\n", "nor does the parent")
            for child in children:
                child.kill()
            out.append("same tree hash in all, later writes stay apart")
        return snapshot.id, tree

    def kill_server(self, sandbox: esker.Sandbox) -> None:
        with self.step("SIGKILL of the server under work") as out:
            before = esker.Sandbox.create("debian-py:1")
            background = sandbox.commands.run("for i in $(seq 40); do echo tick $i; sleep 0.05; done; exit 9",
                                              background=True)
            results: list[esker.CommandResult] = []
            seen = threading.Event()

            def follow() -> None:
                results.append(sandbox.commands.run(
                    "for i in $(seq 40); do echo tock $i; sleep 0.05; done; exit 8",
                    on_stdout=lambda text: seen.set()))

            follower = threading.Thread(target=follow)
            follower.start()
            check(seen.wait(20), "output flows")
            self.server.kill()
            start = time.monotonic()
            self.server.start()
            back = time.monotonic() - start
            follower.join(60)
            check(len(results) == 1, "the followed command ends")
            check(results[0].stdout == "".join(f"tock {i}\n" for i in range(1, 41)),
                  "not a byte of its output is lost or doubled")
            check(results[0].exit_code == 8, "its exit code is right")
            result = sandbox.commands.connect(background.id).wait()
            check(result.exit_code == 9 and result.stdout.count("tick") == 40,
                  "the background command's output and exit code are collected")
            check(before.commands.run("echo alive").stdout == "alive\n", "other sandboxes live on")
            before.kill()
            out.append(f"server back after {back:.2f} s; sandboxes adopted, output complete, "
                       "exit codes 8 and 9")

    def kill_blob_server(self, sandbox: esker.Sandbox) -> None:
        with self.step("SIGKILL of the blob server under readers") as out:
            # A fresh image of random files, so that nothing is cached yet.
            source = self.work / "random"
            source.mkdir()
            for number in range(24):
                (source / f"file-{number}").write_bytes(os.urandom(1 << 20))
            expected = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                        for path in source.iterdir()}
            reader = self._sandbox_over("random", source)
            start = time.monotonic()
            command = reader.commands.run(
                "cd /data && for round in 1 2 3; do sha256sum file-*; done", background=True)
            killed = 0
            while reader_running(reader, command.id):
                pid = int(self.server.status()["blob_server_pid"])
                with contextlib.suppress(ProcessLookupError):
                    if pid > 0 and killed < 5:
                        os.kill(pid, signal.SIGKILL)
                        killed += 1
                time.sleep(0.05)
            result = command.wait()
            check(result.exit_code == 0, f"no read fails: {result.stderr}")
            lines = [line.split() for line in result.stdout.splitlines()]
            check(len(lines) == 72 and all(expected[name] == digest for digest, name in lines),
                  "every byte is right")
            check(killed > 0, "the blob server was killed while reads were under way")
            reader.kill()
            out.append(f"killed {killed} times; 72 MiB read in {time.monotonic() - start:.1f} s, "
                       "all digests right")

    def _sandbox_over(self, name: str, source: Path) -> esker.Sandbox:
        """A sandbox whose image holds `source` at /data on top of the demo's root."""
        layout = self.work / f"{name}-oci"
        shutil.copytree(self.image, layout)
        tar = self.work / f"{name}.tar"
        subprocess.run(["tar", "-C", str(source.parent), "--transform", "s,^random,data,",
                        "-cf", str(tar), source.name], check=True)
        subprocess.run(["umoci", "raw", "add-layer", "--image", f"{layout}:1", str(tar)], check=True,
                       capture_output=True)
        self.server.cli("image", "push", f"oci:{layout}:1", f"{name}-root:1")
        sandbox = esker.Sandbox.create(f"{name}-root:1")
        self.server.cli("image", "rm", f"{name}-root:1")
        return sandbox

    def restore(self, snapshot_id: str, tree: str) -> None:
        with self.step("restore the snapshot") as out:
            start = time.monotonic()
            restored = esker.Sandbox.create(snapshot_id)
            created = time.monotonic() - start
            check(restored.commands.run(TREE_HASH, check=True).stdout == tree,
                  "the restored tree has the same hash")
            restored.kill()
            out.append(f"created in {created * 1000:.0f} ms; same hash of the whole tree")

    def delete_everything(self) -> None:
        with self.step("delete all, collect garbage") as out:
            for info in esker.Sandbox.list():
                esker.Sandbox.connect(info.id).kill()
            for line in self.server.cli("--json", "snapshot", "ls").splitlines():
                self.server.cli("snapshot", "rm", json.loads(line)["id"])
            for line in self.server.cli("--json", "image", "ls").splitlines():
                for tag in json.loads(line)["tags"]:
                    self.server.cli("image", "rm", tag)
            self.server.cli("gc", "--grace", "0")
            packs = list((self.server.data / "store" / "packs").rglob("*.pack"))
            check(packs == [], "the store is empty")
            out.append("the store is empty")


def reader_running(sandbox: esker.Sandbox, command_id: str) -> bool:
    return any(command.id == command_id for command in sandbox.commands.list())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True, help="directory of Esker's programs")
    parser.add_argument("--keep", action="store_true", help="keep the data directory")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        console.print("[red]the demo needs root: it mounts file systems and makes namespaces[/red]")
        return 1
    image = ROOT / ".dev" / "demo-image" / "oci"
    console.print("[bold]a real image from Debian's packages[/bold] (made once, kept in .dev/)")
    subprocess.run([str(ROOT / "tools" / "demo" / "make_image.sh"), str(image)], check=True)

    before = MachineState()
    work = Path(tempfile.mkdtemp(prefix="esker-demo-", dir="/var/tmp"))
    server = Server(arguments.bin, work / "data")
    os.environ["ESKER_ADDRESS"] = server.address
    failure: str | None = None
    story = Story(server, work, image)
    try:
        server.start()
        story.run()
    except (DemoFailure, esker.EskerError, subprocess.SubprocessError, TimeoutError) as error:
        failure = f"{type(error).__name__}: {error}"
    finally:
        with contextlib.suppress(Exception):
            server.stop()
        try:
            server.drain()
        except subprocess.SubprocessError as error:
            failure = failure or f"drain: {error}"
    after = MachineState()
    left = after.new_since(before)
    if failure is None and left:
        failure = "something is left behind: " + ", ".join(left)
    if failure is None:
        story.table.add_row("nothing left on the machine", f"before: {before}\nafter: {after}", "")
    console.print(story.table)
    if failure is not None:
        console.print(f"[red]FAILED[/red] {failure}\nthe data is kept in {work}")
        return 1
    if not arguments.keep:
        shutil.rmtree(work)
    console.print("[green]every claim held[/green]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
