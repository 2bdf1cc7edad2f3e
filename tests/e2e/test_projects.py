"""Images of projects: what a key of one project sees and may change, and what it never learns."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass

import esker
import pytest
from conftest import IMAGE
from esker import Client, Sandbox
from esker_server import Server
from small_image import make_tar


@dataclass
class Project:
    """A project, and the CLI and SDK with a key that is bound to it."""

    server: Server
    name: str
    key: str
    client: Client

    def run(self, *arguments: str):
        return self.server.run(*self.as_it(), *arguments)

    def cli(self, *arguments: str) -> str:
        return self.server.cli(*self.as_it(), *arguments)

    def json(self, *arguments: str):
        return self.server.json(*self.as_it(), *arguments)

    def as_it(self) -> tuple[str, ...]:
        return ("--address", f"127.0.0.1:{self.server.port}", "--key", self.key)

    def names(self) -> set[tuple[str, str]]:
        """(name, project) of all images it sees."""
        lines = self.cli("--json", "image", "ls", "--all").splitlines()
        images = [json.loads(line) for line in lines]
        return {(name["name"], name["project"]) for image in images for name in image["names"]}

    def refused(self, code: str, *arguments: str) -> str:
        """The message with which the CLI's call fails; it must fail with this code."""
        done = self.run("--json", *arguments)
        assert done.returncode != 0, (arguments, done.stdout)
        error = json.loads(done.stderr.decode().splitlines()[-1])
        assert error["error"] == code, (arguments, error)
        return error["message"]


@pytest.fixture
def projects(server):
    """Two, with names that no other test has; all they have is removed at the end."""
    made = []
    mark = secrets.token_hex(3)
    keys = ("key", "--file", f"{server.data}/keys")
    for name in (f"alpha-{mark}", f"beta-{mark}"):
        key = server.json(*keys, "add", name, "--project", name)["key"]
        client = Client(f"127.0.0.1:{server.port}", api_key=key)
        made.append(Project(server, name, key, client))
    yield made
    for project in made:
        for info in Sandbox.list(client=project.client):
            Sandbox(info.id, project.client).kill()
        for line in project.cli("--json", "snapshot", "ls").splitlines():
            project.cli("snapshot", "rm", json.loads(line)["id"])
        for name, owner in project.names():
            if owner == project.name:
                project.cli("image", "rm", name)
        assert all(owner == "" for _, owner in project.names())
        project.client.close()
        server.cli(*keys, "rm", project.name)


@pytest.fixture
def tars(tmp_path):
    """Two images that boot and differ in /data/blob."""
    paths = {}
    for name in ("one", "two"):
        paths[name] = f"tar:{tmp_path / name}.tar"
        make_tar(tmp_path / f"{name}.tar", blob=name.encode())
    return paths


def image_id(project: Project, reference: str) -> str:
    return project.json("image", "inspect", reference)["id"]


def blob_of(reference: str, client: Client) -> str:
    with Sandbox.create(reference, client=client) as sandbox:
        return sandbox.files.read("/data/blob")


def test_each_project_has_its_own_names(server, client, projects, tars):
    alpha, beta = projects
    alpha.cli("image", "push", tars["one"], "app:1", "--job", "nightly")
    beta.cli("image", "push", tars["two"], "app:1")
    shared = (IMAGE, "")

    def check() -> None:
        assert {("app:1", alpha.name), shared} <= alpha.names()
        assert {("app:1", beta.name), shared} <= beta.names()
        assert all(owner in ("", alpha.name) for _, owner in alpha.names())
        assert image_id(alpha, "app:1") != image_id(beta, "app:1")
        shown = alpha.json("image", "inspect", "app:1")
        assert (shown["project"], shown["job"]) == (alpha.name, "nightly")
        assert (shown["visibility"], shown["tags"]) == ("VISIBILITY_PROJECT", ["app:1"])
        assert alpha.json("image", "inspect", IMAGE)["visibility"] == "VISIBILITY_SHARED"
        # The operator reaches each by its full name.
        for project in projects:
            full = f"@{project.name}/app:1"
            assert server.json("image", "inspect", full)["id"] == image_id(project, "app:1")
            in_project = server.json("image", "inspect", "app:1", "--project", project.name)
            assert in_project["tags"] == [full]

    check()
    assert blob_of("app:1", alpha.client) == "one"
    assert blob_of("app:1", beta.client) == "two"
    info = next(image for image in alpha.client.images(project=alpha.name))
    assert (info.project, info.job, info.shared) == (alpha.name, "nightly", False)
    assert info.names == [esker.ImageName("app:1", alpha.name, "nightly")]
    server.kill()
    server.start()
    check()
    server.cli("index", "rebuild")
    check()
    assert blob_of("app:1", alpha.client) == "one"
    # A plain name of the operator's is a shared one, and not one of theirs.
    assert server.run("image", "inspect", "app:1").returncode != 0
    assert server.run("image", "rm", "app:1").returncode != 0
    with Sandbox.create("app:1", project=beta.name, client=client) as sandbox:
        assert sandbox.files.read("/data/blob") == "two"


def test_what_belongs_to_others_does_not_exist(server, projects, tars):
    alpha, beta = projects
    beta.cli("image", "push", tars["two"], "secret:1")
    with Sandbox.create("secret:1", client=beta.client) as box:
        snapshot = box.snapshot(name="frozen:1").id
    secret = image_id(beta, "secret:1")
    verbs = (
        lambda ref: ("image", "inspect", ref),
        lambda ref: ("image", "tag", ref, "mine:1"),
        lambda ref: ("image", "rm", ref),
        lambda ref: ("image", "rm", "--force", ref),
        lambda ref: ("snapshot", "rm", ref),
        lambda ref: ("sandbox", "create", ref),
    )
    for reference in (
        *("secret:1", "frozen:1", f"@{beta.name}/secret:1"),
        *(secret, secret[:12], f"sha256:{secret}", snapshot, snapshot[:12]),
    ):
        for verb in verbs:
            message = alpha.refused("NOT_FOUND", *verb(reference))
            # It is told what it would be told of a name that nobody has, and nothing else.
            never = re.sub(re.escape(reference), "NEVER", message)
            assert "secret" not in never and "frozen" not in never, message
            assert beta.name not in never and "ambiguous" not in never, message
    with pytest.raises(esker.ImageNotFoundError):
        Sandbox.create(secret, client=alpha.client)
    alpha.refused("PERMISSION_DENIED", "image", "ls", "--project", beta.name)
    alpha.refused("PERMISSION_DENIED", "image", "push", tars["one"], f"@{beta.name}/x:1")
    alpha.refused("PERMISSION_DENIED", "image", "push", tars["one"], "x:1", "--project", beta.name)
    assert alpha.cli("--json", "snapshot", "ls") == ""
    assert all(owner == "" for _, owner in alpha.names())
    # None of these changed anything.
    assert image_id(beta, "secret:1") == secret
    assert blob_of("frozen:1", beta.client) == "two"
    assert beta.json("image", "inspect", snapshot)["names"][0]["name"] == "frozen:1"
    assert server.json("image", "inspect", secret)["tags"] == [f"@{beta.name}/secret:1"]


def test_equal_content_is_stored_once_and_seen_apart(server, projects, tars):
    alpha, beta = projects
    beta.cli("image", "push", tars["two"], "theirs:1")
    before = server.status()
    alpha.cli("image", "push", tars["two"], "mine:1")
    same = image_id(beta, "theirs:1")
    assert image_id(alpha, "mine:1") == same
    after = server.status()
    assert (after["images"], after["chunks"]) == (before["images"], before["chunks"])
    assert [name["name"] for name in alpha.json("image", "inspect", same)["names"]] == ["mine:1"]
    assert [name["name"] for name in beta.json("image", "inspect", same)["names"]] == ["theirs:1"]
    # By id a key removes its own names only; for alpha the image is gone, for beta it is there.
    alpha.refused("FAILED_PRECONDITION", "image", "rm", same)
    assert alpha.json("image", "rm", "--force", same) == {"removed_image": True}
    alpha.refused("NOT_FOUND", "image", "inspect", same)
    server.cli("gc", "--grace", "0")
    assert image_id(beta, "theirs:1") == same
    assert blob_of("theirs:1", beta.client) == "two"


def test_shared_names_are_the_operators(server, projects, tars):
    alpha, beta = projects
    shared = image_id(alpha, IMAGE)
    alpha.refused("PERMISSION_DENIED", "image", "rm", IMAGE)
    alpha.refused("PERMISSION_DENIED", "image", "rm", "--force", shared)
    # A name of its own may have the same spelling, and goes before; nobody else notices.
    alpha.cli("image", "push", tars["one"], IMAGE)
    assert blob_of(IMAGE, alpha.client) == "one"
    assert image_id(beta, IMAGE) == server.json("image", "inspect", IMAGE)["id"] == shared
    alpha.cli("image", "rm", IMAGE)
    assert image_id(alpha, IMAGE) == shared
    # A shared image under a name of its own; moving that is its own business too.
    alpha.cli("image", "tag", IMAGE, "base:1")
    alpha.cli("image", "push", tars["one"], "base:1")
    assert image_id(alpha, "base:1") != shared
    # The operator gives, shares and takes names of projects.
    server.cli("image", "push", tars["two"], "given:1", "--project", beta.name, "--job", "j")
    assert beta.json("image", "inspect", "given:1")["job"] == "j"
    alpha.refused("NOT_FOUND", "image", "inspect", "given:1")
    server.cli("image", "tag", f"@{beta.name}/given:1", "for-all:1")
    try:
        assert image_id(alpha, "for-all:1") == image_id(beta, "given:1")
        seen = alpha.json("image", "inspect", "for-all:1")
        assert [(name["name"], name["project"]) for name in seen["names"]] == [("for-all:1", "")]
    finally:
        server.cli("image", "rm", "for-all:1")
    server.cli("image", "rm", "given:1", "--project", beta.name)
    beta.refused("NOT_FOUND", "image", "inspect", "given:1")


def test_snapshots_are_their_projects(server, projects):
    alpha, beta = projects
    with Sandbox.create(IMAGE, client=alpha.client, job="train") as box:
        box.files.write("/tmp/x", "x")
        snapshot = box.snapshot(name="point:1").id
        shown = alpha.json("image", "inspect", "point:1")
        assert (shown["project"], shown["job"]) == (alpha.name, "train")
        assert shown["names"][0]["job"] == "train"
        (child,) = box.fork(1)
        with child:
            assert child.files.read("/tmp/x") == "x"
    server.cli("image", "tag", snapshot, "golden:1")
    try:
        assert image_id(beta, "golden:1") == snapshot
        with Sandbox.create("golden:1", client=beta.client) as copy:
            assert copy.files.read("/tmp/x") == "x"
        # Its project removes it: then it is the operator's alone, who shared it.
        alpha.cli("snapshot", "rm", snapshot)
        assert alpha.json("image", "inspect", "golden:1")["tags"] == ["golden:1"]
    finally:
        server.cli("image", "rm", "--force", snapshot)
    alpha.refused("NOT_FOUND", "image", "inspect", snapshot)


def test_an_administrator_is_of_all_projects(server, projects):
    alpha, _ = projects
    keys = ("key", "--file", f"{server.data}/keys")
    done = server.run("--json", *keys, "add", "both", "--project", alpha.name, "--admin")
    assert json.loads(done.stderr)["error"] == "INVALID_ARGUMENT"
    for verb in (("status",), ("gc",), ("index", "rebuild")):
        alpha.refused("PERMISSION_DENIED", *verb)
