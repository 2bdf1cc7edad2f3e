"""Sandbox: the blocking API."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from typing import Optional

from . import _sandbox_ops as ops
from ._client import Client, default_client
from ._engine import iterate, run
from ._transport import Transport
from ._types import Description, Metrics, PauseInfo, SandboxInfo, Snapshot
from .commands import Commands, Pty
from .files import Files


class Sandbox:
    """A sandbox on the server. Made by create() or connect(); as a context manager killed on exit.

        with Sandbox.create("debian-py:1") as sandbox:
            print(sandbox.commands.run("python3 --version").stdout)

    Every method raises SandboxNotFoundError when the sandbox is gone, UnavailableError when the server
    cannot be reached for 60 s, and DeadlineExceededError when it does not answer in time
    (docs/timeouts.md). Thread-safe.

    Attributes:
        id: its id on the server.
        commands, files, pty: what is done inside it.
    """

    def __init__(self, sandbox_id: str, client: Optional[Client] = None) -> None:
        """For an id that is known to be right; connect() checks it."""
        self.id = sandbox_id
        self._client = client or default_client()
        self.commands = Commands(self._transport, sandbox_id)
        self.files = Files(self._transport, sandbox_id)
        self.pty = Pty(self._transport, sandbox_id)

    @property
    def _transport(self) -> Transport:
        return self._client._transport

    def __repr__(self) -> str:
        return f"Sandbox({self.id!r})"

    @classmethod
    def create(
        cls,
        image: str,
        *,
        tier: str = "container",
        ttl: Optional[float] = None,
        idle_ttl: Optional[float] = None,
        create_timeout: Optional[float] = None,
        metadata: Optional[Mapping[str, str]] = None,
        envs: Optional[Mapping[str, str]] = None,
        cpu: Optional[float] = None,
        memory_mb: Optional[int] = None,
        disk_mb: Optional[int] = None,
        pids: Optional[int] = None,
        project: str = "",
        job: str = "",
        hostname: str = "",
        idempotency_key: str = "",
        client: Optional[Client] = None,
    ) -> Sandbox:
        """Makes a sandbox; returns when it runs commands.

        Args:
            image: name[:tag], or the hex id of an image or snapshot.
            tier: "function", "container", "microvm" or "vm".
            ttl: seconds to live; None: the server's default (1 hour); -1: until killed.
            idle_ttl: seconds to live without any call that uses it; None: no such limit.
            create_timeout: seconds until creation is given up (default 60).
            metadata: to find it again with list().
            envs: environment of every command.
            cpu: cores; None: no limit.
            memory_mb, disk_mb, pids: limits; None: the server's defaults (512, 10240, 1024).
            project: "" is "default". job: free text. Both are for list().
            hostname: "" is the id.
            idempotency_key: the same key gives the same sandbox.
            client: default: default_client().

        Raises:
            ImageNotFoundError; ResourceExhaustedError (the node is full); UnimplementedError (a tier or
            limit that this node cannot give); AlreadyExistsError (the key was used with other
            arguments); DeadlineExceededError.
        """
        client = client or default_client()
        request = ops.create_request(
            image,
            tier,
            ttl,
            idle_ttl,
            create_timeout,
            metadata,
            envs,
            cpu,
            memory_mb,
            disk_mb,
            pids,
            project,
            job,
            hostname,
            idempotency_key,
        )
        info = run(client._transport, ops.create(request))
        return cls(info.id, client)

    @classmethod
    def connect(cls, sandbox_id: str, *, client: Optional[Client] = None) -> Sandbox:
        """An existing sandbox. Raises SandboxNotFoundError, also when it has ended."""
        client = client or default_client()
        run(client._transport, ops.connect(sandbox_id))
        return cls(sandbox_id, client)

    @staticmethod
    def list(
        *,
        metadata: Optional[Mapping[str, str]] = None,
        project: str = "",
        job: str = "",
        include_ended: bool = False,
        client: Optional[Client] = None,
    ) -> Iterator[SandboxInfo]:
        """The sandboxes that match all that is given, page by page as they are iterated.

        include_ended: also those that ended in the last day.
        """
        client = client or default_client()
        operation = ops.list_sandboxes(metadata, project, job, include_ended)
        return iterate(client._transport, operation)

    def kill(self) -> bool:
        """Ends it and frees what it holds. False: it was gone already. Never resumes it first."""
        return run(self._transport, ops.kill(self.id))

    def get_info(self) -> SandboxInfo:
        """Its state; also for a day after its end."""
        return run(self._transport, ops.get_info(self.id))

    def get_metrics(self) -> Metrics:
        """Memory, processes, CPU and disk now. Never resumes it."""
        return run(self._transport, ops.get_metrics(self.id))

    def describe(self) -> Description:
        """What happened to it: events, limits that were hit; also for a day after its end."""
        return run(self._transport, ops.describe(self.id))

    def set_timeout(self, ttl: Optional[float] = None, idle_ttl: Optional[float] = None) -> SandboxInfo:
        """Sets its time to live (seconds, from now) and idle time; None: leave; -1: none."""
        return run(self._transport, ops.set_timeout(self.id, ttl, idle_ttl))

    def pause(self) -> PauseInfo:
        """Freezes every process and gives memory back as far as the kernel allows.

        Calls that use the sandbox resume it first.
        """
        return run(self._transport, ops.pause(self.id))

    def resume(self) -> None:
        """Lets a paused sandbox go on; no effect on a running one."""
        run(self._transport, ops.resume(self.id))

    def snapshot(self, name: str = "", keep: str = "files") -> Snapshot:
        """A new image of its files, durable on return; the sandbox goes on.

        Args:
            name: name[:tag] for the image, or "".
            keep: "files", or "memory" in tiers that can (else UnimplementedError).
        """
        return run(self._transport, ops.snapshot(self.id, name, keep))

    def fork(
        self,
        n: int = 1,
        keep: str = "files",
        *,
        ttl: Optional[float] = None,
        metadata: Optional[Mapping[str, str]] = None,
    ) -> builtins.list[Sandbox]:
        """`n` (1 to 1,000) new sandboxes from this one as it is now; it goes on.

        Args:
            keep: "files": processes are not in the children; "memory" where the tier can.
            ttl: as in create(). metadata: added to this one's.

        Raises:
            ForkError: some could not be made; its `children` run, its `failures` say why.
        """
        made, failures = run(self._transport, ops.fork(self.id, n, keep, ttl, metadata))
        children = [Sandbox(info.id, self._client) for info in made]
        if failures:
            raise ops.fork_error(children, failures)
        return children

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
