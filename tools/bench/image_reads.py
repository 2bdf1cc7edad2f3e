"""Reads of image data that is on the node's disk: straight from a complete blob's file, and through the blob
server, beside the same EROFS image on a plain file."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import Row, Settings, interleaved
from harness import BenchError, Server, run
from image_start import complete, drop, incomplete
from images import write_layout

IMAGE = "reads:1"
READER = "/reader"
_MS_RDONLY = 1


def large_files(tar: Path, total: int) -> list[str]:
    """The largest files, absolute names, until they have `total` bytes."""
    with tarfile.open(tar) as archive:
        files = sorted(((entry.size, entry.name) for entry in archive if entry.isreg()), reverse=True)
    names, size = [], 0
    while size < total:
        bytes_, name = files[len(names)]
        names.append("/" + name.removeprefix("./"))
        size += bytes_
    return names


class Place:
    """Where files are read: a sandbox, or a mounted file system."""

    def __init__(self, settings: Settings, caches: list[Path]):
        self.settings, self.caches = settings, caches

    def command(self, words: list[str]) -> str:
        raise NotImplementedError

    def read(self, how: str, names: list[str]) -> float:
        """MB/s, or reads a second."""
        drop(self.settings, *self.caches)
        out = self.command([how, str(self.settings.seconds), *names])
        fields = dict(word.split("=") for word in out.split())
        rate = int(fields["bytes"]) / float(fields["seconds"])
        return rate / 1e6 if how == "sequential" else rate / 4096


class InSandbox(Place):
    def __init__(self, settings: Settings, server: Server):
        super().__init__(settings, [server.cache])
        self.server = server
        self.sandbox = server.cli("sandbox", "create", IMAGE).strip()
        server.cli("sandbox", "cp", settings.place.programs / "esker-read-files", f"{self.sandbox}:{READER}")
        server.cli("sandbox", "exec", self.sandbox, "--", "chmod", "755", READER)

    def command(self, words: list[str]) -> str:
        return self.server.cli("sandbox", "exec", self.sandbox, "--", READER, *words)


class OnPlainFile(Place):
    def __init__(self, settings: Settings, mountpoint: Path, files: list[Path]):
        super().__init__(settings, files)
        self.mountpoint = mountpoint

    def command(self, words: list[str]) -> str:
        names = [f"{self.mountpoint}{word}" if word.startswith("/") else word for word in words]
        return run([self.settings.place.programs / "esker-read-files", *names]).stdout


@contextlib.contextmanager
def plain_erofs(cache: Path, work: Path) -> Iterator[tuple[Path, list[Path]]]:
    """The one layer that this cache has, copied and mounted by hand with `directio`."""
    files = work / "files"
    files.mkdir()
    (metadata,), (data,) = (list((cache / kind).glob(pattern))
                            for kind, pattern in (("meta", "*.erofs"), ("data", "*.full")))
    image = Path(shutil.copy(metadata, files / "image"))
    device = Path(shutil.copy(data, files / "device"))
    mountpoint = work / "mounted"
    mountpoint.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"device={device},directio".encode()
    # mount(8) would make a loop device.
    if libc.mount(bytes(image), bytes(mountpoint), b"erofs", ctypes.c_ulong(_MS_RDONLY), options) != 0:
        raise BenchError(f"mount {image} as EROFS: {os.strerror(ctypes.get_errno())}")
    try:
        yield mountpoint, [files]
    finally:
        subprocess.run(["umount", mountpoint], check=True)


def reads(settings: Settings) -> Iterator[Row]:
    images, place = settings.images, settings.place
    names = large_files(images.root(settings.big_root), 40 << 20 if settings.quick else 200 << 20)
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(place.directory("reads"))
        layout = write_layout(work / "oci", {"1": [images.whole(settings.big_root)]})
        data = work / "complete"
        with place.server(data=work / "filled") as server:
            server.cli("image", "push", f"oci:{layout}:1", IMAGE)
            filled = server.store
        complete(settings, filled, data, [IMAGE])
        store = stack.enter_context(place.copy_of(filled))
        # Anew: a layer whose data has become complete is mounted without the blob server from then on.
        server = stack.enter_context(place.server(store, data))
        places: dict[str, Place] = {"complete": InSandbox(settings, server)}
        mountpoint, files = stack.enter_context(plain_erofs(server.cache, work))
        places["plain file"] = OnPlainFile(settings, mountpoint, files)
        lazy = stack.enter_context(place.server(stack.enter_context(place.copy_of(filled))))
        places["through FUSE"] = InSandbox(settings, lazy)
        places["through FUSE"].read("sequential", names)  # fetches them
        seen = interleaved(settings, {
            f"{name}, {how}": lambda at=at, how=how: {"rate": at.read(how, names)}
            for how in ("sequential", "random") for name, at in places.items()})
        if not incomplete(lazy.cache):
            raise BenchError("the blob that was to be incomplete is complete")
    targets = {("complete", "sequential"): "at least 0.95", ("complete", "random"): "at least 0.95",
               ("through FUSE", "sequential"): "at least 0.6", ("through FUSE", "random"): "at least 0.85"}
    for (name, how), target in targets.items():
        yield Row("reads", f"{name}, {how}", "MB/s" if how == "sequential" else "/s",
                  seen[f"{name}, {how}"]["rate"], "plain file, directio", seen[f"plain file, {how}"]["rate"],
                  True, target)
