"""A server of the tests: its programs, its data directory, its life."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import esker
import leaks

PROGRAMS = ("esker", "esker-keeper", "esker-imagefs", "esker-init")
ROOT = Path(__file__).resolve().parents[2]


def programs() -> Path:
    return Path(os.environ.get("ESKER_BIN", ROOT / "build" / "dev" / "bin"))


def wait_until(condition: Callable[[], Any], timeout: float = 20, what: str = "") -> Any:
    """Polls until the condition's value is true; that value. AssertionError after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {timeout} s: {what or condition}"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`esker serve` on a directory of its own."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.node = f"e2e{secrets.token_hex(4)}"
        self.port = free_port()
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.prefix: list[str] = []  # what runs the server, such as nsenter
        self.bin = directory / "bin"
        self.bin.mkdir(parents=True)
        for program in PROGRAMS:  # a build that goes on meanwhile must not disturb
            shutil.copy2(programs() / program, self.bin / program)
        self.log = directory / "server.log"
        self.config = directory / "config.toml"
        self.write_config(**config)

    def write_config(
        self,
        pool_mb: int = 4096,
        disk_mb: int = 256,
        store: str = "",
        roles: str = "all",
        more: str = "",
    ) -> None:
        store_line = f'store = "{store}"\n' if store else ""
        self.config.write_text(
            f'data = "{self.data}"\n{store_line}roles = "{roles}"\n'
            f'[gateway]\nlisten = "127.0.0.1:{self.port}"\n'
            f'[node]\nid = "{self.node}"\nupper_pool_mb = {pool_mb}\ndisk_mb = {disk_mb}\n'
            f"memory_mb = 128\npids = 256\n{more}"
        )

    @property
    def address(self) -> str:
        return f"unix:{self.data}/run/esker.sock"

    def start(self, timeout: float = 60, arguments: tuple[str, ...] = ()) -> None:
        assert self.process is None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, self.bin / "esker", "serve", "--config", self.config, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        with esker.Client(self.address) as client:
            end = time.monotonic() + timeout
            while True:
                try:
                    client.server_version(timeout=1)
                    return
                except (ConnectionError, TimeoutError):
                    assert self.process.poll() is None, f"the server ended: {self.log_tail()}"
                    assert time.monotonic() < end, f"no server: {self.log_tail()}"

    def end(self, number: int, timeout: float = 30) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(timeout)
        self.process = None

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        self.end(signal.SIGTERM)

    def drain(self) -> None:
        self.serve_and_fail_unless_ok("--config", str(self.config), "--drain")

    def end_all(self) -> list[str]:
        """Its sandboxes, then itself; what is left behind on the machine."""
        if self.process is None:
            self.start()
        with esker.Client(self.address) as client:
            for info in esker.Sandbox.list(client=client):
                esker.Sandbox(info.id, client).kill()
        self.stop()
        self.drain()
        return leaks.wait_for_none(str(self.directory), self.node)

    def serve_and_fail_unless_ok(self, *arguments: str) -> None:
        done = subprocess.run(
            [*self.prefix, self.bin / "esker", "serve", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr

    def log_tail(self, size: int = 4000) -> str:
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    # --- the CLI ----------------------------------------------------------------------------------

    def run(
        self, *arguments: str, stdin: bytes = b"", timeout: float = 120, env: Any = None
    ) -> subprocess.CompletedProcess[bytes]:
        """The CLI against this server."""
        return subprocess.run(
            [self.bin / "esker", "--address", self.address, *arguments],
            input=stdin,
            capture_output=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
        )

    def cli(self, *arguments: str, **kwargs: Any) -> str:
        """The same; it must succeed. Its output without the last line end."""
        done = self.run(*arguments, **kwargs)
        assert done.returncode == 0, f"{arguments}: {done.returncode}: {done.stderr.decode()}"
        return done.stdout.decode().rstrip("\n")

    def json(self, *arguments: str, **kwargs: Any) -> Any:
        """The last JSON object that the CLI prints."""
        return json.loads(self.cli("--json", *arguments, **kwargs).splitlines()[-1])

    def status(self) -> dict[str, Any]:
        return self.json("status")
