"""Import: its rate, its memory, what a second one costs, and what related images take in the store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks import Row, Settings, interleaved
from harness import Cost, Server, cost_of, disk_bytes
from images import BASES, REPOSITORIES, ImageStore, Layer, distinct, write_layout
from peers import inflate, unpack_and_pack

MEGABYTE = 1e6


def _figures(cost: Cost, plain_bytes: int) -> dict[str, float]:
    return {"rate": plain_bytes / MEGABYTE / cost.seconds, "per_core": plain_bytes / MEGABYTE / cost.cpu_seconds}


def import_plain(settings: Settings) -> Iterator[Row]:
    """A real root as a plain tar, beside the usual tools."""
    place, tar = settings.place, settings.images.root(settings.big_root)
    size = tar.stat().st_size

    def push() -> dict[str, float]:
        with place.server() as server:
            server.forget_peak()
            cost = server.push(f"tar:{tar}", "root:1")
            return _figures(cost, size) | {"peak": server.peak_memory() / MEGABYTE}

    def usual() -> dict[str, float]:
        with place.directory("usual") as work:
            return _figures(cost_of(lambda: unpack_and_pack(work, tar)), size)

    peer = "tar -x + mkfs.erofs + zstd -3 + sha256"
    seen = interleaved(settings, {"mine": push, "usual": usual})
    yield from _rows(f"plain tar of {size / MEGABYTE:.0f} MB", seen["mine"], peer, seen["usual"], "at least 2.5")


def _rows(what: str, mine: dict, peer: str, beside: dict, target: str) -> Iterator[Row]:
    yield Row("import", what, "MB/s", mine["rate"], peer, beside["rate"], True, target)
    yield Row("import", "the same, for each core's second", "MB", mine["per_core"], peer, beside["per_core"])
    yield Row("import", "the same, server's peak memory", "MB", mine["peak"], target="below 268")


def import_gzip(settings: Settings) -> Iterator[Row]:
    """The same from gzip, beside nothing but inflating it."""
    place, layer = settings.place, settings.images.whole(settings.big_root)
    program = "igzip" if shutil.which("igzip") else "gzip"
    with place.directory("gzip-layout") as work:
        layout = write_layout(work / "oci", {"1": [layer]})

        def push() -> dict[str, float]:
            with place.server() as server:
                server.forget_peak()
                cost = server.push(f"oci:{layout}:1", "root:1")
                return _figures(cost, layer.plain) | {"peak": server.peak_memory() / MEGABYTE}

        seen = interleaved(settings, {
            "mine": push,
            "floor": lambda: _figures(cost_of(lambda: inflate(program, layer.path)), layer.plain)})
    yield from _rows("gzip layer, bytes of the tar", seen["mine"], f"{program} -dc", seen["floor"], "")


def import_again(settings: Settings) -> Iterator[Row]:
    """Images of which the store has nearly all."""
    images, place, name = settings.images, settings.place, settings.big_root
    common = [images.whole("base"), images.packages(name), images.workspace("headers", 10)]
    layers = {"1": [*common, images.workspace("stdlib", 1)], "2": [*common, images.workspace("stdlib", 2)]}
    difference = layers["2"][-1]
    tar = images.root(name)
    with place.directory("again-layout") as work:
        layout = write_layout(work / "oci", layers)

        def of_layers() -> dict[str, float]:
            with place.server() as server:
                first = server.push(f"oci:{layout}:1", "layers:1").seconds
                before = disk_bytes(server.store)
                return {"first": first, "again": server.push(f"oci:{layout}:2", "layers:2").seconds,
                        "grew": (disk_bytes(server.store) - before) / MEGABYTE}

        def of_tar() -> dict[str, float]:
            with place.server() as server:
                first = server.push(f"tar:{tar}", "tar:1").seconds
                before = disk_bytes(server.store)
                return {"first": first, "again": server.push(f"tar:{tar}", "tar:2").seconds,
                        "grew": (disk_bytes(server.store) - before) / MEGABYTE}

        seen = interleaved(settings, {"OCI layout": of_layers, "plain tar": of_tar})
    for what, text in (("OCI layout", "one of four layers is new"), ("plain tar", "the same tar")):
        mine = seen[what]
        yield Row("again", f"{what}: {text}", "s", mine["again"], "first import", mine["first"], False,
                  "at least 8")
    yield Row("again", "OCI layout: the store grows", "MB", seen["OCI layout"]["grew"], "the new layer, gzip",
              difference.size / MEGABYTE, False)
    yield Row("again", "plain tar: the store grows", "MB", seen["plain tar"]["grew"])


def related_images(images: ImageStore, count: int, repositories: tuple[str, ...]) -> dict[str, list[Layer]]:
    """`count` images over a few bases, as one finds them for the tasks of an evaluation: every one has a
    checkout of one of a few repositories at a commit of its own."""
    made = {}
    for number in range(count):
        base, repository = BASES[number % len(BASES)], repositories[number % len(repositories)]
        commit = 1 + number // len(repositories)
        made[str(number)] = [images.whole("base"), images.packages(base), images.workspace(repository, commit)]
    return made


def push_all(server: Server, layout: Path, tags) -> None:
    for tag in tags:
        server.cli("image", "push", f"oci:{layout}:{tag}", f"related:{tag}")


def stored_size(settings: Settings) -> Iterator[Row]:
    """Related images in the store beside their distinct layers as a registry keeps them."""
    place, count = settings.place, 6 if settings.quick else 30
    related = related_images(settings.images, count, tuple(REPOSITORIES))
    roots = {name: [settings.images.whole(name)] for name in BASES}
    with place.directory("size-layout") as work:
        layered = write_layout(work / "layered", related)
        whole = write_layout(work / "whole", roots)
        with place.server() as server:
            settings.say(f"{count} images")
            push_all(server, layered, related)
            mine = disk_bytes(server.store)
        with place.server() as server:
            settings.say("roots of one layer")
            push_all(server, whole, roots)
            mine_of_roots = disk_bytes(server.store)
    registry = sum(layer.size for layer in distinct(related.values()).values())
    yield Row("size", f"{count} images of {len(BASES)} bases, in the store", "MB", mine / MEGABYTE,
              f"their {len(distinct(related.values()))} gzip layers", registry / MEGABYTE, False,
              "at least 1.25")
    registry = sum(layer.size for layer in distinct(roots.values()).values())
    yield Row("size", f"{len(roots)} roots of one layer each", "MB", mine_of_roots / MEGABYTE,
              f"their {len(roots)} gzip layers", registry / MEGABYTE, False, "at least 1.25")
