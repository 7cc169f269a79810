"""Layers of an image, merged into one root: as one tar stream, with no tree on disk.

First a layer's headers are read alone, unless they are known, into the tree that a runtime would see once all layers
are applied; then its data, of which only the files still in the tree are passed on. It is hashed each time. Rules: OCI
image specification 1.1, layer.md. Where it leaves a choice, it is made as containerd does: a layer that names no parent
directory leaves the one below as it is; a parent that is a symbolic link below is followed, inside the root; hard links
may lead to lower layers.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import IO, cast

from runner.core.errors import InfrastructureError
from runner.images.packing import rootfs, tarstream
from runner.images.packing.tarstream import TarStream
from runner.images.packing.tree_listing import Tree

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_RESERVED = ".wh..wh."  # AUFS's internal names
_MOST_PARTS = 4096  # of a path with its links followed; without them, it has at most half as many
_FIRST_MODE = 0o755  # of a directory that no layer describes
_DEVICES = (tarfile.CHRTYPE, tarfile.BLKTYPE)
_TYPES = {tarfile.SYMTYPE: stat.S_IFLNK, tarfile.CHRTYPE: stat.S_IFCHR, tarfile.BLKTYPE: stat.S_IFBLK,
          tarfile.FIFOTYPE: stat.S_IFIFO}  # fmt: skip
Opener = Callable[[], AbstractContextManager[IO[bytes]]]


@dataclass(frozen=True)
class Layer:
    """A layer: a name for messages, what opens it as a plain tar archive any number of times, and ``sha256:...`` of
    that archive (empty where it is not known).
    """

    name: str
    opened: Opener
    diff_id: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A member of a layer without its data, as ``tarstream.Member``; of anything but a directory without its head."""

    path: str
    kind: bytes
    link: str
    size: int
    head: bytes
    mode: int
    mtime: int


@dataclass(eq=False, slots=True)
class _File:
    """Anything but a directory, by the place of its data; all hard links to it share this object."""

    layer: int
    position: int
    kind: bytes
    target: str  # of a symbolic link


@dataclass(eq=False, slots=True)
class _Directory:
    """head: header blocks as a layer described it, empty where none did."""

    head: bytes = b""
    path: str = ""  # under which that head names it
    entries: dict[str, _File | _Directory] = field(default_factory=dict)


class Root:
    """The tree that layers make, applied one after another.

    Args:
        layers: (name for messages, its entries as ``indexed`` gives them), the lowest first.
        made: directories that are made where their paths lead, links followed, if they are not there: so an engine
            makes a container's working directory.
    """

    def __init__(self, layers: Iterable[tuple[str, Sequence[Entry]]], made: Iterable[str] = ()) -> None:
        self._top = _Directory()
        self.entries: list[Sequence[Entry]] = []
        for number, (name, held) in enumerate(layers):
            self._apply(number, name, held)
            self.entries.append(held)
        for path in made:
            self.directory(_parts(path), make=True)

    @property
    def size(self) -> int:
        """Bytes of all files of all layers."""
        return sum(entry.size for held in self.entries for entry in held)

    def devices(self) -> set[str]:
        """Paths of device files, but for an engine's own."""
        nodes = ((path, node) for path, node in self.walk() if isinstance(node, _File))
        return {path for path, node in nodes if node.kind in _DEVICES and not path.startswith("dev/")}

    def tree(self, mtime: int, timed: Set[str]) -> Tree:
        """All of it. mtime: of what no layer describes, seconds since the epoch; and of symbolic links that are packed
        under one of the names ``timed``, with their other names.
        """
        tree, packed_as = dict[str, tuple[str, str]](), dict[_File, str]()
        for path, node in self.walk():
            if isinstance(node, _Directory):
                mode, time_s = tarstream.mode_and_time(node.head) if node.head else (_FIRST_MODE, mtime)
                tree[path] = (f"{stat.filemode(stat.S_IFDIR | mode)}/-/{time_s}", "")
            else:
                entry = self.entries[node.layer][node.position]
                is_link = node.kind == tarfile.SYMTYPE
                size = len(os.fsencode(node.target)) if is_link else entry.size
                time_s = mtime if is_link and packed_as.setdefault(node, path) in timed else entry.mtime
                shown = stat.filemode(_TYPES.get(node.kind, stat.S_IFREG) | (0o777 if is_link else entry.mode))
                tree[path] = (f"{shown}/{size}/{time_s}", node.target)
        return tree

    def differing(self, layers: Sequence[str], other: Root, others: Sequence[str]) -> dict[str, bool]:
        """All paths that are not the same as in another root, there or here; whether with all that is below. layers,
        others: what identifies each one's layers.
        """
        here, there = self._identities(layers), other._identities(others)
        return {
            path: path not in here for path in here.keys() | there.keys()
            if here.get(path) is None or here.get(path) != there.get(path)
        }  # fmt: skip

    def _identities(self, layers: Sequence[str]) -> dict[str, tuple[object, ...] | None]:
        """What each path is; None for a directory that no layer describes, which has the time of its image."""
        ids = [(each, layers[:number].count(each)) for number, each in enumerate(layers)]  # one may be there twice
        return {
            path: (ids[node.layer], node.position) if isinstance(node, _File)
            else (node.head, node.path) if node.head else None
            for path, node in self.walk()
        }  # fmt: skip

    def files(self, only: Set[str] | None = None) -> list[dict[int, list[str]]]:
        """Of each layer: the members whose data are in the root, with the names that each has there, sorted. ``only``:
        those with one of these names.
        """
        plan: list[dict[int, list[str]]] = [defaultdict(list) for _ in self.entries]
        for path, node in self.walk():
            if isinstance(node, _File):
                plan[node.layer][node.position].append(path)
        if only is None:
            return plan
        return [{at: names for at, names in layer.items() if not only.isdisjoint(names)} for layer in plan]

    def _apply(self, number: int, layer: str, members: Sequence[Entry]) -> None:
        """Apply a layer's members; whiteouts concern only what lower layers brought, wherever they stand in it."""
        for member in members:
            if member.kind == tarfile.DIRTYPE and member.path:
                # A lower layer's link or file becomes this layer's directory, so that whiteouts do not follow the link.
                *parents, name = member.path.split("/")
                parent = self.directory(parents)
                if parent is not None and isinstance(parent.entries.get(name), _File):
                    parent.entries[name] = _Directory()
        for member in members:
            above, _, name = member.path.rpartition("/")
            if name.startswith(_WHITEOUT) and (parent := self.directory(_parts(above))) is not None:
                if name == _OPAQUE:
                    parent.entries.clear()
                elif not name.startswith(_RESERVED):
                    parent.entries.pop(name[len(_WHITEOUT) :], None)
        for position, member in enumerate(members):
            if member.path and not member.path.rpartition("/")[2].startswith(_WHITEOUT):
                self._add(number, layer, position, member)

    def walk(self) -> Iterator[tuple[str, _File | _Directory]]:
        """Everything with its path, parents first, sorted by name; not by recursion: a path may have 2048 parts."""
        waiting: list[tuple[str, _File | _Directory]] = [("", self._top)]
        while waiting:
            path, node = waiting.pop()
            if len(path) > tarstream.LONGEST_PATH:  # by links to directories, one behind the other
                what = f"a path of more than {tarstream.LONGEST_PATH} bytes"
                raise InfrastructureError(what, where=f"{path[:60]}...")
            if path:
                yield path, node
            if isinstance(node, _Directory):
                names = sorted(node.entries, reverse=True)
                waiting += [(f"{path}/{name}" if path else name, node.entries[name]) for name in names]

    def _add(self, number: int, layer: str, position: int, member: Entry) -> None:
        *parents, name = member.path.split("/")
        parent = self.directory(parents, make=True)
        if parent is None or name == "..":
            what = f"the layer's entry {member.path!r} cannot be placed: it ends in '..', or leads into a loop of links"
            raise InfrastructureError(what, where=layer)
        there = parent.entries.get(name)
        if member.kind == tarfile.DIRTYPE:
            if not isinstance(there, _Directory):
                there = parent.entries[name] = _Directory()
            there.head, there.path = member.head, member.path
        elif member.kind == tarfile.LNKTYPE:
            *parents, target = _parts(member.link) or [".."]
            holder = self.directory(parents)
            file = holder.entries.get(target) if holder else None
            if not isinstance(file, _File):
                what = f"the layer's hard link {member.path!r} leads to {member.link!r}, which is no file"
                raise InfrastructureError(what, where=layer)
            parent.entries[name] = file
        else:
            target = member.link if member.kind == tarfile.SYMTYPE else ""
            parent.entries[name] = _File(number, position, member.kind, target)

    def directory(self, parts: Sequence[str], *, make: bool = False) -> _Directory | None:
        """The directory of this path, links followed inside the root.

        ``make`` makes what is absent, and puts directories in the place of files. None: it is not there, or links
        form a loop or too long a chain.
        """
        trail = [self._top]
        left = [*reversed(parts)]
        for _ in range(_MOST_PARTS):
            if not left:
                return trail[-1]
            part = left.pop()
            if part == "..":
                del trail[max(1, len(trail) - 1) :]
                continue
            node = trail[-1].entries.get(part)
            if isinstance(node, _File) and node.kind == tarfile.SYMTYPE:
                if node.target.startswith("/"):
                    del trail[1:]
                left += reversed(_parts(node.target))
                continue
            if not isinstance(node, _Directory):
                if not make:
                    return None
                node = trail[-1].entries[part] = _Directory()
            trail.append(node)
        return None


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def indexed(layer: Layer) -> list[Entry]:
    """The layer's members in their order. InfrastructureError: the layer is no tar archive, or not the one that it
    should be.
    """
    members = []
    with _verified(layer) as stream:
        for member in stream:
            stream.skip(member)
            head = member.head if member.kind == tarfile.DIRTYPE else b""
            about = tarstream.mode_and_time(member.head)
            members.append(Entry(member.path, member.kind, member.link, member.size, head, *about))
    return members


@contextmanager
def _verified(layer: Layer) -> Iterator[TarStream]:
    """The layer, whose bytes are compared with its digest once all of it was read: a file can change between
    readings.
    """
    digest = hashlib.sha256()
    with layer.opened() as source:
        yield TarStream(cast("IO[bytes]", tarstream.tapped(source, digest.update)), layer.name)
    got = f"sha256:{digest.hexdigest()}"
    if layer.diff_id not in ("", got):
        raise InfrastructureError(
            f"{layer.name} is not the one that the image's configuration names ({layer.diff_id}, not {got})",
            fix="push or save the image again",
        )


def merged(
    layers: Sequence[Layer],
    root: Root,
    files: Sequence[Mapping[int, Sequence[str]]],
    *,
    mtime: int,
    only: Iterable[str] | None = None,
) -> Iterator[bytes]:
    """One tar archive of the root that the layers make: directories first, then files, layer by layer.

    Args:
        files: those that are wanted, as ``root.files`` gives them. only: directories that are, with all above files.
        mtime: of what no layer describes, seconds since the epoch.

    Raises:
        InfrastructureError: a layer is no longer the one that it should be; what was passed on is worth nothing then.
    """
    names = (path for held in files for paths in held.values() for path in paths)
    wanted = None if only is None else rootfs.with_parents(chain(only, names))
    for path, node in root.walk():
        if not isinstance(node, _Directory) or (wanted is not None and path not in wanted):
            continue
        if node.head:
            yield tarstream.exported(node.head, tarfile.DIRTYPE, "", 0, path)
        else:
            yield tarstream.entry(path, tarfile.DIRTYPE, _FIRST_MODE, mtime)
    for layer, held, entries in zip(layers, files, root.entries, strict=True):
        if not held:
            continue
        is_known = True
        with _verified(layer) as stream:
            for position, (member, entry) in enumerate(zip_longest(stream, entries)):
                if member is None or entry is None or (member.path, member.kind) != (entry.path, entry.kind):
                    is_known = False
                if member is None:
                    continue
                if position not in held or not is_known:
                    stream.skip(member)
                    continue
                first, *others = held[position]
                yield tarstream.exported(member.head, member.kind, member.link, member.size, first)
                yield from stream.data(member)
                for other in others:
                    yield tarstream.linked(member.head, other, first)
        if not is_known:  # and the layer is the one that it should be
            raise InfrastructureError(f"what is kept of {layer.name} is of another one", fix="convert again")
    yield tarstream.END
