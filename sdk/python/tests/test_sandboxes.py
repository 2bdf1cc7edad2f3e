import asyncio
import os
import threading

import grpc
import pytest
from fake_server import Fail

import esker
from esker import AsyncSandbox, Client, Sandbox
from esker._proto.esker.v1 import sandbox_pb2 as pb
from esker._transport import normalise_address


def test_create_is_repeated_with_its_request_id(server, client):
    seen = []

    def create(request, context):
        seen.append(request)
        if len(seen) < 3:
            raise Fail(grpc.StatusCode.UNAVAILABLE)
        return pb.Sandbox(id="sb-9")

    server.on["SandboxService.Create"] = create
    sandbox = Sandbox.create("bb:1", ttl=90, envs={"A": "b"}, memory_mb=64, client=client)
    assert sandbox.id == "sb-9"
    assert len({request.request_id for request in seen}) == 1
    assert (seen[0].ttl_ms, seen[0].resources.memory_mb, seen[0].tier) == (
        90_000,
        64,
        pb.TIER_CONTAINER,
    )


def test_refusals_are_not_repeated(server, client):
    def create(request, context):
        raise Fail(
            grpc.StatusCode.RESOURCE_EXHAUSTED, reason="SANDBOX_RESOURCE_EXHAUSTED", retryable=True
        )

    server.on["SandboxService.Create"] = create
    with pytest.raises(esker.ResourceExhaustedError) as caught:
        Sandbox.create("bb:1", client=client)
    assert caught.value.retryable
    assert len(server.calls) == 1


@pytest.mark.parametrize("bad", [{"image": ""}, {"tier": "moon"}, {"ttl": 0}, {"ttl": -2}])
def test_bad_arguments(server, client, bad):
    with pytest.raises(ValueError):
        Sandbox.create(**{"image": "bb:1", "client": client, **bad})
    assert not server.calls


def test_the_key_is_sent(server, client):
    seen = []

    def get(request, context):
        seen.append(dict(context.invocation_metadata())["authorization"])
        return pb.Sandbox(id=request.id, state=pb.SANDBOX_STATE_RUNNING)

    server.on["SandboxService.Get"] = get
    assert Sandbox.connect("sb-1", client=client).get_info().state == "running"
    assert seen == ["Bearer key"] * 2


def test_connect_to_an_ended_sandbox(server, client):
    server.on["SandboxService.Get"] = lambda request, context: pb.Sandbox(
        id=request.id, state=pb.SANDBOX_STATE_ENDED, end_reason="TTL"
    )
    with pytest.raises(esker.SandboxNotFoundError, match="TTL"):
        Sandbox.connect("sb-1", client=client)


def pages(server):
    def list_page(request, context):
        first = int(request.page_token or 0)
        answer = pb.ListSandboxesResponse(
            sandboxes=[pb.Sandbox(id=f"sb-{n}") for n in range(first, first + 2)]
        )
        if first < 4:
            answer.next_page_token = str(first + 2)
        return answer

    server.on["SandboxService.List"] = list_page


def test_list_reads_all_pages(server, client):
    pages(server)
    ids = [info.id for info in Sandbox.list(metadata={"k": "v"}, client=client)]
    assert ids == [f"sb-{n}" for n in range(6)]
    assert dict(server.requests("SandboxService.List")[0].metadata) == {"k": "v"}


async def test_async_list_reads_all_pages(server, async_sandbox):
    pages(server)
    infos = AsyncSandbox.list(client=async_sandbox._client)
    assert [info.id async for info in infos] == [f"sb-{n}" for n in range(6)]


def test_fork_with_failures_holds_the_children(server, sandbox):
    Child = pb.ForkSandboxResponse.Child
    server.on["SandboxService.Fork"] = lambda request, context: pb.ForkSandboxResponse(
        children=[
            Child(sandbox=pb.Sandbox(id="sb-2")),
            Child(error_code=8, error_message="the node is full"),
        ]
    )
    with pytest.raises(esker.ForkError, match="1 of 2.*full") as caught:
        sandbox.fork(2)
    assert [child.id for child in caught.value.children] == ["sb-2"]
    assert isinstance(caught.value.failures[0], esker.ResourceExhaustedError)


def test_context_manager_kills(server, client):
    server.on["SandboxService.Create"] = lambda request, context: pb.Sandbox(id="sb-9")
    server.on["SandboxService.Delete"] = lambda request, context: pb.DeleteSandboxResponse(existed=True)
    with pytest.raises(RuntimeError), Sandbox.create("bb:1", client=client):
        raise RuntimeError
    assert server.requests("SandboxService.Delete")[0].id == "sb-9"


async def test_a_cancelled_create_leaves_no_sandbox(server, async_sandbox):
    begun, release, deleted = threading.Event(), threading.Event(), threading.Event()

    def create(request, context):
        begun.set()
        release.wait(20)
        return pb.Sandbox(id="sb-9")

    def delete(request, context):
        deleted.set()
        return pb.DeleteSandboxResponse(existed=True)

    server.on["SandboxService.Create"] = create
    server.on["SandboxService.Delete"] = delete
    task = asyncio.ensure_future(AsyncSandbox.create("bb:1", client=async_sandbox._client))
    assert await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert await asyncio.to_thread(deleted.wait, 20)
    assert len({r.request_id for r in server.requests("SandboxService.Create")}) == 1


def test_gone_server_is_a_connection_error(server, sandbox, monkeypatch):
    monkeypatch.setattr("esker._sandbox_ops.REQUEST_TIMEOUT", 0.5)
    server.stop()
    with pytest.raises(ConnectionError):
        sandbox.get_info()


def test_a_forked_child_opens_channels_of_its_own(server, client):
    server.on["SandboxService.Get"] = lambda request, context: pb.Sandbox(id=request.id)
    assert Sandbox("sb-1", client).get_info().id == "sb-1"
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write_end, Sandbox("sb-2", client).get_info().id.encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        killer = threading.Timer(20, os.kill, (child, 9))
        killer.start()
        answer = pipe.read()
        killer.cancel()
    os.waitpid(child, 0)
    assert answer == b"sb-2"
    assert Sandbox("sb-3", client).get_info().id == "sb-3"


def test_addresses():
    assert normalise_address("/run/x.sock") == "unix:/run/x.sock"
    assert normalise_address("http://127.0.0.1:7070/") == "127.0.0.1:7070"
    assert normalise_address("unix:/a") == "unix:/a"
    with pytest.raises(ValueError):
        normalise_address("https://host:1")


def test_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("ESKER_ADDRESS", "127.0.0.1:9")
    assert Client().address == "127.0.0.1:9"
    assert esker.default_client().address == "127.0.0.1:9"
    assert esker.default_client() is esker.default_client()
    monkeypatch.delenv("ESKER_ADDRESS")
    assert esker.default_client().address == "unix:/var/lib/esker/run/esker.sock"


def test_both_classes_have_the_same_names_and_documentation():
    for blocking, other in [
        (esker.Sandbox, esker.AsyncSandbox),
        (esker.Commands, esker.AsyncCommands),
        (esker.CommandHandle, esker.AsyncCommandHandle),
        (esker.Files, esker.AsyncFiles),
        (esker.Pty, esker.AsyncPty),
        (esker.PtyHandle, esker.AsyncPtyHandle),
    ]:
        names = {name for name in dir(blocking) if not name.startswith("_")}
        assert names == {name for name in dir(other) if not name.startswith("_")}
        for name in names:
            assert getattr(other, name).__doc__ == getattr(blocking, name).__doc__, name
