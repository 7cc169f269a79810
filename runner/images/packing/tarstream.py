"""Tar archives as streams of members whose header blocks can be passed on bit for bit.

Owners, modes, links, devices, long names, extended attributes and file capabilities stay what the writer wrote.
Formats: POSIX ustar with pax (``x``, ``g``) and GNU (``L``, ``K``, ``S``) headers.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO

from runner.errors import InfrastructureError

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
        kind: tarfile's type flag, such as ``tarfile.REGTYPE``; the old ``\\0`` comes as ``0``.
        link: target of a link as written; empty where it is none.
        size: bytes of data that follow. head: the raw header blocks, with their prefixes.
    """

    path: str
    kind: bytes
    link: str
    size: int
    head: bytes


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
        """The member's data, padded to whole blocks."""
        left = member.size + -member.size % BLOCK
        while left:
            block = self._source.read(min(left, _CHUNK))
            if not block:
                raise self._broken("ended in the middle of a file")
            left -= len(block)
            yield block

    def skip(self, member: Member) -> None:
        """Pass over the member's data."""
        for _ in self.data(member):
            pass

    def _valid(self) -> Member | None:
        try:
            member = self._next()
        except ValueError as error:
            raise self._broken(f"has a header that makes no sense ({error})") from error
        if member is not None:
            path = member.path.encode("utf-8", "surrogateescape")
            if len(path) > LONGEST_PATH or max(map(len, path.split(b"/"))) > _LONGEST_NAME or b"\0" in path:
                raise self._broken(f"has a path that no file system takes: {member.path[:60]!r}...")
        return member

    def _next(self) -> Member | None:
        raw = b""
        path: bytes | None = None
        link: bytes | None = None
        size: int | None = None
        while True:
            header = self._exactly(BLOCK, at_end_ok=not raw)
            if not header or header.count(0) == BLOCK:
                return None
            self._check(header)
            kind = header[156:157].replace(tarfile.AREGTYPE, tarfile.REGTYPE)
            length = _number(header[124:136])
            raw += header
            if kind not in (b"x", b"g", b"L", b"K"):
                if kind == tarfile.GNUTYPE_SPARSE:
                    raw += self._sparse_map(header)
                return Member(
                    path=normal(_text(path if path is not None else _ustar_name(header))),
                    kind=kind,
                    link=_text(link if link is not None else header[157:257].split(b"\0", 1)[0]),
                    size=0 if kind[0] in _WITHOUT_DATA else (size if size is not None else length),
                    head=raw,
                )
            if len(raw) + length > _LARGEST_HEAD:
                raise ValueError(f"it has more than {_LARGEST_HEAD} bytes")
            body = self._exactly(length + -length % BLOCK)
            raw += body
            if kind == b"L":
                path = body[:length].rstrip(b"\0")
            elif kind == b"K":
                link = body[:length].rstrip(b"\0")
            elif kind == b"x":
                records = dict(_pax(body[:length]))
                path = records.get(b"path", path)
                link = records.get(b"linkpath", link)
                size = _count(records[b"size"], 10) if b"size" in records else size

    def _sparse_map(self, header: bytes) -> bytes:
        """Blocks that carry on an old GNU sparse file's map; each says whether another follows."""
        raw = b""
        more = header[482]
        while more:
            block = self._exactly(BLOCK)
            raw += block
            more = block[504]
            if len(raw) > _LARGEST_HEAD:
                raise ValueError(f"it has more than {_LARGEST_HEAD} bytes")
        return raw

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
    if made.type == tarfile.GNUTYPE_SPARSE or 0 <= made.mtime <= LAST_S:
        return head
    made.mtime = min(max(0, int(made.mtime)), LAST_S)
    made.pax_headers = {key: value for key, value in made.pax_headers.items() if key != "mtime"}
    return _written(made)


def exported(head: bytes, named: str, path: str) -> bytes:
    """A member's header blocks under the name ``path``, with no extended attribute but a file's capabilities.

    An engine's export does the same (moby, archive.go: ReadSecurityXattrToTarHeader). named: the name in the head.

    Raises:
        InfrastructureError: it is an old GNU sparse file, whose map cannot be written again, with another name.
    """
    if named == path and not any(prefix in head for prefix in _ATTRIBUTES):
        return head
    made = _read(head)
    if made.type == tarfile.GNUTYPE_SPARSE:
        raise InfrastructureError(f"a sparse file with another name: {path!r}", fix="build the image's layers again")
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
    return found


def _invalid(path: str, error: Exception) -> InfrastructureError:
    return InfrastructureError(f"the header of a tar archive's member {path!r} makes no sense ({error})")


def _written(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


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
