"""A burst: many different images over a few bases at once, each running a tool script that was recorded from
an agent's work, with nothing on the node, with everything on it, and unpacked eagerly."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import esker

from benchmarks import Row, Settings, interleaved
from harness import BenchError, Server, disk_bytes_written, run
from image_import import push_all, related_images
from image_start import complete, drop
from images import ALL, Layer, write_layout

# What an agent does in a checkout: looks around, searches a part of it, thinks, edits, keeps its change. More
# than one second of a processor; reads a small part of the image, as agents do.
SCRIPT = r"""
set -e
cd /workspace/all
find . -type f | wc -l
grep -rl "edited in commit" stdlib/email stdlib/json headers/linux | head -n 5 >/tmp/found || true
python3 - <<'END'
import ast, hashlib, os, time, tokenize, zlib
start, turn, names = time.process_time(), 0, set()
files = sorted(os.path.join("stdlib/json", name) for name in os.listdir("stdlib/json"))
while turn == 0 or time.process_time() - start < 1.0:
    for file in files:
        if file.endswith(".py"):
            with tokenize.open(file) as source:
                names |= {node.id for node in ast.walk(ast.parse(source.read())) if isinstance(node, ast.Name)}
    turn += 1
print(len(names), hashlib.sha256("".join(sorted(names)).encode()).hexdigest()[:8])
END
git init -q
for file in $(cat /tmp/found) stdlib/json/decoder.py; do
    sed -i '1s/^/# touched\n/' "$file"
    git add "$file"
done
git -c user.name=a -c user.email=a@b commit -qm "the change"
git show --stat | tail -n 1
"""


async def _run_in_esker(server: Server, tags: list[str]) -> None:
    async def one(client: esker.AsyncClient, tag: str) -> None:
        sandbox = await esker.AsyncSandbox.create(f"related:{tag}", client=client, create_timeout=600)
        try:
            result = await sandbox.commands.run(SCRIPT, timeout=600)
            if result.exit_code != 0:
                raise BenchError(f"the script failed in image {tag}: {result.stderr[-500:]}")
        finally:
            await sandbox.kill()

    async with esker.AsyncClient(server.address) as client:
        await asyncio.gather(*(one(client, tag) for tag in tags))


class Eager:
    """Every layer is unpacked once, when an image first needs it, and roots are overlays of them: what a
    node does that pulls its images whole."""

    def __init__(self, work: Path, related: dict[str, list[Layer]]):
        self._work, self._related = work, related
        self._locks = {layer.digest: threading.Lock() for layers in related.values() for layer in layers}

    def run(self) -> None:
        with ThreadPoolExecutor(len(self._related)) as pool:
            list(pool.map(self._one, self._related))

    def _unpack(self, layer: Layer) -> Path:
        root = self._work / layer.digest.removeprefix("sha256:")
        with self._locks[layer.digest]:
            if not root.exists():
                root.mkdir()
                run(["tar", "-xzf", layer.path, "-C", root, "--xattrs", "--xattrs-include=*"])
        return root

    def _one(self, tag: str) -> None:
        lowers = [self._unpack(layer) for layer in self._related[tag]]
        place = self._work / f"run-{tag}"
        for name in ("upper", "work", "root"):
            (place / name).mkdir(parents=True)
        script = f"""set -e
            mount -t overlay overlay -o "lowerdir=$LOWERS,upperdir=upper,workdir=work,volatile" root
            mount -t proc proc root/proc
            mount -t devtmpfs dev root/dev
            exec chroot root /bin/sh -c "$SCRIPT" """
        run(["unshare", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts", "sh", "-c", script], cwd=place,
            env={"LOWERS": ":".join(map(str, reversed(lowers))), "SCRIPT": SCRIPT,
                 "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"})


class Burst:
    def __init__(self, settings: Settings, work: Path):
        self.settings, self.work = settings, work
        self.related = related_images(settings.images, 9 if settings.quick else 64, (ALL,))
        self.tags = list(self.related)
        layout = write_layout(work / "oci", self.related)
        with settings.place.server(data=work / "filled") as server:
            settings.say(f"pushing {len(self.tags)} images")
            push_all(server, layout, self.tags)
            self.store = server.store

    def complete_data(self) -> Path:
        data = self.work / "complete"
        complete(self.settings, self.store, data, [f"related:{tag}" for tag in self.tags])
        return data

    def cold(self) -> dict[str, float]:
        place = self.settings.place
        with place.copy_of(self.store) as store:
            drop(self.settings, store)
            with place.server(store) as server:
                return self._measure(server.data, lambda: asyncio.run(_run_in_esker(server, self.tags)))

    def complete(self, data: Path) -> dict[str, float]:
        place = self.settings.place
        with place.copy_of(self.store) as store:
            drop(self.settings, data, store)
            with place.server(store, data) as server:
                return self._measure(data, lambda: asyncio.run(_run_in_esker(server, self.tags)))

    def eager(self) -> dict[str, float]:
        layers = self.settings.images.directory
        with self.settings.place.directory("eager") as work:
            drop(self.settings, layers)
            return self._measure(work, Eager(work, self.related).run)

    @staticmethod
    def _measure(directory: Path, work) -> dict[str, float]:
        before, start = disk_bytes_written(directory), time.monotonic()
        work()
        seconds = time.monotonic() - start
        return {"seconds": seconds, "written": (disk_bytes_written(directory) - before) / 1e6}


def burst(settings: Settings) -> Iterator[Row]:
    with settings.place.directory("burst") as work:
        runs = Burst(settings, work)
        data = runs.complete_data()
        seen = interleaved(settings, {
            "all cold": runs.cold,
            "all complete": lambda: runs.complete(data),
            "eager unpack": runs.eager,
        })
    cold, whole, eager = (seen[name] for name in ("all cold", "all complete", "eager unpack"))
    what = f"{len(runs.tags)} images at once, a script each"
    yield Row("burst", f"{what}, all cold", "s", cold["seconds"], "all complete", whole["seconds"], False,
              "at least 0.91")
    yield Row("burst", "the same", "s", cold["seconds"], "eager unpack", eager["seconds"], False)
    yield Row("burst", "the same, disk bytes written", "MB", cold["written"], "eager unpack",
              eager["written"], False, "at least 2")
