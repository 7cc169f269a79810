"""Files of an image that lies unpacked on this machine, by its own paths.

A link in an image may be absolute: out here it would lead to a file of this machine, which an image must neither read
nor change.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path


def own_file(root: Path, name: str) -> Path | None:
    """A file of the image below ``root``; None where it is none, or where a link is on the way."""
    path = _without_links(root, name)
    with suppress(OSError):
        if path is not None and stat.S_ISREG(path.lstat().st_mode):
            return path
    return None


def has_own_directory(root: Path, name: str) -> bool:
    """Whether the image has this directory, with no link on the way."""
    path = _without_links(root, name)
    with suppress(OSError):
        return path is not None and stat.S_ISDIR(path.lstat().st_mode)
    return False


def _without_links(root: Path, name: str) -> Path | None:
    path = root
    with suppress(OSError):
        for part in name.split("/"):
            if not stat.S_ISDIR(path.lstat().st_mode):
                return None
            path /= part
        return path
    return None
