"""Facts in lines of a name and a value, for people: wrapped on a terminal, one line each elsewhere."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import click

from runner.cli.table import width_of_terminal
from runner.core.text import printable

_NAME_WIDTH = 10
_NARROWEST = 40


def show_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print names and values; a name that is empty continues the one before, and an empty value is left out."""
    width = width_of_terminal(at_least=_NARROWEST)
    for name, value in fields:
        if value:
            click.echo(_field(name, printable(value), width))


def _field(name: str, value: str, width: int | None) -> str:
    start = f"{name:<{_NAME_WIDTH}} "
    if width is None:
        return f"{start}{value}"
    return textwrap.fill(
        value,
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
