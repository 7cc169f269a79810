"""Directories that are made once in a test process and make_once again from memory after that."""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_MADE: dict[Hashable, tuple[object, dict[Path, tuple[int, bytes | None]]]] = {}


def make_once(path: Path, key: Hashable, fill: Callable[[], T]) -> T:
    """Make a directory and fill it; what ``fill`` leaves and returns depends on the key and on nothing else."""
    path.mkdir(parents=True)
    if key not in _MADE:
        result = fill()
        _MADE[key] = (
            result,
            {
                each.relative_to(path): (each.stat().st_mode & 0o777, each.read_bytes() if each.is_file() else None)
                for each in sorted(path.rglob("*"))
            },
        )
        return result
    result, files = _MADE[key]  # type: ignore[assignment]
    for name, (mode, content) in files.items():
        made = path / name
        if content is None:
            made.mkdir()
        else:
            made.write_bytes(content)
        made.chmod(mode)
    return result
