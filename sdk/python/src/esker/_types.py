"""What calls return. Times are aware datetimes in UTC, lengths of time seconds, sizes bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, Optional, Union

from ._proto.esker.v1 import command_pb2, file_pb2, image_pb2, sandbox_pb2

Path = Union[str, bytes, "os.PathLike[Any]"]
Command = Union[str, bytes, "list[str]", "list[bytes]", "tuple[str, ...]"]
StreamName = Literal["stdout", "stderr"]

TIERS = {"function": 1, "container": 2, "microvm": 3, "vm": 4}
KEEPS = {"files": 1, "memory": 2}
_TIER_NAMES = {0: "container", **{number: name for name, number in TIERS.items()}}
_STATES = {0: "unknown", 1: "creating", 2: "running", 3: "paused", 4: "ended"}
_FILE_TYPES = {1: "file", 2: "dir", 3: "symlink"}


def to_datetime(message: Any, name: str) -> Optional[datetime]:
    return getattr(message, name).ToDatetime(timezone.utc) if message.HasField(name) else None


@dataclass(frozen=True)
class Resources:
    cpu: float  # cores; 0: no limit
    memory_mb: int
    disk_mb: int
    pids: int


@dataclass(frozen=True)
class SandboxInfo:
    id: str
    image: str  # hex id
    image_name: str  # as it was asked for
    tier: str
    state: str  # creating, running, paused or ended
    resources: Resources
    metadata: dict[str, str]
    project: str
    job: str
    created: Optional[datetime]
    expires: Optional[datetime]  # None: lives until deleted
    idle_ttl: float  # seconds; 0: none
    end_reason: str  # "" or DELETED, TTL, IDLE_TTL, OOM, INIT_DIED, NODE_RESTART, CREATE_FAILED
    end_message: str
    ended: Optional[datetime]

    @classmethod
    def from_proto(cls, m: sandbox_pb2.Sandbox) -> SandboxInfo:
        r = m.resources
        return cls(
            id=m.id,
            image=m.image,
            image_name=m.image_name,
            tier=_TIER_NAMES.get(m.tier, "unknown"),
            state=_STATES.get(m.state, "unknown"),
            resources=Resources(r.cpu, r.memory_mb, r.disk_mb, r.pids),
            metadata=dict(m.metadata),
            project=m.project,
            job=m.job,
            created=to_datetime(m, "created"),
            expires=to_datetime(m, "expires"),
            idle_ttl=m.idle_ttl_ms / 1000,
            end_reason=m.end_reason,
            end_message=m.end_message,
            ended=to_datetime(m, "ended"),
        )


@dataclass(frozen=True)
class Metrics:
    memory_bytes: int
    memory_peak_bytes: int
    memory_limit_bytes: int
    oom_kills: int
    pids: int
    pids_limit_hits: int
    cpu_seconds: float
    cpu_throttled_seconds: float
    disk_bytes: int
    disk_limit_bytes: int  # 0: no limit

    @classmethod
    def from_proto(cls, m: sandbox_pb2.SandboxMetrics) -> Metrics:
        return cls(
            m.memory_bytes,
            m.memory_peak_bytes,
            m.memory_limit_bytes,
            m.oom_kills,
            m.pids,
            m.pids_limit_hits,
            m.cpu_nanos / 1e9,
            m.cpu_throttled_nanos / 1e9,
            m.disk_bytes,
            m.disk_limit_bytes,
        )


@dataclass(frozen=True)
class SandboxEvent:
    time: Optional[datetime]
    what: str  # CREATED, RUNNING, COMMAND_STARTED, OOM_KILL, ENDED, ...
    detail: str


@dataclass(frozen=True)
class Description:
    """What happened to a sandbox; also for a day after its end."""

    info: SandboxInfo
    events: list[SandboxEvent]
    metrics: Metrics

    @classmethod
    def from_proto(cls, m: sandbox_pb2.DescribeSandboxResponse) -> Description:
        events = [SandboxEvent(to_datetime(e, "time"), e.what, e.detail) for e in m.events]
        return cls(SandboxInfo.from_proto(m.sandbox), events, Metrics.from_proto(m.metrics))


@dataclass(frozen=True)
class PauseInfo:
    bytes_freed: int
    bytes_kept: int


@dataclass(frozen=True)
class Snapshot:
    """An image of a sandbox's files. `Sandbox.create(snapshot.id)` makes a sandbox from it."""

    id: str  # hex image id
    name: str
    bytes_stored: int
    bytes_deduplicated: int
    frozen: float  # seconds that processes stood still

    @classmethod
    def from_proto(cls, m: sandbox_pb2.SnapshotSandboxResponse, name: str) -> Snapshot:
        return cls(m.image, name, m.bytes_stored, m.bytes_deduplicated, m.frozen_us / 1e6)


@dataclass(frozen=True)
class ImageName:
    name: str  # name:tag
    project: str  # "": shared by all projects
    job: str  # that gave the name


@dataclass(frozen=True)
class ImageInfo:
    id: str
    kind: str
    tags: list[str]  # references by which this client reaches it
    names: list[ImageName]  # the same with their owners
    project: str  # whose it is; "": it has shared names only, or none
    job: str
    shared: bool  # every project sees it
    layers: int
    parent: str
    origin: dict[str, str]
    published: Optional[datetime]
    plain_bytes: int

    @classmethod
    def from_proto(cls, m: image_pb2.Image) -> ImageInfo:
        return cls(
            m.id,
            m.kind,
            list(m.tags),
            [ImageName(name.name, name.project, name.job) for name in m.names],
            m.project,
            m.job,
            m.visibility == image_pb2.VISIBILITY_SHARED,
            len(m.layers),
            m.parent,
            dict(m.origin),
            to_datetime(m, "published"),
            m.plain_bytes,
        )


@dataclass(frozen=True)
class FileInfo:
    """A file in a sandbox. Names that are not UTF-8 carry surrogate escapes (os.fsencode)."""

    name: str
    path: str
    type: str  # file, dir, symlink or other
    mode: int  # permission bits
    uid: int
    gid: int
    user: str  # "" when the image has no name for it
    group: str
    size: int
    mtime_ns: int
    symlink_target: Optional[str]

    @classmethod
    def from_proto(cls, m: file_pb2.FileInfo) -> FileInfo:
        return cls(
            os.fsdecode(m.name),
            os.fsdecode(m.path),
            _FILE_TYPES.get(m.type, "other"),
            m.mode,
            m.uid,
            m.gid,
            m.user,
            m.group,
            m.size,
            m.mtime_ns,
            os.fsdecode(m.symlink_target) if m.type == 3 else None,
        )


@dataclass(frozen=True)
class CommandInfo:
    id: str
    sandbox_id: str
    command: str  # the shell line, or the arguments joined by spaces
    argv: list[str]  # [] when it is a shell line
    tag: str
    background: bool
    running: bool
    pid: int  # inside the sandbox
    started: Optional[datetime]
    ended: Optional[datetime]
    exit_code: Optional[int]  # None while it runs
    user: str
    cwd: str
    pty: bool

    @classmethod
    def from_proto(cls, m: command_pb2.Command) -> CommandInfo:
        argv = [arg.decode(errors="surrogateescape") for arg in m.argv]
        line = m.shell.decode(errors="surrogateescape") or " ".join(argv)
        return cls(
            m.id,
            m.sandbox_id,
            line,
            argv,
            m.tag,
            m.background,
            m.running,
            m.pid,
            to_datetime(m, "started"),
            to_datetime(m, "ended"),
            m.exit.exit_code if m.HasField("exit") else None,
            m.user,
            m.cwd,
            m.pty,
        )


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, and its output.

    `stdout` and `stderr` are decoded as UTF-8 with U+FFFD for what is not; the bytes as they came
    are in `stdout_bytes` and `stderr_bytes`. Only the head is kept of a stream that wrote more than
    the capture limit: then `stdout_truncated` is true, and `stdout_size` is the full size.
    """

    exit_code: int  # 128 + signal when killed by one; 126 and 127 as a shell has them
    stdout: str
    stderr: str
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    stdout_size: int = 0
    stderr_size: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    timed_out: bool = False
    oom_killed: bool = False  # the memory limit killed something while it ran
    signal: int = 0
    error: str = ""  # why it could not be started (exit codes 126 and 127)


@dataclass(frozen=True)
class OutputEvent:
    """A piece of a command's output. `offset` is that of data[0] in its stream."""

    stream: StreamName
    data: bytes
    text: str  # decoded; characters that are split between pieces come with the later one
    offset: int
    lost: int = 0  # bytes before `offset` that the server no longer keeps
