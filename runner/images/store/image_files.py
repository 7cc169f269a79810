"""The heads, listings and small files of squashfs and SIF files, read without Apptainer."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.core import process
from runner.core.errors import InfrastructureError

# Launch script, magic, version, architecture, id; two times; descriptors: free, all, offset, bytes; data: the last two.
_HEADER = struct.Struct("<32s10s3s3s16s2q4q2q")
_MAGIC = b"SIF_MAGIC\0"
# Type, used, id, group, link; offset, bytes, bytes with padding; two times, owner, group; name; kind of file system
# and partition.
_DESCRIPTOR = struct.Struct("<i?3I3q4q128s2i376x")
_PARTITION, _SQUASHFS, _PRIMARY_SYSTEM = 0x4004, 1, 2
_MOST_DESCRIPTORS = 4096
MAGIC = b"hsqs"
_SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQQQQQQQ")
_COMPRESSORS = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}
_LIST_S = 1800.0
_LARGEST = 1 << 20  # bytes
_TOP = "squashfs-root"


@dataclass(frozen=True)
class SifRoot:
    """Where in a SIF file the squashfs of its root lies, in bytes; ``end``: of all that belongs to the file."""

    offset: int
    end: int


def sif_root(path: Path) -> SifRoot | None:
    """The root's place; None where the file is no SIF, or one without a squashfs to start from."""
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return None
        fields = _HEADER.unpack(head)
        magic, total, table, data, data_bytes = fields[1], fields[8], fields[9], fields[11], fields[12]
        if magic != _MAGIC or not 0 < total <= _MOST_DESCRIPTORS or table < 0:
            return None
        file.seek(table)
        raw = file.read(total * _DESCRIPTOR.size)
    for descriptor in _DESCRIPTOR.iter_unpack(raw[: len(raw) - len(raw) % _DESCRIPTOR.size]):
        kind, used, offset, filesystem, partition = descriptor[0], descriptor[1], descriptor[5], *descriptor[13:15]
        if used and (kind, filesystem, partition) == (_PARTITION, _SQUASHFS, _PRIMARY_SYSTEM):
            return SifRoot(offset, data + data_bytes)
    return None


def sif_problem(path: Path) -> str:
    """Why the file cannot be a whole SIF, by its head and size alone; empty if nothing speaks against it."""
    return _problem_of(sif_root(path), path.stat().st_size)


def _problem_of(root: SifRoot | None, size: int) -> str:
    if root is None:
        return f"it is no SIF with a squashfs as its root ({size} bytes)"
    return f"it is cut off: {size} bytes of {root.end}" if size < root.end else ""


def sif_entries(path: Path) -> Counter[str]:
    """The lines of its root's listing, as ``squashfs_entries``; InfrastructureError: it is no whole SIF."""
    return squashfs_entries(path, _whole(path).offset)


def sif_content(path: Path, name: str) -> str:
    """A file of its root (relative to it); empty where there is none. Raises as ``sif_entries``."""
    return squashfs_content(path, name, _whole(path).offset)


def _whole(path: Path) -> SifRoot:
    root = sif_root(path)
    why = _problem_of(root, path.stat().st_size)
    if why or root is None:
        raise InfrastructureError(f"this is no whole SIF file: {why}", where=str(path), fix="convert the image again")
    return root


@dataclass(frozen=True)
class Superblock:
    """The head of a squashfs. block: bytes of one. used: bytes of the file that belong to the file system; what follows
    is padding.
    """

    block: int
    compressor: str
    used: int


def superblock(path: Path) -> Superblock | None:
    """The superblock; None where the file does not begin with one. Reads 96 bytes."""
    with path.open("rb") as file:
        raw = file.read(_SUPERBLOCK.size)
    if len(raw) < _SUPERBLOCK.size:
        return None
    magic, _inodes, _time, block, _fragments, compressor, _log, _flags, _ids, major, *_rest = fields = (
        _SUPERBLOCK.unpack(raw)
    )
    if magic != MAGIC or major != 4:
        return None
    return Superblock(block, _COMPRESSORS.get(compressor, str(compressor)), fields[12])


def squashfs_problem(path: Path) -> str:
    """Why the file cannot be a whole squashfs, by its head and size alone; empty if nothing speaks against it."""
    size = path.stat().st_size
    head = superblock(path)
    if head is None:
        return f"it does not begin as a squashfs does ({size} bytes)"
    return f"it is cut off: {size} bytes of {head.used}" if head.used > size else ""


def squashfs_entries(path: Path, offset: int = 0) -> Counter[str]:
    """The lines of its listing, each with its number; a name with newlines is several. ``offset``: in the file, bytes.
    CommandFailedError: its tables cannot be read.
    """
    listing = process.run(["unsquashfs", "-o", str(offset), "-l", path], timeout_s=_LIST_S).out
    return Counter(listing.removesuffix("\n").split("\n"))


def squashfs_content(path: Path, name: str, offset: int = 0) -> str:
    """A small file in it, by its name relative to the root; empty where there is none, or one of more than 1 MiB."""
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
    """Check that the squashfs holds every name that went in, and no other; one with newlines is compared line by line.
    ``names``: relative; undecodable bytes as surrogate escapes. Directories above them are meant, too.
    """
    files = [f"{_TOP}/{name}" for name in names]
    above = (name[:cut] for name in files for cut, character in enumerate(name) if character == "/")
    # As ``process`` decodes a program's output.
    shown = (name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for name in {_TOP, *files, *above})
    wanted = Counter(line for name in shown for line in name.split("\n"))
    listed = squashfs_entries(path)
    lacking, strange = wanted - listed, listed - wanted
    if lacking or strange:
        first = next(iter(lacking or strange))
        raise InfrastructureError(
            f"the squashfs is not its image: {sum(lacking.values())} of its names are missing and"
            f" {sum(strange.values())} are strange, such as {first!r}; it is not published",
            where=str(path),
            fix="convert again; if that fails too, check the disk",
        )
