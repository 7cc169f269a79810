"""Replacing a file in one step: a reader sees the old content or the new, also after a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.files import process_identity
from runner.files.hashes import key_of

PRIVATE = 0o600


def temporary_name(path: Path) -> Path:
    """A hidden name beside ``path``, unique to this call; it ends in ``~MARK``, the mark of this process."""
    return path.with_name(f".{key_of(path.name)[:12]}~{process_identity.unique()}")


def owner(path: Path) -> str:
    """The mark of the process that writes under this temporary name; empty for any other file."""
    return path.name.rpartition("~")[2] if "~" in path.name else ""


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """A temporary name to write a file under; it takes the name ``path`` when the block ends, and goes if it fails.

    Raises:
        OSError: the disk is full, or the directory may not be written to; ``path`` is as it was.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def write(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace the content of a file; its directory exists. ``mode``: permissions; None leaves them to the umask.

    Raises:
        OSError: as ``replacement``.
    """
    with replacement(path) as temporary:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else PRIVATE)
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            file.write(content)


def write_private(path: Path, text: str) -> None:
    """Replace a text file that only its owner may read. Raises OSError as ``replacement``."""
    write(path, text.encode("utf-8", "surrogateescape"), mode=PRIVATE)


def sync_directory(path: Path) -> None:
    """Force the names in a directory to disk. Some network file systems cannot do it, and need not."""
    with suppress(OSError):  # a directory may be writable, and not readable
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
