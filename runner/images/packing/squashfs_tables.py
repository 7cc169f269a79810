"""The tables of a squashfs 4.0, read into a tree of inodes, and written anew over compressed blocks that are copied.

Only what ``Packing`` makes of an image is read: zstd, everything root's, no devices, no table for NFS exports. The
format: Linux, fs/squashfs/squashfs_fs.h.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import IO

MAGIC = b"hsqs"
# Magic, inodes, time, block size, fragments, compressor, log of the block size, flags, owners, version, root inode,
# bytes used; where the tables begin: owners, attributes, inodes, directories, fragments, exports.
SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQQQQQQQ")
DIRECTORY, FILE, SYMLINK, FIFO = 1, 2, 3, 6
_EXTENDED = 7  # is added to the type of an inode with more fields, which may have attributes
_FIELDS = {kind: struct.Struct(form) for kind, form in {
    DIRECTORY: "<IIHHI",  # block of the listing, links, its bytes and 3, its offset in the block, inode above
    FILE: "<IIII",  # start, fragment, offset in it, bytes
    SYMLINK: "<II",  # links, bytes
    FIFO: "<I",  # links
    DIRECTORY + _EXTENDED: "<IIIIHHI",  # links, bytes of the listing and 3, block, inode above, indexes, offset, xattr
    FILE + _EXTENDED: "<QQQIIII",  # start, bytes, those of holes, links, fragment, offset in it, xattr
}.items()}  # fmt: skip
_HEAD = struct.Struct("<HHHHII")  # type, mode, owner, group, time, number
_RUN = struct.Struct("<III")  # of a listing: entries less one, block of their inodes, number of the first one
_ENTRY = struct.Struct("<HhHH")  # offset of the inode in its block, number less the run's, type, bytes of name less 1
NONE, _NO_TABLE = (1 << 32) - 1, (1 << 64) - 1
_ZSTD, _HAS_OPTIONS, _META = 6, 0x400, 8192
_STORED, _SIZE = 0x8000, (1 << 24) - 1  # whether metadata are not compressed; the bytes of a block of data
_PART, _STEP = 64 << 20, 1 << 20  # bytes that are copied, and then read, at a time
_MOST_ANEW = 64 << 20  # bytes of fragments that are packed anew, as a part of them is of files that are gone
_Ranges = Iterable[tuple[int, Iterable[tuple[int, int]]]]  # open file; of each range where it starts, its bytes


class UnfitError(Exception):
    """This file has something that is not read or written here; the message is what."""


_NO_ENTRIES: dict[bytes, Inode] = {}


class Inode:
    """xattr, start, fragment: as its file's tables count. tail: sizes of a file's blocks, or the target of a link.
    number, links, above (the number of the directory), place: as they are written.
    """

    __slots__ = (
        *("above", "entries", "fragment", "kind", "links", "mode", "mtime", "number", "of"),
        *("offset", "place", "size", "sparse", "start", "tail", "xattr"),
    )

    def __init__(self, of: Squashfs, kind: int, mode: int, mtime: int) -> None:
        self.of, self.kind, self.mode, self.mtime, self.xattr = of, kind, mode, mtime, NONE
        self.start = self.size = self.sparse = self.offset = self.number = self.links = self.above = 0
        self.fragment, self.tail, self.place = NONE, b"", (-1, -1)
        self.entries: dict[bytes, Inode] = {} if kind == DIRECTORY else _NO_ENTRIES


class Squashfs:
    """An open file and its tree. UnfitError: it holds something else than the head of this module says; of damaged
    tables come errors of many kinds.
    """

    def __init__(self, file: IO[bytes]) -> None:
        import zstandard

        self.file, self._decompressor = file, zstandard.ZstdDecompressor()
        fields = SUPERBLOCK.unpack(self.file.read(SUPERBLOCK.size))
        magic, self.count, self.time, block, fragments, compressor, _, flags, owners = fields[:9]
        major, minor, root, used = fields[9:13]
        owners_at, self._xattrs_at, self._start, directories_at, fragments_at, exports_at = fields[13:]
        if (magic, compressor, major, minor, owners, exports_at) != (MAGIC, _ZSTD, 4, 0, 1, _NO_TABLE):
            raise UnfitError("another form of squashfs")
        options = self.file.read(2) if flags & _HAS_OPTIONS else b""
        options += self.file.read(int.from_bytes(options, "little") & ~_STORED)
        self.form = (block, flags, options)  # what two files must share to be written into one
        self.file.seek(self._start)
        self._tables = self.file.read(used - self._start)
        if self._indexed(owners_at, 4) != bytes(4):
            raise UnfitError("owners other than root")
        self.fragments = [*struct.iter_unpack("<QII", self._indexed(fragments_at, 16 * fragments))]
        self._inodes, self._inode_blocks = self._stream(self._start, directories_at)
        end = self._pointer(fragments_at) if fragments else fragments_at
        self._listings, self._listing_blocks = self._stream(directories_at, end)
        self.root = self._tree((root >> 16, root & 0xFFFF))

    def xattrs(self, at: int) -> tuple[bytes, int]:
        """The table of attributes as it is written at another place, and where its head is then."""
        first, end = self._pointer(self._xattrs_at), self._xattrs_at
        count = self._pointer(end + 8) & NONE
        pointers = [self._pointer(end + 16 + 8 * number) + at - first for number in range(-(-16 * count // _META))]
        raw = self._tables[first - self._start : end - self._start]
        return raw + struct.pack(f"<QII{len(pointers)}Q", at, count, 0, *pointers), at + len(raw)

    def _pointer(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self._tables, at - self._start)[0])

    def _metadata(self, at: int) -> tuple[bytes, int]:
        """A block of metadata, and where the next one begins."""
        begin = at - self._start + 2
        size = int.from_bytes(self._tables[begin - 2 : begin], "little")
        raw = self._tables[begin : begin + (size & ~_STORED)]
        if not size & _STORED:
            return self._decompressor.decompress(raw, max_output_size=_META), at + 2 + size
        return raw, at + 2 + len(raw)

    def _indexed(self, at: int, size: int) -> bytes:
        """A table of so many bytes, by the list of its blocks."""
        return b"".join(self._metadata(self._pointer(at + 8 * number))[0] for number in range(-(-size // _META)))

    def _stream(self, at: int, end: int) -> tuple[bytes, dict[int, int]]:
        """A table between two places, and where in it each block begins, by its place in the file."""
        table, blocks, first = bytearray(), {}, at
        while at < end:
            blocks[at - first] = len(table)
            plain, at = self._metadata(at)
            table += plain
        return bytes(table), blocks

    def _tree(self, place: tuple[int, int]) -> Inode:
        inodes = {place: self._inode(place)}  # one for all hard links to it
        waiting = [inodes[place]]
        while waiting:
            directory = waiting.pop()
            at, end = directory.start, directory.start + directory.size
            while at < end:
                count, block, _ = _RUN.unpack_from(self._listings, at)
                at += _RUN.size
                for _ in range(count + 1):
                    offset, _, _, length = _ENTRY.unpack_from(self._listings, at)
                    begin, at = at + _ENTRY.size, at + _ENTRY.size + length + 1
                    inode = inodes.get((block, offset))
                    if inode is None:
                        inode = inodes[block, offset] = self._inode((block, offset))
                        if inode.kind == DIRECTORY:
                            waiting.append(inode)
                    elif inode.kind == DIRECTORY:
                        raise UnfitError("a directory is in two places")  # what walks it might not end
                    directory.entries[self._listings[begin:at]] = inode
        return inodes[place]

    def _inode(self, place: tuple[int, int]) -> Inode:
        at = self._inode_blocks[place[0]] + place[1]
        kind, mode, _, _, mtime, _ = _HEAD.unpack_from(self._inodes, at)
        fields = _FIELDS[kind].unpack_from(self._inodes, at + _HEAD.size)
        at += _HEAD.size + _FIELDS[kind].size
        inode = Inode(self, kind % _EXTENDED, mode, mtime)
        if inode.kind == DIRECTORY:
            if kind == DIRECTORY:
                block, _, size, offset, _ = fields
            else:
                _, size, block, _, _, offset, inode.xattr = fields
            inode.size = size - 3
            inode.start = self._listing_blocks[block] + offset if inode.size else 0
        elif inode.kind == FILE:
            if kind == FILE:
                inode.start, inode.fragment, inode.offset, inode.size = fields
            else:
                inode.start, inode.size, inode.sparse, _, inode.fragment, inode.offset, inode.xattr = fields
            room = self.form[0] - 1 if inode.fragment == NONE else 0
            inode.tail = self._inodes[at : at + (inode.size + room) // self.form[0] * 4]
        elif kind == SYMLINK:
            inode.tail = self._inodes[at : at + fields[1]]
        return inode


def walk(root: Inode) -> Iterator[tuple[bytes, Inode]]:
    """Everything below a directory, with its path."""
    waiting = [(b"", root)]
    while waiting:
        above, directory = waiting.pop()
        for name, inode in directory.entries.items():
            yield above + name, inode
            if inode.kind == DIRECTORY:
                waiting.append((above + name + b"/", inode))


def lay_over(lower: Inode, upper: Inode, names: Mapping[bytes, bool]) -> None:
    """Put ``upper``'s tree into ``lower``'s. names: paths that are as in ``upper``, there or not; whether what is below
    a directory is so, too.
    """
    for path, whole in names.items():
        *parents, name = path.split(b"/")
        above, there = lower.entries, upper.entries
        for part in parents:
            above, there = (each[part].entries if part in each else {} for each in (above, there))
        if whole or name not in there:
            above.pop(name, None)
    pairs = [(lower, upper)]
    while pairs:
        under, over = pairs.pop()
        under.of, under.mode, under.mtime, under.xattr = over.of, over.mode, over.mtime, over.xattr
        for name, inode in over.entries.items():
            known = under.entries.setdefault(name, inode)
            if known.kind == inode.kind == DIRECTORY and known is not inode:
                pairs.append((known, inode))
            else:
                under.entries[name] = inode


class _Table:
    """Metadata as they are written: blocks of at most 8 KiB, compressed where that makes them smaller."""

    def __init__(self, level: int) -> None:
        import zstandard

        self.blocks, self._open = bytearray(), bytearray()
        self._compressor = zstandard.ZstdCompressor(level)

    def place(self) -> tuple[int, int]:
        """Where the next byte goes: the block's place among those written, and the offset in it."""
        return len(self.blocks), len(self._open)

    def add(self, raw: bytes, *, end: bool = False) -> None:
        self._open += raw
        while len(self._open) >= _META or (end and self._open):
            plain = bytes(self._open[:_META])
            del self._open[:_META]
            packed = self._compressor.compress(plain)
            stored = len(packed) >= len(plain)
            self.blocks += struct.pack("<H", len(plain) | _STORED if stored else len(packed))
            self.blocks += plain if stored else packed


def write(
    out: Path, root: Inode, files: Sequence[Squashfs], level: int, epoch: int, check: Callable[[], None]
) -> tuple[list[int], str]:
    """Write a tree whose files' blocks lie in ``files``; returns how many bytes of each, and the new file's SHA-256. No
    time is after ``epoch``, which is the file's own, unless it is 0. check: is called once the file is complete, while
    it is hashed. UnfitError: the files differ in form, in more than one are attributes, or too much of what would be
    copied is of files that are no longer there.
    """
    inodes = _numbered(root, epoch)
    with_xattrs = [inode for inode in inodes if inode.xattr != NONE]
    holders = {inode.of for inode in with_xattrs}
    if len(holders) > 1 or any(inode.kind != FILE for inode in with_xattrs) or len({each.form for each in files}) != 1:
        raise UnfitError("different forms, or attributes in different places")  # or of something else than a file
    block, flags, options = files[0].form
    fragments: list[tuple[int, int, bytes]] = []
    ends, moved, taken = [SUPERBLOCK.size + len(options)], {}, []
    for file in files:
        moved[file], ranges = _placed(file, inodes, ends[-1], fragments, level)
        taken.append((file.file.fileno(), ranges))
        ends.append(ends[-1] + sum(length for _, length in ranges))
    table, listings = _Table(level), _Table(level)
    for directory in [inode for inode in reversed(inodes) if inode.kind == DIRECTORY]:
        for inode in directory.entries.values():
            if inode.place < (0, 0):  # directories have theirs
                inode.place = table.place()
                table.add(_written(inode, moved[inode.of]))
        packed = _listed(directory, listings)
        directory.place = table.place()
        table.add(packed)
    tail, starts, rows = bytearray(), [], bytearray()
    for start, size, anew in fragments:
        rows += struct.pack("<QII", ends[-1] + len(tail) if anew else start, size, 0)
        tail += anew
    for each in (table, listings):
        starts.append(ends[-1] + len(tail))
        each.add(b"", end=True)
        tail += each.blocks
    for raw in (bytes(rows), bytes(4)):  # and all owners: root
        table, pointers = _Table(level), []
        for cut in range(0, len(raw), _META):
            pointers.append(ends[-1] + len(tail) + len(table.blocks))
            table.add(raw[cut : cut + _META], end=True)
        tail += table.blocks
        starts.append(ends[-1] + len(tail))
        tail += struct.pack(f"<{len(pointers)}Q", *pointers)
    xattrs_at = _NO_TABLE
    for holder in holders:
        raw, xattrs_at = holder.xattrs(ends[-1] + len(tail))
        tail += raw
    used = ends[-1] + len(tail)
    fields = (len(inodes), epoch, block, len(fragments), _ZSTD, block.bit_length() - 1, flags, 1, 4, 0)
    inodes_at, listings_at, fragments_at, owners_at = starts
    places = (owners_at, xattrs_at, inodes_at, listings_at, fragments_at, _NO_TABLE)
    head = SUPERBLOCK.pack(MAGIC, *fields, root.place[0] << 16 | root.place[1], used, *places) + options
    tail += bytes(-used % 4096)
    return [end - start for start, end in pairwise(ends)], _written_out(out, head, taken, tail, check)


def _numbered(root: Inode, epoch: int) -> list[Inode]:
    """All inodes, directories before what is in them, with their numbers and links, and no time after the epoch."""
    inodes, waiting = [root], [root]
    root.number = 1
    while waiting:
        directory = waiting.pop()
        directory.entries = dict(sorted(directory.entries.items()))
        directory.links = 2 + sum(inode.kind == DIRECTORY for inode in directory.entries.values())
        for inode in directory.entries.values():
            inode.links += 1
            if not inode.number:
                inodes.append(inode)
                inode.number, inode.above = len(inodes), directory.number
                inode.mtime = min(inode.mtime, epoch or inode.mtime)
                if inode.kind == DIRECTORY:
                    waiting.append(inode)
    root.above = len(inodes) + 1
    return inodes


def _placed(
    file: Squashfs, inodes: Sequence[Inode], at: int, fragments: list[tuple[int, int, bytes]], level: int
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Where the blocks of a file that are in use go, from ``at`` on: by where they began, and by ~number the new number
    of each fragment; and where they lie, and how long they are, in this order. fragments: gets where each begins, its
    bytes as the table has them, and itself where it is packed anew.
    """
    live: dict[int, int] = {}
    parts: dict[int, dict[int, int]] = {}  # of each fragment in use: of what it holds the offset, and the bytes
    for inode in inodes:
        if inode.of is file and inode.kind == FILE:
            if length := sum(size & _SIZE for (size,) in struct.iter_unpack("<I", inode.tail)):
                live[inode.start] = max(length, live.get(inode.start, 0))
            if inode.fragment != NONE:
                parts.setdefault(inode.fragment, {})[inode.offset] = inode.size % file.form[0]
    anew, left = dict[int, tuple[int, bytes]](), _MOST_ANEW
    for number, held in parts.items():
        if packed := _without_gone(file, number, held, level):
            anew[number] = packed
            left -= len(packed[1])
            if left < 0:
                raise UnfitError("too much would be packed anew, as it lies beside files that are gone")
    live |= {file.fragments[number][0]: file.fragments[number][1] & _SIZE for number in parts.keys() - anew.keys()}
    ranges, moved = sorted(live.items()), {}
    for start, length in ranges:
        moved[start] = at
        at += length
    for number in sorted(parts):
        moved[~number] = len(fragments)
        start, size, _ = file.fragments[number]
        fragments.append((0, *anew[number]) if number in anew else (moved[start], size, b""))
    return moved, ranges


def _written_out(out: Path, head: bytes, taken: _Ranges, tail: bytearray, check: Callable[[], None]) -> str:
    """Write the file and check it; its SHA-256, of what lies in it then."""
    with out.open("w+b") as target, ThreadPoolExecutor(1) as pool:
        digest = hashlib.sha256(head)
        target.write(head)
        target.flush()
        try:
            parts = [pool.submit(_update, digest, target.fileno(), *part) for part in _copied(taken, target.fileno())]
            target.seek(0, os.SEEK_END)
            target.write(tail)
            target.flush()
            check()
            for part in parts:
                part.result()
        finally:
            pool.shutdown(cancel_futures=True)  # where it was interrupted
        digest.update(tail)
    return digest.hexdigest()


def _copied(taken: _Ranges, target: int) -> Iterator[tuple[int, int]]:
    """Append to ``target`` these ranges of each file; yields where in it, a large part at a time."""
    begin = now = os.lseek(target, 0, os.SEEK_CUR)
    for source, ranges in taken:
        for start, length in ranges:
            at, end = start, start + length
            while at < end:
                if not (sent := os.sendfile(target, source, at, min(end - at, _PART))):
                    raise UnfitError("it is shorter than its tables say")
                at, now = at + sent, now + sent
                if now - begin >= _PART:
                    yield begin, now
                    begin = now
    yield begin, now


def _update(digest: hashlib._Hash, file: int, at: int, end: int) -> None:
    """Feed what lies in the file now, from ``at`` to ``end``."""
    for start in range(at, end, _STEP):
        digest.update(os.pread(file, min(_STEP, end - start), start))


def _without_gone(file: Squashfs, number: int, parts: Mapping[int, int], level: int) -> tuple[int, bytes] | None:
    """A fragment's bytes as the table has them, and itself, packed anew with zeros for what is none of these ``parts``:
    they were of files that are gone, and are to be read nowhere. None where it holds no others.
    """
    import zstandard

    start, size, _ = file.fragments[number]
    is_stored = size > _SIZE
    head = os.pread(file.file.fileno(), 18, start)
    if sum(parts.values()) == (size & _SIZE if is_stored else zstandard.frame_content_size(head)):
        return None
    raw = os.pread(file.file.fileno(), size & _SIZE, start)
    plain = raw if is_stored else zstandard.ZstdDecompressor().decompress(raw, max_output_size=file.form[0])
    kept = bytearray(max(at + length for at, length in parts.items()))
    if len(kept) > len(plain):
        raise UnfitError("a fragment is shorter than its files")
    for at, length in parts.items():
        kept[at : at + length] = plain[at : at + length]
    packed = zstandard.ZstdCompressor(level).compress(kept)
    return (len(packed), packed) if len(packed) < len(kept) else (len(kept) | _SIZE + 1, bytes(kept))


def _packed(inode: Inode, kind: int, *fields: int) -> bytes:
    return _HEAD.pack(kind, inode.mode, 0, 0, inode.mtime, inode.number) + _FIELDS[kind].pack(*fields) + inode.tail


def _written(inode: Inode, moved: Mapping[int, int]) -> bytes:
    """An inode of anything but a directory."""
    if inode.kind == FIFO:
        return _packed(inode, FIFO, inode.links)
    if inode.kind == SYMLINK:
        return _packed(inode, SYMLINK, inode.links, len(inode.tail))
    start, fragment = moved.get(inode.start, 0), NONE if inode.fragment == NONE else moved[~inode.fragment]
    fields = (start, inode.size, inode.sparse, inode.links, fragment, inode.offset, inode.xattr)
    return _packed(inode, FILE + _EXTENDED, *fields)


def _listed(directory: Inode, listings: _Table) -> bytes:
    """Write a directory's entries, whose inodes have their places; returns its inode."""
    block, offset = listings.place()
    size, at, indexed, index = 0, 0, block, []  # by the index the kernel finds a name without reading all
    entries = list(directory.entries.items())
    while at < len(entries):
        name, first = entries[at]
        if (here := listings.place()[0]) != indexed:
            index.append(struct.pack("<III", size, here, len(name) - 1) + name)
            indexed = here
        run = []
        for name, inode in entries[at : at + 256]:
            step = inode.number - first.number
            if inode.place[0] != first.place[0] or not -0x8000 <= step < 0x8000:
                break
            run.append(_ENTRY.pack(inode.place[1], step, inode.kind, len(name) - 1) + name)
        raw = _RUN.pack(len(run) - 1, first.place[0], first.number) + b"".join(run)
        listings.add(raw)
        size, at = size + len(raw), at + len(run)
    directory.tail = b"".join(index)
    fields = (directory.links, size + 3, block, directory.above, len(index), offset, NONE)
    return _packed(directory, DIRECTORY + _EXTENDED, *fields)
