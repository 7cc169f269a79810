"""Tar archives as streams of members whose header blocks can be passed on bit for bit.

Owners, modes, links, devices, long names, extended attributes and file capabilities stay what the writer wrote.
Formats: POSIX ustar with pax (``x``, ``g``) and GNU (``L``, ``K``, ``S``) headers. Two things do not stay: a sparse
file comes as a plain one, its holes written out; and pax's global records (``g``) are left out, as engines ignore them
(moby and containerd, archive: "PAX Global Extended Headers found and ignored").
"""

from __future__ import annotations

import io
import math
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from runner.core.errors import InfrastructureError

BLOCK = 512
END = b"\0" * (2 * BLOCK)
_CHUNK = 1 << 20
_ATTRIBUTES = (b"SCHILY.xattr.", b"LIBARCHIVE.xattr.")
_CAPABILITIES = "SCHILY.xattr.security.capability"
_WITHOUT_DATA = frozenset(b"123456")  # links, devices, directories, fifos: their size is ignored
LAST_S = (1 << 32) - 1  # a squashfs's times: 32 bits, seconds since the epoch
_LAST_OCTAL = b"%o" % LAST_S
_PAX_TIME = re.compile(rb" mtime=(?!(?:[0-9]{1,9}|[123][0-9]{9})[.\n])")  # one that may be out of these bounds
_LARGEST_HEAD = 1 << 20  # bytes of one member's header blocks, as Go's archive/tar
LONGEST_PATH, _LONGEST_NAME = 4096, 255  # bytes: PATH_MAX, NAME_MAX; no engine can unpack longer ones


@dataclass(frozen=True, slots=True)  # an image has hundreds of thousands
class Member:
    """One entry.

    Attributes:
        path: relative, without ``.`` and empty parts; empty for the root itself.
        kind: tarfile's type flag, such as ``tarfile.REGTYPE``; the old ``\\0`` comes as ``0``, and so does ``S``.
        link: target of a link as written; empty where it is none.
        size: bytes of data. head: the raw header blocks, with their prefixes; of a sparse file, those of a plain one.
        sparse: how its data are stored, if it is a sparse file.
    """

    path: str
    kind: bytes
    link: str
    size: int
    head: bytes
    sparse: Sparse | None = None


class TarStream:
    """Reads members one after another from a stream that cannot go back.

    Args:
        what: what the stream is, for messages: "the engine's export".

    Raises (while iterating):
        InfrastructureError: no tar archive, it ends too early, or a header is invalid.
    """

    def __init__(self, source: IO[bytes], what: str) -> None:
        self._source = source
        self._what = what

    def __iter__(self) -> Iterator[Member]:
        """Members in their order; the data of each must be taken by ``data`` before the next. Reads to the end."""
        while (member := self._valid()) is not None:
            yield member
        while self._source.read(_CHUNK):
            pass

    def data(self, member: Member) -> Iterator[bytes]:
        """The member's data, padded to whole blocks; holes of a sparse file as zeros."""
        if member.sparse is None:
            yield from self._stored(member.size + -member.size % BLOCK)
            return
        yield from member.sparse.expanded(self._some)
        yield b"\0" * (-member.size % BLOCK)
        self._exactly(-member.sparse.stored % BLOCK)

    def skip(self, member: Member) -> None:
        """Pass over the member's data."""
        count = member.size if member.sparse is None else member.sparse.stored
        for _ in self._stored(count + -count % BLOCK):
            pass

    def _stored(self, left: int) -> Iterator[bytes]:
        while left:
            block = self._some(min(left, _CHUNK))
            left -= len(block)
            yield block

    def _some(self, count: int) -> bytes:
        block = self._source.read(count)
        if not block:
            raise self._broken("ended in the middle of a file")
        return block

    def _valid(self) -> Member | None:
        try:
            member = self._next()
        except ValueError as error:
            raise self._broken(f"has a header that makes no sense ({error})") from error
        if member is not None:
            path = member.path.encode("utf-8", "surrogateescape")
            if len(path) > LONGEST_PATH or max(map(len, path.split(b"/"))) > _LONGEST_NAME or b"\0" in path:
                raise self._broken(f"has a path that no file system takes: {member.path[:60]!r}...")
            if len(member.link) > LONGEST_PATH:  # resolving one of megabytes takes hours
                raise self._broken(f"has a link that no file system takes: {member.path[:60]!r}")
        return member

    def _next(self) -> Member | None:
        raw = b""
        path: bytes | None = None
        link: bytes | None = None
        records: list[tuple[bytes, bytes]] = []
        while True:
            header = self._exactly(BLOCK, at_end_ok=not raw)
            if not header or header.count(0) == BLOCK:
                return None
            self._check(header)
            kind = header[156:157].replace(tarfile.AREGTYPE, tarfile.REGTYPE)
            length = _number(header[124:136])
            if kind not in (b"x", b"g", b"L", b"K"):
                found = dict(records)
                path = found.get(b"path", path)
                link = found.get(b"linkpath", link)
                size = _count(found[b"size"], 10) if b"size" in found else length
                name = path if path is not None else _ustar_name(header)
                if kind == tarfile.GNUTYPE_SPARSE or (kind == tarfile.REGTYPE and version(records)):
                    return self._sparse_member(header, records, name, size)
                return Member(
                    path=normal(_text(name)),
                    kind=kind,
                    link=_text(link if link is not None else header[157:257].split(b"\0", 1)[0]),
                    size=0 if kind[0] in _WITHOUT_DATA else size,
                    head=raw + header,
                )
            if len(raw) + length > _LARGEST_HEAD:
                raise ValueError(f"it has more than {_LARGEST_HEAD} bytes")
            body = self._exactly(length + -length % BLOCK)
            raw += header + body if kind != b"g" else b""
            if kind == b"L":
                path = body[:length].rstrip(b"\0")
            elif kind == b"K":
                link = body[:length].rstrip(b"\0")
            elif kind == b"x":
                records += _pax(body[:length])

    def _sparse_member(self, header: bytes, records: list[tuple[bytes, bytes]], name: bytes, stored: int) -> Member:
        """A sparse file, as the plain file that it stands for; its map is read."""
        if header[156:157] == tarfile.GNUTYPE_SPARSE:
            holes = old_map(header, self._old_map_blocks(header), _number)
        elif version(records) == "1.0":
            holes, read = data_map(records, lambda: self._exactly(BLOCK))
            stored -= read
        else:
            holes = pax_map(records)
        if holes.stored != stored:
            raise ValueError(f"a sparse file with a map of {holes.stored} bytes, and {stored} bytes of data")
        path = name_of(records, name)
        body = plain_records(records, path, holes.size)
        extended = tarfile.TarInfo("pax")
        extended.type, extended.size = tarfile.XHDTYPE, len(body)
        head = extended.tobuf(tarfile.USTAR_FORMAT) + body + b"\0" * (-len(body) % BLOCK) + _plain(header)
        return Member(normal(_text(path)), tarfile.REGTYPE, "", holes.size, head, holes)

    def _old_map_blocks(self, header: bytes) -> list[bytes]:
        """Blocks that carry on an old GNU sparse file's map; each says whether another follows."""
        blocks: list[bytes] = []
        more = header[482]
        while more:
            if len(blocks) * BLOCK > _LARGEST_HEAD:
                raise ValueError(f"it has more than {_LARGEST_HEAD} bytes")
            blocks.append(self._exactly(BLOCK))
            more = blocks[-1][504]
        return blocks

    def _exactly(self, count: int, *, at_end_ok: bool = False) -> bytes:
        parts = []
        left = count
        while left:
            part = self._source.read(left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        if left and not (at_end_ok and left == count):
            raise self._broken("ended too early")
        return b"".join(parts)

    def _check(self, header: bytes) -> None:
        """The checksum that every header carries: the sum of its bytes with the checksum's own field blank."""
        right = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
        if header[148:156].strip(b" \0").lstrip(b"0") != b"%o" % right:
            raise self._broken("is not a tar archive")

    def _broken(self, how: str) -> InfrastructureError:
        return InfrastructureError(
            f"{self._what} {how}", fix="convert again; if that fails too, check where it is from"
        )


class ChunkReader(io.RawIOBase):
    """An iterator of byte strings as a file, so that it can be read in blocks."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class Tapped(io.RawIOBase):
    """Passes a file's bytes on, and shows each block that was read to ``tap``."""

    def __init__(self, source: IO[bytes], tap: Callable[[bytes], object]) -> None:
        self._source = source
        self._tap = tap

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        block = self._source.read(len(buffer))
        self._tap(block)
        buffer[: len(block)] = block
        return len(block)


def entry(name: str, kind: bytes, mode: int, mtime: int, size: int = 0, *, link: str = "") -> bytes:
    """Header blocks of a new member, owned by root. mtime: seconds since the epoch. size: bytes."""
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.mtime, made.size, made.linkname = kind, mode, mtime, size, link
    return _written(made)


def retimed(member: Member, mtime: int) -> bytes:
    """The header blocks of a directory or symbolic link with another time; of anything else unchanged."""
    if member.kind not in (tarfile.DIRTYPE, tarfile.SYMTYPE):
        return member.head
    try:
        mode = _number(member.head[-BLOCK:][100:108]) & 0o7777
    except ValueError as error:
        raise _invalid(member.path, error) from error
    return entry(member.path, member.kind, mode, mtime, link=member.link)


def timely(head: bytes) -> bytes:
    """A member's header blocks with a time that a squashfs can hold: before 1970 becomes 1970, after 2106 that year."""
    found = _PAX_TIME.search(head)
    digits = head[-BLOCK:][136:148].strip(b" \0")
    if found is None and (digits.isdigit() or not digits) and digits.zfill(len(_LAST_OCTAL)) <= _LAST_OCTAL:
        return head
    made = _read(head)
    if 0 <= made.mtime <= LAST_S:
        return head
    made.mtime = min(max(0, int(made.mtime)), LAST_S)
    made.pax_headers = {key: value for key, value in made.pax_headers.items() if key != "mtime"}
    return _written(made)


def exported(head: bytes, named: str, path: str) -> bytes:
    """A member's header blocks under the name ``path``, with no extended attribute but a file's capabilities.

    An engine's export does the same (moby, archive.go: ReadSecurityXattrToTarHeader). named: the name in the head.
    """
    if named == path and not any(prefix in head for prefix in _ATTRIBUTES):
        return head
    made = _read(head)
    made.name = path
    gone = tuple(prefix.decode() for prefix in _ATTRIBUTES)
    kept = {key: value for key, value in made.pax_headers.items() if not key.startswith(gone) or key == _CAPABILITIES}
    made.pax_headers = {key: value for key, value in kept.items() if key != "path"}
    return _written(made)


def linked(head: bytes, path: str, to: str) -> bytes:
    """Header blocks of a hard link ``path`` to the member of this head, which is there as ``to``."""
    made = _read(head)
    made.name, made.linkname, made.type, made.size, made.pax_headers = path, to, tarfile.LNKTYPE, 0, {}
    return _written(made)


def _read(head: bytes) -> tarfile.TarInfo:
    try:
        with tarfile.open(fileobj=io.BytesIO(head + END), mode="r:") as archive:
            found = archive.next()
    except (tarfile.TarError, ValueError) as error:
        raise _invalid("", error) from error
    assert found is not None
    if not math.isfinite(found.mtime):
        raise _invalid(found.name, ValueError(f"a time of {found.mtime}"))
    return found


def _invalid(path: str, error: Exception) -> InfrastructureError:
    return InfrastructureError(f"the header of a tar archive's member {path!r} makes no sense ({error})")


def _written(member: tarfile.TarInfo) -> bytes:
    try:
        return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    except (ValueError, OverflowError) as error:  # a device's number that its field cannot hold
        raise _invalid(member.name, error) from error


def _plain(header: bytes) -> bytes:
    """The last header block of a sparse file as that of a plain one, without its size, which a pax record holds."""
    made = bytearray(header)
    made[124:136], made[156:157] = b"%011o\0" % 0, tarfile.REGTYPE
    if made[257:265] == b"ustar  \0":  # GNU's own fields, where POSIX has the prefix of the name
        made[345:] = bytes(BLOCK - 345)
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


def _number(raw: bytes) -> int:
    """A tar number: octal digits, or base 256 where the first byte's high bit is set. Raises ValueError: neither."""
    if raw[0] == 0x80:
        return int.from_bytes(raw[1:], "big")
    return _count(raw.split(b"\0", 1)[0].strip() or b"0", 8)


def _count(digits: bytes, base: int) -> int:
    if not digits.isdigit():
        raise ValueError(f"{digits[:24]!r} is no number")
    return int(digits, base)


def _pax(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Records ``LENGTH KEY=VALUE\\n``; the length decides, so that a value may hold any byte.

    Raises:
        ValueError: they are none.
    """
    while body:
        digits, _, _ = body.partition(b" ")
        length = _count(digits, 10)
        if not len(digits) + 2 < length <= len(body):
            raise ValueError(f"a record of {length} bytes where {len(body)} are left")
        key, _, value = body[len(digits) + 1 : length - 1].partition(b"=")
        yield key, value
        body = body[length:]


def _ustar_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def normal(path: str) -> str:
    """The path without ``.`` and empty parts."""
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


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
        numbers = [_sparse_count(digits) for digits in text.split(b",")] if text else []
    else:
        ours = (_PREFIX + b"offset", _PREFIX + b"numbytes")
        numbers = [_sparse_count(value) for key, value in records if key in ours]
    return _checked(_sparse_count(found.get(_PREFIX + b"size", b"")), _pairs(numbers))


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
        return _sparse_count(lines.pop(0))

    fields = [(number(), number()) for _ in range(number())]
    return _checked(_sparse_count(dict(records).get(_PREFIX + b"realsize", b"")), fields), read


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


def _sparse_count(digits: bytes) -> int:
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f"{digits[:24]!r} in a sparse file's map is no number")
    return int(digits)


def _zeros(count: int) -> Iterator[bytes]:
    chunk = bytes(min(count, _CHUNK))
    while count > 0:
        yield chunk[:count]
        count -= len(chunk[:count])
