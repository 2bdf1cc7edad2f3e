#!/usr/bin/env python3
"""Compares a directory with what a tar says, by a reader that shares nothing with ours.

    tar_reference.py TAR DIRECTORY [--without WHAT,...]

TAR is read by Python's tarfile (any compression it knows), DIRECTORY is walked: every name, type, mode, owner, time in
nanoseconds, extended attribute, link count, set of hard links, device number, symbolic link and byte must agree. Layer
markers (.wh.x, .wh..wh..opq) are what overlayfs has for them. Prints what differs and exits with 1. --without leaves
out: xattrs, links, set-id, times, holes (bytes of files with long runs of zeros).
"""

import argparse
import base64
import hashlib
import os
import posixpath
import stat
import sys
import tarfile
import urllib.parse
from dataclasses import dataclass, field

WHITEOUT, OPAQUE = b".wh.", b".wh..wh..opq"
OPAQUE_XATTR = "trusted.overlay.opaque"
IMPLICIT_XATTR = "trusted.esker.implicit"  # the walked layer's mark, which no archive has
DROPPED = ("security.selinux", "security.ima", "security.evm", "security.apparmor")
KINDS = {
    tarfile.DIRTYPE: stat.S_IFDIR, tarfile.SYMTYPE: stat.S_IFLNK, tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK, tarfile.FIFOTYPE: stat.S_IFIFO,
}


@dataclass
class Node:
    kind: int
    mode: int
    uid: int = 0
    gid: int = 0
    time: int | None = 0  # nanoseconds; None: not said
    xattrs: dict = field(default_factory=dict)
    target: bytes = b""
    device: tuple = (0, 0)
    size: int = 0
    digest: str = ""
    names: set = field(default_factory=set)  # of everything but directories
    sparse: bool = False  # has long runs of zeros


def directory() -> Node:
    return Node(stat.S_IFDIR, 0o755, time=None)


class Layer:
    """The tree that the entries make, the last of two winning."""

    def __init__(self):
        self.nodes = {b"": directory()}
        self.hidden, self.opaque = set(), set()

    def below(self, path):
        prefix = path + b"/" if path else b""
        return [name for name in self.nodes if name.startswith(prefix) and name != path]

    def drop(self, path):
        for name in [*self.below(path), path] if self.nodes[path].kind == stat.S_IFDIR else [path]:
            node = self.nodes.pop(name)
            node.names.discard(name)

    def make_parents(self, path):
        parent = posixpath.dirname(path)
        while parent and (parent not in self.nodes or self.nodes[parent].kind != stat.S_IFDIR):
            if parent in self.nodes:
                self.drop(parent)
            self.nodes[parent] = directory()
            parent = posixpath.dirname(parent)

    def put(self, path, node):
        self.make_parents(path)
        if path in self.nodes:
            both = self.nodes[path].kind == node.kind == stat.S_IFDIR
            if not both:
                self.drop(path)
        self.nodes[path] = node
        if node.kind != stat.S_IFDIR:
            node.names.add(path)

    def finish(self):
        for path in sorted(self.opaque):
            if path not in self.nodes or self.nodes[path].kind == stat.S_IFDIR:
                if path not in self.nodes:
                    self.put(path, directory())
                self.nodes[path].xattrs[OPAQUE_XATTR] = b"y"
        for path in sorted(self.hidden):
            if path in self.nodes:
                if self.nodes[path].kind == stat.S_IFDIR:
                    self.nodes[path].xattrs[OPAQUE_XATTR] = b"y"
                continue
            parent = posixpath.dirname(path)
            while parent and parent not in self.nodes:
                parent = posixpath.dirname(parent)
            if self.nodes[parent].kind == stat.S_IFDIR:
                self.put(path, Node(stat.S_IFCHR, 0, time=0))
        return self.nodes


def name_of(text):
    parts = []
    for part in os.fsencode(text).split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)


def nanoseconds(info):
    text = info.pax_headers.get("mtime")
    if text is None:
        return int(info.mtime) * 10**9
    negative = text.startswith("-")
    whole, _, fraction = text.lstrip("-").partition(".")
    value = int(whole) * 10**9 + int((fraction + "0" * 9)[:9])
    return -value if negative else value


def xattrs_of(info):
    found = {}
    for key, value in info.pax_headers.items():
        if key.startswith("SCHILY.xattr."):
            found[key[13:]] = value.encode("utf-8", "surrogateescape")
        elif key.startswith("LIBARCHIVE.xattr."):
            name = urllib.parse.unquote(key[17:])
            found.setdefault(name, base64.b64decode(value + "=" * (-len(value) % 4)))
    return {k: v for k, v in found.items() if k not in DROPPED and not k.startswith("security.SMACK64")}


def digest_of(file):
    """The SHA-256, and whether the file has zeros that an importer may take for a hole."""
    digest, zeros = hashlib.sha256(), bytes(64 << 10)
    has_zeros = False
    while block := file.read(1 << 20):
        digest.update(block)
        has_zeros = has_zeros or zeros in block or not block.strip(b"\0")
    return digest.hexdigest(), has_zeros


def read_tar(path):
    layer = Layer()
    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as tar:
        for info in tar:
            name = name_of(info.name)
            parent, base = posixpath.split(name)
            if base == OPAQUE:
                layer.opaque.add(parent)
            elif base.startswith(WHITEOUT):
                if not base.startswith(b".wh..wh."):
                    layer.hidden.add(posixpath.join(parent, base[4:]))
            elif info.islnk():
                node = layer.nodes[name_of(info.linkname)]
                layer.put(name, node)
            else:
                kind = KINDS.get(info.type, stat.S_IFREG)
                node = Node(kind, info.mode & 0o7777, info.uid, info.gid, nanoseconds(info), xattrs_of(info))
                if kind == stat.S_IFLNK:
                    node.target = os.fsencode(info.linkname)
                elif kind in (stat.S_IFCHR, stat.S_IFBLK):
                    node.device = (info.devmajor, info.devminor)
                elif kind == stat.S_IFREG:
                    node.size = info.size
                    node.digest, node.sparse = digest_of(tar.extractfile(info))
                layer.put(name, node)
    return layer.finish()


def walk(top):
    nodes, inodes, pending = {}, {}, [b""]
    while pending:
        path = pending.pop()
        at = posixpath.join(os.fsencode(top), path) if path else os.fsencode(top)
        status = os.stat(at) if not path else os.lstat(at)
        kind = stat.S_IFMT(status.st_mode)
        node = Node(kind, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns)
        for attribute in os.listxattr(at, follow_symlinks=not path):
            if kind in (stat.S_IFREG, stat.S_IFDIR) or not attribute.startswith("user."):
                node.xattrs[attribute] = os.getxattr(at, attribute, follow_symlinks=not path)
        if kind == stat.S_IFDIR:
            pending += [posixpath.join(path, name) for name in os.listdir(at)]
        else:
            node = inodes.setdefault((status.st_dev, status.st_ino), node)
            node.names.add(path)
            if len(node.names) == 1:
                if kind == stat.S_IFLNK:
                    node.target = os.readlink(at)
                elif kind in (stat.S_IFCHR, stat.S_IFBLK):
                    node.device = (os.major(status.st_rdev), os.minor(status.st_rdev))
                elif kind == stat.S_IFREG:
                    node.size = status.st_size
                    with open(at, "rb") as file:
                        node.digest, node.sparse = digest_of(file)
            node.links = status.st_nlink
        nodes[path] = node
    return nodes


def differences(tar, found, without):
    for path in sorted(tar.keys() | found.keys()):
        shown = os.fsdecode(path) or "/"
        if path not in found:
            yield f"{shown}: missing"
            continue
        if path not in tar:
            yield f"{shown}: is not in the tar"
            continue
        want, got = tar[path], found[path]
        kinds = ("kind", "uid", "gid", "target", "device")
        if not ("holes" in without and want.sparse):
            kinds += ("size", "digest")
        for what in kinds:
            if getattr(want, what) != getattr(got, what):
                yield f"{shown}: {what} is {getattr(got, what)!r}, in the tar {getattr(want, what)!r}"
        mask = 0o1777 if "set-id" in without else 0o7777
        # Where the host keeps no modes of symbolic links they are 0777.
        if (want.mode ^ got.mode) & mask and not (want.kind == stat.S_IFLNK and got.mode == 0o777):
            yield f"{shown}: mode is {got.mode:o}, in the tar {want.mode:o}"
        if want.time is not None and "times" not in without and want.time != got.time:
            yield f"{shown}: time is {got.time}, in the tar {want.time}"
        if "xattrs" not in without:
            mine = {k: v for k, v in got.xattrs.items() if k != IMPLICIT_XATTR}
            theirs = {k: v for k, v in want.xattrs.items()
                      if want.kind in (stat.S_IFREG, stat.S_IFDIR) or not k.startswith("user.")}
            if mine != theirs:
                yield f"{shown}: attributes are {mine}, in the tar {theirs}"
        if "links" not in without and want.kind != stat.S_IFDIR:
            if want.names != got.names or got.links != len(want.names):
                yield f"{shown}: {got.links} links of {sorted(got.names)}, in the tar {sorted(want.names)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tar")
    parser.add_argument("directory")
    parser.add_argument("--without", default="")
    options = parser.parse_args()
    tar = read_tar(options.tar)
    found = list(differences(tar, walk(options.directory), set(options.without.split(","))))
    for line in found[:20]:
        print(line.encode("utf-8", "backslashreplace").decode())
    print(f"{len(tar)} names, {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
