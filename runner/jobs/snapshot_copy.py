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

import msgspec

from runner.core.errors import RefusedError
from runner.jobs.directory import CODE_FILES, Run
from runner.model.plan import COPY

MOST_BYTES = 2_000_000_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Snapshot:
    """What is to be copied.

    Attributes:
        top: of the repository. start: where the program starts, relative to the top; empty for the top itself.
        names: of the tracked files, relative to the top.
        first: the run whose copy is copied again; None for the user's own files.
        contents: name -> what it must have; empty for the user's own files.
        others: tracked files that are not copied: others have put them where all may write.
    """

    top: Path
    start: str
    names: tuple[str, ...]
    first: Run | None = None
    contents: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()


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
    links = []
    for name in snapshot.names:
        with suppress(OSError):
            if leads_out(name, str((snapshot.top / name).readlink())):
                links.append(name)
    return tuple(links)


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
            size, content = _copy_one(source, copied, name, left)
            if size > left:
                raise RefusedError(
                    f"the tracked files have more than {MOST_BYTES // 10**9} GB",
                    where=str(snapshot.top),
                    fix="keep data out of the repository, or leave out --snapshot",
                )
            if snapshot.contents and snapshot.contents.get(name) != (content or None):
                raise RefusedError(
                    "the copy that ran has changed since: a program or a person has written to it",
                    where=str(snapshot.top / name),
                    fix="--snapshot copies your code as it is now, --without snapshot runs it where it is",
                )
            left -= size
            if content:
                contents[name] = content
        with _parents(copied, _parts(f"{snapshot.start}/x"), make=True):
            pass  # the program's directory is there, even if it has no tracked file
    finally:
        os.close(source)
        os.close(copied)
    run.write(CODE_FILES, CopiedFiles(snapshot.start, contents))


def _copy_one(source: int, target: int, name: str, most: int) -> tuple[int, str]:
    """Copy a file or a link; returns its size in bytes and its content, as CopiedFiles has it; empty if not copied.

    Of a file with more than ``most`` bytes no more are written, and a greater size is returned.

    Raises:
        RefusedError: it cannot be read.
        OSError: the copy cannot be written.
    """
    parts = _parts(name)
    if not parts:
        return 0, ""
    link, opened = "", -1
    try:
        with _parents(source, parts, make=False) as folder:
            status = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                link = os.readlink(parts[-1], dir_fd=folder)
            elif stat.S_ISREG(status.st_mode):
                opened = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        # deleted, which git shows as a change; or a link stands where a directory was
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return 0, ""
        if error.errno != errno.EACCES:
            raise
        fix = "make it readable, or leave out --snapshot"
        raise RefusedError("a tracked file cannot be read: permission denied", where=name, fix=fix) from None
    if link and not leads_out(name, link):
        with _parents(target, parts, make=True) as into:
            os.symlink(link, parts[-1], dir_fd=into)
        return 0, f"link {link}"
    if opened < 0:
        return 0, ""
    with os.fdopen(opened, "rb") as reading, _parents(target, parts, make=True) as into:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        made = os.open(parts[-1], flags, 0o700 if status.st_mode & stat.S_IXUSR else 0o600, dir_fd=into)
        with os.fdopen(made, "wb") as writing:
            # All bytes, by their number and not by the size that was seen: a file may grow.
            size, digest = status.st_size if status.st_size > most else 0, hashlib.sha256()
            while size <= most and (chunk := reading.read(1 << 20)):
                size += len(chunk)
                digest.update(chunk)
                if size <= most:
                    writing.write(chunk)
            return size, digest.hexdigest()


@contextmanager
def _parents(top: int, parts: list[str], *, make: bool) -> Iterator[int]:
    """The directory that holds the last of the parts, by real directories only. Raises OSError: one is missing, or a
    link.
    """
    folder = os.dup(top)
    try:
        for part in parts[:-1]:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=folder)
            below = os.open(part, _DIRECTORY, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _parts(name: str) -> list[str]:
    """The components of a name; none for a name that leads elsewhere."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return [] if ".." in parts or name.startswith("/") else parts


def leads_out(name: str, link: str) -> bool:
    """Whether a link of that name leads out of the directory that names are relative to, or by an absolute path."""
    return link.startswith("/") or posixpath.normpath(posixpath.join(posixpath.dirname(name), link)).startswith("..")
