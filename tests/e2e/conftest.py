from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from esker import AsyncClient, AsyncSandbox, Client, Sandbox
from esker_server import PROGRAMS, Server, programs
from small_image import make_tar

IMAGE = "bb:1"

# A shell's background job ignores interrupts, and so would all programs that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items) -> None:
    reason = ""
    if os.geteuid() != 0:
        reason = "needs root"
    missing = [name for name in PROGRAMS if not (programs() / name).exists()]
    if missing:
        reason = f"no {', '.join(missing)} in {programs()} (ESKER_BIN names another directory)"
    if reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def work():
    path = Path(tempfile.mkdtemp(prefix="esker-e2e-", dir="/var/tmp"))
    path.chmod(0o711)  # a test runs a program from it as nobody
    yield path
    if os.environ.get("ESKER_E2E_KEEP"):
        print(f"kept: {path}")
    else:
        shutil.rmtree(path)


@pytest.fixture(scope="session")
def image_tar(work) -> Path:
    path = work / "bb.tar"
    make_tar(path)
    return path


@pytest.fixture(scope="session")
def server(work, image_tar):
    """Runs for the whole session, with the image bb:1. A test that kills it starts it again."""
    server = Server(work / "server")
    server.start()
    server.cli("image", "push", f"tar:{image_tar}", IMAGE)
    yield server
    left = server.end_all()
    assert not left, "left behind:\n" + "\n".join(left)


@pytest.fixture
def client(server):
    with Client(server.address) as client:
        yield client


@pytest.fixture
async def async_client(server):
    async with AsyncClient(server.address) as client:
        yield client


@pytest.fixture
def new(client):
    """Makes sandboxes that are killed at the end of the test."""
    made = []

    def create(image: str = IMAGE, **kwargs) -> Sandbox:
        made.append(Sandbox.create(image, client=client, **kwargs))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.kill()


@pytest.fixture
def sandbox(new):
    return new()


@pytest.fixture(scope="module")
def shared(server):
    """One sandbox for the tests of a module that do not disturb each other."""
    with Client(server.address) as client, Sandbox.create(IMAGE, client=client) as sandbox:
        yield sandbox


@pytest.fixture
async def async_sandbox(async_client):
    async with await AsyncSandbox.create(IMAGE, client=async_client) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def show_log_of_failures(request, server):
    size = server.log.stat().st_size if server.log.exists() else 0
    yield
    report = getattr(request.node, "failed_report", None)
    if report:
        with server.log.open("rb") as log:
            log.seek(size)
            print("server's log:", log.read()[-4000:].decode(errors="replace"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if outcome.get_result().failed:
        item.failed_report = True
