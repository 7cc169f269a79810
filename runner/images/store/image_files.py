"""The heads, listings and small files of squashfs and SIF files, read without Apptainer."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.core import process
from runner.core.errors import InfrastructureError
from runner.images.packing.rootfs import with_parents
from runner.images.packing.squashfs_tables import MAGIC, SUPERBLOCK
from runner.images.store.stored_image import Form

# Launch script, magic, version, architecture, id; two times; descriptors: free, all, offset, bytes; data: the last two.
_HEADER = struct.Struct("<32s10s3s3s16s2q4q2q")
_MAGIC = b"SIF_MAGIC\0"
# Type, used, id, group, link; offset, bytes, bytes with padding; two times, owner, group; name; kind of file system
# and partition.
_DESCRIPTOR = struct.Struct("<i?3I3q4q128s2i376x")
_PARTITION, _SQUASHFS, _PRIMARY_SYSTEM = 0x4004, 1, 2
_MOST_DESCRIPTORS = 4096
_COMPRESSORS = {1: "gzip", 2: "lzma", 3: "lzo", 4: "xz", 5: "lz4", 6: "zstd"}
_LIST_S = 1800.0
_LARGEST = 1 << 20  # bytes
_TOP = "squashfs-root"


@dataclass(frozen=True)
class Head:
    """What an image file begins with. offset: of its squashfs, in bytes. end: of all that belongs to the file; what
    follows is padding. compressor: of the squashfs; empty where it was not read.
    """

    offset: int
    end: int
    compressor: str = ""


def head(path: Path, form: Form) -> Head | None:
    """The head of a squashfs, or of a SIF with a squashfs to start from; None where the file is none. Reads 96 bytes of
    a squashfs.
    """
    return (_sif_head if form == "sif" else _squashfs_head)(path)


def _squashfs_head(path: Path) -> Head | None:
    with path.open("rb") as file:
        raw = file.read(SUPERBLOCK.size)
    if len(raw) < SUPERBLOCK.size:
        return None
    fields = SUPERBLOCK.unpack(raw)
    magic, compressor, major, used = fields[0], fields[5], fields[9], fields[12]
    if magic != MAGIC or major != 4:
        return None
    return Head(0, used, _COMPRESSORS.get(compressor, str(compressor)))


def _sif_head(path: Path) -> Head | None:
    with path.open("rb") as file:
        raw = file.read(_HEADER.size)
        if len(raw) < _HEADER.size:
            return None
        fields = _HEADER.unpack(raw)
        magic, total, table, data, data_bytes = fields[1], fields[8], fields[9], fields[11], fields[12]
        if magic != _MAGIC or not 0 < total <= _MOST_DESCRIPTORS or table < 0:
            return None
        file.seek(table)
        raw = file.read(total * _DESCRIPTOR.size)
    for descriptor in _DESCRIPTOR.iter_unpack(raw[: len(raw) - len(raw) % _DESCRIPTOR.size]):
        kind, used, offset, filesystem, partition = descriptor[0], descriptor[1], descriptor[5], *descriptor[13:15]
        if used and (kind, filesystem, partition) == (_PARTITION, _SQUASHFS, _PRIMARY_SYSTEM):
            return Head(offset, data + data_bytes)
    return None


def problem(path: Path, form: Form) -> str:
    """Why the file cannot be a whole image of this form, by its head and size alone; empty if nothing speaks against
    it.
    """
    known, size = head(path, form), path.stat().st_size
    if known is None:
        no = "is no SIF with a squashfs as its root" if form == "sif" else "does not begin as a squashfs does"
        return f"it {no} ({size} bytes)"
    return f"it is cut off: {size} bytes of {known.end}" if size < known.end else ""


def entries(path: Path, form: Form) -> Counter[str]:
    """The lines of its listing, each with its number; a name with newlines is several. CommandFailedError: its tables
    cannot be read. InfrastructureError: it is no whole SIF.
    """
    offset = str(_offset(path, form))
    listing = process.run(["unsquashfs", "-o", offset, "-l", path], timeout_s=_LIST_S).out
    return Counter(listing.removesuffix("\n").split("\n"))


def content(path: Path, name: str, form: Form) -> str:
    """A small file in it, by its name relative to the root; empty where there is none, or one of more than 1 MiB.
    InfrastructureError: it is no whole SIF.
    """
    command = ["unsquashfs", "-o", str(_offset(path, form)), "-cat", str(path), name]
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


def _offset(path: Path, form: Form) -> int:
    """Where its squashfs begins. InfrastructureError: it is no whole SIF."""
    if form == "squashfs":
        return 0
    known, why = head(path, form), problem(path, form)
    if why or known is None:
        raise InfrastructureError(f"this is no whole SIF file: {why}", where=str(path), fix="convert the image again")
    return known.offset


def check_listing(path: Path, names: Iterable[str]) -> None:
    """Check that the squashfs holds every name that went in, and no other; one with newlines is compared line by line.
    ``names``: relative; undecodable bytes as surrogate escapes. Directories above them are meant, too.
    """
    files = with_parents(f"{_TOP}/{name}" for name in names) | {_TOP}
    # As ``process`` decodes a program's output.
    shown = (name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for name in files)
    wanted = Counter(line for name in shown for line in name.split("\n"))
    listed = entries(path, "squashfs")
    if dict.__eq__(wanted, listed):  # in C
        return
    lacking, strange = wanted - listed, listed - wanted
    if lacking or strange:
        first = next(iter(lacking or strange))
        raise InfrastructureError(
            f"the squashfs is not its image: {sum(lacking.values())} of its names are missing and"
            f" {sum(strange.values())} are strange, such as {first!r}; it is not published",
            where=str(path),
            fix="convert again; if that fails too, check the disk",
        )
