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
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from runner.core.errors import InfrastructureError

BLOCK = 512
END = b"\0" * (2 * BLOCK)
_CHUNK = 1 << 20
_ATTRIBUTES = (b"SCHILY.xattr.", b"LIBARCHIVE.xattr.")
_CAPABILITIES = "SCHILY.xattr.security.capability"
_WITHOUT_DATA = frozenset(b"123456")  # links, devices, directories, fifos: their size is ignored
_KINDS = b"01234567S"  # engines refuse all others, and mksquashfs drops them
LAST_S = (1 << 32) - 1  # a squashfs's times: 32 bits, seconds since the epoch
_LAST_OCTAL = b"%o" % LAST_S
_PAX_TIME = re.compile(rb" mtime=(?!(?:[0-9]{1,9}|[123][0-9]{9})[.\n])")  # one that may be out of these bounds
LARGEST_HEAD = 1 << 20  # bytes of one member's header blocks, as Go's archive/tar, and of a sparse file's map
LONGEST_PATH, _LONGEST_NAME = 4096, 255  # bytes: PATH_MAX, NAME_MAX; no engine can unpack longer ones
_WHOLE_TIME = re.compile(rb" mtime=(-?[0-9]+)[.\n]")
_NEGATIVE = 0xFF  # the first byte of a number in base 256 that is less than 0
_OCTAL = re.compile(rb"[0-7]+[\0 ]+")
_SPARSE = b"GNU.sparse."
_MOST_HOLES = 1 << 36  # bytes of an archive's sparse files with their holes, which are written out: a minute's work


@dataclass(frozen=True, slots=True)  # an image has hundreds of thousands
class Member:
    """One entry.

    Attributes:
        path: relative, without ``.`` and empty parts; empty for the root itself.
        kind: tarfile's type flag, such as ``tarfile.REGTYPE``; the old ``\\0`` comes as ``0``, and so does ``S``.
        link: target of a link as written; empty where it is none.
        size: bytes of data. head: the raw header blocks, with their prefixes; of a sparse file, those of a plain one.
        parts: (offset, bytes) of the data that are stored, if it is a sparse file.
    """

    path: str
    kind: bytes
    link: str
    size: int
    head: bytes
    parts: tuple[tuple[int, int], ...] | None = None


class TarStream:
    """Reads members one after another from a stream that cannot go back; InfrastructureError: it makes no sense. what:
    what the stream is, for messages: "the engine's export".
    """

    def __init__(self, source: IO[bytes], what: str) -> None:
        self._source = source
        self._what = what
        self._sparse = 0  # bytes of all sparse files so far

    def __iter__(self) -> Iterator[Member]:
        """Members in their order; the data of each must be taken by ``data`` before the next. Reads to the end."""
        while True:
            try:
                member = self._next()
            except ValueError as error:
                raise self._broken(f"has a header that makes no sense ({error})") from error
            if member is None:
                break
            path = raw_text(member.path)
            if len(path) > LONGEST_PATH or max(map(len, path.split(b"/"))) > _LONGEST_NAME or b"\0" in path:
                raise self._broken(f"has a path that no file system takes: {member.path[:60]!r}...")
            if len(member.link) > LONGEST_PATH:  # resolving one of megabytes takes hours
                raise self._broken(f"has a link that no file system takes: {member.path[:60]!r}")
            yield member
        while self._source.read(_CHUNK):
            pass

    def data(self, member: Member) -> Iterator[bytes]:
        """The member's data, padded to whole blocks; holes of a sparse file as zeros."""
        if member.parts is None:
            yield from self._stored(member.size + -member.size % BLOCK)
            return
        at = 0
        for offset, count in (*member.parts, (member.size, 0)):
            yield from (bytes(min(_CHUNK, offset - start)) for start in range(at, offset, _CHUNK))
            yield from self._stored(count)
            at = offset + count
        yield b"\0" * (-member.size % BLOCK)
        self._exactly(-_stored_bytes(member) % BLOCK)

    def skip(self, member: Member) -> None:
        """Pass over the member's data."""
        count = _stored_bytes(member)
        for _ in self._stored(count + -count % BLOCK):
            pass

    def _stored(self, left: int) -> Iterator[bytes]:
        while left:
            block = self._source.read(min(left, _CHUNK))
            if not block:
                raise self._broken("ended in the middle of a file")
            left -= len(block)
            yield block

    def _next(self) -> Member | None:
        raw = b""
        path: bytes | None = None
        link: bytes | None = None
        records: list[tuple[bytes, bytes]] = []
        while True:
            header = self._exactly(BLOCK, at_end_ok=not raw)
            if not header or header.count(0) == BLOCK:
                return None
            # Every header's checksum: the sum of its bytes with the checksum's own field blank.
            checksum = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
            if header[148:156].strip(b" \0").lstrip(b"0") != b"%o" % checksum:
                raise self._broken("is not a tar archive")
            kind = header[156:157].replace(tarfile.AREGTYPE, tarfile.REGTYPE)
            length = _number(header[124:136])
            if kind not in (b"x", b"g", b"L", b"K"):
                break
            if len(raw) + length > LARGEST_HEAD:
                raise ValueError(f"it has more than {LARGEST_HEAD} bytes")
            body = self._exactly(length + -length % BLOCK)
            raw += header + body if kind != b"g" else b""
            if kind == b"L":
                path = body[:length].rstrip(b"\0")
            elif kind == b"K":
                link = body[:length].rstrip(b"\0")
            elif kind == b"x":
                records += _pax(body[:length])
        given = dict(records)
        path = given.get(b"path", path)
        link = given.get(b"linkpath", link)
        size = _count(given[b"size"], 10) if b"size" in given else length
        if path is None:
            prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
            path = (prefix + b"/" if prefix else b"") + header[:100].split(b"\0", 1)[0]
        if kind not in _KINDS:
            raise ValueError(f"{text(path)!r} is of the type {kind.decode('latin-1')!r}, which no engine unpacks")
        if kind == tarfile.GNUTYPE_SPARSE or (kind == tarfile.REGTYPE and _sparse_version(given)):
            return self._sparse_member(header, records, path, size)
        return Member(
            path=normal(text(path)),
            kind=kind,
            link=text(link if link is not None else header[157:257].split(b"\0", 1)[0]),
            size=0 if kind[0] in _WITHOUT_DATA else size,
            head=raw + header,
        )

    def _sparse_member(self, header: bytes, records: list[tuple[bytes, bytes]], name: bytes, stored: int) -> Member:
        """A sparse file, as the plain file that it stands for; its map is read."""
        given = dict(records)
        if header[156:157] == tarfile.GNUTYPE_SPARSE:
            size, fields = _number(header[483:495]), self._old_map(header)
        elif _sparse_version(given) == "1.0":
            fields, read = self._data_map()
            size = _count(given.get(_SPARSE + b"realsize", b""), 10)
            stored -= read
        else:
            size, fields = _count(given.get(_SPARSE + b"size", b""), 10), _pax_map(records)
        self._sparse += size
        if self._sparse > _MOST_HOLES:
            what = f"{text(name)!r} brings the sparse files to {self._sparse} bytes with their holes"
            raise ValueError(f"{what}, more than {_MOST_HOLES}: empty it in the image")
        parts = tuple((offset, count) for offset, count in fields if count)
        at = 0
        for offset, count in parts:
            if offset < at:
                raise ValueError("a map of a sparse file whose parts overlap")
            at = offset + count
        if at > size:
            raise ValueError(f"a map of a sparse file beyond its {size} bytes")
        if (mapped := sum(count for _, count in parts)) != stored:
            raise ValueError(f"a sparse file with a map of {mapped} bytes, and {stored} bytes of data")
        path = given.get(_SPARSE + b"name", b"") or name  # formats 0.1 and 1.0 put another one in its place
        kept = [pair for pair in records if not pair[0].startswith(_SPARSE) and pair[0] not in (b"path", b"size")]
        body = b"".join(map(_pax_record, [*kept, (b"path", path), (b"size", b"%d" % size)]))
        extended = tarfile.TarInfo("pax")
        extended.type, extended.size = tarfile.XHDTYPE, len(body)
        head = extended.tobuf(tarfile.USTAR_FORMAT) + body + b"\0" * (-len(body) % BLOCK) + _plain(header)
        return Member(normal(text(path)), tarfile.REGTYPE, "", size, head, parts)

    def _old_map(self, header: bytes) -> list[tuple[int, int]]:
        """The map in a header of the old GNU format, and in the blocks that carry it on."""
        entries = [header[start:][:24] for start in range(386, 386 + 4 * 24, 24)]
        more, read = header[482], 0  # whether another block follows
        while more:
            if read > LARGEST_HEAD:
                raise ValueError(f"it has more than {LARGEST_HEAD} bytes")
            block = self._exactly(BLOCK)
            entries += [block[start:][:24] for start in range(0, 21 * 24, 24)]
            more, read = block[504], read + BLOCK
        return [(_number(entry[:12]), _number(entry[12:])) for entry in entries if entry[:1] != b"\0"]

    def _data_map(self) -> tuple[list[tuple[int, int]], int]:
        """Format 1.0's map, and its bytes: before the data, numbers on a line each, first how many pairs follow."""
        read = 0
        lines = [b""]

        def number() -> int:
            nonlocal read, lines
            while len(lines) < 2:
                if read >= LARGEST_HEAD:
                    raise ValueError(f"a map of more than {LARGEST_HEAD} bytes")
                lines = (lines[0] + self._exactly(BLOCK)).split(b"\n")
                read += BLOCK
            return _count(lines.pop(0), 10)

        fields = [(number(), number()) for _ in range(number())]
        return fields, read

    def _exactly(self, count: int, *, at_end_ok: bool = False) -> bytes:
        parts = []
        left = count
        while left and (part := self._source.read(left)):
            parts.append(part)
            left -= len(part)
        if left and not (at_end_ok and left == count):
            raise self._broken("ended too early")
        return b"".join(parts)

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


def tapped(source: IO[bytes], tap: Callable[[bytes], object]) -> io.BufferedReader:
    """Passes a file's bytes on, and shows each block that was read to ``tap``."""

    def blocks() -> Iterator[bytes]:
        while block := source.read(_CHUNK):
            tap(block)
            yield block

    return io.BufferedReader(ChunkReader(blocks()), _CHUNK)


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


def mode_and_time(head: bytes) -> tuple[int, int]:
    """A member's permissions, and its time in whole seconds since the epoch, within -1 and ``LAST_S``. What makes no
    sense is 0: then a squashfs has something else.
    """
    mode = mtime = 0
    with suppress(ValueError):
        mode = _number(head[-BLOCK:][100:108]) & 0o7777
        if times := _WHOLE_TIME.findall(head[:-BLOCK]):
            mtime = int(times[-1])
        elif head[-BLOCK:][136] == _NEGATIVE:
            mtime = -1
        else:
            mtime = _number(head[-BLOCK:][136:148])
    return mode, min(max(-1, mtime), LAST_S)


def timely(head: bytes) -> bytes:
    """A member's header blocks with a time that a squashfs can hold: before 1970 becomes 1970, after 2106 that year."""
    digits = head[-BLOCK:][136:148].strip(b" \0")
    is_octal = digits.isdigit() or not digits
    if is_octal and digits.zfill(len(_LAST_OCTAL)) <= _LAST_OCTAL and not _PAX_TIME.search(head):
        return head
    made = _read(head)
    if 0 <= made.mtime <= LAST_S:
        return head
    made.mtime = min(max(0, int(made.mtime)), LAST_S)
    made.pax_headers = {key: value for key, value in made.pax_headers.items() if key != "mtime"}
    return _written(made)


def spelled(member: Member, head: bytes) -> bytes:
    """The header blocks that are to be the member's as mksquashfs reads them right: off a symbolic link's target that
    is in a pax record it takes each "/", "./" and "../" it begins with (4.5.1: tar.c, read_pax_header).
    """
    if member.kind != tarfile.SYMTYPE or member.link[:1] not in ("/", ".") or b" linkpath=" not in head:
        return head
    made = _read(head)
    made.uid = made.gid = 0
    return _written(made, gnu=True)


def exported(head: bytes, kind: bytes, link: str, size: int, path: str) -> bytes:
    """A member's header blocks under the name ``path``, with no extended attribute but a file's capabilities, as an
    engine's export has them (moby, archive.go: ReadSecurityXattrToTarHeader).

    They are written anew from what was read of them, unless every program reads them so: of a name with a slash at its
    end, a repeated pax record or another's prefix, mksquashfs could take other bytes for the member's data, and put
    them where later images of this layer are to have these.
    """
    if _is_plain(head, kind, link, path):
        return head
    made = _read(head)
    made.name, made.type, made.linkname, made.size = path, kind, link, size
    made.pax_headers = {key: value for key, value in made.pax_headers.items() if key == _CAPABILITIES}
    return _written(made)


def _is_plain(head: bytes, kind: bytes, link: str, path: str) -> bool:
    """Whether it is one block, of POSIX or GNU, with nothing but octal digits in its numbers and no prefix."""
    name, plain = head[:100].rstrip(b"\0"), raw_text(path)
    names = (plain, b"./" + plain) if kind != tarfile.DIRTYPE else (plain, plain + b"/", b"./" + plain + b"/")
    return (
        len(head) == BLOCK
        and name in names
        and head[156:157] == kind
        and head[157:257].rstrip(b"\0") == raw_text(link)
        and head[257:265] in (b"ustar\x0000", b"ustar  \0")
        and not any(head[345:])
        and all(map(_OCTAL.fullmatch, (head[100:108], head[108:116], head[116:124], head[124:136], head[136:148])))
    )


def linked(head: bytes, path: str, to: str) -> bytes:
    """Header blocks of a hard link ``path`` to the member of this head, which is there as ``to``."""
    made = _read(head)
    made.name, made.linkname, made.type, made.size, made.pax_headers = path, to, tarfile.LNKTYPE, 0, {}
    return _written(made)


def normal(path: str) -> str:
    """The path without ``.`` and empty parts."""
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def _read(head: bytes) -> tarfile.TarInfo:
    try:
        with tarfile.open(fileobj=io.BytesIO(head + END), mode="r:") as archive:
            member = archive.next()
    except (tarfile.TarError, ValueError) as error:
        raise _invalid("", error) from error
    assert member is not None
    if not math.isfinite(member.mtime):
        raise _invalid(member.name, ValueError(f"a time of {member.mtime}"))
    return member


def _written(member: tarfile.TarInfo, *, gnu: bool = False) -> bytes:
    try:
        return member.tobuf(tarfile.GNU_FORMAT if gnu else tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    except (ValueError, OverflowError) as error:  # a device's number that its field cannot hold
        raise _invalid(member.name, error) from error


def _invalid(path: str, error: Exception) -> InfrastructureError:
    return InfrastructureError(f"the header of a tar archive's member {path!r} makes no sense ({error})")


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
    """Records ``LENGTH KEY=VALUE\\n``; the length decides, so that a value may hold any byte."""
    while body:
        digits, _, _ = body.partition(b" ")
        length = _count(digits, 10)
        if not len(digits) + 2 < length <= len(body):
            raise ValueError(f"a record of {length} bytes where {len(body)} are left")
        key, _, value = body[len(digits) + 1 : length - 1].partition(b"=")
        yield key, value
        body = body[length:]


def _pax_record(pair: tuple[bytes, bytes]) -> bytes:
    text = b" " + pair[0] + b"=" + pair[1] + b"\n"
    length = len(text)
    while len(b"%d" % length) + len(text) != length:
        length = len(b"%d" % length) + len(text)
    return b"%d" % length + text


def _sparse_version(records: dict[bytes, bytes]) -> str:
    """The format that a member's pax records name: "0" (0.0 and 0.1), "1.0", or empty where it is not sparse."""
    numbers = records.get(_SPARSE + b"major", b"") + b"." + records.get(_SPARSE + b"minor", b"")
    if numbers in (b".", b"0.0", b"0.1"):
        return "0" if records.keys() & {_SPARSE + key for key in (b"map", b"offset", b"numblocks")} else ""
    if numbers == b"1.0":
        return "1.0"
    raise ValueError(f"a sparse file of the unknown format {numbers.decode('ascii', 'replace')}")


def _pax_map(records: list[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
    """From the records of formats 0.0 (a record for each number) and 0.1 (one with all)."""
    text = dict(records).get(_SPARSE + b"map")
    ours = (_SPARSE + b"offset", _SPARSE + b"numbytes")
    texts = [value for key, value in records if key in ours] if text is None else text.split(b",") if text else []
    numbers = [_count(digits, 10) for digits in texts]
    if len(numbers) % 2:
        raise ValueError("a map of a sparse file with an odd number of fields")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _stored_bytes(member: Member) -> int:
    """Bytes of the member's data in the archive, without padding."""
    return member.size if member.parts is None else sum(count for _, count in member.parts)


def raw_text(text: str) -> bytes:
    """A name's bytes, as ``text`` has read them."""
    return text.encode("utf-8", "surrogateescape")


def text(raw: bytes) -> str:
    """A name of an archive: bytes that are no UTF-8 become lone surrogates, whatever the locale is."""
    return raw.decode("utf-8", "surrogateescape")
