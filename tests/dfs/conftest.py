from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from esker_server import PROGRAMS, programs  # noqa: E402
from moosefs import MooseFs, missing  # noqa: E402
from nodes import TwoNodes  # noqa: E402


def pytest_collection_modifyitems(items) -> None:
    reason = ""
    if os.geteuid() != 0:
        reason = "needs root"
    if lacking := [name for name in PROGRAMS if not (programs() / name).exists()]:
        reason = f"no {', '.join(lacking)} in {programs()} (ESKER_BIN names another directory)"
    if lacking := missing():
        reason = f"MooseFS is not installed: no {', '.join(lacking)}"
    for item in items if reason else []:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def work():
    path = Path(tempfile.mkdtemp(prefix="esker-dfs-", dir="/var/tmp"))
    yield path
    if not os.environ.get("ESKER_E2E_KEEP"):
        shutil.rmtree(path)


class Cluster:
    """MooseFS on one machine, a node on each of two others; each mounts it for itself."""

    def __init__(self, work: Path) -> None:
        self.nodes = TwoNodes(work, machines=("a", "b", "dfs"))
        self.dfs = MooseFs(work / "moosefs", self.nodes.network, "dfs")

    def start(self) -> None:
        self.dfs.start()
        stores = {name: self.dfs.mount(name) / "store" for name in ("a", "b")}
        self.nodes.make_servers(stores["a"], stores["b"])
        self.nodes.start()

    def close(self) -> list[str]:
        left = self.nodes.close(keep_network=True)
        left += self.dfs.stop()
        self.nodes.network.remove()
        return left


@pytest.fixture(scope="session")
def cluster(work):
    cluster = Cluster(work)
    try:
        cluster.start()
        yield cluster
    finally:
        left = cluster.close()
    assert not left, "left behind:\n" + "\n".join(left)


@pytest.fixture(autouse=True)
def show_logs(request, cluster):
    yield
    if getattr(request.node, "failed_report", None):
        for server in (cluster.nodes.a, cluster.nodes.b):
            print(f"--- {server.directory.name}:\n{server.log_tail(6000)}")
        print("--- MooseFS:", cluster.dfs.alive())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if outcome.get_result().failed:
        item.failed_report = True
