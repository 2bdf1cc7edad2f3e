"""MooseFS for tests: a master and three chunk servers in a network namespace of their own, and one client mount
per node. Everything lies below one directory and goes with it; nothing listens outside the namespaces.

Goal 2: every chunk is on two of the three chunk servers, so that one may be killed. Chunk servers sync before
they close a chunk (HDD_FSYNC_BEFORE_CLOSE), as a store that must survive a power cut needs.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

from esker_server import wait_until
from nodes import Network

GOAL = 2
CHUNK_SERVERS = (1, 2, 3)
EMPTY_METADATA = Path("/var/lib/mfs/metadata.mfs.empty")  # of the package
PROGRAMS = ("mfsmaster", "mfschunkserver", "mfsmount", "mfssetgoal")
COMMON = "WORKING_USER = root\nWORKING_GROUP = root\nNICE_LEVEL = 0\nDISABLE_OOM_KILLER = 0\n"


def missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


class MooseFs:
    def __init__(self, directory: Path, network: Network, machine: str) -> None:
        self.directory = directory
        self.network = network
        self.machine = machine
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.mounts: dict[str, Path] = {}
        # Chunk servers must not come from 127/8; all addresses are of the one machine.
        self.master_address = network.add_address(machine, 50)
        self.chunk_addresses = {n: network.add_address(machine, 50 + n) for n in CHUNK_SERVERS}

    def start(self) -> None:
        master = self.directory / "master"
        master.mkdir(parents=True)
        shutil.copy(EMPTY_METADATA, master / "metadata.mfs")
        (master / "exports.cfg").write_text("* / rw,alldirs,admin,maproot=0:0\n")
        (master / "master.cfg").write_text(
            f"{COMMON}DATA_PATH = {master}\nEXPORTS_FILENAME = {master}/exports.cfg\n"
            f"TOPOLOGY_FILENAME = /dev/null\nMATOCL_LISTEN_HOST = {self.master_address}\n"
            f"MATOCS_LISTEN_HOST = {self.master_address}\nMATOML_LISTEN_HOST = {self.master_address}\n"
            "REPLICATIONS_DELAY_INIT = 5\nCHUNKS_LOOP_MIN_TIME = 10\nATIME_MODE = 4\nCHANGELOG_SAVE_MODE = 1\n"
        )
        for number, address in self.chunk_addresses.items():
            home = self.directory / f"cs{number}"
            (home / "hdd").mkdir(parents=True)
            (home / "hdd.cfg").write_text(f"{home}/hdd\n")
            (home / "cs.cfg").write_text(
                f"{COMMON}DATA_PATH = {home}\nHDD_CONF_FILENAME = {home}/hdd.cfg\n"
                f"HDD_LEAVE_SPACE_DEFAULT = 64MiB\nHDD_FSYNC_BEFORE_CLOSE = 1\nBIND_HOST = {address}\n"
                f"CSSERV_LISTEN_HOST = {address}\nMASTER_HOST = {self.master_address}\n"
                "MASTER_RECONNECTION_DELAY = 1\nWORKERS_MAX = 16\nWORKERS_MAX_IDLE = 4\n"
            )
        self.start_master()
        for number in CHUNK_SERVERS:
            self.start_chunk_server(number)

    # --- servers ----------------------------------------------------------------------------------

    def _spawn(self, name: str, machine: str, *command: str) -> None:
        # They end with the test, however it ends.
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *self.network.prefix(machine), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )

    def start_master(self) -> None:
        config = self.directory / "master" / "master.cfg"
        self._spawn("master", self.machine, "mfsmaster", "-f", "-a", "-c", str(config), "start")

    def start_chunk_server(self, number: int) -> None:
        config = self.directory / f"cs{number}" / "cs.cfg"
        self._spawn(f"cs{number}", self.machine, "mfschunkserver", "-f", "-c", str(config), "start")

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def alive(self) -> dict[str, bool]:
        return {name: process.poll() is None for name, process in self.processes.items()}

    # --- mounts -----------------------------------------------------------------------------------

    def mount(self, machine: str) -> Path:
        """The file system as a client on that machine sees it."""
        path = self.directory / f"mnt-{machine}"
        path.mkdir()
        self.mounts[machine] = path
        end = time.monotonic() + 30
        while not path.is_mount():
            name = f"client-{machine}"
            process = self.processes.get(name)
            if process is None or process.poll() is not None:  # the master was not ready yet
                assert time.monotonic() < end, (self.directory / f"{name}.log").read_text()[-2000:]
                options = "mfsnice=0,mfsallowoomkiller,dev,suid"
                command = ("mfsmount", "-f", "-H", self.master_address, str(path), "-o", options)
                self._spawn(name, machine, *command)
            time.sleep(0.05)
        if len(self.mounts) == 1:
            for tool in (("mfssetgoal", "-r", str(GOAL)), ("mfssettrashtime", "-r", "0")):
                command = [*self.network.prefix(machine), *tool, str(path)]
                subprocess.run(command, check=True, capture_output=True, timeout=20)
            wait_until(lambda: self._writable(path), 30, "a write with two copies")
        return path

    def _writable(self, path: Path) -> bool:
        probe = path / ".ready"
        try:
            probe.write_bytes(b"x" * 4096)
        except OSError:
            return False
        machine = next(iter(self.mounts))
        info = subprocess.run(
            [*self.network.prefix(machine), "mfsfileinfo", str(probe)], capture_output=True, text=True, timeout=20
        )
        return info.stdout.count("copy ") >= GOAL

    def stop(self) -> list[str]:
        """Ends everything; what is left behind."""
        for path in self.mounts.values():
            if subprocess.run(["umount", path], capture_output=True, timeout=60).returncode != 0:
                subprocess.run(["umount", "-l", path], capture_output=True, timeout=60)
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        left = [f"mount: {path}" for path in self.mounts.values() if path.is_mount()]
        if not left:
            shutil.rmtree(self.directory)
        return left
