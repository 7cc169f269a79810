"""``run``: a step in the allocation of this shell, in the foreground."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from runner.cli.job_options import JobCommand, command_line, copied_run, job_options, repeated_run
from runner.cli.options import say
from runner.core.errors import Exit

if TYPE_CHECKING:
    from runner.jobs.logs import LogFile


@click.command(cls=JobCommand)
@job_options
def command(dry_run: bool, full: bool, no_diff: bool, as_json: bool, **values: Any) -> int:
    """Run GPUS ranks as a step in this shell's allocation (salloc); print the output of rank 0 and the verdict.

    Steps of any shape that fits can run one after another. Options and arguments are those of submit. Ctrl-C ends the
    step and keeps the allocation.
    """
    from runner.cli.show import show_prepared, show_start, wait_and_judge
    from runner.cli.waiting import slow
    from runner.jobs.life import follow_step
    from runner.preparation.job import prepare, start
    from runner.preparation.request import make_options

    options = make_options(**values, copied=copied_run())
    with slow("preparing the job"):
        prepared = prepare(options, in_allocation=True, say=say, keep=not dry_run)
    if (first := repeated_run()) is not None:
        from runner.cli.rerun import show_changes

        show_changes(first, prepared)
    code = show_prepared(prepared, with_script=dry_run, full=full, as_json=as_json)
    if dry_run or code != Exit.GOOD:
        return code
    with slow("submitting the job"):
        run, job_id = start(prepared, options.runs, command=command_line(prepared.site_file), keep_diff=not no_diff)
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
