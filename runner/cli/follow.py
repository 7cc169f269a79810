"""How commands print logs, and follow a run to its verdict."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import click

from runner.cli.show import wait_and_judge, warn
from runner.cli.waiting import display
from runner.core.errors import Exit
from runner.core.invocation import PROGRAM
from runner.core.text import printable
from runner.jobs.directory import RunDirectory
from runner.jobs.logs import LogFile, Selection, follow, host_of
from runner.jobs.states import cancel, scheduler_of
from runner.jobs.watch import JobProgress


class Printer:
    """Prints logs to standard output: as they are into a file or pipe, control characters escaped in a terminal."""

    def __init__(self, run: RunDirectory, *, prefixed: bool) -> None:
        """``prefixed``: every line begins with its rank and host; else a header names each log."""
        self._run = run
        self._prefixed = prefixed
        self._prefixes: dict[int, str] = {}

    def show(self, log: LogFile, content: bytes, is_another: bool) -> None:
        """Print whole lines of a log; ``is_another``: the last ones were another's."""
        if not content:
            return
        lines = content.removesuffix(b"\n").split(b"\n")
        if sys.stdout.isatty():
            lines = [for_terminal(line) for line in lines]
        if self._prefixed:
            prefix = self._prefix(log)
            lines = [prefix + line for line in lines]
        elif is_another:
            lines.insert(0, f"==> {log.path.name}".encode("utf-8", "backslashreplace"))
        sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
        sys.stdout.buffer.flush()

    def _prefix(self, log: LogFile) -> bytes:
        """``[3 dgx02] ``; of the batch script and of nodes the log's name."""
        if log.rank is None:
            return f"[{log.path.name}] ".encode("utf-8", "backslashreplace")
        prefix = self._prefixes.get(log.rank, "")
        if not prefix:
            host = host_of(self._run, log.rank)
            prefix = f"[{log.rank} {printable(host)}] " if host else f"[{log.rank}] "
            if host:
                self._prefixes[log.rank] = prefix
        return prefix.encode("utf-8", "backslashreplace")


def for_terminal(line: bytes) -> bytes:
    """A log's line with its control characters escaped; of a bar that was drawn again and again, the last state."""
    text = line.decode("utf-8", "backslashreplace").rstrip("\r").rpartition("\r")[2]
    return "\t".join(printable(part) for part in text.split("\t")).encode()


def follow_to_verdict(
    run: RunDirectory,
    selection: Selection,
    *,
    prefixed: bool,
    lines: int | None = None,
    cancel_on_interrupt: bool = False,
) -> int:
    """Print a run's logs as they grow, then its verdict; returns the verdict's exit code.

    While the job has written nothing, its state is shown, with the reason why it waits. Ctrl-C ends this, and
    leaves the job alone unless ``cancel_on_interrupt``.

    Raises:
        NotAcceptedError, UnknownStateError: as ``follow``.
    """
    printer = Printer(run, prefixed=prefixed)
    try:
        with ExitStack() as waiting:
            shown = waiting.enter_context(display(run.tasks, quiet=False))
            has_begun = False

            def on_content(log: LogFile, content: bytes, is_another: bool) -> None:
                nonlocal has_begun
                has_begun = True
                waiting.close()
                printer.show(log, content, is_another)

            def on_progress(progress: JobProgress) -> None:
                if not has_begun:
                    shown(progress)

            follow(run, selection, on_content, on_progress, lines=lines)
    except KeyboardInterrupt:
        scheduler, job_id = scheduler_of(run)
        if cancel_on_interrupt:
            cancel(run, scheduler, job_id)
            warn(f"interrupted: job {job_id} is being cancelled")
        else:
            click.echo(
                f"Detached; job {job_id} continues. Reattach: `{PROGRAM} logs -f {run.run_id}`; "
                f"cancel it: `{PROGRAM} cancel {run.run_id}`",
                err=True,
            )
        return Exit.INTERRUPTED
    return wait_and_judge(run, timeout_s=None, as_json=False, cancel_on_interrupt=cancel_on_interrupt)
