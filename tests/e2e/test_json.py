"""--json of every verb there is: what it prints, and how it fails, is JSON, one object a line."""

from __future__ import annotations

import json
import re

import pytest
from conftest import IMAGE


def subcommands(server, *path: str) -> list[str]:
    text = server.cli(*path, "--help")
    _, _, listed = text.partition("Subcommands:\n")
    return re.findall(r"^  ([\w-]+)", listed, re.MULTILINE)


def verbs(server, *path: str) -> list[tuple[str, ...]]:
    """All of the CLI, walked through its help."""
    below = subcommands(server, *path)
    if not below:
        return [path]
    return [verb for name in below for verb in verbs(server, *path, name)]


# Verbs that cannot be told to succeed here in a moment; that they fail in JSON is proved as for all.
NOT_RUN = {
    ("serve",): "runs for ever",
    ("doctor",): "takes a while, and has a test of its own",
}
# Where a stream of bytes is what the verb is for, --json says it in objects too.


def objects(output: bytes) -> list[dict]:
    found = [json.loads(line) for line in output.decode().splitlines()]
    assert all(isinstance(item, dict) for item in found), found
    return found


class Story:
    """Arguments for each verb, in an order in which all succeed."""

    def __init__(self, server, image_tar, tmp_path) -> None:
        self.server = server
        self.tar = f"tar:{image_tar}"
        self.file = tmp_path / "file"
        self.file.write_bytes(b"\xff\0 bytes")
        self.keys = ("--file", f"{server.data}/keys")
        self.done: set[tuple[str, ...]] = set()

    def run(self, *words: str, path: int = 2) -> list[dict]:
        done = self.server.run("--json", *words)
        assert done.returncode == 0, (words, done.stderr)
        assert done.stderr == b"", (words, done.stderr)
        found = objects(done.stdout)
        assert found, f"{words} printed nothing"
        self.done.add(tuple(words[:path]))
        return found

    def tell(self) -> None:
        run = self.run
        assert run("version", path=1)[0]["version"]
        assert run("status", path=1)[0]["node_id"]
        run("image", "push", self.tar, "json:1")
        assert any("json:1" in image["tags"] for image in run("image", "ls"))
        assert run("image", "inspect", "json:1")[0]["visibility"] == "VISIBILITY_SHARED"
        assert "json:2" in run("image", "tag", "json:1", "json:2")[0]["tags"]
        run("image", "rm", "json:2")
        self.tell_of_copies()
        self.tell_of_sandboxes()
        self.tell_of_the_cache()
        assert int(run("gc", path=1)[0]["packs_live"]) >= 1
        assert run("index", "rebuild")[-1]["finished"]
        self.tell_of_keys()
        self.server.cli("image", "rm", "json:1")

    def tell_of_copies(self) -> None:
        folder = self.file.parent
        self.run("image", "export", "json:1", f"oci:{folder}/layout:1")
        images = folder / "images"
        images.write_text(f"oci:{folder}/layout:1 json:3\n")
        self.run("image", "sync", str(images))
        self.server.cli("image", "rm", "json:3")

    def tell_of_the_cache(self) -> None:
        self.run("cache", "ls")
        self.run("cache", "verify")
        self.run("cache", "prune", "--to", "1G", "--dry-run")

    def tell_of_sandboxes(self) -> None:
        run = self.run
        box = run("sandbox", "create", IMAGE)[0]["id"]
        assert box in {found["id"] for found in run("sandbox", "ls")}
        assert run("sandbox", "inspect", box)[0]["id"] == box
        assert run("sandbox", "describe", box)[0]["sandbox"]["id"] == box
        events = run("sandbox", "exec", box, "sh", "-c", "echo out; echo err >&2")
        assert [next(iter(event)) for event in (events[0], events[-1])] == ["started", "exited"]
        assert {event["output"]["stream"] for event in events if "output" in event} == {
            "STREAM_STDOUT",
            "STREAM_STDERR",
        }
        assert run("sandbox", "cp", str(self.file), f"{box}:/tmp/there")[0]["size"] == "8"
        run("sandbox", "cp", f"{box}:/tmp/there", str(self.file) + ".back")
        run("sandbox", "pause", box)
        run("sandbox", "resume", box)
        snapshot = run("sandbox", "snapshot", box)[0]["image"]
        children = run("sandbox", "fork", box)[0]["children"]
        assert snapshot in {found["id"] for found in run("snapshot", "ls")}
        run("snapshot", "rm", snapshot)
        ids = [box, *(child["sandbox"]["id"] for child in children)]
        assert len(run("sandbox", "rm", *ids)) == 2

    def tell_of_keys(self) -> None:
        run = self.run
        made = run("key", *self.keys, "create", "json", path=1)[0]
        assert made["key"].startswith("esk_") and made["project"] == "*"
        assert {"name": "json", "project": "*", "role": "user"} in run("key", *self.keys, "ls", path=1)
        run("key", *self.keys, "rm", "json", path=1)
        self.done |= {("key", verb) for verb in ("create", "ls", "rm")}


def test_every_verb_prints_json(server, image_tar, tmp_path):
    story = Story(server, image_tar, tmp_path)
    story.tell()
    missing = set(verbs(server)) - story.done - NOT_RUN.keys()
    assert not missing, f"tell the story of {missing}"


def test_every_verb_fails_in_json(server):
    for verb in verbs(server):
        done = server.run("--json", *verb, "--no-such-option")
        # exec takes what follows as the command's.
        assert done.returncode in (2, 125), (verb, done)
        error = objects(done.stderr)[-1]
        assert error["error"] == "INVALID_ARGUMENT" and error["message"], (verb, error)
        assert done.stdout == b"", (verb, done.stdout)


def test_a_server_that_is_not_there_is_told_in_json(server):
    local = {("serve",), ("doctor",), ("version",), ("image", "push"), ("sandbox", "cp")}
    local |= {("image", "sync")}  # it reads its list first
    for verb in set(verbs(server)) - local:
        if verb[0] == "key":
            words = ("key", "--file", "/no/such/directory/keys", verb[1], *["x"] * (verb[1] != "ls"))
            if verb[1] == "ls":
                continue  # no file is no keys
        else:
            operands = {"exec": ("x", "true"), "tag": ("x", "y"), "export": ("x", "oci:/no/such/y")}
            operands |= {verb: () for verb in ("ls", "gc", "status", "rebuild", "verify")}
            operands["prune"] = ("--all",)
            words = (*verb, *operands.get(verb[-1], ("x",)))
        done = server.run("--json", "--address", "unix:/no/such/socket", *words)
        assert done.returncode != 0, verb
        error = objects(done.stderr)[-1]
        assert error["error"] in ("UNAVAILABLE", "NOT_FOUND"), (verb, error)


def test_failures_name_the_cause(server):
    done = server.run("serve", "--config", "/no/such/file", "--json")
    assert done.returncode != 0
    assert "/no/such/file" in objects(done.stderr)[-1]["message"]
    done = server.run("--json", "sandbox", "exec", "no-such-sandbox", "true")
    assert objects(done.stderr)[-1]["error"] == "NOT_FOUND"


@pytest.mark.parametrize("code", [0, 7])
def test_exec_keeps_the_commands_exit_code(server, code):
    box = server.cli("sandbox", "create", IMAGE)
    done = server.run("--json", "sandbox", "exec", box, "sh", "-c", f"exit {code}")
    assert done.returncode == code
    assert objects(done.stdout)[-1]["exited"]["exit"]["exit_code"] == code
    server.cli("sandbox", "rm", box)
