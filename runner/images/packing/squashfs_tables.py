"""The tables of a squashfs 4.0, read into a tree of inodes, and written anew over compressed blocks that are copied.

Only what ``Packing`` makes of an image is read: zstd, everything root's, no devices, no table for NFS exports. The
format: Linux, fs/squashfs/squashfs_fs.h and Documentation/filesystems/squashfs.rst.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import zstandard

MAGIC = b"hsqs"
# Magic, inodes, time, block size, fragments, compressor, log of the block size, flags, owners, version, root inode,
# bytes used; where the tables begin: owners, attributes, inodes, directories, fragments, exports.
SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQQQQQQQ")
DIRECTORY, FILE, SYMLINK, FIFO = 1, 2, 3, 6
_EXTENDED = 7  # is added to the type of an inode with more fields
NONE = 0xFFFFFFFF
_NO_TABLE = (1 << 64) - 1
_ZSTD, _HAS_OPTIONS = 6, 0x400
_META = 8192
_HEAD = struct.Struct("<HHHHII")  # type, mode, owner, group, time, number
_RUN = struct.Struct("<III")  # entries less one, block of their inodes, number of the first inode
_ENTRY = struct.Struct(
    "<HhHH"
)  # offset of the inode in its block, number less the run's, type, bytes of the name less one
_STORED, _SIZE = 1 << 24, (1 << 24) - 1  # of the size of a block of data: whether it is not compressed, its bytes


class UnfitError(Exception):
    """This file has something that is not read or written here; the message is what."""


@dataclass(eq=False, slots=True)
class Inode:
    """mtime: seconds since the epoch. xattr: number of its attributes in its own file's table. tail: the sizes of a
    file's blocks, or the target of a link. entries: of a directory. number, links, place: as they are written.
    """

    of: Squashfs
    kind: int
    mode: int
    mtime: int
    xattr: int = NONE
    start: int = 0
    size: int = 0
    sparse: int = 0
    fragment: int = NONE
    offset: int = 0
    tail: bytes = b""
    entries: dict[bytes, Inode] = field(default_factory=dict)
    number: int = 0
    links: int = 0
    place: tuple[int, int] = (-1, -1)


class Squashfs:
    """A file that stays open, and its tree. UnfitError: it holds something else than the head of this module says."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.descriptor = os.dup(file.fileno())
        try:
            self._read()
        except (struct.error, KeyError, IndexError, zstandard.ZstdError) as error:
            self.close()
            raise UnfitError(f"its tables make no sense ({error})") from error
        except UnfitError:
            self.close()
            raise

    def close(self) -> None:
        os.close(self.descriptor)

    def _read(self) -> None:
        head = SUPERBLOCK.unpack(os.pread(self.descriptor, SUPERBLOCK.size, 0))
        magic, _, self.time, self.block, fragments, compressor, _, flags, owners, major, minor, root, used = head[:13]
        owners_at, self._xattrs_at, self._inodes_at, directories_at, fragments_at, exports_at = head[13:]
        known = (MAGIC, _ZSTD, 4, 0, 1, _NO_TABLE)
        if (magic, compressor, major, minor, owners, exports_at) != known:
            raise UnfitError("another form of squashfs")
        self._tables = os.pread(self.descriptor, used - self._inodes_at, self._inodes_at)
        options = os.pread(self.descriptor, 2, SUPERBLOCK.size) if flags & _HAS_OPTIONS else b""
        length = 2 + (int.from_bytes(options, "little") & 0x7FFF) if options else 0
        options = os.pread(self.descriptor, length, SUPERBLOCK.size)
        self.form = (self.block, flags, options)  # what two files must share to be written into one
        if self._indexed(owners_at, 4) != bytes(4):
            raise UnfitError("owners other than root")
        raw = self._indexed(fragments_at, 16 * fragments)
        self.fragments = [(start, size) for start, size, _ in struct.iter_unpack("<QII", raw)]
        self._inodes, self._inode_blocks = self._stream(self._inodes_at, directories_at)
        end = self._pointer(fragments_at) if fragments else fragments_at
        self._listings, self._listing_blocks = self._stream(directories_at, end)
        self.root = self._tree((root >> 16, root & 0xFFFF))

    def xattrs(self, at: int) -> tuple[bytes, int]:
        """The table of attributes as it is written at another place, and where its head is then."""
        first = self._pointer(self._xattrs_at)
        head = self._xattrs_at - self._inodes_at
        (count,) = struct.unpack_from("<I", self._tables, head + 8)
        blocks = range(head + 16, head + 16 + 8 * -(-16 * count // _META), 8)
        pointers = [struct.unpack_from("<Q", self._tables, each)[0] + at - first for each in blocks]
        raw = struct.pack(f"<QII{len(pointers)}Q", at, count, 0, *pointers)
        return self._tables[first - self._inodes_at : head] + raw, at + self._xattrs_at - first

    def _pointer(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self._tables, at - self._inodes_at)[0])

    def _metadata(self, at: int) -> tuple[bytes, int]:
        """A block of metadata, and where the next one begins."""
        at -= self._inodes_at
        (head,) = struct.unpack_from("<H", self._tables, at)
        end = at + 2 + (head & 0x7FFF)
        raw = self._tables[at + 2 : end]
        plain = raw if head & 0x8000 else zstandard.ZstdDecompressor().decompress(raw, max_output_size=_META)
        return plain, end + self._inodes_at

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
        inodes: dict[tuple[int, int], Inode] = {}  # one for all hard links to it
        root = self._inode(place)
        waiting = [root]
        while waiting:
            directory = waiting.pop()
            at = directory.start
            while at < directory.start + directory.size:
                count, block, _ = _RUN.unpack_from(self._listings, at)
                at += _RUN.size
                for _ in range(count + 1):
                    offset, _, _, length = _ENTRY.unpack_from(self._listings, at)
                    at += _ENTRY.size
                    name = self._listings[at : at + length + 1]
                    at += length + 1
                    inode = inodes.get((block, offset))
                    if inode is None:
                        inode = inodes[block, offset] = self._inode((block, offset))
                        if inode.kind == DIRECTORY:
                            waiting.append(inode)
                    directory.entries[name] = inode
        return root

    def _inode(self, place: tuple[int, int]) -> Inode:
        table = self._inodes
        at = self._inode_blocks[place[0]] + place[1]
        kind, mode, _, _, mtime, _ = _HEAD.unpack_from(table, at)
        at += _HEAD.size
        inode = Inode(self, kind - _EXTENDED if kind > _EXTENDED else kind, mode, mtime)
        if inode.kind == FILE:
            if kind == FILE:
                inode.start, inode.fragment, inode.offset, inode.size = struct.unpack_from("<IIII", table, at)
                at += 16
            else:
                inode.start, inode.size, inode.sparse, _, inode.fragment, inode.offset, inode.xattr = (
                    struct.unpack_from("<QQQIIII", table, at)
                )
                at += 40
            blocks = inode.size // self.block if inode.fragment != NONE else -(-inode.size // self.block)
            inode.tail = table[at : at + 4 * blocks]
        elif kind == DIRECTORY:
            block, _, size, offset, _ = struct.unpack_from("<IIHHI", table, at)
            inode.start, inode.size = self._listing(block, offset, size)
        elif inode.kind == DIRECTORY:
            _, size, block, _, _, offset, inode.xattr = struct.unpack_from("<IIIIHHI", table, at)
            inode.start, inode.size = self._listing(block, offset, size)
        elif kind in (SYMLINK, FIFO):
            if kind == SYMLINK:
                _, length = struct.unpack_from("<II", table, at)
                inode.tail = table[at + 8 : at + 8 + length]
        else:  # with attributes, too, as no image's are packed
            raise UnfitError(f"an inode of type {kind}")
        return inode

    def _listing(self, block: int, offset: int, size: int) -> tuple[int, int]:
        """Where a directory's entries lie in the table, and how many bytes they have; three stand for . and .. ."""
        return (self._listing_blocks[block] + offset, size - 3) if size > 3 else (0, 0)


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
        above: Inode | None = lower
        there: Inode | None = upper
        for part in parents:
            above = above and above.entries.get(part)
            there = there and there.entries.get(part)
        if above is not None and (whole or there is None or name not in there.entries):
            above.entries.pop(name, None)
    pairs = [(lower, upper)]
    while pairs:
        under, over = pairs.pop()
        under.of, under.mode, under.mtime, under.xattr = over.of, over.mode, over.mtime, over.xattr
        for name, inode in over.entries.items():
            known = under.entries.get(name)
            if known is not None and known.kind == inode.kind == DIRECTORY:
                pairs.append((known, inode))
            else:
                under.entries[name] = inode


class _Table:
    """Metadata as it is written: blocks of at most 8 KiB, compressed where that makes them smaller."""

    def __init__(self, level: int) -> None:
        self.blocks = bytearray()
        self._open = bytearray()
        self._compressor = zstandard.ZstdCompressor(level)

    def place(self) -> tuple[int, int]:
        """Where the next byte goes: the block's place among those written, and the offset in it."""
        return len(self.blocks), len(self._open)

    def add(self, raw: bytes) -> None:
        self._open += raw
        while len(self._open) >= _META:
            self._close()

    def finished(self) -> bytes:
        if self._open:
            self._close()
        return bytes(self.blocks)

    def _close(self) -> None:
        raw = bytes(self._open[:_META])
        del self._open[:_META]
        packed = self._compressor.compress(raw)
        stored = len(packed) >= len(raw)
        self.blocks += struct.pack("<H", len(raw) | 0x8000 if stored else len(packed)) + (raw if stored else packed)


def write(out: Path, root: Inode, files: Sequence[Squashfs], *, level: int, epoch: int) -> list[int]:
    """Write a tree whose files' blocks lie in ``files``; returns how many bytes of each. No time is after ``epoch``,
    which is the file's own, unless it is 0.

    Raises:
        UnfitError: the files differ in form, or more than one has attributes in use.
    """
    if len({file.form for file in files}) != 1:
        raise UnfitError("different forms")
    block, flags, options = files[0].form
    inodes, parents = _numbered(root)
    holders = {inode.of for inode in inodes if inode.xattr != NONE}
    if len(holders) > 1 or any(inode.xattr != NONE and inode.kind != FILE for inode in inodes):
        raise UnfitError("attributes in more than one file, or of what is no file")
    with out.open("wb") as target:
        target.write(bytes(SUPERBLOCK.size) + options)
        target.flush()
        fragments: list[bytes] = []
        ends, moved = [target.tell()], {}
        for file in files:
            moved[file] = _copied(file, inodes, target.fileno(), fragments)
            ends.append(target.seek(0, os.SEEK_END))
        inode_table, listings = _Table(level), _Table(level)
        for directory in [inode for inode in reversed(inodes) if inode.kind == DIRECTORY]:
            for inode in directory.entries.values():
                if inode.kind != DIRECTORY and inode.place < (0, 0):
                    inode.place = inode_table.place()
                    inode_table.add(_packed(inode, moved[inode.of], epoch))
            packed = _listed(directory, listings, parents.get(directory, len(inodes) + 1), epoch)
            directory.place = inode_table.place()
            inode_table.add(packed)
        starts = [ends[-1]]
        for part in (inode_table.finished(), listings.finished()):
            starts.append(starts[-1] + target.write(part))
        places = []
        for raw in (b"".join(fragments), bytes(4)):  # all owners are root
            table, pointers = _Table(level), []
            for cut in range(0, len(raw), _META):
                pointers.append(target.tell() + len(table.blocks))
                table.add(raw[cut : cut + _META])
                table.finished()
            target.write(table.blocks)
            places.append(target.tell())
            target.write(struct.pack(f"<{len(pointers)}Q", *pointers))
        xattrs_at = _NO_TABLE
        for holder in holders:
            raw, xattrs_at = holder.xattrs(target.tell())
            target.write(raw)
        used = target.tell()
        target.write(bytes(-used % 4096))
        head = (MAGIC, len(inodes), epoch, block, len(fragments), _ZSTD, block.bit_length() - 1, flags, 1)
        tables = (places[1], xattrs_at, starts[0], starts[1], places[0], _NO_TABLE)
        target.seek(0)
        target.write(SUPERBLOCK.pack(*head, 4, 0, root.place[0] << 16 | root.place[1], used, *tables))
    return [end - start for start, end in pairwise(ends)]


def _numbered(root: Inode) -> tuple[list[Inode], dict[Inode, int]]:
    """All inodes, each with its number and links, directories before what is in them; the number above each one."""
    inodes, parents = [root], {}
    root.number = 1
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        directory.entries = dict(sorted(directory.entries.items()))
        directory.links = 2
        for inode in directory.entries.values():
            if inode.kind == DIRECTORY:
                directory.links += 1
                parents[inode] = directory.number
                waiting.append(inode)
            inode.links += 1
            if not inode.number:
                inodes.append(inode)
                inode.number = len(inodes)
    return inodes, parents


def _copied(file: Squashfs, inodes: Sequence[Inode], target: int, fragments: list[bytes]) -> dict[int, int]:
    """Copy the blocks of a file that are in use; where those that began at a place went, and by ~number the new number
    of each fragment.
    """
    live: dict[int, int] = {}
    used = set()
    for inode in inodes:
        if inode.of is file and inode.kind == FILE:
            sizes = struct.unpack(f"<{len(inode.tail) // 4}I", inode.tail)
            if length := sum(size & _SIZE for size in sizes):
                live[inode.start] = max(length, live.get(inode.start, 0))
            if inode.fragment != NONE:
                used.add(inode.fragment)
    live |= {file.fragments[number][0]: file.fragments[number][1] & _SIZE for number in used}
    moved: dict[int, int] = {}
    runs: list[list[int]] = []
    at = os.lseek(target, 0, os.SEEK_END)
    for start, length in sorted(live.items()):
        if not runs or start > runs[-1][1]:
            at += runs[-1][1] - runs[-1][0] if runs else 0
            runs.append([start, start + length])
        runs[-1][1] = max(runs[-1][1], start + length)
        moved[start] = at + start - runs[-1][0]
    for start, end in runs:
        left = end - start
        while left and (sent := os.sendfile(target, file.descriptor, end - left, left)):
            left -= sent
    for number in sorted(used):
        start, size = file.fragments[number]
        moved[~number] = len(fragments)
        fragments.append(struct.pack("<QII", moved[start], size, 0))
    return moved


def _head(kind: int, inode: Inode, epoch: int) -> bytes:
    return _HEAD.pack(kind, inode.mode, 0, 0, min(inode.mtime, epoch or inode.mtime), inode.number)


def _packed(inode: Inode, moved: Mapping[int, int], epoch: int) -> bytes:
    """An inode of anything but a directory."""
    if inode.kind == FIFO:
        return _head(FIFO, inode, epoch) + struct.pack("<I", inode.links)
    if inode.kind == SYMLINK:
        return _head(SYMLINK, inode, epoch) + struct.pack("<II", inode.links, len(inode.tail)) + inode.tail
    start = moved.get(inode.start, 0)
    fragment = moved[~inode.fragment] if inode.fragment != NONE else NONE
    plain = inode.links == 1 and inode.xattr == NONE and not inode.sparse and max(start, inode.size) <= NONE
    if plain:
        fields = struct.pack("<IIII", start, fragment, inode.offset, inode.size)
        return _head(FILE, inode, epoch) + fields + inode.tail
    numbers = (start, inode.size, inode.sparse, inode.links, fragment, inode.offset, inode.xattr)
    return _head(FILE + _EXTENDED, inode, epoch) + struct.pack("<QQQIIII", *numbers) + inode.tail


def _listed(directory: Inode, listings: _Table, parent: int, epoch: int) -> bytes:
    """Write a directory's entries, whose inodes have their places; returns its inode."""
    block, offset = listings.place()
    size, indexed = 0, block
    index: list[bytes] = []
    entries = list(directory.entries.items())
    at = 0
    while at < len(entries):
        name, first = entries[at]
        if (here := listings.place()[0]) != indexed:  # by these the kernel finds a name without reading all
            index.append(struct.pack("<III", size, here, len(name) - 1) + name)
            indexed = here
        run = []
        for name, inode in entries[at : at + 256]:
            if inode.place[0] != first.place[0] or not -0x8000 <= inode.number - first.number <= 0x7FFF:
                break
            run.append(_ENTRY.pack(inode.place[1], inode.number - first.number, inode.kind, len(name) - 1) + name)
        raw = _RUN.pack(len(run) - 1, first.place[0], first.number) + b"".join(run)
        listings.add(raw)
        size, at = size + len(raw), at + len(run)
    if size + 3 <= 0xFFFF and not index:
        fields = struct.pack("<IIHHI", block, directory.links, size + 3, offset, parent)
        return _head(DIRECTORY, directory, epoch) + fields
    fields = struct.pack("<IIIIHHI", directory.links, size + 3, block, parent, len(index), offset, NONE)
    return b"".join((_head(DIRECTORY + _EXTENDED, directory, epoch), fields, *index))
