"""How commands show a job that has not ended: in a terminal a line that lives, elsewhere lines at every change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

import click

from runner.core.text import printable

if TYPE_CHECKING:
    from rich.text import Text

    from runner.jobs.watch import JobProgress

# Elsewhere than in a terminal: how long it may be silent, seconds. In a terminal the time itself is seen to pass.
_SILENT_S = 60.0
_FAST_S = 1.0


def describe(progress: JobProgress, tasks: int) -> str:
    """The state of a job in one line."""
    if progress.state is None:
        where = "waiting for the scheduler"
    else:
        where = progress.state.name.lower() or "not known to the scheduler"
        if progress.state.phase in ("pending", "unknown") and progress.state.reason:
            where += f" ({printable(progress.state.reason)})"
    return f"{where}, ranks started {progress.started}/{tasks}, ended {progress.ended}/{tasks}"


@contextmanager
def display(tasks: int, *, quiet: bool) -> Iterator[Callable[[JobProgress], None]]:
    """Show what it is given, for the length of a ``with`` block, on standard error; ``quiet`` shows nothing."""
    if quiet:
        yield lambda _progress: None
    elif sys.stderr.isatty():
        from rich.console import Console

        line = LiveLine("waiting for the scheduler")

        def update(progress: JobProgress) -> None:
            line.text = describe(progress, tasks)

        with Console(stderr=True).status(line):
            yield update
    else:
        yield _Lines(tasks).show


@contextmanager
def slow(text: str) -> Iterator[None]:
    """For what is mostly fast: where it takes more than a second, a terminal shows that it is under way."""
    if not sys.stderr.isatty():
        yield
        return
    over = Event()

    def show() -> None:
        if not over.wait(_FAST_S):
            from rich.console import Console

            with Console(stderr=True).status(LiveLine(text)):
                over.wait()

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class LiveLine:
    """Drawn several times a second, whether or not there is news."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._began = time.monotonic()

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(f"{self.text}  {time.monotonic() - self._began:.0f} s")


class _Lines:
    """A line whenever something has changed, and after each minute without a change."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._last = ""
        self._shown_s = 0.0

    def show(self, progress: JobProgress) -> None:
        text = describe(progress, self._tasks)
        if text != self._last or progress.elapsed_s - self._shown_s >= _SILENT_S:
            click.echo(f"[{progress.elapsed_s:6.1f} s] {text}", err=True)
            self._last, self._shown_s = text, progress.elapsed_s
