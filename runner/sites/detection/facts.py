"""Facts, unknowns and remarks for a site file."""

from __future__ import annotations

import re
from dataclasses import dataclass

Value = str | int | bool | None | list[str] | list[list[str]] | dict[str, str] | dict[str, dict[str, int]]


@dataclass(frozen=True)
class Fact:
    """One value of a site file.

    Attributes:
        key: dotted, as in the file (``node.gpus``).
        source: the command that printed it, and the day.
    """

    key: str
    value: Value
    source: str


@dataclass(frozen=True)
class Unknown:
    """A key whose value is unknown here; ``how`` to find it out. ``needed``: no job can be planned by the default."""

    key: str
    how: str
    needed: bool = False


@dataclass(frozen=True)
class Note:
    """A remark that stands above a key in the file."""

    key: str
    text: str


Entry = Fact | Unknown | Note


def seconds(clock: str) -> int | None:
    """Slurm's ``[days-]hours:minutes:seconds`` and PBS's ``hours:minutes:seconds``; None for no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+)(?::(\d+))?", clock)
    if not found:
        return None
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[4] is None and not found[1]:
        return first * 60 + second
    return ((days * 24 + first) * 60 + second) * 60 + third


def natural(text: str) -> int | None:
    """A number above zero; None for anything else (``UNLIMITED``, ``N/A``, ``0``)."""
    return int(text) or None if re.fullmatch(r"\d{1,12}", text) else None
