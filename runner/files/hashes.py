"""Hashes of bytes and files, and keys of cached things: a hash of everything that goes into them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

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
