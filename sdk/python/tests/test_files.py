import errno
import io

import grpc
import pytest
from fake_server import Fail

import esker
from esker._proto.esker.v1 import file_pb2 as pb

INFO = pb.FileInfo(name=b"f", path=b"/f", type=pb.FILE_TYPE_FILE, size=6, mtime_ns=1)


def test_read_goes_on_where_the_connection_broke(server, sandbox):
    offsets = []

    def read(request, context):
        offsets.append(request.offset)
        yield pb.ReadFileResponse(info=INFO, data=b"abcdef"[request.offset :][:3])
        if len(offsets) == 1:
            raise Fail(grpc.StatusCode.UNAVAILABLE)

    server.on["FileService.Read"] = read
    assert sandbox.files.read("/f") == "abcdef"
    assert offsets == [0, 3]


def test_a_file_that_changed_in_between_is_an_error(server, sandbox):
    def read(request, context):
        info = pb.FileInfo()
        info.CopyFrom(INFO)
        info.mtime_ns += request.offset
        yield pb.ReadFileResponse(info=info, data=b"abc")
        if not request.offset:
            raise Fail(grpc.StatusCode.UNAVAILABLE)

    server.on["FileService.Read"] = read
    with pytest.raises(esker.AbortedError, match="changed"):
        sandbox.files.read("/f")


def test_missing_file(server, sandbox):
    def read(request, context):
        raise Fail(grpc.StatusCode.NOT_FOUND, reason="FILE_NOT_FOUND", error_number=errno.ENOENT)
        yield

    server.on["FileService.Read"] = read
    with pytest.raises(FileNotFoundError) as caught:
        sandbox.files.read("/nope", "bytes")
    assert caught.value.filename == "/nope"


def receiver(server, fail_first=0):
    """Takes uploads; returns the list of whole ones."""
    whole, tries = [], []

    def write(requests, context):
        first = next(requests)
        tries.append(first.open.request_id)
        data = b"".join(request.data for request in requests)
        if len(tries) <= fail_first:
            raise Fail(grpc.StatusCode.UNAVAILABLE)
        if context.is_active():
            whole.append((bytes(first.open.path), data))
        return INFO

    server.on["FileService.Write"] = write
    return whole, tries


@pytest.mark.parametrize(
    "data",
    ["text \u00e9", b"bytes", bytearray(b"ba"), io.BytesIO(b"file" * 400_000), [b"a", "b", b""]],
)
def test_write_takes_many_kinds_of_data(server, sandbox, data):
    whole, _ = receiver(server)
    sandbox.files.write(b"/\xff", data)
    if isinstance(data, str):
        want = data.encode()
    elif isinstance(data, io.BytesIO):
        want = data.getvalue()
    else:
        want = b"ab" if isinstance(data, list) else bytes(data)
    assert whole == [(b"/\xff", want)]


def test_a_repeatable_upload_is_repeated_with_its_request_id(server, sandbox):
    whole, tries = receiver(server, fail_first=2)
    sandbox.files.write("/f", io.BytesIO(b"data"))
    assert whole == [(b"/f", b"data")]
    assert len(tries) == 3
    assert len(set(tries)) == 1


def test_an_upload_that_cannot_be_repeated_is_not(server, sandbox):
    _, tries = receiver(server, fail_first=2)
    with pytest.raises(esker.UnavailableError):
        sandbox.files.write("/f", iter([b"data"]))
    assert len(tries) == 1


def broken():
    yield b"half"
    raise RuntimeError("source broke")


def test_a_source_that_breaks_commits_nothing(server, sandbox):
    whole, _ = receiver(server)
    with pytest.raises(RuntimeError, match="source broke"):
        sandbox.files.write("/f", broken())
    assert whole == []


async def test_async_upload(server, async_sandbox):
    whole, tries = receiver(server, fail_first=1)
    await async_sandbox.files.write("/f", b"x" * 3_000_000)
    assert whole == [(b"/f", b"x" * 3_000_000)]

    async def source():
        yield b"a"
        yield b"b"

    await async_sandbox.files.write("/g", source())
    assert whole[-1] == (b"/g", b"ab")
    with pytest.raises(RuntimeError, match="source broke"):
        await async_sandbox.files.write("/f", broken())
    assert len(whole) == 2


async def test_async_stream_read(server, async_sandbox):
    server.on["FileService.Read"] = lambda request, context: iter(
        [pb.ReadFileResponse(info=INFO, data=b"abc"), pb.ReadFileResponse(data=b"def")]
    )
    stream = await async_sandbox.files.read("/f", "stream")
    assert [piece async for piece in stream] == [b"abc", b"def"]


def test_nothing_moving_is_a_timeout(server, sandbox, monkeypatch):
    monkeypatch.setattr("esker._file_ops.IDLE_TIMEOUT", 0.3)
    import threading

    def read(request, context):
        yield pb.ReadFileResponse(info=INFO, data=b"abc")
        gone = threading.Event()
        context.add_callback(gone.set)
        gone.wait(20)

    server.on["FileService.Read"] = read
    with pytest.raises(TimeoutError, match="nothing moved"):
        sandbox.files.read("/f")


def test_an_iterator_that_is_dropped_ends_the_call(server, sandbox):
    import threading

    gone = threading.Event()

    def read(request, context):
        context.add_callback(gone.set)
        yield pb.ReadFileResponse(info=INFO, data=b"abc")
        gone.wait(20)

    server.on["FileService.Read"] = read
    stream = sandbox.files.read("/f", "stream")
    assert next(stream) == b"abc"
    stream.close()
    assert gone.wait(20)


def test_remove_whose_answer_was_lost_is_done(server, sandbox):
    tries = []

    def remove(request, context):
        tries.append(request)
        if len(tries) == 1:
            raise Fail(grpc.StatusCode.UNAVAILABLE)
        raise Fail(grpc.StatusCode.NOT_FOUND, reason="FILE_NOT_FOUND", error_number=errno.ENOENT)

    server.on["FileService.Remove"] = remove
    sandbox.files.remove("/f")
    with pytest.raises(FileNotFoundError):
        sandbox.files.remove("/f")


def test_wrong_kinds_of_data_are_refused(sandbox):
    with pytest.raises(TypeError):
        sandbox.files.write("/f", 7)
    with pytest.raises(TypeError):
        sandbox.files.write("/f", io.StringIO("text"))
