"""A squashfs file's head, listing and small files (format 4.0: Documentation/filesystems/squashfs.rst)."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.core import process
from runner.core.errors import InfrastructureError

MAGIC = b"hsqs"
_SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQQQQQQQ")
_COMPRESSORS = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}
_LIST_S = 1800.0
_LARGEST = 1 << 20  # bytes
_TOP = "squashfs-root"


@dataclass(frozen=True)
class Superblock:
    """The head of a squashfs.

    Attributes:
        inodes: in it. made_s: its time, seconds since the epoch. block: bytes of a block. compressor: by name.
        used: bytes of the file that belong to the file system; what follows is padding.
    """

    inodes: int
    made_s: int
    block: int
    compressor: str
    used: int


def superblock(path: Path) -> Superblock | None:
    """The superblock; None where the file does not begin with one. Reads 96 bytes."""
    with path.open("rb") as file:
        raw = file.read(_SUPERBLOCK.size)
    if len(raw) < _SUPERBLOCK.size:
        return None
    magic, inodes, made_s, block, _fragments, compressor, _log, _flags, _ids, major, _minor, _root, used, *_tables = (
        _SUPERBLOCK.unpack(raw)
    )
    if magic != MAGIC or major != 4:
        return None
    return Superblock(inodes, made_s, block, _COMPRESSORS.get(compressor, str(compressor)), used)


def problem(path: Path) -> str:
    """Why the file cannot be a whole squashfs, by its head and size alone; empty if nothing speaks against it."""
    size = path.stat().st_size
    head = superblock(path)
    if head is None:
        return f"it does not begin as a squashfs does ({size} bytes)"
    if head.used > size:
        return f"it is cut off: {size} bytes of {head.used}"
    return ""


def entries(path: Path, offset: int = 0) -> Counter[str]:
    """The lines of its listing, each with its number; a name with newlines is several. ``offset``: in the file, bytes.

    Raises:
        CommandFailedError: its tables cannot be read.
    """
    listing = process.run(["unsquashfs", "-o", str(offset), "-l", path], timeout_s=_LIST_S).out
    return Counter(listing.removesuffix("\n").split("\n"))


def content(path: Path, name: str, offset: int = 0) -> str:
    """A small file in it, by its name relative to the root; empty where there is none, or one of more than 1 MiB.

    Args:
        offset: as above.
    """
    command = ["unsquashfs", "-o", str(offset), "-cat", str(path), name]
    child = process.start(command, stdout=process.PIPE, stderr=process.DEVNULL)
    try:
        assert child.stdout is not None
        with child.stdout as output:
            raw = output.read(_LARGEST + 1)
        child.wait(_LIST_S)
    finally:
        if child.poll() is None:
            process.kill_group(child)
    return raw.decode("utf-8", "replace") if len(raw) <= _LARGEST else ""


def check_listing(path: Path, names: Iterable[str]) -> None:
    """Check that the squashfs holds every name that went in, and no other.

    A name with newlines is compared line by line.

    Args:
        names: relative, with ``/``; undecodable bytes as surrogate escapes. Directories above them are meant, too.

    Raises:
        InfrastructureError: it cannot be read, or holds something else; says what.
    """
    wanted = Counter(line for name in {_TOP, *_paths(names)} for line in _shown(name).split("\n"))
    found = entries(path)
    lacking, strange = wanted - found, found - wanted
    if lacking or strange:
        first = next(iter(lacking or strange))
        raise InfrastructureError(
            f"the squashfs is not its image: {sum(lacking.values())} of its names are missing and"
            f" {sum(strange.values())} are strange, such as {first!r}; it is not published",
            where=str(path),
            fix="convert again; if that fails too, check the disk",
        )


def _paths(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        path = f"{_TOP}/{name}"
        yield path
        yield from (path[:cut] for cut, character in enumerate(path) if character == "/")


def _shown(name: str) -> str:
    """As ``process`` decodes a program's output."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
