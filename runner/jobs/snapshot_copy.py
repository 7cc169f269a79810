"""Copies tracked files into a run directory. A repository may be hostile: nothing is read or written through a link.

Names come from its index and may be any: each is opened component by component, without following links, and the copy's
directories are made by this module alone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from runner.core.errors import RefusedError
from runner.jobs.directory import CODE_FILES, Run
from runner.model.plan import COPY

MOST_BYTES = 2_000_000_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _TooMuchError(Exception):
    """A file has more bytes than may still be copied."""


@dataclass(frozen=True)
class Snapshot:
    """What is to be copied.

    Attributes:
        top: of the repository. start: where the program starts, relative to the top; empty for the top itself.
        names: of the tracked files, relative to the top.
        first: the run whose copy is copied again; None for the user's own files.
        contents: name -> what it must have; empty for the user's own files.
    """

    top: Path
    start: str
    names: tuple[str, ...]
    first: Run | None = None
    contents: Mapping[str, str] = field(default_factory=dict)


class CopiedFiles(msgspec.Struct, frozen=True):
    """The copy of a run, as it was made (``code-files.json``).

    Attributes:
        start: where the program starts, relative to the copy; empty for the copy itself.
        contents: name -> SHA-256 of a file, ``link TARGET`` of a link.
    """

    start: str
    contents: dict[str, str]


def left_out(snapshot: Snapshot) -> tuple[str, ...]:
    """The tracked links that lead out of the repository, or by an absolute path: the copy does not have them."""
    return tuple(name for name in snapshot.names if _leads_out(name, _target(snapshot.top / name)))


def copy(snapshot: Snapshot, run: Run) -> None:
    """Copy the tracked files as they are now; those that were deleted meanwhile, or are no files, are left out.

    Raises:
        RefusedError: they have more than MOST_BYTES bytes, one cannot be read, or has other contents than it must.
        OSError: the run directory cannot be written.
    """
    contents: dict[str, str] = {}
    target = run.path / COPY
    target.mkdir(mode=0o700)
    left = MOST_BYTES
    source = os.open(snapshot.top, _DIRECTORY)
    copied = os.open(target, _DIRECTORY)
    try:
        for name in snapshot.names:
            try:
                size, content = _copy_one(source, copied, name, left)
            except _TooMuchError:
                raise RefusedError(
                    f"the tracked files have more than {MOST_BYTES // 10**9} GB",
                    where=str(snapshot.top),
                    fix="keep data out of the repository, or leave out --snapshot",
                ) from None
            if snapshot.contents and snapshot.contents.get(name) != (content or None):
                raise _changed(name, snapshot)
            left -= size
            if content:
                contents[name] = content
        with _parents(copied, _parts(f"{snapshot.start}/x"), make=True):
            pass  # the program's directory is there, even if it has no tracked file
    finally:
        os.close(source)
        os.close(copied)
    run.write(CODE_FILES, CopiedFiles(snapshot.start, contents))


def _changed(name: str, snapshot: Snapshot) -> RefusedError:
    return RefusedError(
        "the copy that ran has changed since: a program or a person has written to it",
        where=str(snapshot.top / name),
        fix="--snapshot copies your code as it is now, --without snapshot runs it where it is",
    )


def _copy_one(source: int, target: int, name: str, most: int) -> tuple[int, str]:  # noqa: PLR0911 (one for each reason to copy nothing)
    """Copy a file or a link; returns its size in bytes and its content, as CopiedFiles has it; empty if not copied.

    Raises:
        _TooMuchError: it has more than ``most`` bytes; no more of them were written.
        RefusedError: it cannot be read.
        OSError: the copy cannot be written.
    """
    parts = _parts(name)
    if not parts:
        return 0, ""
    try:
        with _parents(source, parts, make=False) as folder:
            status = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                link = os.readlink(parts[-1], dir_fd=folder)
                if not _leads_out(name, link):
                    with _parents(target, parts, make=True) as into:
                        os.symlink(link, parts[-1], dir_fd=into)
                    return 0, f"link {link}"
                return 0, ""
            if not stat.S_ISREG(status.st_mode):
                return 0, ""
            opened = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return 0, ""  # deleted, which git shows as a change; or a link stands where a directory was
    except OSError as error:
        if error.errno == errno.ELOOP:
            return 0, ""
        if error.errno != errno.EACCES:
            raise
        raise RefusedError(
            "a tracked file cannot be read: permission denied",
            where=name,
            fix="make it readable, or leave out --snapshot",
        ) from None
    with os.fdopen(opened, "rb") as reading, _parents(target, parts, make=True) as into:
        mode = 0o700 if status.st_mode & stat.S_IXUSR else 0o600
        made = os.open(
            parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=into
        )
        with os.fdopen(made, "wb") as writing:
            return _copy_bytes(reading, writing, most)


def _copy_bytes(reading: BinaryIO, writing: BinaryIO, most: int) -> tuple[int, str]:
    """Copy all bytes, by their number and not by the size that was seen: a file may grow. Returns number and hash."""
    if os.fstat(reading.fileno()).st_size > most:
        raise _TooMuchError
    copied, digest = 0, hashlib.sha256()
    while chunk := reading.read(1 << 20):
        copied += len(chunk)
        if copied > most:
            raise _TooMuchError
        digest.update(chunk)
        writing.write(chunk)
    return copied, digest.hexdigest()


@contextmanager
def _parents(top: int, parts: list[str], *, make: bool) -> Iterator[int]:
    """The directory that holds the last of the parts, by real directories only.

    Raises:
        OSError: one is missing, or a link.
    """
    folder = os.dup(top)
    try:
        for part in parts[:-1]:
            if make:
                _make(part, folder)
            below = os.open(part, _DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _make(part: str, folder: int) -> None:
    with suppress(FileExistsError):
        os.mkdir(part, 0o700, dir_fd=folder)


def _parts(name: str) -> list[str]:
    """The components of a name; none for a name that leads elsewhere."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return [] if ".." in parts or name.startswith("/") else parts


def _target(path: Path) -> str:
    """What a link says; empty where there is none."""
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _leads_out(name: str, link: str) -> bool:
    """Whether a link of that name leads out of the repository, or by an absolute path."""
    if not link:
        return False
    return link.startswith("/") or posixpath.normpath(posixpath.join(posixpath.dirname(name), link)).startswith("..")
