"""What a tree holds, as ``find`` lists it, and what a squashfs does, as ``unsquashfs`` does: one is to be the other.

No code here is shared with what collects and assembles a squashfs.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from runner.core import process
from runner.core.errors import InfrastructureError
from runner.images.packing import rootfs, tarstream

# Of each path: mode as ls shows it, bytes (a dash: of a directory) and seconds; target.
Tree = Mapping[str, tuple[str, str]]

_LIST_S, _MOST = 1800.0, 1 << 34  # seconds; bytes
_DIRECTORY_BYTES = re.compile(rb" 0/0 \d+ ")
_FORMS = r"( -type d -printf %P\0%M/-/%T@\0\0 -o -printf %P\0%M/%s/%T@\0%l\0 )"
_FIND = ("find", "-mindepth", "1", *_FORMS.split(" "))
_OPAQUE = {"trusted.overlay.opaque", "user.overlay.opaque"}


def of_layers(layers: Sequence[Path]) -> Tree:
    """What layers for overlayfs make (topmost first), by its rules: nothing is mounted. Raises as ``of_directory``."""
    tree: dict[str, tuple[str, str]] = {}  # what is above something stands before it
    for layer in reversed(layers):
        found = of_directory(layer)
        both = [name for name in found.keys() & tree.keys() if tree[name][0].startswith("d")]
        gone = {name for name in both if found[name][0][0] != "d" or _OPAQUE & {*os.listxattr(f"{layer}/{name}")}}
        if gone:
            for name in tree:
                if name.rpartition("/")[0] in gone:
                    gone.add(name)
            tree = {name: each for name, each in tree.items() if name not in gone}
        tree |= found
    return tree


def of_directory(root: Path) -> Tree:
    """All below a directory. InfrastructureError: not all of it can be read."""
    answer = process.read(_FIND, _MOST, timeout_s=_LIST_S, cwd=root, env=os.environ)
    if answer.code:
        raise InfrastructureError(f"find failed: {answer.err}", where=str(root))
    fields = os.fsdecode(answer.out).split("\0")
    return dict(zip(fields[0::3], zip(fields[1::3], fields[2::3], strict=False), strict=False))


def packed(tree: Tree, added: rootfs.Additions) -> tuple[set[str], list[bytes]]:
    """The names that a squashfs of the tree has, without sockets, devices and what engines leave, with what is put in;
    and the lines that ``unsquashfs`` prints of it.
    """
    tree = {name: each for name, each in tree.items() if each[0][0] in "-dlp" and not name.startswith("dev/")}
    for name in rootfs.DROPPED & tree.keys():
        del tree[name]
    tree[""] = (f"drwxr-xr-x/-/{added.mtime}", "")
    put_in = dict.fromkeys(added.directories, tree[""])
    put_in |= {name: (f"lrwxrwxrwx/{len(os.fsencode(to))}/{added.mtime}", to) for name, to in added.links}
    for name, each in put_in.items():
        if name not in tree and tree.get(name.rpartition("/")[0], ("", ""))[0].startswith("d"):
            tree[name] = each
    for file in added.files:
        tree[file.name] = (f"{stat.filemode(stat.S_IFREG | file.mode)}/{len(file.content)}/{added.mtime}", "")
    for name in added.timed & tree.keys():
        about, target = tree[name]
        if about[0] in "dl":
            tree[name] = (f"{about.rpartition('/')[0]}/{added.mtime}", target)

    @cache
    def when(seconds: str) -> str:
        known = min(max(0, int(seconds.partition(".")[0])), added.mtime or tarstream.LAST_S)
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(known))

    lines = []
    for name, (about, target) in tree.items():
        mode, size, seconds = about.split("/")
        shown = f"{name} -> {target}" if mode.startswith("l") else name
        lines.append(f"{mode} 0/0 {size} {when(seconds)} squashfs-root{'/' if name else ''}{shown}\n")
    return tree.keys() - {""}, _plain(os.fsencode("".join(lines)))


def difference(squashfs: Path, wanted: Sequence[bytes]) -> str:
    """The first line that is only wanted, or only what ``unsquashfs`` prints; empty: they agree."""
    env = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    found = _plain(process.read(("unsquashfs", "-lln", squashfs), _MOST, timeout_s=_LIST_S, env=env).out)
    if len(wanted) == len(found) and {*wanted} == {*found}:
        return ""
    return os.fsdecode(min({*wanted} ^ {*found}, default=b"names"))


def _plain(raw: bytes) -> list[bytes]:
    """The lines, without padding, and a directory without its size, which is the squashfs's own."""
    for blanks in (16, 8, 4, 3, 2):
        raw = raw.replace(b" " * blanks, b" ")
    lines = raw.split(b"\n")
    return [_DIRECTORY_BYTES.sub(b" 0/0 - ", line, 1) if line[:1] == b"d" else line for line in lines]
