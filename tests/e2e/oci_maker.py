"""OCI layouts and docker archives made by hand, of layers given as tars."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any, Optional

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar_of(files: dict[str, bytes]) -> bytes:
    """One plain tar; a name that ends with / is a directory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.mtime = 1_600_000_000
            info.mode = 0o755
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def config_of(layers: list[bytes], architecture: str = "amd64", **run: Any) -> bytes:
    return json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        }
    ).encode()


class Layout:
    """An OCI layout in a folder. Blobs that are there already are not written again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blobs = path / "blobs" / "sha256"
        self.blobs.mkdir(parents=True, exist_ok=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        self.manifests: list[dict[str, Any]] = []

    def blob(self, data: bytes) -> dict[str, Any]:
        name = digest(data)
        path = self.blobs / name.split(":")[1]
        if not path.exists():
            path.write_bytes(data)
        return {"digest": name, "size": len(data)}

    def image(
        self, layers: list[bytes], compress: bool = False, architecture: str = "amd64", **run: Any
    ) -> dict[str, Any]:
        stored = [gzip.compress(layer, mtime=0) if compress else layer for layer in layers]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                **self.blob(config_of(layers, architecture, **run)),
            },
            "layers": [
                {"mediaType": LAYER + ("+gzip" if compress else ""), **self.blob(layer)}
                for layer in stored
            ],
        }
        return {"mediaType": MANIFEST, **self.blob(json.dumps(manifest).encode())}

    def add(self, descriptor: dict[str, Any], tag: Optional[str] = None) -> None:
        note = {"annotations": {"org.opencontainers.image.ref.name": tag}} if tag else {}
        self.manifests.append({**descriptor, **note})

    def finish(self) -> None:
        index = {"schemaVersion": 2, "manifests": self.manifests}
        (self.path / "index.json").write_text(json.dumps(index))
