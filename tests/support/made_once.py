"""Directories that are made once in a test process and filled again from memory after that."""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar, cast

T = TypeVar("T")
_MADE: dict[Hashable, tuple[Any, dict[Path, tuple[int, bytes | None]]]] = {}


def made_once(path: Path, key: Hashable, fill: Callable[[], T]) -> T:
    """Make a directory and fill it; what ``fill`` leaves and returns depends on the key and on nothing else."""
    path.mkdir(parents=True)
    if key not in _MADE:
        returned = fill()
        _MADE[key] = (
            returned,
            {
                each.relative_to(path): (each.stat().st_mode & 0o777, each.read_bytes() if each.is_file() else None)
                for each in sorted(path.rglob("*"))
            },
        )
        return returned
    again, files = _MADE[key]
    for name, (mode, content) in files.items():
        made = path / name
        if content is None:
            made.mkdir()
        else:
            made.write_bytes(content)
        made.chmod(mode)
    return cast("T", again)
