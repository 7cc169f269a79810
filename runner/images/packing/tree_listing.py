"""What a tree holds, as ``find`` lists it, and what a squashfs does, as ``unsquashfs`` does: one is to be the other.

No code here is shared with what collects and assembles a squashfs.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from runner.core import process
from runner.core.errors import InfrastructureError
from runner.images.packing import rootfs, tarstream

# Of each path: mode as ls shows it, bytes (a dash: of a directory) and seconds; target.
Tree = Mapping[str, tuple[str, str]]

_LIST_S = 1800.0
_MOST = 1 << 34  # bytes
_FORMS = r"( -type d -printf %P\0%M/-/%T@\0\0 -o -printf %P\0%M/%s/%T@\0%l\0 )"
FIND = ("find", "-mindepth", "1", "!", "-type", "s", "!", "-type", "b", "!", "-type", "c", *_FORMS.split(" "))
_PADDING, _LISTED = re.compile(rb"^([-lp]\S{9} 0/0) +", re.MULTILINE), re.compile(rb"^(d\S{9} 0/0) +\d+ ", re.MULTILINE)


def parsed(raw: bytes) -> Tree:
    """What ``FIND`` has written; undecodable bytes as surrogate escapes."""
    fields = os.fsdecode(raw).split("\0")
    return dict(zip(fields[0::3], zip(fields[1::3], fields[2::3], strict=False), strict=False))


def of_directory(root: Path) -> Tree:
    """All below a directory, but sockets and devices. Raises as ``names_in``."""
    return parsed(_found(FIND, root))


def names_in(root: Path) -> set[str]:
    """All paths below a directory. InfrastructureError: not all of it can be read."""
    return {*os.fsdecode(_found(("find", "-mindepth", "1", "-printf", r"%P\0"), root)).split("\0")[:-1]}


def _found(command: tuple[str, ...], root: Path) -> bytes:
    answer = process.read(command, _MOST, timeout_s=_LIST_S, cwd=root, env=os.environ)
    if answer.code:
        raise InfrastructureError(f"find failed: {answer.err}", where=str(root))
    return answer.out


def with_additions(tree: Tree, added: rootfs.Additions) -> Tree:
    """The tree as it is packed: without what engines leave, with what is put in."""
    tree = {name: each for name, each in tree.items() if name not in rootfs.DROPPED and not name.startswith("dev/")}
    put_in = {name: (f"drwxr-xr-x/-/{added.mtime}", "") for name in added.directories}
    put_in |= {name: (f"lrwxrwxrwx/{len(os.fsencode(to))}/{added.mtime}", to) for name, to in added.links}
    for name, each in put_in.items():
        above = name.rpartition("/")[0]
        if name not in tree and (not above or tree.get(above, ("", ""))[0].startswith("d")):
            tree[name] = each
    for file in added.files:
        tree[file.name] = (f"{stat.filemode(stat.S_IFREG | file.mode)}/{len(file.content)}/{added.mtime}", "")
    for name in added.timed & tree.keys():
        about, target = tree[name]
        if about.startswith(("d", "l")):
            tree[name] = ("/".join([*about.split("/")[:2], str(added.mtime)]), target)
    return tree


def difference(squashfs: Path, tree: Tree, epoch: int) -> str:
    """A line that only one of them has: type, mode, owner, bytes, time to the minute, path, target. Empty: they agree.
    epoch: the squashfs's own time, after which nothing in it is; 0: all times are as they are.
    """
    env = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    listed = process.read(("unsquashfs", "-lln", squashfs), _MOST, timeout_s=_LIST_S, env=env).out

    @cache
    def when(seconds: str) -> str:
        known = min(max(0, int(seconds.partition(".")[0])), epoch or tarstream.LAST_S)
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(known))

    lines = [f"drwxr-xr-x 0/0 - {when(str(epoch))} squashfs-root\n"]
    for name, (about, target) in tree.items():
        mode, size, seconds = about.split("/")
        shown = f"{name} -> {target}" if mode.startswith("l") else name
        lines.append(f"{mode} 0/0 {size} {when(seconds)} squashfs-root/{shown}\n")
    wanted = os.fsencode("".join(lines)).split(b"\n")
    found = _PADDING.sub(rb"\1 ", _LISTED.sub(rb"\1 - ", listed)).split(b"\n")
    if len(wanted) == len(found) and {*wanted} == {*found}:
        return ""
    return os.fsdecode(min({*wanted} ^ {*found}, default=b"names"))
