"""``run``: a step in the allocation of this shell, in the foreground."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from runner.cli.job_options import JobCommand, command_line, job_options, request_of_call
from runner.core.errors import Exit

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory
    from runner.jobs.logs import LogFile
    from runner.model.request import Request


@click.command(cls=JobCommand)
@job_options
def command(dry_run: bool, full: bool, as_json: bool, **_fields: Any) -> int:
    """Run GPUS ranks as a step in this shell's allocation (salloc); print the output of rank 0 and the verdict.

    Steps of any shape that fits can run one after another. Options and arguments are those of submit. Ctrl-C ends the
    step and keeps the allocation.
    """
    return run_step(request_of_call(step=True), dry_run=dry_run, full=full, as_json=as_json)


def run_step(
    request: Request, first: RunDirectory | None = None, *, dry_run: bool, as_json: bool, full: bool = False
) -> int:
    """Run the step that is asked for, and show it; returns the exit code.

    Args:
        first: the run that it repeats; None where it repeats none.
    """
    from runner.cli.show import show_start, wait_and_judge
    from runner.cli.submit import prepare_job
    from runner.cli.waiting import slow
    from runner.jobs.life import follow_step
    from runner.preparation.job import start

    prepared, code = prepare_job(request, first, dry_run=dry_run, full=full, as_json=as_json)
    if dry_run or code != Exit.GOOD:
        return code
    with slow("submitting the job"):
        run, job_id = start(prepared, command=command_line(prepared, first))
    interrupted = False
    if not as_json:
        show_start(run, prepared.plan, job_id)
        interrupted = follow_step(run, _print, lambda text: click.echo(text, err=True))
    verdict = wait_and_judge(run, timeout_s=None, as_json=as_json, cancel_on_interrupt=True)
    return Exit.INTERRUPTED if interrupted else verdict


def _print(log: LogFile, content: bytes, _changed: bool) -> None:
    stream = sys.stderr if log.path.suffix == ".err" else sys.stdout
    if stream.isatty():
        from runner.cli.follow import for_terminal

        content = b"\n".join(map(for_terminal, content.split(b"\n")))
    stream.buffer.write(content)
    stream.buffer.flush()
