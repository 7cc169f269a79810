"""Layers of an image, merged into one root: as one tar stream, with no tree on disk.

Every layer is read twice, and hashed each time. First its headers alone, into the tree that a runtime would see once
all layers are applied; then its data, of which only the files still in the tree are passed on. Rules: OCI image
specification 1.1, layer.md. Where it leaves a choice, it is made as containerd does: a layer that names no parent
directory leaves the one below as it is; a parent that is a symbolic link below is followed, inside the root; hard links
may lead to lower layers.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import IO, cast

from runner.core.errors import InfrastructureError
from runner.images.packing import tarstream
from runner.images.packing.tarstream import Member, Tapped, TarStream

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_RESERVED = ".wh..wh."  # AUFS's internal names
_CHUNK = 1 << 20
_MOST_LINKS = 40  # as Linux: ELOOP
_FIRST_MODE = 0o755  # of a directory that no layer describes
Opener = Callable[[], AbstractContextManager[IO[bytes]]]


@dataclass(frozen=True)
class Layer:
    """A layer.

    Attributes:
        name: for messages. opened: opens it as a plain tar archive, any number of times.
        diff_id: ``sha256:...`` of that archive; empty where it is not known.
    """

    name: str
    opened: Opener
    diff_id: str = ""


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
    """The tree that the layers make, applied one after another."""

    def __init__(self) -> None:
        self._top = _Directory()

    def apply(self, number: int, layer: str, members: Sequence[Member]) -> None:
        """Apply a layer's members; whiteouts concern only what lower layers brought, wherever they stand in it.

        Raises:
            InfrastructureError: a hard link without a target, or a loop of links.
        """
        for member in members:
            if member.kind == tarfile.DIRTYPE and member.path:
                self._unveil(member.path)
        for member in members:
            parent, _, name = member.path.rpartition("/")
            if name.startswith(_WHITEOUT):
                self._white_out(parent, name)
        for position, member in enumerate(members):
            name = member.path.rpartition("/")[2]
            if member.path and not name.startswith(_WHITEOUT):
                self._add(number, layer, position, member)

    def make(self, path: str) -> None:
        """Make a directory where the path leads, as an engine makes a container's working directory."""
        self._directory(_parts(path), make=True)

    def directories(self) -> Iterator[tuple[str, bytes, str]]:
        """(path, head or nothing, the head's own path) of every directory, parents first, sorted by name."""
        for path, found in self._walk():
            if isinstance(found, _Directory):
                yield path, found.head, found.path

    def files(self) -> dict[int, dict[int, list[str]]]:
        """layer -> position of the member whose data it is -> its names in the root, sorted."""
        plan: dict[int, dict[int, list[str]]] = {}
        for path, found in self._walk():
            if isinstance(found, _File):
                plan.setdefault(found.layer, {}).setdefault(found.position, []).append(path)
        return plan

    def _walk(self) -> Iterator[tuple[str, _File | _Directory]]:
        """Everything with its path, parents first; not by recursion, as a path may have 2048 parts."""
        waiting: list[tuple[str, _File | _Directory]] = [("", self._top)]
        while waiting:
            path, found = waiting.pop()
            if len(path) > tarstream.LONGEST_PATH:  # by links to directories, one behind the other
                what = f"a path of more than {tarstream.LONGEST_PATH} bytes"
                raise InfrastructureError(what, where=f"{path[:60]}...")
            if path:
                yield path, found
            if isinstance(found, _Directory):
                names = sorted(found.entries, reverse=True)
                waiting += [(f"{path}/{name}" if path else name, found.entries[name]) for name in names]

    def _unveil(self, path: str) -> None:
        """Replace a lower layer's link or file by this layer's directory, so that whiteouts do not follow the link."""
        *parents, name = path.split("/")
        parent = self._directory(parents)
        if parent is not None and isinstance(parent.entries.get(name), _File):
            parent.entries[name] = _Directory()

    def _white_out(self, parent: str, name: str) -> None:
        directory = self._directory(_parts(parent))
        if directory is None:
            return  # there is nothing to hide
        if name == _OPAQUE:
            directory.entries.clear()
        elif not name.startswith(_RESERVED):
            directory.entries.pop(name[len(_WHITEOUT) :], None)

    def _add(self, number: int, layer: str, position: int, member: Member) -> None:
        parent, name = self._place(member.path, layer)
        there = parent.entries.get(name)
        if member.kind == tarfile.DIRTYPE:
            if not isinstance(there, _Directory):
                there = parent.entries[name] = _Directory()
            there.head, there.path = member.head, member.path
        elif member.kind == tarfile.LNKTYPE:
            parent.entries[name] = self._linked(member, layer)
        else:
            target = member.link if member.kind == tarfile.SYMTYPE else ""
            parent.entries[name] = _File(number, position, member.kind, target)

    def _place(self, path: str, layer: str) -> tuple[_Directory, str]:
        """The directory that holds the path's last part, made where it is absent; and that part."""
        *parents, name = path.split("/")
        parent = self._directory(parents, make=True)
        if parent is None or name == "..":
            what = f"the layer's entry {path!r} cannot be placed: it ends in '..', or leads into a loop of links"
            raise InfrastructureError(what, where=layer)
        return parent, name

    def _linked(self, member: Member, layer: str) -> _File:
        *parents, name = _parts(member.link) or [".."]
        parent = self._directory(parents)
        found = parent.entries.get(name) if parent else None
        if not isinstance(found, _File):
            raise InfrastructureError(
                f"the layer's hard link {member.path!r} leads to {member.link!r}, which is no file", where=layer
            )
        return found

    def _directory(self, parts: Sequence[str], *, make: bool = False) -> _Directory | None:
        """The directory of this path, links followed inside the root.

        ``make`` makes what is absent, and puts directories in the place of files. None: it is not there, or links
        form a loop.
        """
        trail = [self._top]
        left = [*reversed(parts)]
        links = 0
        while left:
            part = left.pop()
            if part == "..":
                trail = trail[:-1] or trail
                continue
            found = trail[-1].entries.get(part)
            if isinstance(found, _File) and found.kind == tarfile.SYMTYPE:
                links += 1
                if links > _MOST_LINKS:
                    return None
                trail = trail[:1] if found.target.startswith("/") else trail
                left += reversed(_parts(found.target))
                continue
            if not isinstance(found, _Directory):
                if not make:
                    return None
                found = trail[-1].entries[part] = _Directory()
            trail = [*trail, found]
        return trail[-1]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def indexed(layer: Layer) -> list[Member]:
    """The layer's members in their order; only directories keep their header blocks.

    Raises:
        InfrastructureError: the layer is no tar archive, or not the one that it should be.
    """
    members = []
    with _verified(layer) as stream:
        for member in stream:
            stream.skip(member)
            head = member.head if member.kind == tarfile.DIRTYPE else b""
            members.append(Member(member.path, member.kind, member.link, member.size, head))
    return members


@contextmanager
def _verified(layer: Layer) -> Iterator[TarStream]:
    """The layer, whose bytes are compared with its digest once all of it was read: a file can change between readings.

    Raises:
        InfrastructureError: at the end, where it is not the layer that it should be.
    """
    digest = hashlib.sha256()
    with layer.opened() as source:
        tapped = Tapped(source, digest.update)
        yield TarStream(cast("IO[bytes]", io.BufferedReader(tapped, _CHUNK)), layer.name)
    got = f"sha256:{digest.hexdigest()}"
    if layer.diff_id not in ("", got):
        raise InfrastructureError(
            f"{layer.name} is not the one that the image's configuration names ({layer.diff_id}, not {got})",
            fix="push or save the image again",
        )


def merged(
    layers: Sequence[Layer], members: Iterable[Sequence[Member]], *, mtime: int, made: Iterable[str] = ()
) -> Iterator[bytes]:
    """One tar archive of the root that the layers make: directories first, then files, layer by layer.

    Args:
        members: of each layer, as ``indexed`` gives them. mtime: of what no layer describes, seconds since the epoch.
        made: directories that are made where their paths lead, links followed, if they are not there.

    Raises:
        InfrastructureError: a layer is no longer the one that it should be; what was passed on is worth nothing then.
    """
    root = Root()
    for number, (layer, held) in enumerate(zip(layers, members, strict=True)):
        root.apply(number, layer.name, held)
    for path in made:
        root.make(path)
    for path, head, named in root.directories():
        if not head:
            yield tarstream.entry(path, tarfile.DIRTYPE, _FIRST_MODE, mtime)
        else:
            yield tarstream.exported(head, named, path)
    plan = root.files()
    del root
    for number, layer in enumerate(layers):
        if number in plan:
            yield from _surviving(layer, plan[number])
    yield tarstream.END


def _surviving(layer: Layer, names: dict[int, list[str]]) -> Iterator[bytes]:
    with _verified(layer) as stream:
        for position, member in enumerate(stream):
            paths = names.get(position)
            if not paths:
                stream.skip(member)
                continue
            first, *others = paths
            yield tarstream.exported(member.head, member.path, first)
            yield from stream.data(member)
            for other in others:
                yield tarstream.linked(member.head, other, first)
