"""``submit``: submit a job, or print its script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from runner.cli.job_options import JobCommand, command_line, copied_run, job_options, repeated_run
from runner.cli.options import say
from runner.core.errors import Exit, UsageError


@click.command(cls=JobCommand)
@job_options
@click.option("--wait", is_flag=True, help="Wait for the job to finish, then print its verdict.")
@click.option("--follow", is_flag=True, help="Print the job's logs as they grow, then its verdict.")
@click.option("--cancel-on-interrupt", is_flag=True, help="With --wait or --follow: Ctrl-C also cancels the job.")
@click.option(
    "--write",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Submit nothing: make DIR, in which the job's script can be submitted by hand.",
)
def command(
    dry_run: bool,
    full: bool,
    no_diff: bool,
    wait: bool,
    follow: bool,
    cancel_on_interrupt: bool,
    write: Path | None,
    as_json: bool,
    **values: Any,
) -> int:
    """Submit a job of GPUS ranks, one for each GPU.

    Arguments after -- are a program to run in this directory: submit --gpus 2 -- python train.py. With --recipe, or if
    the first of them is an option, they are passed to the recipe's program.
    """
    from runner.cli.show import show_prepared, show_start, wait_and_judge
    from runner.cli.waiting import slow
    from runner.preparation.job import prepare, start
    from runner.preparation.request import make_options

    if write is not None and (wait or follow or dry_run):
        raise UsageError(
            "--write submits nothing, and there is nothing to wait for or to print",
            where="--write",
            fix="leave --wait, --follow and --dry-run out",
        )
    if full and not dry_run:
        raise UsageError("--full prints what a dry run prints, and more", where="--full", fix="add --dry-run")
    if follow and as_json:
        raise UsageError(
            "--follow prints logs, and --json facts", where="--json", fix="use --wait --json, or logs -f RUN"
        )
    options = make_options(**values, copied=copied_run())
    with slow("preparing the job"):
        prepared = prepare(options, say=say, keep=not dry_run)
    if (first := repeated_run()) is not None:
        from runner.cli.rerun import show_changes

        show_changes(first, prepared)
    code = show_prepared(prepared, with_script=dry_run, full=full, as_json=as_json)
    if dry_run or code != Exit.GOOD:
        return code
    if write is not None:
        from runner.cli.show import show_written
        from runner.preparation.job import write_directory

        run = write_directory(prepared, write, command=command_line(prepared.site_file), keep_diff=not no_diff)
        show_written(run, prepared, as_json=as_json)
        return Exit.GOOD
    with slow("submitting the job"):
        run, job_id = start(prepared, options.runs, command=command_line(prepared.site_file), keep_diff=not no_diff)
    if not as_json:
        show_start(run, prepared.plan, job_id)
    elif not wait:
        from runner.cli import json_output
        from runner.jobs.facts import run_facts

        json_output.show(run_facts(run, None))
    if follow:
        from runner.cli.follow import follow_to_verdict
        from runner.jobs.logs import one_rank

        logs = one_rank(0, script=True)
        return follow_to_verdict(run, logs, prefixed=False, cancel_on_interrupt=cancel_on_interrupt)
    if not wait:
        return Exit.GOOD
    return wait_and_judge(run, timeout_s=None, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)
