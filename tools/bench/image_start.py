"""Cold starts: a node that has nothing of an image runs its first program, on a store as it is and on one
that takes 20 ms for every read."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import Row, Settings, interleaved
from harness import BenchError, Server, disk_bytes, drop_all_caches, drop_from_page_cache, run
from images import write_layout

IMAGE, PROGRAM = "big:1", "python3 -c pass"
DELAY_MS = 20
RECORDING_TIMEOUT_S = 20.0


def fill_store(settings: Settings, data: Path) -> tuple[Path, int]:
    """A store with the image, made with nothing running; the store, and the image's plain bytes."""
    images = settings.images
    layout = data.with_name(data.name + "-layout")
    write_layout(layout, {"1": [images.whole("base"), images.packages(settings.big_root)]})
    with settings.place.server(data=data) as server:
        server.cli("image", "push", f"oci:{layout}:1", IMAGE)
        shown = json.loads(server.cli("--json", "image", "inspect", IMAGE))
        store = server.store
    return store, plain_bytes(shown)


def plain_bytes(shown: dict) -> int:
    size = int(shown.get("plainBytes") or shown.get("plain_bytes") or 0)
    if size == 0:
        raise BenchError("esker image inspect does not say how large an image is")
    return size


def drop(settings: Settings, *trees: Path) -> None:
    """Development shares its machine: then only these files leave the page cache."""
    if settings.quick:
        for tree in trees:
            drop_from_page_cache(tree)
    else:
        drop_all_caches()


def start_once(server: Server, image: str = IMAGE) -> float:
    """Milliseconds from the call of create to the end of the program."""
    steps = server.load(image, cycles=1, command=PROGRAM)["steps"]
    return (steps["create"]["p50_us"] + steps["exec"]["p50_us"]) / 1000


def complete(settings: Settings, store: Path, data: Path, images: list[str]) -> None:
    """Fills the cache of a node with all data of these images: reads every blob of their layers whole, through
    the blob server. (Reading files would not do: some are hidden by higher layers.)"""
    for wait_s in (0, 1200):  # what was read is proved and marked complete when it is opened again at the latest
        with settings.place.copy_of(store) as copy, settings.place.server(copy, data) as server:
            for image in images:
                settings.say(f"reading all of {image}")
                sandbox = server.cli("sandbox", "create", image).strip()
                read_blobs(server)
                server.cli("sandbox", "rm", sandbox)
            deadline = time.monotonic() + wait_s
            while wait_s and incomplete(server.cache):
                if time.monotonic() > deadline:
                    raise BenchError(f"{server.cache}: not complete: {incomplete(server.cache)}")
                settings.say(f"{len(incomplete(server.cache))} blobs are still being proved")
                time.sleep(0.2)


def read_blobs(server: Server) -> None:
    names = [f"{server.data}/node/run/blobs/{blob}" for blob in incomplete(server.cache)]
    if names:
        run(["nsenter", f"--target={server.keeper_pid()}", "--mount", "--", "sh", "-c",
             'cat "$@" >/dev/null', "cat", *names])


def incomplete(cache: Path) -> set[str]:
    """The blobs of layers that are known here whose data is not all here."""
    known, whole = ({path.stem for path in (cache / kind).glob(f"*.{end}")}
                    for kind, end in (("map", "map"), ("data", "full")))
    return known - whole


def await_recording(store: Path, known: set[Path]) -> bool:
    """Whether what the first start touched was kept beside the image."""
    deadline = time.monotonic() + RECORDING_TIMEOUT_S
    while time.monotonic() < deadline:
        if records(store) - known:
            return True
        time.sleep(0.1)
    return False


def records(store: Path) -> set[Path]:
    return {path for path in store.glob("**/prefetch/**/*") if path.is_file()}


@contextlib.contextmanager
def slow_view(settings: Settings, store: Path, name: str) -> Iterator[Path]:
    """The store, each read of which takes DELAY_MS more."""
    program = settings.place.programs.directory.parent / "test-programs/esker-fault-fs"
    with settings.place.directory(name) as mountpoint:
        rules = mountpoint.with_suffix(".rules")
        rules.write_text(f"read * delay={DELAY_MS}\n")
        process = subprocess.Popen([program, "--backing", store, "--rules", rules, mountpoint])
        try:
            deadline = time.monotonic() + 10
            while not mountpoint.is_mount():
                if time.monotonic() > deadline or process.poll() is not None:
                    raise BenchError(f"{program} does not mount {mountpoint}")
                time.sleep(0.01)
            yield mountpoint
        finally:
            subprocess.run(["umount", mountpoint], check=False)
            process.wait(10)


class ColdStarts:
    """A filled store, and pairs of cold starts on copies of it: without and with a recording."""

    def __init__(self, settings: Settings, work: Path):
        self.settings, self.work = settings, work
        self.store, self.plain = fill_store(settings, work / "filled")

    def pair(self, slow: bool = False) -> dict[str, float]:
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(self.settings.place.copy_of(self.store))
            seen = store
            if slow:
                seen = stack.enter_context(slow_view(self.settings, store, f"{store.name}-slow"))
            known = records(store)
            first = self._start(seen, store, lambda: await_recording(store, known))
            again = self._start(seen, store)
            return {"first": first[0], "recorded": again[0], "fetched_first": first[1],
                    "fetched_recorded": again[1], "has_record": float(first[2])}

    def _start(self, seen: Path, store: Path, after=lambda: True) -> tuple[float, int, bool]:
        with self.settings.place.server(seen) as server:
            before = disk_bytes(server.cache)
            drop(self.settings, store)
            elapsed = start_once(server)
            fetched = disk_bytes(server.cache) - before
            return elapsed, fetched, after()

    def complete_data(self) -> Path:
        """A data directory whose cache has all of the image."""
        data = self.work / "complete"
        complete(self.settings, self.store, data, [IMAGE])
        return data

    def start_complete(self, data: Path) -> float:
        place = self.settings.place
        with place.copy_of(self.store) as store, place.server(store, data) as server:
            drop(self.settings, server.cache, store)
            return start_once(server)


def cold(settings: Settings) -> Iterator[Row]:
    """First and recorded start, beside a start whose data is all on the node's disk."""
    with settings.place.directory("cold") as work:
        starts = ColdStarts(settings, work)
        data = starts.complete_data()
        seen = interleaved(settings, {
            "cold starts": starts.pair,
            "complete": lambda: {"ms": starts.start_complete(data)},
        })
    mine, beside = seen["cold starts"], seen["complete"]["ms"]
    yield Row("cold", "first start: create to end of python3", "ms", mine["first"], "blob complete", beside,
              False, "at least 0.5")
    yield Row("cold", "recorded start", "ms", mine["recorded"], "blob complete", beside, False,
              "at least 0.77" + ("" if mine["has_record"] else "; NOTHING WAS RECORDED"))
    for kind in ("first", "recorded"):
        yield Row("cold", f"bytes fetched, {kind} start", "MB", mine[f"fetched_{kind}"] / 1e6, "image",
                  starts.plain / 1e6, False, "at least 10")


def slow_store(settings: Settings) -> Iterator[Row]:
    """The same on a store that takes 20 ms for each read."""
    with settings.place.directory("slow") as work:
        starts = ColdStarts(settings, work)
        seen = interleaved(settings, {"cold starts": lambda: starts.pair(slow=True)})
    mine = seen["cold starts"]
    yield Row("slow", f"recorded start, reads take {DELAY_MS} ms more", "ms", mine["recorded"], "first start",
              mine["first"], False,
              "at least 3" + ("" if mine["has_record"] else "; NOTHING WAS RECORDED"))
