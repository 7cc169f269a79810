"""Keys that a site file marks as unknown and does not give: those that a job needs (``# UNKNOWN key: how to find
out``), and those that have a default that will do (``# DEFAULT key: how to find out``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from runner.strict_yaml import Document

MARK = "# UNKNOWN"
DEFAULT = "# DEFAULT"
CONTINUED = "#   "  # starts each further line of a remark
_LINE = re.compile(rf"\s*(?P<mark>{MARK}|{DEFAULT})\s+(?P<key>[A-Za-z0-9_.-]+)\s*:?\s*(?P<how>.*)")
_FURTHER = re.compile(rf"\s*{CONTINUED}\s*(?P<how>\S.*)")


@dataclass(frozen=True)
class Unknown:
    """One key: its dotted path, ``FILE:LINE`` of its comment, how to find its value out, and whether jobs need it."""

    key: str
    where: str
    how: str
    needed: bool = True


def unknowns(documents: Iterable[Document]) -> tuple[Unknown, ...]:
    """All that files leave unknown, in their order.

    Args:
        documents: a site's file and those that it extends, the nearest first: a key that one of them marks as unknown
            is known where it, or one that extends it, gives the key.
    """
    given: set[tuple[str | int, ...]] = set()
    entries: list[Unknown] = []
    for document in documents:
        given |= set(document.marks)
        entries += [entry for entry in _marked(document) if tuple(entry.key.split(".")) not in given]
    return tuple(entries)


def _marked(document: Document) -> list[Unknown]:
    entries: list[Unknown] = []
    continued = False
    for number, line in enumerate(document.text.splitlines(), start=1):
        begins = _LINE.fullmatch(line)
        further = _FURTHER.fullmatch(line) if continued else None
        if begins:
            entries.append(Unknown(begins["key"], f"{document.name}:{number}", begins["how"], begins["mark"] == MARK))
        elif further:
            entries[-1] = replace(entries[-1], how=f"{entries[-1].how} {further['how']}")
        continued = bool(begins or further)
    return entries
