"""Tables for a terminal or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence

GAP = "  "
_NARROWEST = 20


def width_of_terminal(*, err: bool = False, at_least: int = 0) -> int | None:
    """Of the terminal that standard output, or standard error, goes to; None where it goes to none.

    Args:
        at_least: columns, also where the terminal has fewer.
    """
    import shutil  # takes longer to import than a short table to print

    return max(at_least, shutil.get_terminal_size().columns) if (sys.stderr if err else sys.stdout).isatty() else None


def wrapped(text: str, width: int | None, *, first: str = "", then: str = "") -> list[str]:
    """Text in lines of at most ``width``, as far as its words allow: what is copied from it, a command, stays whole.

    Args:
        width: None for one line of any width. first, then: what the first line and the others begin with.
    """
    import textwrap

    if width is None:
        return [f"{first}{text}"]
    return textwrap.wrap(
        text, max(width, _NARROWEST), initial_indent=first, subsequent_indent=then,
        break_long_words=False, break_on_hyphens=False,
    ) or [""]  # fmt: skip


def aligned(rows: Sequence[Mapping[str, str]], columns: Sequence[str], right: Collection[str] = ()) -> list[str]:
    """Lines of a table: the columns' names, then the rows.

    Args:
        right: columns whose cells are aligned to the right.
    """
    every = [dict(zip(columns, columns, strict=True)), *rows]
    widths = {name: max(len(row[name]) for row in every) for name in columns}
    return [
        GAP.join(
            row[name].rjust(widths[name]) if name in right else row[name].ljust(widths[name]) for name in columns
        ).rstrip()
        for row in every
    ]


def fitting(
    rows: Sequence[Mapping[str, str]],
    columns: Sequence[str],
    right: Collection[str],
    left_out: Sequence[str],
    width: int | None,
) -> list[str] | None:
    """The widest table that fits; None where even the narrowest does not.

    Args:
        left_out: columns that a narrow table leaves out, in this order. width: None for any.
    """
    kept = list(columns)
    for name in ("", *left_out):
        kept = [column for column in kept if column != name]
        table = aligned(rows, kept, right)
        if width is None or max(map(len, table)) <= width:
            return table
    return None
