"""Text and facts for a terminal or a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from runner.core.columns import GAP
from runner.core.text import plain, printable

if TYPE_CHECKING:
    from runner.model.image import Horovod

NARROWEST = 40  # columns of a terminal that facts are printed for
_LEAST = 20
_NAME_WIDTH = 10


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
        text, max(width, _LEAST), initial_indent=first, subsequent_indent=then,
        break_long_words=False, break_on_hyphens=False,
    ) or [""]  # fmt: skip


def wrapped_all(lines: Iterable[str], width: int | None, indent: str = "") -> list[str]:
    """Each of the texts, made plain, in lines of its own."""
    return [each for line in lines for each in wrapped(plain(line), width, first=indent, then=f"{indent}{GAP}")]


def show(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines for people: what others wrote in them changes neither a terminal nor the order of a line."""
    for line in lines:
        click.echo(plain(line), err=err)


def show_file(content: bytes) -> None:
    """Print a file, to read or to take as it is: what others wrote in it changes no terminal."""
    if sys.stdout.isatty():
        lines = content.decode("utf-8", "surrogateescape").split("\n")
        content = "\n".join(printable(line.replace("\t", "    ")) for line in lines).encode()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def in_colour(line: str, colour: str) -> str:
    """The line in a colour where standard output is a terminal that may have them (no-color.org)."""
    has_colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return click.style(line, fg=colour) if has_colours else line


def field_lines(fields: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Names and values; a name that is empty continues the one before, and an empty value is left out."""
    width = width_of_terminal(at_least=NARROWEST)
    for name, value in fields:
        if value:
            start = f"{name:<{_NAME_WIDTH}} "
            yield from map(plain, wrapped(plain(value), width, first=start, then=" " * len(start)))


def horovod_summary(horovod: Horovod) -> str:
    """``0.28.1; operations: NCCL 2.25.1, MPI, Gloo; kernels: sm_80, sm_90, compute_90``."""
    from runner.checks.image_fit import horovod_architectures

    named = [f"NCCL {horovod.nccl}".strip() if each == "NCCL" else each for each in horovod.operations]
    parts = [horovod.version or "of unknown version", f"operations: {', '.join(named) or 'unknown'}"]
    if horovod.has_nccl:
        parts.append(f"kernels: {', '.join(horovod_architectures(horovod)) or 'unknown'}")
    return printable("; ".join(parts))
