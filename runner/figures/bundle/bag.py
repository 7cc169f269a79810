"""A bundle's file: one gzip-compressed tar archive of fixed form that holds a bag (RFC 8493), and what may be in it."""

from __future__ import annotations

import errno
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from runner.core.errors import NotProvenError
from runner.core.files import Folder, sha256

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


DATA, INFO = "data/", "bag-info.txt"
MANIFEST, TAG_MANIFEST = "manifest-sha256.txt", "tagmanifest-sha256.txt"
SIGNATURE = f"{TAG_MANIFEST}.sig"


def tag_files(payload: Mapping[str, str], size: int) -> dict[str, bytes]:
    """The tag files of a bag: ``payload`` is name below ``data/`` -> SHA-256, and ``size`` that of all of them."""
    about = f"External-Description: gpu-runner bundle\nPayload-Oxum: {size}.{len(payload)}\n"
    tags = {
        "bagit.txt": b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n",
        INFO: about.encode("ascii"),
        MANIFEST: _manifest({f"{DATA}{name}": digest for name, digest in payload.items()}),
    }
    return tags | {TAG_MANIFEST: _manifest({name: sha256(content) for name, content in tags.items()})}


def check(payload: Mapping[str, str], size: int, tags: Mapping[str, bytes]) -> None:
    """Compare a bag's tag files with what they must be.

    Raises:
        NotProvenError: they are not; names the file that was altered, added or removed, where the manifest says which.
    """
    expected = tag_files(payload, size)
    for name in sorted({*tags, *expected}, key=lambda name: (name != MANIFEST, name)):
        if name == SIGNATURE or tags.get(name) == expected.get(name):
            continue
        where = name
        if name == MANIFEST and name in tags:
            given, wanted = _digests(tags[name]), _digests(expected[name])
            where = next((each for each in sorted({*given, *wanted}) if given.get(each) != wanted.get(each)), name)
        how = "is missing" if name not in tags else "does not belong in a bundle" if name not in expected else ""
        raise NotProvenError(f"the bundle was altered: {where} {how or 'is not what its hash says'}", where=where)


def _manifest(digests: Mapping[str, str]) -> bytes:
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests)).encode("ascii")


def _digests(manifest: bytes) -> dict[str, str]:
    pairs = (line.partition("  ") for line in manifest.decode("ascii", "replace").splitlines())
    return {name: digest for digest, _, name in pairs}


# The user's uncommitted changes (code.diff), the program and the ranks' output stay where they are.
_FILES = frozenset(
    (
        "plan.json", "job.sh", "job.json", "provenance.json", "command.json", "code.json", "versions", "nodes",
        "exit.json", "ended.json", "cancelled.json", "result.json", "verdict.json", "logs/batch.err",
    )
)  # fmt: skip
_RECORD = re.compile(r"ranks/(0|[1-9][0-9]{0,8})\.[a-z-]{1,20}\.json\Z", re.ASCII)
_NCCL = re.compile(r"nccl/[A-Za-z0-9_-][A-Za-z0-9._-]{0,95}\.log\Z", re.ASCII)
LEAST_FILES = frozenset(("plan.json", "job.sh", "job.json", "verdict.json"))  # that every run has
_NO_FILE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.ENXIO)  # none, a link, a pipe
_NCCL_BYTES = 1 << 19  # of each log, as the verdict reads it
_ERROR_BYTES = 50_000  # of the end of the script's log, as the verdict reads it


def is_member(name: str) -> bool:
    """Whether a bundle may have a run's file of this name."""
    return name in _FILES or _RECORD.match(name) is not None or _NCCL.match(name) is not None


def files_of(run: Folder) -> Iterator[tuple[str, bytes]]:
    """The files of a run directory that go into a bundle, by name; of logs what the verdict reads."""
    names = list(_FILES)
    for folder in ("ranks", "nccl"):
        names += [f"{folder}/{name}" for name in run.names_in(folder)]
    for name in sorted(filter(is_member, names)):
        try:
            file = run.open(name)
        except OSError as error:
            if error.errno in _NO_FILE:
                continue
            raise
        with file:
            size = os.fstat(file.fileno()).st_size
            if name == "logs/batch.err" and size > _ERROR_BYTES:
                file.seek(-_ERROR_BYTES, os.SEEK_END)
            content = file.read(_NCCL_BYTES if name.startswith("nccl/") else _MOST_BYTES)
        # Without the line that was cut: in a part of it no secret would be known.
        if name.startswith("nccl/") and size > _NCCL_BYTES:
            content = content[: content.rfind(b"\n") + 1]
        elif name == "logs/batch.err" and size > _ERROR_BYTES:
            content = content[content.find(b"\n") + 1 :]
        yield name, content
