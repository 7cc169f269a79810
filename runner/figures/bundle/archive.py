"""A tar file of one form only: the same members give the same bytes, and any other byte is refused.

Every header is compared with the one that this module writes for that name and size, so there is no room for links,
directories, paths elsewhere, compression, duplicates, comments, or content that another program would read otherwise.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from runner.core.errors import NotProvenError

_BLOCK = 512
_END = bytes(2 * _BLOCK)
_TIME_S = 315_532_800  # 1980-01-01: some programs complain of files from 1970
_SIZE = slice(124, 136)
_MOST_BYTES = 1 << 28  # of a member
_MOST_MEMBERS = 1_000_000
_NAME = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._=,+-]{0,99}/){0,6}[A-Za-z0-9_-][A-Za-z0-9._=,+-]{0,99}\Z", re.ASCII)


def is_plain_name(name: str) -> bool:
    """Whether a member may have this name: relative, without ``..`` and hidden parts, in plain ASCII."""
    return _NAME.match(name) is not None


def write(file: BinaryIO, members: Iterable[tuple[str, Path | bytes]]) -> None:
    """Write the members in the order of their names.

    Raises:
        NotProvenError: a name that cannot stand in a bundle.
        OSError: a file cannot be read, or the archive not be written.
    """
    for name, content in sorted(members, key=lambda member: member[0].encode()):
        raw = content if isinstance(content, bytes) else content.read_bytes()
        if not is_plain_name(name):
            raise NotProvenError("a file of this name cannot be in a bundle", where=name)
        file.write(_header(name, len(raw)) + raw + bytes(-len(raw) % _BLOCK))
    file.write(_END)


def begins_with(file: BinaryIO, name: str) -> bool:
    """Whether a file is empty, or begins as an archive of ``write`` whose first member has this name."""
    header = file.read(_BLOCK)
    try:
        return not header or _member(header, 0)[0] == name
    except NotProvenError:
        return False


def read(file: BinaryIO, size: int) -> Iterator[tuple[str, bytes]]:
    """The members of an archive of ``size`` bytes, one after the other.

    Raises:
        NotProvenError: it is not exactly what ``write`` makes of these members.
    """
    before, place = "", 0
    for _ in range(_MOST_MEMBERS):
        header = file.read(_BLOCK)
        if header == _END[:_BLOCK]:
            if file.read(_BLOCK + 1) != _END[:_BLOCK]:
                raise _refused("there is something behind its end", place)
            return
        name, length = _member(header, place)
        if not before.encode() < name.encode():
            raise _refused(f"{name} is there twice, or out of order", place)
        place += _BLOCK
        if length > min(_MOST_BYTES, size - place):
            raise _refused(f"{name} is longer than there is room for", place)
        content = file.read(length)
        if len(content) != length or file.read(-length % _BLOCK) != bytes(-length % _BLOCK):
            raise _refused(f"{name} is cut off, or not followed by zeros", place)
        before, place = name, place + length + -length % _BLOCK
        yield name, content
    raise _refused("it has too many members", place)


def _member(header: bytes, place: int) -> tuple[str, int]:
    """Name and size in a header that is exactly ours."""
    try:
        name, prefix = (header[part].rstrip(b"\0").decode("ascii") for part in (slice(100), slice(345, 500)))
        whole, length = f"{prefix}/{name}" if prefix else name, int(header[_SIZE].rstrip(b"\0"), 8)
        is_ours = is_plain_name(whole) and 0 <= length <= _MOST_BYTES and header == _header(whole, length)
    except (ValueError, IndexError):
        is_ours = False
    if not is_ours:
        raise _refused("a header is not one of a bundle", place)
    return whole, length


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, _TIME_S, 0o644
    try:
        return entry.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    except ValueError:
        raise NotProvenError("a name is too long for a bundle", where=name) from None


def _refused(what: str, place: int) -> NotProvenError:
    return NotProvenError(f"this is not a bundle, or it was altered: {what}", where=f"byte {place}")
