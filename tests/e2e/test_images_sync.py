"""`image sync`: a thousand images over fifty bases, killed in the middle, nothing twice."""

from __future__ import annotations

import json
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from esker_server import Server, wait_until
from oci_maker import Layout, tar_of

BASES, IMAGES, FILES = 50, 1000, 5


@pytest.fixture(scope="module")
def own(work):
    """A server of its own: what its store holds is counted."""
    server = Server(work / "sync-server")
    server.start()
    yield server
    if server.process is None:
        server.start()
    server.stop()
    server.drain()


def counts(server: Server) -> dict[str, int]:
    status = server.status()
    return {key: int(status.get(key, 0)) for key in ("packs", "chunks", "images", "store_bytes")}


def make_images(path: Path) -> list[str]:
    """Lines of a list. Every base is a layout; some of them are one tar."""
    lines = []
    for base in range(BASES):
        layout = Layout(path / f"base{base}")
        below = {f"base{base}/": b""}
        below |= {f"base{base}/f{i}": f"{base} {i}".encode() * 50 for i in range(FILES)}
        layer = tar_of(below)
        as_tar = base % 10 == 9
        for n in range(base, IMAGES, BASES):
            own = tar_of({f"image{n}": f"only in {n}".encode() * 20})
            layout.add(layout.image([layer, own], compress=n % 2 == 0), f"v{n}")
            kind = f"oci-archive:{layout.path}.tar" if as_tar else f"oci:{layout.path}"
            lines.append(f"{kind}:v{n}  made/image{n}:1")
        layout.finish()
        if as_tar:
            with tarfile.open(f"{layout.path}.tar", "w") as tar:
                tar.add(layout.path, arcname=".")
    return sorted(lines, key=lambda line: int(line.split(":")[-2].removeprefix("v").split()[0]))


def start(server: Server, path: Path) -> subprocess.Popen:
    command = [server.bin / "esker", "--address", server.address, "--json"]
    command += ["image", "sync", path, "--jobs", "4"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for_images(server: Server, sync: subprocess.Popen, number: int) -> None:
    def enough() -> bool:
        assert sync.poll() is None, "the sync ended too soon"
        time.sleep(0.2)  # each look is a program that starts: leave the machine to the sync
        return counts(server)["images"] >= number

    wait_until(enough, timeout=120)


@pytest.mark.slow
def test_a_thousand_images_with_kills(own, work):
    path = work / "sync"
    lines = make_images(path)
    text = path / "list"
    text.write_text("# generated\n\n" + "\n".join(lines) + "\n")
    begun = time.monotonic()

    for images in (200, 450):
        sync = start(own, text)
        wait_for_images(own, sync, images)
        sync.kill()
        sync.communicate(timeout=20)
    sync = start(own, text)
    wait_for_images(own, sync, 700)
    own.kill()
    own.start()
    out, err = sync.communicate(timeout=120)
    assert sync.returncode == 0, err.decode()[-2000:]
    said = json.loads(out)
    seconds = time.monotonic() - begun
    assert said["lines"] == IMAGES and not said["failed"]
    assert said["pushed"] + said["present"] == IMAGES
    assert said["present"] >= 400

    now = counts(own)
    assert now["images"] == IMAGES
    assert len(own.cli("--json", "image", "ls").splitlines()) == IMAGES
    # Every file's content and every layer's metadata once.
    assert now["chunks"] == BASES * (FILES + 1) + IMAGES * 2
    again = json.loads(own.cli("--json", "image", "sync", str(text), "--jobs", "8"))
    assert again["present"] == IMAGES and again["bytes_read"] == 0
    assert counts(own) == now
    print(f"{IMAGES} images with three kills in {seconds:.1f} s")
    assert seconds < 120


def test_layers_that_lines_share_are_read_once(own, work):
    path = work / "sync-shared"
    layout = Layout(path / "layout")
    base = tar_of({"shared-base": b"b" * 3_000_000})
    for n in range(12):
        layout.add(layout.image([base, tar_of({f"shared{n}": b"x" * n})]), f"v{n}")
    layout.finish()
    text = path / "list"
    text.write_text("".join(f"oci:{layout.path}:v{n} shared/i{n}\n" for n in range(12)))
    said = json.loads(own.cli("--json", "image", "sync", str(text), "--jobs", "12"))
    assert said["pushed"] == 12
    assert said["layers"] == 24 and said["layers_reused"] == 11
    assert said["bytes_read"] < 3_000_000 + 12 * 12_000


def test_failures_are_listed_with_their_causes(own, work):
    path = work / "sync-failures"
    layout = Layout(path / "layout")
    good = layout.image([tar_of({"good": b"good"})])
    bad = layout.image([tar_of({"broken": b"bad"})])
    layout.add(good, "good")
    layout.add(bad, "bad")
    layout.finish()
    manifest = json.loads((layout.blobs / bad["digest"].split(":")[1]).read_text())
    blob = layout.blobs / manifest["layers"][0]["digest"].split(":")[1]
    blob.write_bytes(blob.read_bytes().replace(b"bad", b"BAD"))
    plain = path / "plain.tar"
    plain.write_bytes(tar_of({"plain": b"plain"}))
    text = path / "list"
    text.write_text(
        f"oci:{layout.path}:good failures/good  # fine\n"
        f"oci:{layout.path}:bad failures/bad\n"
        f"oci:{layout.path}:none failures/none\n"
        f"docker-archive:/no/such/file failures/file\n"
        f"tar:{plain} failures/plain:1\n"
        f"tar:{plain} Failures/NAME\n"
    )
    done = own.run("--json", "image", "sync", str(text))
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert said["pushed"] == 2
    got = {failure["line"]: failure for failure in said["failed"]}
    assert sorted(got) == [2, 3, 4, 6]
    assert got[2]["error"] == "DATA_LOSS" and "digest" in got[2]["message"]
    assert got[3]["error"] == "NOT_FOUND" and "bad, good" in got[3]["message"]
    assert "/no/such/file" in got[4]["message"]
    assert got[6]["error"] == "INVALID_ARGUMENT"
    plain_words = own.run("image", "sync", str(text))
    assert plain_words.returncode == 1
    assert b"2 there already" in plain_words.stdout and b"line 3: " in plain_words.stdout

    text.write_text(f"oci:{layout.path}:good twice\n\noci:{layout.path}:bad twice:latest\n")
    done = own.run("image", "sync", str(text))
    assert done.returncode == 2 and b"line 3" in done.stderr and b"line 1" in done.stderr
    assert own.run("image", "sync", "/no/such/list").returncode == 1


def test_without_a_server_it_gives_up_after_a_while(own, work):
    text = work / "sync-list"
    text.write_text("dir:/usr/share/doc nobody:1\n")
    command = [own.bin / "esker", "--address", f"unix:{work}/nobody.sock", "--json"]
    done = subprocess.run(
        [*command, "image", "sync", text, "--wait", "1"], capture_output=True, timeout=60
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["failed"][0]["error"] == "UNAVAILABLE"


def test_interrupted_by_hand(own, work):
    path = work / "sync-interrupted"
    layout = Layout(path / "layout")
    lines = []
    for n in range(60):
        layout.add(layout.image([tar_of({f"interrupted{n}": b"i" * 1000})]), f"v{n}")
        lines.append(f"oci:{layout.path}:v{n} interrupted/i{n}\n")
    layout.finish()
    text = path / "list"
    text.write_text("".join(lines))
    before = counts(own)["images"]
    sync = start(own, text)
    wait_for_images(own, sync, before + 5)
    sync.send_signal(signal.SIGINT)
    sync.communicate(timeout=20)
    assert sync.returncode != 0
    said = json.loads(own.cli("--json", "image", "sync", str(text)))
    assert said["pushed"] + said["present"] == 60 and said["present"] >= 5
