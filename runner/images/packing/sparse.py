"""Sparse files in tar archives: where their data belong, and the file with its holes written out as zeros.

GNU tar has four formats (its manual, "Storing Sparse Files"): a header of its own kind, and three that are pax
records. Of these, 1.0 has its map at the beginning of the data. What is packed is the plain file, as an engine
unpacks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

_PREFIX = b"GNU.sparse."
_STRUCT = 24  # bytes of one entry of an old map: offset and length
_FIRST, _MORE = (386, 4), (0, 21)  # where entries stand in the header and in each block after it, and how many
_FIRST_SIZE = slice(483, 495)
_CHUNK = 1 << 20
_LARGEST_MAP = 1 << 20  # bytes, as of all header blocks
# Bytes of a file with its holes, which are written out as zeros: the largest that images are known to have is a
# lastlog of 292 bytes for each user id up to 2**32.
_LARGEST_FILE = 1 << 41
_NUMBER = re.compile(rb"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Sparse:
    """A file with holes.

    Attributes:
        size: bytes of the file, its holes included. parts: (offset, bytes) of its data, in their order.
    """

    size: int
    parts: tuple[tuple[int, int], ...]

    @property
    def stored(self) -> int:
        """Bytes of data in the archive."""
        return sum(count for _, count in self.parts)

    def expanded(self, read: Callable[[int], bytes]) -> Iterator[bytes]:
        """The file's bytes; ``read`` returns at most so many bytes of the stored data, and at least one."""
        at = 0
        for offset, count in (*self.parts, (self.size, 0)):
            yield from _zeros(offset - at)
            left = count
            while left:
                block = read(min(left, _CHUNK))
                left -= len(block)
                yield block
            at = offset + count


def old_map(header: bytes, more: Sequence[bytes], number: Callable[[bytes], int]) -> Sparse:
    """From a header of the old format and the blocks that continue it; ``number`` reads a field of a header.

    Raises:
        ValueError: the map makes no sense.
    """
    fields = []
    for block, (start, count) in ((header, _FIRST), *((block, _MORE) for block in more)):
        entries = [block[start + at * _STRUCT :][:_STRUCT] for at in range(count)]
        fields += [(number(entry[:12]), number(entry[12:])) for entry in entries if entry[:1] != b"\0"]
    return _checked(number(header[_FIRST_SIZE]), fields)


def version(records: Iterable[tuple[bytes, bytes]]) -> str:
    """The format that a member's pax records name: "0" (0.0 and 0.1), "1.0", or empty where it is not sparse.

    Raises:
        ValueError: another one.
    """
    found = {key.removeprefix(_PREFIX): value for key, value in records if key.startswith(_PREFIX)}
    numbers = b".".join(found.get(key, b"") for key in (b"major", b"minor"))
    if numbers in (b".", b"0.0", b"0.1"):
        return "0" if found.keys() & {b"map", b"offset", b"numblocks"} else ""
    if numbers == b"1.0":
        return "1.0"
    raise ValueError(f"a sparse file of the unknown format {numbers.decode('ascii', 'replace')}")


def name_of(records: Iterable[tuple[bytes, bytes]], otherwise: bytes) -> bytes:
    """The file's own name: formats 0.1 and 1.0 put another one in its place."""
    return dict(records).get(_PREFIX + b"name", b"") or otherwise


def pax_map(records: Sequence[tuple[bytes, bytes]]) -> Sparse:
    """From the records of formats 0.0 (a record for each number) and 0.1 (one with all).

    Raises:
        ValueError: the map makes no sense.
    """
    found = dict(records)
    if _PREFIX + b"map" in found:
        text = found[_PREFIX + b"map"]
        numbers = [_count(digits) for digits in text.split(b",")] if text else []
    else:
        ours = (_PREFIX + b"offset", _PREFIX + b"numbytes")
        numbers = [_count(value) for key, value in records if key in ours]
    return _checked(_count(found.get(_PREFIX + b"size", b"")), _pairs(numbers))


def data_map(records: Iterable[tuple[bytes, bytes]], next_block: Callable[[], bytes]) -> tuple[Sparse, int]:
    """From the data of format 1.0: decimal numbers, a line each, the first of them how many pairs follow.

    Args:
        next_block: reads the next block of the member's data.

    Returns:
        the map, and how many bytes of data were read.

    Raises:
        ValueError: the map makes no sense, or is too large.
    """
    read = 0
    lines: list[bytes] = [b""]

    def number() -> int:
        nonlocal read, lines
        while len(lines) < 2:
            if read >= _LARGEST_MAP:
                raise ValueError(f"a map of more than {_LARGEST_MAP} bytes")
            block = next_block()
            read += len(block)
            lines = (lines[0] + block).split(b"\n")
        return _count(lines.pop(0))

    fields = [(number(), number()) for _ in range(number())]
    return _checked(_count(dict(records).get(_PREFIX + b"realsize", b"")), fields), read


def plain_records(records: Iterable[tuple[bytes, bytes]], path: bytes, size: int) -> bytes:
    """The pax records of the file without holes."""
    kept = [(key, value) for key, value in records if not key.startswith(_PREFIX) and key not in (b"path", b"size")]
    return b"".join(map(_record, [*kept, (b"path", path), (b"size", b"%d" % size)]))


def _record(pair: tuple[bytes, bytes]) -> bytes:
    text = b" " + pair[0] + b"=" + pair[1] + b"\n"
    length = len(text)
    while len(b"%d" % length) + len(text) != length:
        length = len(b"%d" % length) + len(text)
    return b"%d" % length + text


def _pairs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    if len(numbers) % 2:
        raise ValueError("a map of a sparse file with an odd number of fields")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _checked(size: int, fields: Iterable[tuple[int, int]]) -> Sparse:
    parts = tuple((offset, count) for offset, count in fields if count)
    at = 0
    if size > _LARGEST_FILE:
        raise ValueError(f"a sparse file of {size} bytes with its holes, more than {_LARGEST_FILE}")
    for offset, count in parts:
        if offset < at:
            raise ValueError("a map of a sparse file whose parts overlap")
        at = offset + count
    if at > size:
        raise ValueError(f"a map of a sparse file beyond its {size} bytes")
    return Sparse(size, parts)


def _count(digits: bytes) -> int:
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f"{digits[:24]!r} in a sparse file's map is no number")
    return int(digits)


def _zeros(count: int) -> Iterator[bytes]:
    chunk = bytes(min(count, _CHUNK))
    while count > 0:
        yield chunk[:count]
        count -= len(chunk[:count])
