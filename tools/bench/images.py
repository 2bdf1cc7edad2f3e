"""Images for the image benchmarks: real Debian roots, cut into layers as a builder would cut them.

Everything is made once below .dev/bench-images and kept: roots by make_roots.sh, then layers (gzip, as
registries keep them), from which OCI layouts are put together by hard links.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

BASES = ("cpp", "node", "ruby")  # each is the root "base" and a layer of packages above it
# Trees of source code that stand for repositories, by the places in the root "cpp" they are taken from.
REPOSITORIES = {
    "stdlib": ("usr/lib/python3.11/", ".py"),
    "headers": ("usr/include/", ""),
    "perl": ("usr/share/perl/", ""),
}
ALL = "all"
EDITED_IN = 50  # a commit edits one file of so many
_OCI = "application/vnd.oci.image"


@dataclass(frozen=True)
class Layer:
    """A layer as a registry has it."""

    path: Path  # gzip
    digest: str
    diff_id: str
    size: int  # of the gzip file
    plain: int  # of the tar in it


class ImageStore:
    """What is in .dev/bench-images."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._layers = directory / "layers"
        self._known: dict[str, dict[str, bytes]] = {}

    def make_roots(self) -> None:
        script = Path(__file__).with_name("make_roots.sh")
        subprocess.run([script, self.directory], check=True)
        self._layers.mkdir(exist_ok=True)

    def root(self, name: str) -> Path:
        """A whole root as a plain tar."""
        return self.directory / f"{name}.tar"

    def whole(self, name: str) -> Layer:
        """A root as one layer."""
        return self._made(f"whole-{name}", lambda out: _copy(self.root(name), out))

    def packages(self, name: str) -> Layer:
        """What a root has more than the root "base"."""
        return self._made(f"packages-{name}",
                          lambda out: write_difference(self.root("base"), self.root(name), out))

    def workspace(self, repository: str, commit: int) -> Layer:
        """A checkout of a repository at a commit, below /workspace; that of ALL has all of them in it."""
        level = 1 if repository == ALL else 6
        return self._made(f"workspace-{repository}-{commit}",
                          lambda out: write_checkout(self._sources(repository), repository, commit, out), level)

    def _sources(self, repository: str) -> dict[str, bytes]:
        if repository not in self._known:
            self._known[repository] = self._read_sources(repository)
        return self._known[repository]

    def _read_sources(self, repository: str) -> dict[str, bytes]:
        """The first commit: every file differs from what it was made from, so nothing is shared with it."""
        if repository == ALL:
            return {f"{name}/{path}": data for name in REPOSITORIES
                    for path, data in self._sources(name).items()}
        prefix, suffix = REPOSITORIES[repository]
        kept = self.directory / f"sources-{repository}.tar"
        if not kept.exists():
            with tarfile.open(self.root("cpp")) as root, _replacing(kept) as new:
                with tarfile.open(new, "w") as out:
                    for entry in root:
                        name = entry.name.removeprefix("./")
                        if entry.isreg() and name.startswith(prefix) and name.endswith(suffix):
                            data = f"# {repository}\n".encode() + root.extractfile(entry).read()
                            _add(out, name.removeprefix(prefix), data)
        with tarfile.open(kept) as tar:
            return {entry.name: tar.extractfile(entry).read() for entry in tar}

    def _made(self, name: str, write: Callable[[object], None], level: int = 6) -> Layer:
        path, notes = self._layers / f"{name}.tar.gz", self._layers / f"{name}.json"
        if not notes.exists():
            digests = _Digests()
            with _replacing(path) as new, new.open("wb") as raw:
                # No name and no time in it: the same layer has the same digest wherever it is made.
                with gzip.GzipFile("", "wb", level, raw, 0) as packed:
                    write(digests.passing_to(packed))
            digest = "sha256:" + _file_digest(path)
            with _replacing(notes) as new:
                new.write_text(json.dumps({"digest": digest, "diff_id": "sha256:" + digests.hex(),
                                           "plain": digests.size, "size": path.stat().st_size}))
        return Layer(path, **json.loads(notes.read_text()))


class _Digests:
    """Hashes and counts what is written on its way to another file."""

    def __init__(self):
        self._sha = hashlib.sha256()
        self.size = 0
        self._to = None

    def passing_to(self, file) -> _Digests:
        self._to = file
        return self

    def write(self, data) -> int:
        self._sha.update(data)
        self.size += len(data)
        return self._to.write(data)

    def hex(self) -> str:
        return self._sha.hexdigest()


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A new file that gets its name only when it is whole."""
    new = path.with_name(path.name + ".new")
    try:
        yield new
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source: Path, out) -> None:
    with source.open("rb") as file:
        shutil.copyfileobj(file, out, 1 << 20)


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), mode, 1_700_000_000
    tar.addfile(info, io.BytesIO(data))


def _identity(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> tuple:
    data = hashlib.sha256(tar.extractfile(entry).read()).digest() if entry.isreg() else b""
    return (entry.type, entry.mode, entry.uid, entry.gid, entry.size, int(entry.mtime), entry.linkname, data)


def write_difference(lower: Path, upper: Path, out) -> None:
    """The layer that makes `upper` of `lower`: what is new or changed, and whiteouts."""
    with tarfile.open(lower) as tar:
        below = {entry.name: _identity(tar, entry) for entry in tar}
    with tarfile.open(upper) as tar:
        entries = {entry.name: entry for entry in tar}
        changed = {name for name, entry in entries.items() if below.get(name) != _identity(tar, entry)}
        # A hard link needs its file in the same layer.
        changed |= {entries[name].linkname for name in changed if entries[name].islnk()}
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as layer:
            for name, entry in entries.items():
                if name in changed:
                    layer.addfile(entry, tar.extractfile(entry) if entry.isreg() else None)
            for name in below.keys() - entries.keys():
                parent, _, base = name.rpartition("/")
                if parent in entries:  # else it went with its directory
                    _add(layer, f"{parent}/.wh.{base}", b"")


def write_checkout(sources: dict[str, bytes], repository: str, commit: int, out) -> None:
    """`sources` after so many commits, each of which has edited some files."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sources.items():
            for number in range(commit):
                if zlib.crc32(f"{repository}/{name}/{number}".encode()) % EDITED_IN == 0:
                    data += f"\n# edited in commit {number}\n".encode()
            _add(tar, f"workspace/{repository}/{name}", data)


def write_layout(directory: Path, images: dict[str, Iterable[Layer]], command: tuple[str, ...] = ()) -> Path:
    """An OCI layout with these tags; each image's layers, lowest first."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(value: dict, kind: str) -> dict:
        data = json.dumps(value).encode()
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"{_OCI}.{kind}+json", "digest": f"sha256:{digest}", "size": len(data)}

    manifests = []
    for tag, layers in images.items():
        layers = list(layers)
        for layer in layers:
            _link(layer.path, blobs / layer.digest.removeprefix("sha256:"))
        config = put({"architecture": "amd64", "os": "linux",
                      "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": list(command)},
                      "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]}},
                     "config.v1")
        manifest = put({"schemaVersion": 2, "mediaType": f"{_OCI}.manifest.v1+json", "config": config,
                        "layers": [{"mediaType": f"{_OCI}.layer.v1.tar+gzip", "digest": layer.digest,
                                    "size": layer.size} for layer in layers]}, "manifest.v1")
        manifests.append(manifest | {"annotations": {"org.opencontainers.image.ref.name": tag}})
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return directory


def _link(source: Path, target: Path) -> None:
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def distinct(images: Iterable[Iterable[Layer]]) -> dict[str, Layer]:
    return {layer.digest: layer for layers in images for layer in layers}
