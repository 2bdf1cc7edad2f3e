import errno
import pickle

import grpc
import pytest

import esker
from esker import _errors
from esker._proto.esker.v1 import common_pb2


def detail(**fields):
    return (("esker-error-bin", common_pb2.ErrorDetail(**fields).SerializeToString()),)


@pytest.mark.parametrize(
    ("code", "cls", "builtin"),
    [
        ("NOT_FOUND", esker.NotFoundError, LookupError),
        ("INVALID_ARGUMENT", esker.InvalidArgumentError, ValueError),
        ("OUT_OF_RANGE", esker.InvalidArgumentError, ValueError),
        ("PERMISSION_DENIED", esker.PermissionDeniedError, PermissionError),
        ("UNAUTHENTICATED", esker.UnauthenticatedError, PermissionError),
        ("DEADLINE_EXCEEDED", esker.DeadlineExceededError, TimeoutError),
        ("UNAVAILABLE", esker.UnavailableError, ConnectionError),
        ("UNIMPLEMENTED", esker.UnimplementedError, NotImplementedError),
        ("RESOURCE_EXHAUSTED", esker.ResourceExhaustedError, Exception),
        ("DATA_LOSS", esker.DataLossError, Exception),
        ("UNKNOWN", esker.EskerError, Exception),
    ],
)
def test_codes_become_classes_with_fitting_builtins(code, cls, builtin):
    error = _errors.from_rpc(grpc.StatusCode[code], "said", None)
    assert type(error) is cls
    assert isinstance(error, builtin)
    assert isinstance(error, esker.EskerError)
    assert error.code == code
    assert str(error) == "said"


def test_detail_fills_the_attributes():
    error = _errors.from_rpc(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "short",
        detail(
            reason="SANDBOX_RESOURCE_EXHAUSTED",
            message="the node is full",
            blame=common_pb2.ErrorDetail.BLAME_LIMIT,
            retryable=True,
            retry_after_ms=1500,
            trace_id="tr-7",
            metadata={"image": "x"},
        ),
    )
    assert (error.reason, error.blame, error.retryable) == (
        "SANDBOX_RESOURCE_EXHAUSTED",
        "limit",
        True,
    )
    assert error.retry_after == 1.5
    assert error.metadata == {"image": "x"}
    assert str(error) == "the node is full [trace tr-7]"


@pytest.mark.parametrize(
    ("number", "builtin"),
    [
        (errno.ENOENT, FileNotFoundError),
        (errno.EEXIST, FileExistsError),
        (errno.EACCES, PermissionError),
        (errno.EISDIR, IsADirectoryError),
        (errno.ENOTDIR, NotADirectoryError),
        (errno.ENOSPC, OSError),
        (errno.ENOTEMPTY, OSError),
        (errno.ELOOP, ValueError),
    ],
)
def test_file_errors_are_os_errors(number, builtin):
    error = _errors.from_rpc(
        grpc.StatusCode.UNKNOWN, "m", detail(reason="FILE_X", error_number=number), "/a/b"
    )
    assert isinstance(error, builtin)
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (number, "/a/b")
    assert error.strerror


def test_a_sandbox_that_is_missing_in_a_file_call_is_no_missing_file():
    error = _errors.from_rpc(grpc.StatusCode.NOT_FOUND, "m", detail(reason="SANDBOX_NOT_FOUND"), "/a")
    assert isinstance(error, esker.SandboxNotFoundError)
    assert not isinstance(error, OSError)


def test_errors_survive_pickling():
    error = _errors.from_rpc(
        grpc.StatusCode.NOT_FOUND, "m", detail(reason="FILE_NOT_FOUND", error_number=2), "/a"
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.errno, again.filename, again.reason) == (2, "/a", "FILE_NOT_FOUND")


def test_a_broken_detail_does_not_hide_the_failure():
    error = _errors.from_rpc(grpc.StatusCode.NOT_FOUND, "m", (("esker-error-bin", b"\xff\xff"),))
    assert isinstance(error, esker.NotFoundError)
