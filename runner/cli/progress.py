"""Progress of long work on standard error: live in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from runner.images.progress import Progress

if TYPE_CHECKING:
    from rich.status import Status


class _Plain:
    """One line a step with the seconds since the start, and the steps' own output."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def step(self, text: str, done: int | None = None, total: int | None = None) -> None:
        click.echo(f"[{time.monotonic() - self._began:6.1f} s] {_counted(text, done, total)}", err=True)

    def line(self, text: str) -> None:
        click.echo(f"    {text}", err=True)


class _Live:
    """Steps stay on the screen; beside the spinner stands the newest line of output."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._began = time.monotonic()
        self._step = ""

    def step(self, text: str, done: int | None = None, total: int | None = None) -> None:
        from rich.text import Text

        self._step = _counted(text, done, total)
        elapsed = f"{time.monotonic() - self._began:7.1f} s  "
        self._status.console.print(Text.assemble((elapsed, "dim"), self._step), soft_wrap=True)

    def line(self, text: str) -> None:
        from rich.text import Text

        width = max(20, self._status.console.width - 6)
        self._status.update(Text(text.strip()[:width], style="dim"))


@contextmanager
def shown(*, quiet: bool = False) -> Iterator[Progress]:
    """A progress display for the length of a ``with`` block; ``quiet`` shows nothing."""
    from runner.images.progress import Silent

    if quiet:
        yield Silent()
    elif not sys.stderr.isatty():
        yield _Plain()
    else:
        from rich.console import Console

        with Console(stderr=True).status("") as status:
            yield _Live(status)


def _counted(text: str, done: int | None, total: int | None) -> str:
    return f"{done}/{total} {text}" if done and total else text
