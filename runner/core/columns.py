"""Tables: columns are declared once, and rendered for a terminal, for a page, and as CSV. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Generic, TypeVar, cast

from runner.core.text import DASH, plain, printable

Cell = str | int | float | bool | None
Row = TypeVar("Row")
GAP = "  "


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column.

    Attributes:
        head: its name for people; empty where only programs want it.
        text: a row's cell for people, empty where there is nothing; by default the first value.
        values: the columns of CSV that it makes: name -> attribute of the row or of a part of it (``rate.low``), or a
            function of the row. Attributes of the column's own name may be named alone, with blanks between.
        right: numbers, which a terminal aligns to the right.
        leave: which column a narrow terminal leaves out first: that of the greatest number; 0: never.
    """

    head: str
    text: Callable[[Row], str] | None = None
    values: str | Mapping[str, str | Callable[[Row], Cell]] = ""
    right: bool = False
    leave: int = 0

    def cell(self, row: Row) -> str:
        """The cell for people."""
        if self.text is not None:
            return self.text(row)
        value = next((of(row) for _, of in self.csv_values()), None)
        return "" if value is None else str(value)

    def csv_values(self) -> list[tuple[str, Callable[[Row], Cell]]]:
        """Name and value of each column of CSV."""
        named = self.values if isinstance(self.values, Mapping) else {name: name for name in self.values.split()}
        return [(name, _attribute(of) if isinstance(of, str) else of) for name, of in named.items()]


def _attribute(path: str) -> Callable[[Row], Cell]:
    """An attribute of a row, or of a part of it; None where the part is not there."""
    return lambda row: reduce(lambda part, name: getattr(part, name, None), path.split("."), cast(Any, row))


@dataclass(frozen=True)
class Table:
    """What a page shows in words and numbers: all rows have as many cells as the head."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def for_page(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> Table:
    """The table of a page, without columns that are empty in every row."""
    shown = _filled(columns, rows)
    return Table(
        tuple(column.head for column, _ in shown),
        tuple(tuple(cell or DASH for cell in line) for line in zip(*(cells for _, cells in shown), strict=True)),
    )


def as_html(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> str:
    """The table of a notebook's cell; every text is escaped."""
    from html import escape

    table = for_page(columns, rows)
    lines = [("th", table.head), *(("td", row) for row in table.rows)]
    made = ("".join(f"<{tag}>{escape(printable(cell))}</{tag}>" for cell in cells) for tag, cells in lines)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in made)}</table>"


def for_terminal(
    columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None = None, *, whole: bool = False
) -> list[str] | None:
    """The widest table that fits: names of columns, then rows; None where even the narrowest does not.

    Args:
        width: None for any. whole: with columns that are empty in every row.
    """
    kept = _filled(columns, rows, keep_empty=whole)
    while True:
        lines = _aligned(kept)
        if width is None or max(map(len, lines)) <= width:
            return lines
        worst = max((column.leave for column, _ in kept), default=0)
        if not worst:
            return None
        kept = [each for each in kept if each[0].leave != worst]


def lines_of(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None) -> list[str]:
    """The table of a terminal; where it does not fit, each row in lines of its own: every cell after its head."""
    table = for_terminal(columns, rows, width)
    if table is not None:
        return table
    import textwrap

    filled = _filled(columns, rows)
    heads = [f"{column.head} " if place or column.right else "" for place, (column, _) in enumerate(filled)]
    lines: list[str] = []
    for cells in zip(*(cells for _, cells in filled), strict=True):
        parts = [f"{head}{plain(cell)}" for head, cell in zip(heads, cells, strict=True) if cell]
        lines += textwrap.wrap(
            GAP.join(parts), width or 0, subsequent_indent=GAP, break_long_words=False, break_on_hyphens=False
        )
    return lines


def as_csv(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> str:
    """RFC 4180: lines end with CR LF, truths are ``true`` and ``false``, and what is unknown is empty. Text has no
    control characters but those that CSV can quote, and no spreadsheet takes it for a formula.
    """
    import csv
    import io

    values = [each for column in columns for each in column.csv_values()]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([name for name, _ in values])
    writer.writerows([_cell(value(row)) for _, value in values] for row in rows)
    return out.getvalue()


def _cell(value: Cell) -> Cell:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return value
    shown = printable(value)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def _filled(
    columns: Sequence[Column[Row]], rows: Sequence[Row], *, keep_empty: bool = False
) -> list[tuple[Column[Row], list[str]]]:
    made = [(column, [column.cell(row) for row in rows]) for column in columns if column.head]
    return [each for each in made if keep_empty or any(each[1]) or not rows]


def _aligned(columns: Sequence[tuple[Column[Row], list[str]]]) -> list[str]:
    made = []
    for column, cells in columns:
        shown = [column.head.upper(), *(plain(cell) or "-" for cell in cells)]
        width = max(map(len, shown))
        made.append([cell.rjust(width) if column.right else cell.ljust(width) for cell in shown])
    return [GAP.join(line).rstrip() for line in zip(*made, strict=True)]
