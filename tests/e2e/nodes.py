"""Two servers on one store: node a has the index, node b uses it over the network.

Each has its own data, cache and network namespace; a veth pair joins the two, and nothing else is on it.
"""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path
from typing import Any

from esker_server import Server, wait_until

# Short, so that a test can wait for the end of a lease.
LEASE, STALENESS, BEAT = 3, 2, 1
TIMES = f"lease_seconds = {LEASE}\nstaleness_seconds = {STALENESS}\nbeat_seconds = {BEAT}\n"
GRACE = str(LEASE + STALENESS)
INDEX_PORT = 7072


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"{command}: {done.stderr}"


class Network:
    """Namespaces esk-<id>-a, -b, ... in a row of veth pairs to one bridge of their own."""

    def __init__(self, *names: str) -> None:
        self.id = secrets.token_hex(3)
        self.names = names
        hub = self.namespace("hub")
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "br0", "up")
        for name in names:
            ns, peer = self.namespace(name), f"p-{name}"
            _run("ip", "netns", "add", ns)
            _run("ip", "-n", ns, "link", "set", "lo", "up")
            _run("ip", "-n", hub, "link", "add", peer, "type", "veth", "peer", "name", "eth0", "netns", ns)
            _run("ip", "-n", hub, "link", "set", peer, "master", "br0", "up")
            _run("ip", "-n", ns, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _run("ip", "-n", ns, "link", "set", "eth0", "up")

    def namespace(self, name: str) -> str:
        return f"esk-{self.id}-{name}"

    def address(self, name: str) -> str:
        return f"10.91.7.{self.names.index(name) + 1}"

    def add_address(self, name: str, host: int) -> str:
        """One more address of that machine."""
        address = f"10.91.7.{host}"
        _run("ip", "-n", self.namespace(name), "addr", "add", f"{address}/24", "dev", "eth0")
        return address

    def prefix(self, name: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.namespace(name)}", "--"]

    def cut(self, name: str, really: bool = True) -> None:
        """Takes the machine's cable out, or puts it back."""
        state = "down" if really else "up"
        _run("ip", "-n", self.namespace("hub"), "link", "set", f"p-{name}", state)

    def remove(self) -> None:
        for name in ("hub", *self.names):
            subprocess.run(["ip", "netns", "del", self.namespace(name)], timeout=20, check=False)


class TwoNodes:
    def __init__(self, work: Path, times: str = TIMES, machines: tuple[str, ...] = ("a", "b", "c")) -> None:
        self.network = Network(*machines)
        self.work = work
        self.times = times
        self.servers: list[Server] = []

    def make_servers(self, store_a: Path, store_b: Path) -> None:
        self.a = self.server("a", store_a, index=True)
        self.b = self.server("b", store_b, index=False)
        self.servers = [self.b, self.a]

    @property
    def index_address(self) -> str:
        return f"{self.network.address('a')}:{INDEX_PORT}"

    def server(self, name: str, store: Path, index: bool, **config: Any) -> Server:
        server = Server(self.work / name)
        if index:
            roles, more = "all", f'listen = "{self.network.address(name)}:{INDEX_PORT}"\n'
        else:
            key = self.work / "a" / "data" / "index.key"
            roles, more = "gateway,node", f'address = "{self.index_address}"\nkey_file = "{key}"\n'
        server.write_config(
            store=str(store), roles=roles, more=f"[index]\n{more}{self.times}", pool_mb=1024, **config
        )
        server.prefix = self.network.prefix(name)
        return server

    def start(self) -> None:
        self.a.start()
        self.b.start()

    def close(self, keep_network: bool = False) -> list[str]:
        """Ends everything; what is left behind."""
        left: list[str] = []
        for server in self.servers:
            try:
                left += server.end_all() if server.data.exists() else []
            except Exception as error:
                left.append(f"{server.directory.name}: {error!r}")
        if not keep_network:
            self.network.remove()
        return left


def collect(server: Server, grace: str = GRACE) -> dict[str, int]:
    return {key: int(value) for key, value in server.json("gc", "--grace", grace).items()}


def collect_all(server: Server) -> None:
    """Until nothing is left that may go."""

    def done() -> bool:
        report = collect(server)
        return report["packs_deleted"] == 0 and report["packs_condemned"] == 0

    wait_until(done, 30, "a collection that finds nothing")


def wait_for_leases(server: Server) -> None:
    """Until the index has heard of every node what it holds."""
    wait_until(
        lambda: server.run("gc", "--grace", "3600").returncode == 0, 30, "every node's announcement"
    )
