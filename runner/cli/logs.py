"""``logs``: the output of a run's ranks and batch script."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import click

from runner.cli.options import RUN_OR_STUDY
from runner.cli.progress import job_display
from runner.cli.wait import wait_and_judge, warn
from runner.core.errors import Exit, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import printable
from runner.jobs.directory import Run
from runner.jobs.logs import LogFile, Selection, follow, host_of
from runner.jobs.states import cancel, scheduler_of
from runner.jobs.watch import JobProgress


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
    those of the launch that is not proven, or the last one.

    Of several ranks, every line begins with its rank and host. With --follow, the exit code is that of the verdict;
    Ctrl-C leaves the job alone.
    """

    from runner.jobs.logs import Selection, check_ranks, first_failed, log_files, parse_ranks

    if ranks is not None and every:
        raise UsageError("--rank and --all exclude each other", where="--all", fix="give one of them")
    if follow and as_json:
        fix = "use wait --json, then logs --json"
        raise UsageError("--follow prints logs as they grow, and --json a whole document", where="--json", fix=fix)
    named = parse_ranks(ranks) if ranks is not None else None
    directory = _directory(run)
    tasks = directory.tasks
    prefixed = every or (named is not None and sum(map(len, named)) > 1)
    if named is not None:
        check_ranks(named, tasks)
        selection, failed = Selection(named, script=False), None
    elif every:
        selection, failed = Selection(), None
    else:
        selection, failed = first_failed(directory)
    if follow:
        with_script = selection if named else Selection(selection.ranks)
        return follow_to_verdict(directory, with_script, prefixed=prefixed, lines=lines)
    files = log_files(directory, selection)
    if not files and named is None:
        files = log_files(directory, Selection(()))  # no rank wrote anything: what the batch script did
    if not files and named is None and _ended_well(directory):
        click.echo("the job ended well and wrote nothing", err=True)
        return _show_json(files, lines) if as_json else Exit.GOOD
    if not files:
        raise UsageError(
            _why_none(directory) if named is None else f"rank {ranks} wrote nothing",
            where=str(directory.logs),
            fix=f"see `{PROGRAM} status {directory.run_id}`",
        )
    if as_json:
        return _show_json(files, lines)
    if failed:
        click.echo(f"rank {failed} failed first; others: --rank LIST, --all", err=True)
    _print(directory, files, lines, prefixed=prefixed)
    return Exit.GOOD


def _directory(wanted: str | None) -> Run:
    from runner.jobs.directory import Run
    from runner.study.subject import find_subject

    subject = find_subject(wanted)
    if isinstance(subject, Run):
        return subject
    from runner.cli.study import telling_run

    return telling_run(subject)


def _show_json(files: tuple[LogFile, ...], lines: int | None) -> int:
    from runner.cli import json_output
    from runner.jobs.logs import left_out, read
    from runner.model.output import LogText

    return json_output.show(
        [
            LogText(
                str(file.path),
                file.rank,
                b"".join(read(file, lines)).decode("utf-8", "replace"),
                left_out(file) if lines is None else None,
            )
            for file in files
        ]
    )


def _print(run: Run, files: tuple[LogFile, ...], lines: int | None, *, prefixed: bool) -> None:

    from runner.jobs.logs import ends_with_lost_image, left_out, read

    printer = Printer(run, prefixed=prefixed)
    for file in files:
        if lines is None and (size := left_out(file)):
            click.echo(
                f"the first {size / 1e6:.0f} MB of {file.path} are left out (-n N: as much as you name)", err=True
            )
        is_another = len(files) > 1
        for content in read(file, lines):
            printer.show(file, content, is_another)
            is_another = False
        if ends_with_lost_image(run, file):
            click.echo(f"the end of {file.path.name} follows from the job's end: its image was unmounted", err=True)


def _ended_well(run: Run) -> bool:

    verdict = run.verdict
    return verdict is not None and verdict.exit_code == Exit.GOOD


def _why_none(run: Run) -> str:
    from runner.cli.progress import describe
    from runner.jobs.life import Standing, standing
    from runner.jobs.watch import presence

    now = standing(run)
    if isinstance(now, Standing):
        return f"no log yet: {describe(now.progress, now.tasks)}"
    if now.outcome == "cancelled":
        began = presence(run).starts
        return f"no log: cancelled before it {'wrote anything' if began else 'started'}"
    return f"no log: {now.reasons[0] if now.reasons else now.outcome}"


class Printer:
    """Prints logs to standard output: as they are into a file or pipe, control characters escaped in a terminal."""

    def __init__(self, run: Run, *, prefixed: bool) -> None:
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
    run: Run, selection: Selection, *, prefixed: bool, lines: int | None = None, cancel_on_interrupt: bool = False
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
            shown = waiting.enter_context(job_display(run.tasks, quiet=False))
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
