#!/usr/bin/env python3
"""Generates src/esker/_proto/ from the protos of the API (../../proto). Needs grpcio-tools.

Does nothing when the generated files belong to the protos as they are now. Only messages are
generated; the SDK calls methods by their descriptors.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROTOS = HERE.parent.parent / "proto"
TARGET = HERE / "src" / "esker" / "_proto"
# `from esker.v1 import x_pb2` would be looked for outside the package.
IMPORT = re.compile(r"^from esker\.v1 import", re.MULTILINE)


def fingerprint(protos: list[Path]) -> str:
    # The generator's version is a part of what it makes.
    digest = hashlib.sha256(importlib.metadata.version("grpcio-tools").encode())
    digest.update(Path(__file__).read_bytes())
    for proto in protos:
        digest.update(proto.name.encode() + b"\0" + proto.read_bytes())
    return digest.hexdigest()


def run_protoc(protos: list[Path], out: Path) -> None:
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    code = protoc.main(
        ["protoc", f"-I{PROTOS}", f"-I{well_known}", f"--python_out={out}", f"--pyi_out={out}"]
        + [str(proto) for proto in protos]
    )
    if code != 0:
        raise SystemExit(f"generate_stubs: protoc failed with {code}")


def generate() -> bool:
    """True: files were generated."""
    protos = sorted(PROTOS.glob("esker/v1/*.proto"))
    if not protos:
        if TARGET.exists():  # a source distribution carries the generated files
            return False
        raise SystemExit(f"generate_stubs: no protos below {PROTOS}")
    stamp = TARGET / ".stamp"
    wanted = fingerprint(protos)
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    with tempfile.TemporaryDirectory(dir=TARGET.parent, prefix="_proto.") as work:
        out = Path(work) / "_proto"
        out.mkdir()
        run_protoc(protos, out)
        for module in [*out.rglob("*.py"), *out.rglob("*.pyi")]:
            module.write_text(IMPORT.sub("from esker._proto.esker.v1 import", module.read_text()))
        for package in (out, out / "esker", out / "esker" / "v1"):
            (package / "__init__.py").write_text("")
        (out / ".stamp").write_text(wanted)
        if TARGET.exists():
            shutil.rmtree(TARGET)
        out.rename(TARGET)
    return True


if __name__ == "__main__":
    print("generated" if generate() else "up to date", file=sys.stderr)
