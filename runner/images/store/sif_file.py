"""Reads a SIF file without Apptainer: where its root lies, its listing, small files in it.

Layout: version 1 of the format, packed and little-endian (github.com/apptainer/sif, pkg/sif).
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from runner.core.errors import InfrastructureError
from runner.images.store import squashfs_file

# Launch script, magic, version, architecture, id; two times; descriptors: free, all, offset, bytes; data: the last two.
_HEADER = struct.Struct("<32s10s3s3s16s2q4q2q")
_MAGIC = b"SIF_MAGIC\0"
# Type, used, id, group, link; offset, bytes, bytes with padding; two times, owner, group; name; kind of file system
# and partition.
_DESCRIPTOR = struct.Struct("<i?3I3q4q128s2i376x")
_PARTITION, _SQUASHFS, _PRIMARY_SYSTEM = 0x4004, 1, 2
_MOST_DESCRIPTORS = 4096


@dataclass(frozen=True)
class Root:
    """Where in a SIF file the squashfs of its root lies, in bytes; ``end``: of all that belongs to the file."""

    offset: int
    end: int


def root(path: Path) -> Root | None:
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
            return Root(offset, data + data_bytes)
    return None


def problem(path: Path) -> str:
    """Why the file cannot be a whole SIF, by its head and size alone; empty if nothing speaks against it."""
    found, size = root(path), path.stat().st_size
    if found is None:
        return f"it is no SIF with a squashfs as its root ({size} bytes)"
    return f"it is cut off: {size} bytes of {found.end}" if size < found.end else ""


def entries(path: Path) -> Counter[str]:
    """The lines of its root's listing, as ``squashfs.entries``.

    Raises:
        CommandFailedError: its tables cannot be read. InfrastructureError: it is no whole SIF.
    """
    return squashfs_file.entries(path, _whole(path).offset)


def content(path: Path, name: str) -> str:
    """A file of its root (relative to it); empty where there is none. Raises InfrastructureError: no whole SIF."""
    return squashfs_file.content(path, name, _whole(path).offset)


def _whole(path: Path) -> Root:
    why, found = problem(path), root(path)
    if why or found is None:
        raise InfrastructureError(f"this is no whole SIF file: {why}", where=str(path), fix="convert the image again")
    return found
