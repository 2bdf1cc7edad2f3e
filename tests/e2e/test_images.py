"""Images in and out: archives of every kind, platforms, export that other tools read and that
comes back as the same bytes."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from conftest import IMAGE
from esker_server import wait_until
from oci_maker import INDEX, Layout, tar_of

RUN = {
    "Env": ["PATH=/bin:/usr/bin", "FROM_IMAGE=yes"],
    "User": "agent",
    "WorkingDir": "/home/agent",
    "Cmd": ["sh"],
    "Entrypoint": ["/bin/tool"],
    "Labels": {"team": "a"},
    "StopSignal": "SIGINT",
    "Volumes": {"/data": {}},
    "ExposedPorts": {"80/tcp": {}},
    "Shell": ["/bin/sh", "-c"],
    "Healthcheck": {"Test": ["CMD", "true"], "Interval": 1_000_000_000},
}


def run(*command: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, timeout=120)
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
    return done.stdout.decode()


def skopeo(*arguments: Any) -> str:
    return run("skopeo", "--insecure-policy", *arguments)


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program}")


def blobs(image: dict[str, Any]) -> list[tuple[str, str]]:
    return [(layer["metadata"], layer.get("data", "")) for layer in image["layers"]]


def inspect(server, name: str) -> dict[str, Any]:
    return server.json("image", "inspect", name)


@pytest.fixture(scope="module")
def layout(work, image_tar) -> Path:
    """Three layers over the busybox root, with whiteouts, an opaque directory and hard links."""
    path = work / "images-layout"
    made = Layout(path)
    layers = [
        image_tar.read_bytes(),
        tar_of({"opt/": b"", "opt/one": b"1" * 5000, "opt/two": b"2", "data/.wh.blob": b""}),
        tar_of({"opt/.wh..wh..opq": b"", "opt/three": b"3", "deep/er/file": b"implicit parents"}),
    ]
    made.add(made.image(layers, compress=True, **RUN), "1")
    made.finish()
    return path


def test_archives_of_every_kind_are_one_image(server, work, layout):
    need("skopeo")
    server.cli("image", "push", f"oci:{layout}:1", "kinds:layout")
    one = inspect(server, "kinds:layout")
    tar = work / "kinds-oci.tar"
    skopeo("copy", f"oci:{layout}:1", f"oci-archive:{tar}:1")
    pushed = server.json("image", "push", f"oci-archive:{tar}", "kinds:oci-archive")
    assert pushed["image"]["id"] == one["id"]
    assert pushed["totals"]["layers_reused"] == 3
    docker = work / "kinds-docker.tar"
    skopeo("copy", f"oci:{layout}:1", f"docker-archive:{docker}:kinds:v1")
    for source in (f"docker-archive:{docker}", f"docker-archive:{docker}:kinds:v1"):
        pushed = server.json("image", "push", source, "kinds:docker")
        assert blobs(pushed["image"]) == blobs(one)
        assert pushed["totals"].get("bytes_read", "0") == "0"  # all layers are there already
    compressed = work / "kinds-docker.tar.gz"
    with gzip.open(compressed, "wb", compresslevel=1) as out:
        out.write(docker.read_bytes())
    small = work / "kinds-tmp"
    small.mkdir()
    pushed = server.json(
        "image", "push", f"docker-archive:{compressed}", "kinds:gz", "--tmp-dir", str(small)
    )
    assert blobs(pushed["image"]) == blobs(one)
    assert not list(small.iterdir())
    for path in (tar, docker, compressed):
        path.unlink()


def test_temporary_space_that_runs_out_is_said(server, work):
    archive = work / "no-room.tar.gz"
    layer = tar_of({"zeros": bytes(8_000_000)})
    made = Layout(work / "no-room")
    made.add(made.image([layer]), "1")
    made.finish()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(made.path, arcname=".")
    small = work / "no-room-tmp"
    small.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=1m", "none", small)
    try:
        push = ("image", "push", f"oci-archive:{archive}", "no:1")
        done = server.run(*push, "--tmp-dir", str(small))
        assert done.returncode == 1
        assert b"RESOURCE_EXHAUSTED" in done.stderr and b"--tmp-dir" in done.stderr, done.stderr
        assert not list(small.iterdir())
    finally:
        run("umount", small)


def test_the_config_is_kept_and_used(server, client, new, layout):
    server.cli("image", "push", f"oci:{layout}:1", "config:1")
    config = json.loads(inspect(server, "config:1")["config_json"])
    assert config["stop_signal"] == "SIGINT"
    assert config["volumes"] == ["/data"]
    assert config["more"]["config"] == {
        key: RUN[key] for key in ("ExposedPorts", "Shell", "Healthcheck")
    }
    sandbox = new("config:1")
    got = sandbox.commands.run("echo $FROM_IMAGE; id -u; pwd; ls /data /opt; cat /deep/er/file")
    assert got.stdout.split() == ["yes", "1000", "/home/agent", "/data:", "/opt:", "three"] + [
        "implicit",
        "parents",
    ]


def test_platforms(server, work):
    path = work / "images-platforms"
    made = Layout(path)
    inner = {"schemaVersion": 2, "manifests": []}
    for architecture, variant in (("amd64", ""), ("arm64", ""), ("arm", "v7")):
        image = made.image([tar_of({architecture: b"x"})], architecture=architecture)
        platform = {"os": "linux", "architecture": architecture}
        if variant:
            platform["variant"] = variant
        inner["manifests"].append({**image, "platform": platform})
    nested = {"mediaType": INDEX, **made.blob(json.dumps(inner).encode())}
    outer = {"schemaVersion": 2, "manifests": [nested]}
    made.add({"mediaType": INDEX, **made.blob(json.dumps(outer).encode())}, "multi")
    made.finish()
    seen = set()
    for platform in ("linux/amd64", "linux/arm64/v8", "linux/arm"):
        pushed = server.json(
            "image", "push", f"oci:{path}:multi", "platforms:x", "--platform", platform
        )
        seen.add(pushed["image"]["id"])
    assert len(seen) == 3
    done = server.run("image", "push", f"oci:{path}", "platforms:y", "--platform", "linux/s390x")
    assert done.returncode == 1
    assert b"linux/amd64, linux/arm, linux/arm64" in done.stderr, done.stderr


@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
def test_an_exported_image_comes_back_the_same(server, work, layout, compression):
    server.cli("image", "push", f"oci:{layout}:1", "export:1")
    before = inspect(server, "export:1")
    out = work / f"export-{compression}"
    args = ["--compression", compression]
    said = server.json("image", "export", "export:1", f"oci:{out}:tag", *args)
    assert said["layers"] == 3
    server.cli("image", "push", f"oci:{out}:tag", f"export:back-{compression}")
    after = inspect(server, f"export:back-{compression}")
    assert blobs(after) == blobs(before)
    assert json.loads(after["config_json"]) == json.loads(before["config_json"])
    # Once more beside it, and the same bytes again.
    again = server.json("image", "export", "export:1", f"oci:{out}:other", *args)
    assert again["manifest_digest"] == said["manifest_digest"]
    index = json.loads((out / "index.json").read_text())
    assert len(index["manifests"]) == 2
    archive = work / f"export-{compression}.tar"
    server.cli("image", "export", "export:1", f"oci-archive:{archive}", *args)
    server.cli("image", "push", f"oci-archive:{archive}:1", f"export:archive-{compression}")
    assert inspect(server, f"export:archive-{compression}")["id"] == after["id"]
    done = server.run("image", "export", "export:1", f"oci-archive:{archive}")
    assert done.returncode == 1 and b"exists" in done.stderr
    archive.unlink()


def tree_of(root: Path) -> dict[str, tuple]:
    """Names with type, mode, owner, size or target, link count and time."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        what: Any = status.st_size if path.is_file() else ""
        if path.is_symlink():
            what = path.readlink()
        links = status.st_nlink if path.is_file() else 0
        owner = (status.st_uid, status.st_gid)
        time = 0 if path.is_dir() else status.st_mtime_ns
        found[str(path.relative_to(root))] = (oct(status.st_mode), owner, what, links, time)
    return found


def test_skopeo_and_umoci_read_an_export(server, work, layout):
    need("skopeo")
    need("umoci")
    server.cli("image", "push", f"oci:{layout}:1", "tools:1")
    out = work / "export-tools"
    server.cli("image", "export", "tools:1", f"oci:{out}:1")
    config = json.loads(skopeo("inspect", "--config", f"oci:{out}:1"))
    docker_only = ("Shell", "Healthcheck")  # which skopeo does not show of an OCI config
    assert config["config"] == {key: RUN[key] for key in RUN if key not in docker_only}
    skopeo("copy", f"oci:{out}:1", f"dir:{work}/export-tools-dir")  # reads and checks every blob
    for name, source in (("ours", out), ("theirs", layout)):
        run("umoci", "unpack", "--image", f"{source}:1", work / f"export-umoci-{name}")
    ours = tree_of(work / "export-umoci-ours" / "rootfs")
    assert ours == tree_of(work / "export-umoci-theirs" / "rootfs")
    assert "opt/three" in ours and "opt/one" not in ours and "data/blob" not in ours
    docker = work / "export-docker.tar"
    server.cli("image", "export", "tools:1", f"docker-archive:{docker}")
    named = json.loads(skopeo("inspect", f"docker-archive:{docker}:tools:1"))
    assert len(named["Layers"]) == 3
    server.cli("image", "push", f"docker-archive:{docker}:tools:1", "tools:back")
    assert blobs(inspect(server, "tools:back")) == blobs(inspect(server, "tools:1"))
    for path in work.glob("export-umoci-*"):
        shutil.rmtree(path)
    docker.unlink()


def test_a_snapshot_is_exported_with_its_own_layer(server, new, work):
    sandbox = new()
    sandbox.commands.run(
        "mkdir -p /made/here && echo hello > /made/here/file && ln /made/here/file /made/link"
        " && rm /etc/plain && rm -r /data && mkdir /data && truncate -s 5M /made/sparse"
        " && echo end >> /made/sparse && mkfifo /made/fifo",
        check=True,
    )
    snapshot = sandbox.snapshot()
    out = work / "export-snapshot"
    server.cli("image", "export", snapshot.id, f"oci:{out}:snap")
    server.cli("image", "push", f"oci:{out}:snap", "snapshot-back:1")
    assert blobs(inspect(server, "snapshot-back:1")) == blobs(inspect(server, snapshot.id))
    copy = new("snapshot-back:1")
    got = copy.commands.run(
        "cat /made/link; stat -c %h /made/link; ls /data; ls /etc/plain; tail -c 4 /made/sparse"
    )
    assert got.stdout.split() == ["hello", "2", "end"]


def test_what_cannot_be_exported_is_said(server, new, work):
    sandbox = new()
    sandbox.commands.run("touch /root/.wh.mine", check=True)
    snapshot = sandbox.snapshot()
    out = work / "export-refused"
    done = server.run("image", "export", snapshot.id, f"oci:{out}")
    assert done.returncode == 1
    assert b"FAILED_PRECONDITION" in done.stderr and b"root/.wh.mine" in done.stderr
    assert not out.exists()
    done = server.run("image", "export", "nosuch:1", f"oci:{out}")
    assert b"NOT_FOUND" in done.stderr and not out.exists()
    done = server.run("image", "export", IMAGE, f"oci:{out}", "--compression", "lzma")
    assert b"lzma" in done.stderr and not out.exists()
    (work / "full-of-things").mkdir()
    (work / "full-of-things" / "thing").write_text("x")
    done = server.run("image", "export", IMAGE, f"oci:{work}/full-of-things")
    assert b"neither empty nor an OCI layout" in done.stderr


def written(process: subprocess.Popen) -> int:
    for line in Path(f"/proc/{process.pid}/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


def wait_until_half_written(process: subprocess.Popen) -> None:
    wait_until(lambda: process.poll() is not None or written(process) > 2_000_000)
    assert process.poll() is None, "it was over too soon to be cut off"


@pytest.mark.parametrize("kind", ["oci", "oci-archive"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_export_that_is_cut_off_leaves_nothing_that_looks_whole(server, work, kind, number):
    out = work / f"export-cut-{kind}-{number}"
    command = [server.bin / "esker", "--address", server.address]
    command += ["image", "export", IMAGE, f"{kind}:{out}"]
    export = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until_half_written(export)
    export.send_signal(number)
    export.wait(20)
    assert not (out / "index.json").exists()
    assert kind == "oci" or not out.exists()
    assert not list(work.glob("**/*unfinished*"))
    server.cli("image", "export", IMAGE, f"{kind}:{out}")  # as if nothing had been
    server.cli("image", "push", f"{kind}:{out}", f"cut-{kind}:1")
    assert blobs(inspect(server, f"cut-{kind}:1")) == blobs(inspect(server, IMAGE))


def test_a_server_that_dies_in_an_export(server, work):
    out = work / "export-server-dies"
    command = [server.bin / "esker", "--address", server.address]
    command += ["image", "export", IMAGE, f"oci:{out}"]
    export = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_until_half_written(export)
    server.kill()
    _, message = export.communicate(timeout=30)
    server.start()
    assert export.returncode == 1 and b"UNAVAILABLE" in message, message
    assert not out.exists()
