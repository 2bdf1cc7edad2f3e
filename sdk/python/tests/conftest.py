import pytest
from fake_server import FakeServer

from esker import AsyncClient, AsyncSandbox, Client, Sandbox


@pytest.fixture
def server():
    server = FakeServer()
    yield server
    server.stop()


@pytest.fixture
def client(server):
    with Client(server.address, api_key="key") as client:
        yield client


@pytest.fixture
def sandbox(client):
    return Sandbox("sb-1", client)


@pytest.fixture
async def async_sandbox(server):
    async with AsyncClient(server.address) as client:
        yield AsyncSandbox("sb-1", client)
