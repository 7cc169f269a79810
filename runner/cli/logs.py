"""``logs``: the output of a run's ranks and batch script."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.options import RUN_OR_STUDY, say, warn
from runner.cli.progress import describe, job_display
from runner.cli.wait import wait_and_judge
from runner.core.errors import Exit, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import coloured, printable
from runner.jobs import logs
from runner.jobs.directory import Run
from runner.jobs.logs import LogFile, Selection
from runner.jobs.states import cancel, scheduler_of
from runner.jobs.watch import JobProgress, presence

if TYPE_CHECKING:
    from runner.study.directory import Subject

OVER = "\r\x1b[K"  # from the beginning of a line, which is emptied
_NESTED = re.compile(r"\n+([^\n\x1b]*)(?:\x1b\[A)+")  # a bar below another one (tqdm): down, and up again


@click.command()
@RUN_OR_STUDY
@click.option(
    "--rank", "ranks", metavar="LIST", help="These ranks: 3, or 0,3-5. [default: the one that failed first, else 0]"
)
@click.option("--all", "every", is_flag=True, help="Every rank, and the batch script.")
@click.option("-n", "lines", type=click.IntRange(min=0), metavar="N", help="The last N lines of each log.")
@click.option("-f", "--follow", is_flag=True, help="Follow the logs until the job has ended, then print its verdict.")
@click.option("--json", "as_json", is_flag=True, help="Print the logs as JSON.")
def command(run: str | None, ranks: str | None, every: bool, lines: int | None, follow: bool, as_json: bool) -> int:
    """Print the logs of RUN (an id or name, or its beginning; a job id; a directory; or the newest run); of a STUDY
    those of the launch that is not proven, or the last one; of several runs, of one that failed, or the last one; of
    --until-done, of the last attempt.

    Of several ranks, every line begins with its rank and host. With --follow, the exit code is that of the verdict;
    Ctrl-C leaves the job alone.
    """
    from runner.study.directory import find_subjects

    if ranks is not None and every:
        raise UsageError("--rank and --all exclude each other", where="--all", fix="give one of them")
    if follow and as_json:
        fix = "use wait --json, then logs --json"
        raise UsageError("--follow prints logs as they grow, and --json a whole document", where="--json", fix=fix)
    named = logs.parse_ranks(ranks) if ranks is not None else None
    subjects = find_subjects(() if run is None else (run,))
    directory = _most_telling(subjects)
    is_elsewhere = run is None and Path.cwd() not in directory.path.parents
    if len(subjects) > 1 or is_elsewhere:
        where = f", of {directory.path.parent}" if is_elsewhere else ""
        say(f"run {directory.path.name}{where}; others: {PROGRAM} logs RUN")
    if not isinstance(directory, Run):
        from runner.cli.study import telling_run

        directory = telling_run(directory)
    prefixed = every or (named is not None and sum(map(len, named)) > 1)
    selection, failed = Selection(), None
    if named is not None:
        logs.check_ranks(named, directory.tasks)
        selection = Selection(named, script=False)
    elif not every:
        selection, failed = logs.first_failed(directory)
    if follow:
        with_script = selection if named else Selection(selection.ranks)
        return follow_to_verdict(directory, with_script, prefixed=prefixed, lines=lines)
    files = logs.log_files(directory, selection)
    if not files and named is None:
        files = logs.log_files(directory, Selection(()))  # no rank wrote anything: what the batch script did
    if not files:
        verdict = directory.verdict
        if named is not None or verdict is None or verdict.exit_code != Exit.GOOD:
            what = _why_none(directory) if named is None else f"rank {ranks} wrote nothing"
            raise UsageError(what, where=str(directory.logs), fix=f"see `{PROGRAM} status {directory.run_id}`")
        say("the job ended well and wrote nothing")
    if as_json:
        return _show_json(files, lines)
    if failed:
        is_start = directory.plan is not None and directory.plan.starters
        say(f"{'start' if is_start else 'rank'} {failed} failed first; others: --rank LIST, --all")
    _print(directory, files, lines, prefixed=prefixed)
    return Exit.GOOD


def _most_telling(subjects: Sequence[Subject]) -> Subject:
    """Of a chain the last attempt that has logs, as earlier ones may well have failed; else one that failed."""
    runs = [each for each in subjects if isinstance(each, Run)]
    if subjects[-1].chain is not None:
        runs = [each for each in reversed(runs) if logs.log_files(each, Selection())]
    else:
        runs = [each for each in runs if each.verdict and each.verdict.exit_code]
    return next(iter(runs), subjects[-1])


def _print(run: Run, files: tuple[LogFile, ...], lines: int | None, *, prefixed: bool) -> None:
    printer = Printer(run, prefixed=prefixed)
    for file in files:
        if lines is None and (size := logs.left_out(file)):
            say(f"the first {size / 1e6:.0f} MB of {file.path} are left out (-n N: as much as you name)")
        is_another = len(files) > 1
        for content in logs.read(file, lines):
            printer.show(file, content, is_another)
            is_another = False
        if logs.ends_with_lost_image(run, file):
            say(f"the end of {file.path.name} follows from the job's end: its image was unmounted")


def _show_json(files: tuple[LogFile, ...], lines: int | None) -> int:
    from runner.cli import json_output
    from runner.model.output import LogText

    def text(file: LogFile) -> LogText:
        content = b"".join(logs.read(file, lines)).decode("utf-8", "replace")
        return LogText(str(file.path), file.rank, content, logs.left_out(file) if lines is None else None)

    return json_output.show([text(file) for file in files])


def _why_none(run: Run) -> str:
    from runner.jobs.life import Standing, standing

    now = standing(run)
    if isinstance(now, Standing):
        return f"no log yet: {describe(now.progress, now.tasks)}"
    if now.outcome == "cancelled":
        return f"no log: cancelled before it {'wrote anything' if presence(run).starts else 'started'}"
    return f"no log: {now.reasons[0] if now.reasons else now.outcome}"


class Printer:
    """Prints logs to standard output: as they are into a file or pipe, in a terminal with colours, bars that are drawn
    anew, and other control characters escaped.
    """

    def __init__(self, run: Run, *, prefixed: bool) -> None:
        """``prefixed``: every line begins with its rank and host; else a header names each log."""
        self._run = run
        self._prefixed = prefixed
        self._hosts: dict[int, str] = {}
        self.draws = sys.stdout.isatty() and not prefixed
        self._in_line = False

    def show(self, log: LogFile, content: bytes, is_another: bool) -> None:
        """Print lines of a log, whole ones unless it ``draws``; ``is_another``: the last ones were another's."""
        if not content:
            return
        if is_another:
            self.end_line()
        if sys.stdout.isatty():
            content = for_terminal(content, redraws=self.draws)
        lines = content.removesuffix(b"\n").split(b"\n")
        if self._prefixed:
            prefix = f"[{self._origin(log)}] ".encode()
            lines = [prefix + line for line in lines]
        elif is_another:
            lines.insert(0, f"==> {printable(log.path.name)}".encode())
        self._in_line = self.draws and not content.endswith(b"\n")
        sys.stdout.buffer.write(b"\n".join(lines) + (b"" if self._in_line else b"\n"))
        sys.stdout.buffer.flush()

    def end_line(self) -> None:
        """End a line that is not whole, before something else is printed."""
        if self._in_line:
            click.echo()
        self._in_line = False

    def _origin(self, log: LogFile) -> str:
        """``3 dgx02``; of the batch script and of nodes the log's name."""
        if log.rank is None:
            return printable(log.path.name)
        if log.rank not in self._hosts and (host := logs.host_of(self._run, log.rank)):
            self._hosts[log.rank] = f" {printable(host)}"
        return f"{log.rank}{self._hosts.get(log.rank, '')}"


def for_terminal(content: bytes, *, redraws: bool) -> bytes:
    """Lines of a log with their colours, and other control characters escaped. Of a bar that was drawn again and again
    the last state: with ``redraws`` over what stands in its line. Bars below each other share one.
    """

    def drawn(line: str) -> str:
        *earlier, last = line.rstrip("\r").split("\r")
        return f"{OVER if redraws and earlier else ''}{coloured(last)}"

    text = _NESTED.sub(r"\r\1", content.decode("utf-8", "backslashreplace"))
    return ("\n".join(map(drawn, text.split("\n"))) + ("\r" if redraws and text.endswith("\r") else "")).encode()


def follow_to_verdict(
    run: Run, selection: Selection, *, prefixed: bool, lines: int | None = None, cancel_on_interrupt: bool = False
) -> int:
    """Print a run's logs as they grow, then its verdict; returns the verdict's exit code.

    While the job has written nothing, its state is shown, with the reason why it waits. Ctrl-C ends this, and
    leaves the job alone unless ``cancel_on_interrupt``.

    Raises:
        NotAcceptedError, UnknownStateError: as ``runner.jobs.logs.follow``.
    """
    printer = Printer(run, prefixed=prefixed)
    try:
        with ExitStack() as waiting:
            shown = waiting.enter_context(job_display(run, quiet=False))
            has_begun = False

            def on_content(log: LogFile, content: bytes, is_another: bool) -> None:
                nonlocal has_begun
                has_begun = True
                waiting.close()
                printer.show(log, content, is_another)

            def on_progress(progress: JobProgress) -> None:
                if not has_begun:
                    shown(progress)

            logs.follow(run, selection, on_content, on_progress, lines=lines, parts=printer.draws)
            printer.end_line()
    except KeyboardInterrupt:
        printer.end_line()
        scheduler, job_id = scheduler_of(run)
        if cancel_on_interrupt:
            cancel(run, scheduler, job_id)
            warn(f"interrupted: job {job_id} is being cancelled")
        else:
            again, end = f"`{PROGRAM} logs -f {run.run_id}`", f"`{PROGRAM} cancel {run.run_id}`"
            say(f"Detached; job {job_id} continues. Reattach: {again}; cancel it: {end}")
        return Exit.INTERRUPTED
    return wait_and_judge(run, timeout_s=None, as_json=False, cancel_on_interrupt=cancel_on_interrupt)
