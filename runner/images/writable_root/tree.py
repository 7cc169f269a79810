"""An image that lies unpacked in a directory: its own files, and the whole of it for the store."""

from __future__ import annotations

import os
import platform
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner.core.errors import InfrastructureError
from runner.core.progress import Progress
from runner.images.packing import mksquashfs, rootfs
from runner.images.packing.tarstream import BLOCK, END, entry


def own_file(root: Path, name: str) -> Path | None:
    """A file of the image below ``root``; None where it is none, or where a link is on the way."""
    path = _without_links(root, name)
    with suppress(OSError):
        if path is not None and stat.S_ISREG(path.lstat().st_mode):
            return path
    return None


def own_directory(root: Path, name: str) -> Path | None:
    """A directory of the image below ``root``; None where it is none, or where a link is on the way."""
    path = _without_links(root, name)
    with suppress(OSError):
        if path is not None and stat.S_ISDIR(path.lstat().st_mode):
            return path
    return None


def _without_links(root: Path, name: str) -> Path | None:
    path = root
    with suppress(OSError):
        for part in name.split("/"):
            if not stat.S_ISDIR(path.lstat().st_mode):
                return None
            path /= part
        return path
    return None


_CHUNK = 1 << 20
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # uname(2)'s names, and Go's


@dataclass(frozen=True)
class TreeImage:
    """A source whose files are below ``root`` and belong to this user; in the store they are root's.

    Attributes:
        name: its reference. digest: its id. created: ISO 8601, UTC. config: how a container of it starts.
        left_out: relative paths that are the builder's own, with all below them.
    """

    root: Path
    name: str
    digest: str
    created: str
    config: rootfs.Config
    left_out: frozenset[str] = frozenset()
    origin: str = ""
    names: tuple[str, ...] = ()
    data_order: str = "walk"
    architecture: str = field(default_factory=lambda: _MACHINES.get(platform.machine(), platform.machine()))

    def another_way(self) -> TreeImage:
        """There is none."""
        return self

    def packed(
        self,
        added: rootfs.Additions,
        out: Path,
        packing: mksquashfs.Packing,
        progress: Progress,
        capture: tuple[str, ...],
    ) -> rootfs.Passed:
        """Pack the tree.

        Raises:
            InfrastructureError: a file cannot be read, or mksquashfs failed. RefusedError: see rootfs.filtered.
        """
        progress.step(f"squashing {self.name}: its tree, as a stream")
        return mksquashfs.packed_stream(
            archived(self.root, self.left_out), added, out, packing, progress, capture=capture
        )


def archived(root: Path, left_out: frozenset[str] = frozenset()) -> Iterator[bytes]:
    """A tar archive of a tree, sorted as a walk meets it; owners are root's, sockets and devices are left out.

    Raises:
        InfrastructureError: something in it cannot be read.
    """
    first: dict[tuple[int, int], str] = {}
    try:
        for name, path, about in _walked(root, ""):
            if name not in left_out and not any(parent in left_out for parent in rootfs.parents(name)):
                yield from _member(name, path, about, first)
    except OSError as error:
        raise InfrastructureError(
            f"the image's tree cannot be read: {error.strerror}",
            where=str(error.filename or root),
            fix="a file that its owner may not read is made readable in the image: RUN chmod u+r FILE",
        ) from error
    yield END


def _walked(directory: Path, prefix: str) -> Iterator[tuple[str, Path, os.stat_result]]:
    for found in sorted(os.scandir(directory), key=lambda one: os.fsencode(one.name)):
        about = found.stat(follow_symlinks=False)
        yield prefix + found.name, Path(found.path), about
        if stat.S_ISDIR(about.st_mode):
            yield from _walked(Path(found.path), f"{prefix}{found.name}/")


def _member(name: str, path: Path, about: os.stat_result, first: dict[tuple[int, int], str]) -> Iterator[bytes]:
    mode, mtime = stat.S_IMODE(about.st_mode), int(about.st_mtime)
    known = first.setdefault((about.st_dev, about.st_ino), name)
    if stat.S_ISDIR(about.st_mode):
        yield entry(name, tarfile.DIRTYPE, mode, mtime)
    elif known != name:
        yield entry(name, tarfile.LNKTYPE, mode, mtime, link=known)
    elif stat.S_ISLNK(about.st_mode):
        yield entry(name, tarfile.SYMTYPE, mode, mtime, link=str(path.readlink()))
    elif stat.S_ISFIFO(about.st_mode):
        yield entry(name, tarfile.FIFOTYPE, mode, mtime)
    elif stat.S_ISREG(about.st_mode):
        yield entry(name, tarfile.REGTYPE, mode, mtime, about.st_size)
        yield from _data(path, about.st_size)


def _data(path: Path, size: int) -> Iterator[bytes]:
    left = size
    with path.open("rb") as file:
        while left and (block := file.read(min(left, _CHUNK))):
            left -= len(block)
            yield block
    if left:
        raise InfrastructureError("a file of the image changed while it was read", where=str(path))
    yield b"\0" * (-size % BLOCK)
