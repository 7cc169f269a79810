"""What is shown on standard error while something goes on: long work, and a job that has not ended."""

from __future__ import annotations

import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

import click

from runner.cli.options import say
from runner.core.invocation import PROGRAM
from runner.core.progress import Progress, Silent
from runner.core.text import plain, printable

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

    from runner.jobs.directory import Run
    from runner.jobs.watch import JobProgress


class _Plain:
    """One line a step with the seconds since the start, and the steps' own output; of bytes how far they are."""

    every_s = 10.0

    def __init__(self) -> None:
        self.began = self._step_began = self._shown_at = time.monotonic()

    def step(self, text: str, done: int | None = None, total: int | None = None) -> None:
        self._step_began = self._shown_at = time.monotonic()
        self.begin(self._shown_at - self.began, f"{done}/{total} {text}" if done and total else text)

    def begin(self, after_s: float, text: str) -> None:
        say(f"[{after_s:6.1f} s] {text}")

    def line(self, text: str) -> None:
        say(f"    {text}")

    def moved(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._shown_at >= self.every_s:
            self._shown_at = now
            self.line(amount(done, total, now - self._step_began))


class _Live(_Plain):
    """Steps stay on the screen; beside the spinner stands the newest line of output."""

    every_s = 0.25

    def __init__(self, status: Status) -> None:
        super().__init__()
        self._status = status

    def begin(self, after_s: float, text: str) -> None:
        from rich.text import Text

        self._status.update("")  # the amount of the step before
        self._status.console.print(Text.assemble((f"{after_s:7.1f} s  ", "dim"), plain(text)), soft_wrap=True)

    def line(self, text: str) -> None:
        from rich.text import Text

        width = max(20, self._status.console.width - 6)
        self._status.update(Text(plain(text.strip())[:width], style="dim"))


@contextmanager
def display(*, quiet: bool = False) -> Iterator[Progress]:
    """A progress display of long work for the length of a ``with`` block; ``quiet`` shows nothing."""
    most_s = resource.getrlimit(resource.RLIMIT_CPU)[0]
    if 0 <= most_s < _LONG_S:
        limit = f"this shell ends a process after {most_s} s of processor time (ulimit -t), which may be too short"
        in_job = f"{PROGRAM} shell --runtime native --time 1:00:00 -- {PROGRAM} {shlex.join(sys.argv[1:])}"
        click.echo(f"{limit}; in a job it is not: {in_job}", err=True)
    if quiet:
        yield Silent()
    elif not sys.stderr.isatty():
        yield _Plain()
    else:
        from rich.console import Console

        with Console(stderr=True).status("") as status:
            yield _Live(status)


def amount(done: int, total: int | None, elapsed_s: float) -> str:
    """``512 of 1597 MB, 171 MB/s, 6 s left``; without a total, or beyond it, only what is known."""
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    known = total is not None and 0 < done <= total
    parts = [f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total and known else f"{done / 1e6:.0f} MB"]
    parts.append(f"{rate / 1e6:.0f} MB/s")
    if total and known and rate:
        left = round((total - done) / rate)
        parts.append(f"{f'{left} s' if left < 100 else f'{left // 60}:{left % 60:02d} min'} left")
    return ", ".join(parts)


_LONG_S = 3600  # of one processor, more than an image of 20 GB takes
# Elsewhere than in a terminal: how long it may be silent, seconds. In a terminal the time itself is seen to pass.
_SILENT_S = 60.0
_FAST_S = 1.0


def describe(progress: JobProgress, tasks: int) -> str:
    """The state of a job in one line."""
    if progress.state is None:
        where = "waiting for the scheduler"
    else:
        where = printable(progress.state.name.lower()) or "not known to the scheduler"
        if progress.state.phase in ("pending", "unknown") and progress.state.reason:
            where += f" ({printable(progress.state.reason)})"
    if not tasks:  # of a batch script of the user nothing is known of ranks
        return where
    return f"{where}, tasks started {progress.started}/{tasks}, ended {progress.ended}/{tasks}"


@contextmanager
def job_display(run: Run, *, quiet: bool, named: bool = False) -> Iterator[Callable[[JobProgress], None]]:
    """Show what it is given, for the length of a ``with`` block, on standard error; ``quiet`` shows nothing. The clock
    is the job's, from its submission on, whoever waits and since when. ``named``: it is one of several.
    """
    name = f"{printable(run.run_id)}: " if named else ""
    submitted = None if quiet else run.submitted
    age_s = max(0.0, time.time() - submitted.submitted_s) if submitted is not None else 0.0
    if quiet:
        yield lambda _progress: None
    elif sys.stderr.isatty():
        from rich.console import Console

        line = LiveLine("waiting for the scheduler", age_s)

        def update(progress: JobProgress) -> None:
            line.text = name + describe(progress, run.tasks)

        with Console(stderr=True).status(line):
            yield update
    else:
        yield _Lines(run.tasks, age_s, name).show


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

    def __init__(self, text: str, age_s: float = 0.0) -> None:
        self.text = text
        self._began = time.monotonic() - age_s

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(f"{self.text}  {time.monotonic() - self._began:.0f} s")


class _Lines:
    """A line whenever something has changed, and after each minute without a change."""

    def __init__(self, tasks: int, age_s: float, name: str) -> None:
        self._tasks = tasks
        self._name = name
        self._age_s = age_s
        self._last = ""
        self._shown_s = 0.0

    def show(self, progress: JobProgress) -> None:
        text = self._name + describe(progress, self._tasks)
        if text != self._last or progress.elapsed_s - self._shown_s >= _SILENT_S:
            click.echo(f"[{self._age_s + progress.elapsed_s:6.1f} s] {text}", err=True)
            self._last, self._shown_s = text, progress.elapsed_s
