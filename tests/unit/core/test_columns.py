"""Tables: declared once, for a terminal of any width, a page, and CSV."""

from __future__ import annotations

import csv
import io
from typing import NamedTuple

import pytest

from runner.core.columns import Column, Table, as_csv, for_page, for_terminal, lines_of

HOSTILE = "n\x1b[2J\n\u202e"


class Row(NamedTuple):
    name: str
    value: float
    good: bool


ROWS = (Row("a", 1.5, True), Row(HOSTILE, 20.25, False))
COLUMNS: tuple[Column[Row], ...] = (
    Column("name", values="name"),
    Column("value", values={"value_s": "value", "none": "none.there"}, right=True),
    Column("good", lambda row: "yes" if row.good else "", "good", leave=1),
    Column("empty"),
)


def test_numbers_stand_on_the_right_and_empty_columns_are_left_out() -> None:
    shown = r"n\x1b[2J\n\u202e"
    assert for_terminal(COLUMNS, ROWS) == [
        f"{'NAME'.ljust(len(shown))}  VALUE  GOOD",
        f"{'a'.ljust(len(shown))}    1.5  yes",
        f"{shown}  20.25  -",
    ]
    assert (for_terminal(COLUMNS, ROWS, whole=True) or [""])[0].split() == ["NAME", "VALUE", "GOOD", "EMPTY"]
    assert for_page(COLUMNS, ROWS[:1]) == Table(("name", "value", "good"), (("a", "1.5", "yes"),))


@pytest.mark.parametrize(("width", "head"), [(30, "NAME VALUE GOOD"), (24, "NAME VALUE"), (17, "a value 1.5")])
def test_a_narrow_terminal_leaves_columns_out_and_then_gives_each_row_its_lines(width: int, head: str) -> None:
    lines = lines_of(COLUMNS, ROWS, width)
    assert " ".join(" ".join(lines[:2] if width < 20 else lines[:1]).split()).startswith(head)
    assert all(len(line) <= max(width, 23) and line.isprintable() for line in lines)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "a,b", 'a"b', HOSTILE])
def test_csv_is_rfc_4180_and_no_cell_is_a_formula_or_moves_a_cursor(text: str) -> None:
    made = as_csv(COLUMNS, [Row(text, 0.1, True)])
    assert made.count("\r\n") == made.count("\n") == 2
    (row,) = csv.DictReader(io.StringIO(made, newline=""), strict=True)
    assert (row["value_s"], row["none"], row["good"]) == ("0.1", "", "true")
    assert row["name"].isprintable() and row["name"][0] not in "=+-@"
