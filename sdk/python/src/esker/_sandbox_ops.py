"""Operations on sandboxes and images (see _engine.py for what an operation is)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Optional

from . import _errors
from ._command_ops import REQUEST_TIMEOUT, milliseconds
from ._engine import INTERRUPTIONS, Emit, Op, Spawn, retrying
from ._errors import EskerError
from ._proto.esker.v1 import admin_pb2, image_pb2
from ._proto.esker.v1 import sandbox_pb2 as pb
from ._types import (
    KEEPS,
    TIERS,
    Description,
    ImageInfo,
    Metrics,
    PauseInfo,
    SandboxInfo,
    Snapshot,
)

CREATE_TIMEOUT = 60.0
CREATE_MARGIN = 15.0
SLOW_TIMEOUT = 600.0


def new_request_id() -> str:
    return f"req-{uuid.uuid4().hex}"


def _ttl(seconds: Optional[float], name: str) -> int:
    """None: the default; -1: none; else milliseconds."""
    return -1 if seconds == -1 else milliseconds(seconds, name)


def _choice(value: str, table: Mapping[str, int], name: str) -> int:
    if value not in table:
        raise ValueError(f"{name} must be one of {', '.join(table)}, not {value!r}")
    return table[value]


def create_request(
    image: str,
    tier: str,
    ttl: Optional[float],
    idle_ttl: Optional[float],
    create_timeout: Optional[float],
    metadata: Optional[Mapping[str, str]],
    envs: Optional[Mapping[str, str]],
    cpu: Optional[float],
    memory_mb: Optional[int],
    disk_mb: Optional[int],
    pids: Optional[int],
    project: str,
    job: str,
    hostname: str,
    idempotency_key: str,
) -> pb.CreateSandboxRequest:
    if not image:
        raise ValueError("no image was named")
    return pb.CreateSandboxRequest(
        request_id=new_request_id(),
        image=image,
        tier=_choice(tier, TIERS, "tier"),  # type: ignore[arg-type]
        resources=pb.Resources(
            cpu=cpu or 0, memory_mb=memory_mb or 0, disk_mb=disk_mb or 0, pids=pids or 0
        ),
        ttl_ms=_ttl(ttl, "ttl"),
        idle_ttl_ms=milliseconds(idle_ttl, "idle_ttl"),
        create_timeout_ms=milliseconds(create_timeout, "create_timeout"),
        metadata=metadata or {},
        envs=envs or {},
        idempotency_key=idempotency_key,
        project=project,
        job=job,
        hostname=hostname,
    )


def create(request: pb.CreateSandboxRequest) -> Op:
    timeout = (request.create_timeout_ms / 1000 or CREATE_TIMEOUT) + CREATE_MARGIN
    try:
        answer = yield from retrying("SandboxService.Create", request, timeout)
    except INTERRUPTIONS:
        if not request.idempotency_key:
            # Nobody would know its id. The same request gives the same sandbox, however far it was.
            yield Spawn(_create_undone(request, timeout))
        raise
    return SandboxInfo.from_proto(answer)


def _create_undone(request: pb.CreateSandboxRequest, timeout: float) -> Op:
    try:
        answer = yield from retrying("SandboxService.Create", request, timeout)
        yield from kill(answer.id)
    except EskerError:
        pass  # then its time to live ends it


def get_info(sandbox_id: str) -> Op:
    request = pb.GetSandboxRequest(id=sandbox_id)
    answer = yield from retrying("SandboxService.Get", request, REQUEST_TIMEOUT, sandbox_id)
    return SandboxInfo.from_proto(answer)


def connect(sandbox_id: str) -> Op:
    info = yield from get_info(sandbox_id)
    if info.state == "ended":
        error = _errors.SandboxNotFoundError(
            f"sandbox {sandbox_id} has ended: {info.end_reason} {info.end_message}".rstrip()
        )
        error.reason, error.blame = "SANDBOX_ENDED", "user"
        raise error
    return info


def list_sandboxes(
    metadata: Optional[Mapping[str, str]], project: str, job: str, include_ended: bool
) -> Op:
    request = pb.ListSandboxesRequest(
        project=project,
        job=job,
        metadata=metadata or {},
        include_ended=include_ended,
        page_size=1000,
    )
    while True:
        answer = yield from retrying("SandboxService.List", request, REQUEST_TIMEOUT)
        for sandbox in answer.sandboxes:
            yield Emit(SandboxInfo.from_proto(sandbox))
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


def kill(sandbox_id: str) -> Op:
    request = pb.DeleteSandboxRequest(id=sandbox_id, request_id=new_request_id())
    answer = yield from retrying("SandboxService.Delete", request, REQUEST_TIMEOUT, sandbox_id)
    return answer.existed


def pause(sandbox_id: str) -> Op:
    request = pb.PauseSandboxRequest(id=sandbox_id, request_id=new_request_id())
    answer = yield from retrying("SandboxService.Pause", request, SLOW_TIMEOUT, sandbox_id)
    return PauseInfo(answer.bytes_freed, answer.bytes_kept)


def resume(sandbox_id: str) -> Op:
    request = pb.ResumeSandboxRequest(id=sandbox_id, request_id=new_request_id())
    yield from retrying("SandboxService.Resume", request, REQUEST_TIMEOUT, sandbox_id)


def set_timeout(sandbox_id: str, ttl: Optional[float], idle_ttl: Optional[float]) -> Op:
    request = pb.SetTimeoutRequest(
        id=sandbox_id,
        request_id=new_request_id(),
        ttl_ms=_ttl(ttl, "ttl"),
        idle_ttl_ms=_ttl(idle_ttl, "idle_ttl"),
    )
    answer = yield from retrying("SandboxService.SetTimeout", request, REQUEST_TIMEOUT, sandbox_id)
    return SandboxInfo.from_proto(answer)


def snapshot(sandbox_id: str, name: str, keep: str) -> Op:
    request = pb.SnapshotSandboxRequest(
        id=sandbox_id,
        request_id=new_request_id(),
        keep=_choice(keep, KEEPS, "keep"),  # type: ignore[arg-type]
        name=name,
    )
    answer = yield from retrying("SandboxService.Snapshot", request, SLOW_TIMEOUT, sandbox_id)
    return Snapshot.from_proto(answer, name)


def fork(
    sandbox_id: str,
    count: int,
    keep: str,
    ttl: Optional[float],
    metadata: Optional[Mapping[str, str]],
) -> Op:
    """The value is (infos of the children that run, errors of those that do not)."""
    if not 1 <= count <= 1000:
        raise ValueError(f"fork makes 1 to 1000 sandboxes, not {count}")
    request = pb.ForkSandboxRequest(
        id=sandbox_id,
        request_id=new_request_id(),
        count=count,
        keep=_choice(keep, KEEPS, "keep"),  # type: ignore[arg-type]
        ttl_ms=_ttl(ttl, "ttl"),
        metadata=metadata or {},
    )
    answer = yield from retrying("SandboxService.Fork", request, SLOW_TIMEOUT, sandbox_id)
    made = [SandboxInfo.from_proto(c.sandbox) for c in answer.children if c.HasField("sandbox")]
    failed = [
        _errors.from_code(c.error_code, c.error_message)
        for c in answer.children
        if not c.HasField("sandbox")
    ]
    return made, failed


def fork_error(children: list[Any], failures: list[EskerError]) -> _errors.ForkError:
    return _errors.ForkError(
        f"{len(failures)} of {len(children) + len(failures)} sandboxes could not be made: "
        f"{failures[0].message}",
        children,
        failures,
    )


def get_metrics(sandbox_id: str) -> Op:
    request = pb.GetMetricsRequest(id=sandbox_id)
    answer = yield from retrying("SandboxService.GetMetrics", request, REQUEST_TIMEOUT, sandbox_id)
    return Metrics.from_proto(answer)


def describe(sandbox_id: str) -> Op:
    request = pb.DescribeSandboxRequest(id=sandbox_id)
    answer = yield from retrying("SandboxService.Describe", request, REQUEST_TIMEOUT, sandbox_id)
    return Description.from_proto(answer)


# --- images ---------------------------------------------------------------------------------------


def images(prefix: str, include_snapshots: bool, project: str) -> Op:
    request = image_pb2.ListImagesRequest(
        prefix=prefix, include_snapshots=include_snapshots, project=project
    )
    answer = yield from retrying("ImageService.List", request, REQUEST_TIMEOUT)
    return [ImageInfo.from_proto(image) for image in answer.images]


def inspect_image(reference: str, project: str) -> Op:
    request = image_pb2.InspectImageRequest(reference=reference, project=project)
    answer = yield from retrying("ImageService.Inspect", request, REQUEST_TIMEOUT)
    return ImageInfo.from_proto(answer)


def remove_image(reference: str, force: bool, project: str) -> Op:
    request = image_pb2.RemoveImageRequest(reference=reference, force=force, project=project)
    losses: list[EskerError] = []
    try:
        answer = yield from retrying("ImageService.Remove", request, REQUEST_TIMEOUT, losses=losses)
        return answer.removed_image
    except _errors.NotFoundError:
        if not losses:
            raise
        return True


def server_version(timeout: float) -> Op:
    request = admin_pb2.GetVersionRequest()
    answer = yield from retrying("AdminService.GetVersion", request, timeout)
    return answer.version
