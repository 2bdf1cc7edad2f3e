"""Bad input and bad surroundings: a clear typed error that names the thing, and nothing lost."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

import esker
import leaks
import pytest
from conftest import IMAGE
from esker import Client, Sandbox
from esker_server import Server


def image_ids(server) -> set[str]:
    lines = server.cli("--json", "image", "ls").splitlines()
    return {json.loads(line)["id"] for line in lines}


def refused(server, *arguments: str) -> str:
    """The CLI's message; it must fail, say something, and publish no image."""
    before = image_ids(server)
    done = server.run(*arguments)
    message = done.stderr.decode()
    assert done.returncode not in (0, 134, 139), message
    assert message.strip()
    assert image_ids(server) == before
    return message


def test_a_tar_that_is_cut_off(server, work, image_tar):
    cut = work / "cut.tar"
    with image_tar.open("rb") as whole:
        cut.write_bytes(whole.read()[:1_500_000])
    message = refused(server, "image", "push", f"tar:{cut}", "cut:1")
    assert "cut" in message or "truncated" in message.lower() or "end" in message


def test_what_is_no_tar(server, work):
    junk = work / "junk"
    junk.write_bytes(os.urandom(100_000))
    refused(server, "image", "push", f"tar:{junk}", "junk:1")
    message = refused(server, "image", "push", "tar:/no/such/file.tar", "none:1")
    assert "/no/such/file.tar" in message
    message = refused(server, "image", "push", f"tar:{junk}", "Bad Name!")
    assert "Bad Name!" in message


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layout(path: Path, layers: list[bytes], lie: str = "") -> None:
    """An OCI layout; `lie`: "digest" stores other bytes than the manifest names, "diff_id" a wrong one,
    "missing" leaves a layer out."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes) -> dict:
        (blobs / hashlib.sha256(data).hexdigest()).write_bytes(data)
        return {"digest": digest(data), "size": len(data)}

    kind = "application/vnd.oci.image"
    entries = [{**put(layer), "mediaType": f"{kind}.layer.v1.tar"} for layer in layers]
    diff_ids = [digest(layer) for layer in layers]
    if lie == "diff_id":
        diff_ids[-1] = digest(b"something else")
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["FROM=config"], "WorkingDir": "/usr", "User": "1000"},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": {**put(config), "mediaType": f"{kind}.config.v1+json"},
            "layers": entries,
        }
    ).encode()
    reference = {**put(manifest), "mediaType": f"{kind}.manifest.v1+json"}
    reference["annotations"] = {"org.opencontainers.image.ref.name": "1"}
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [reference]}))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    last = blobs / hashlib.sha256(layers[-1]).hexdigest()
    if lie == "digest":
        last.write_bytes(layers[-1].replace(b"second", b"sEcond"))
    if lie == "missing":
        last.unlink()


def small_tar(entries: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def layers_of(image_tar: Path, text: bytes = b"second") -> list[bytes]:
    """The small image and a layer above it; with another text, one that the server does not know."""
    return [
        image_tar.read_bytes(),
        small_tar({"etc/layer": text, "etc/.wh.group": b"", "data/.wh..wh..opq": b""}),
    ]


def test_an_oci_layout_of_two_layers(server, work, image_tar, new):
    layout(work / "good", layers_of(image_tar))
    server.cli("image", "push", f"oci:{work}/good:1", "two:1")
    sandbox = new("two:1")
    assert sandbox.files.read("/etc/layer") == "second"
    assert not sandbox.files.exists("/etc/group")
    assert sandbox.files.list("/data") == []
    result = sandbox.commands.run("echo $FROM; pwd; id -u")
    assert result.stdout == "config\n/usr\n1000\n"
    sandbox.kill()
    server.cli("image", "rm", "two:1")


@pytest.mark.parametrize("lie", ["digest", "diff_id", "missing"])
def test_layers_that_are_not_what_the_manifest_says(server, work, image_tar, lie):
    path = work / f"lie-{lie}"
    layers = layers_of(image_tar, b"second: " + lie.encode())
    layout(path, layers, lie)
    message = refused(server, "image", "push", f"oci:{path}:1", "lie:1")
    shutil.rmtree(path)
    named = hashlib.sha256(layers[-1]).hexdigest()
    assert named[:12] in message or "diff" in message


def test_images_that_do_not_exist(server, client):
    for name in ("no-such-image", "no-such-image:7", "f" * 64):
        with pytest.raises(LookupError) as caught:
            Sandbox.create(name, client=client)
        assert name in str(caught.value)
    with pytest.raises(ValueError):
        Sandbox.create("Bad Name!", client=client)
    assert "no-such-image" in refused(server, "image", "inspect", "no-such-image")
    assert "no-such-image" in refused(server, "image", "rm", "no-such-image")


def test_bad_requests_are_refused(sandbox, client):
    with pytest.raises(ValueError):
        sandbox.commands.run("x" * (4 << 20))
    with pytest.raises((ValueError, esker.EskerError)):
        sandbox.commands.run(["true"], envs={"A=B": "c"})
    with pytest.raises((ValueError, esker.EskerError)):
        sandbox.commands.run([b"a\0b"])
    with pytest.raises(ValueError):
        sandbox.fork(1001)
    assert sandbox.commands.run("echo fine").stdout == "fine\n"


def test_keys_and_projects(server, client):
    address = f"127.0.0.1:{server.port}"
    with Client(address, api_key="") as nobody, pytest.raises(PermissionError):
        nobody.images()
    with Client(address, api_key="esk_wrong") as wrong, pytest.raises(PermissionError) as caught:
        wrong.images()
    assert isinstance(caught.value, esker.UnauthenticatedError)
    key = server.cli("key", "--file", f"{server.data}/keys", "create", "one", "--project", "p1")
    key = key.split()[-1]
    with Client(address, api_key=key) as user, Sandbox.create(IMAGE, client=user) as mine:
        assert mine.get_info().project == "p1"
        assert mine.commands.run("echo tcp").stdout == "tcp\n"
        with Sandbox.create(IMAGE, client=client) as others:
            with pytest.raises(esker.SandboxNotFoundError):
                Sandbox.connect(others.id, client=user)
            with pytest.raises(esker.SandboxNotFoundError):
                Sandbox(others.id, user).commands.run("true")
            with pytest.raises(esker.SandboxNotFoundError):
                Sandbox(others.id, user).files.read("/etc/passwd")
            assert others.id not in {info.id for info in Sandbox.list(client=user)}
            assert Sandbox(others.id, user).kill() is False
            assert others.get_info().state == "running"
        with pytest.raises(PermissionError):
            Sandbox.create(IMAGE, project="p2", client=user)
        # More of what keys may do with images: test_projects.py.
        with pytest.raises(PermissionError):
            user.remove_image(IMAGE)
        assert any(IMAGE in image.tags for image in client.images())
    server.cli("key", "--file", f"{server.data}/keys", "rm", "one")
    with Client(address, api_key=key) as user, pytest.raises(PermissionError):
        user.images()
    assert oct(os.stat(f"{server.data}/run/esker.sock").st_mode)[-3:] == "600"


def serve(server: Server, *arguments: str, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run(
        [server.bin / "esker", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        **kwargs,
    )


def test_a_second_server_on_the_same_data(server, sandbox):
    done = serve(server, "--config", str(server.config))
    assert done.returncode != 0
    assert str(server.data) in done.stderr
    assert "another esker server" in done.stderr
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


@pytest.mark.parametrize(
    ("text", "arguments", "named"),
    [
        ("[node]\nmax_sandboxs = 5\n", [], ["max_sandboxs", "max_sandboxes"]),
        ('[node]\nmax_sandboxes = "many"\n', [], ["max_sandboxes"]),
        ("[node\n", [], ["wrong.toml"]),
        ("", ["--config", "/no/such/config"], ["/no/such/config"]),
        ("", ["--roles", "moon"], ["moon"]),
        ("", ["--listen", "0.0.0.0:1"], ["0.0.0.0:1"]),
        ("", ["--listen", "127.0.0.1:http"], ["127.0.0.1:http"]),
    ],
)
def test_configuration_that_is_wrong(server, work, text, arguments, named):
    """Refused before anything is started."""
    config, data = work / "wrong.toml", work / "wrong"
    config.write_text(text)
    if "--config" not in arguments:
        arguments = ["--config", str(config), *arguments]
    done = serve(server, "--data", str(data), *arguments)
    assert done.returncode not in (0, 134, 139)
    left = leaks.look(str(data), "none")
    if left:
        serve(server, "--drain", "--data", str(data))
    assert left == []
    for word in named:
        assert word in done.stderr


def test_no_root(server, work):
    done = serve(server, "--data", str(work / "unused"), user=65534, cwd="/")
    assert done.returncode != 0
    assert "root" in done.stderr


def test_no_server(server):
    command = [server.bin / "esker", "--address", "unix:/no/such.sock", "sandbox", "ls"]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode != 0
    assert b"/no/such.sock" in done.stderr


@pytest.fixture(scope="module")
def other(work):
    """A server that is broken in several ways and must come back each time."""
    other = Server(work / "other")
    other.write_config(pool_mb=1024)
    yield other
    if other.process is not None:
        other.stop()
    other.drain()
    left = leaks.wait_for_none(str(other.directory), other.node)
    assert not left, "left behind:\n" + "\n".join(left)


class TestAnotherServer:
    """In this order: each finds what the one before has left."""

    def fail(self, other) -> str:
        done = serve(other, "--config", str(other.config))
        assert done.returncode not in (0, 134, 139), done.stderr
        return done.stderr

    def test_a_port_that_is_taken(self, other):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", other.port))
            taken.listen()
            message = self.fail(other)
        assert str(other.port) in message

    def test_it_starts_after_that(self, other, image_tar):
        other.start()
        other.cli("image", "push", f"tar:{image_tar}", IMAGE)
        other.stop()

    def test_a_store_that_is_damaged(self, other):
        store_format = other.data / "store" / "format"
        saved = store_format.read_bytes()
        store_format.write_bytes(b"something else")
        message = self.fail(other)
        assert str(other.data / "store") in message
        store_format.write_bytes(saved)

    def test_a_store_that_is_read_only(self, other, image_tar):
        store = other.data / "store"
        subprocess.run(["mount", "--bind", store, store], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", store], check=True)
            message = self.fail(other)
            assert str(store) in message
            assert "ead-only" in message
        finally:
            subprocess.run(["umount", store], check=True)
        other.start()
        assert IMAGE in other.cli("image", "ls")
        other.stop()

    def test_a_store_that_is_full(self, other, work, image_tar):
        small = work / "small-store"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", small], check=True)
        full = Server(work / "full")
        try:
            full.write_config(pool_mb=1024, store=str(small))
            full.start()
            done = full.run("image", "push", f"tar:{image_tar}", IMAGE)
            assert done.returncode not in (0, 134, 139)
            assert b"o space" in done.stderr
            assert full.cli("image", "ls").count(IMAGE) == 0
            # What failed leaves nothing, and what fits still works.
            tiny = work / "tiny.tar"
            tiny.write_bytes(small_tar({"file": b"x"}))
            full.cli("image", "push", f"tar:{tiny}", "tiny:1")
        finally:
            if full.process is not None:
                full.stop()
            full.drain()
            subprocess.run(["umount", small], check=True)

    def test_an_index_that_is_gone_is_built_anew(self, other):
        shutil.rmtree(other.data / "index")
        other.start()
        assert IMAGE in other.cli("image", "ls")
        with Client(other.address) as client, Sandbox.create(IMAGE, client=client) as sandbox:
            assert sandbox.commands.run("echo hi").stdout == "hi\n"
        other.stop()

    def test_everything_deleted_is_nothing_left(self, other):
        other.start()
        with Client(other.address) as client:
            with Sandbox.create(IMAGE, client=client) as sandbox:
                sandbox.commands.run("head -c 1000000 /dev/urandom > /tmp/r")
                snapshot = sandbox.snapshot()
            other.cli("snapshot", "rm", snapshot.id)
            other.cli("image", "rm", IMAGE)
            other.cli("gc", "--grace", "0")
            assert client.images(include_snapshots=True) == []
        status = other.status()
        assert int(status.get("packs", 0)) == 0
        assert int(status.get("sandboxes", 0)) == 0
        packs = [p for p in (other.data / "store" / "packs").rglob("*") if p.is_file()]
        assert packs == []
        other.stop()
