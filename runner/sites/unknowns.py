"""What a site file leaves open: ``# UNKNOWN key: how to find out``, until the key stands in the file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runner import strict_yaml

MARK = "# UNKNOWN"
CONTINUED = "#   "  # begins the further lines of a remark
_LINE = re.compile(rf"\s*{MARK}\s+(?P<key>[A-Za-z0-9_.-]+)\s*:?\s*(?P<how>.*)")
_FURTHER = re.compile(rf"\s*{CONTINUED}\s*(?P<how>\S.*)")


@dataclass(frozen=True)
class Open:
    """One that is open: its dotted key, ``FILE:LINE`` of its comment, and how it is found out."""

    key: str
    where: str
    how: str


def left_open(paths: Iterable[Path]) -> tuple[Open, ...]:
    """All that files leave open, in their order.

    Args:
        paths: a site's file and those that it extends, the nearest first: what one of them leaves open is closed where
            it, or one that extends it, gives the key.

    Raises:
        UsageError: a file cannot be read, or is no YAML.
    """
    given: set[tuple[str | int, ...]] = set()
    found: list[Open] = []
    for path in paths:
        given |= set(strict_yaml.read(path).marks)
        found += [entry for entry in _marked(path) if tuple(entry.key.split(".")) not in given]
    return tuple(found)


def _marked(path: Path) -> list[Open]:
    lines = path.read_text("utf-8").splitlines()
    found: list[Open] = []
    goes_on = False
    for number, line in enumerate(lines, start=1):
        begins = _LINE.fullmatch(line)
        further = _FURTHER.fullmatch(line) if goes_on else None
        if begins:
            found.append(Open(begins["key"], f"{path}:{number}", begins["how"]))
        elif further:
            found[-1] = Open(found[-1].key, found[-1].where, f"{found[-1].how} {further['how']}")
        goes_on = bool(begins or further)
    return found
