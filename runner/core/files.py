"""Files: their hashes, and replacing one in one step: readers see the old or the new content, also after a crash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.core import process_identity

KEY_DIGITS = 24
_CACHES = frozenset(("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"))  # directories


def key_of(*parts: str) -> str:
    """Hash of the parts in their order, 24 hex digits; ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()[:KEY_DIGITS]


def tree_hash(files: Iterable[tuple[str, Path]]) -> str:
    """Hash of names, permission to execute, and contents; the order given does not matter."""
    lines = []
    for name, path in files:
        mode = "x" if os.access(path, os.X_OK) else "-"
        lines.append(f"{name}\0{mode}\0{sha256(path.read_bytes())}")
    return key_of(*sorted(lines))


def files_below(root: Path) -> list[tuple[str, Path]]:
    """(name relative to ``root`` with ``/``, path) of every file, sorted; caches of Python's tools are left out."""
    files = ((path.relative_to(root), path) for path in root.rglob("*") if path.is_file())
    return sorted((name.as_posix(), path) for name, path in files if _CACHES.isdisjoint(name.parts))


def sha256(content: bytes | Path) -> str:
    """SHA-256 of these bytes, or of a file's, hex."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256()
    with content.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


PRIVATE = 0o600


def temporary_name(path: Path) -> Path:
    """A hidden name beside ``path``, unique to this call; it ends in ``~MARK``, the mark of this process."""
    return path.with_name(f".{key_of(path.name)[:12]}~{process_identity.unique()}")


def temporary_owner(path: Path) -> str:
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
