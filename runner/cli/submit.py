"""``submit``: submit a job, or print its script; ``run``: a step in the allocation of this shell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.job_options import JobCommand, command_line, job_options, request_of_call
from runner.cli.options import say
from runner.core.errors import Exit, UsageError

if TYPE_CHECKING:
    from runner.jobs.directory import Run
    from runner.jobs.logs import LogFile
    from runner.model.request import Request
    from runner.preparation.job import PreparedJob


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
    wait: bool,
    follow: bool,
    cancel_on_interrupt: bool,
    write: Path | None,
    as_json: bool,
    **_fields: Any,
) -> int:
    """Submit a job of GPUS ranks, one for each GPU.

    Arguments after -- are a program to run in this directory: submit --gpus 2 -- python train.py. With --recipe, or if
    the first of them is an option, they are passed to the recipe's program.
    """
    return submit(
        request_of_call(),
        dry_run=dry_run,
        full=full,
        write=write,
        wait=wait,
        follow=follow,
        cancel_on_interrupt=cancel_on_interrupt,
        as_json=as_json,
    )


def submit(
    request: Request,
    first: Run | None = None,
    *,
    dry_run: bool,
    wait: bool,
    follow: bool,
    cancel_on_interrupt: bool,
    as_json: bool,
    full: bool = False,
    write: Path | None = None,
) -> int:
    """Submit what is asked for, and show it; returns the exit code.

    Args:
        first: the run that it repeats; None where it repeats none.
    """
    from runner.cli.progress import slow
    from runner.cli.wait import show_start, wait_and_judge
    from runner.preparation.job import start

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
    prepared, code = prepare_job(request, first, dry_run=dry_run, full=full, as_json=as_json)
    if dry_run or code != Exit.GOOD:
        return code
    if write is not None:
        from runner.cli.wait import show_written
        from runner.preparation.job import write_directory

        run = write_directory(prepared, write, command=command_line(prepared, first))
        show_written(run, prepared, as_json=as_json)
        return Exit.GOOD
    with slow("submitting the job"):
        run, job_id = start(prepared, command=command_line(prepared, first))
    if not as_json:
        show_start(run, prepared.plan, job_id)
    elif not wait:
        from runner.cli import json_output
        from runner.jobs.facts import run_facts

        json_output.show(run_facts(run, None))
    if follow:
        from runner.cli.logs import follow_to_verdict
        from runner.jobs.logs import one_rank

        logs = one_rank(0, script=True)
        return follow_to_verdict(run, logs, prefixed=False, cancel_on_interrupt=cancel_on_interrupt)
    if not wait:
        return Exit.GOOD
    return wait_and_judge(run, timeout_s=None, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)


def prepare_job(
    request: Request, first: Run | None, *, dry_run: bool, as_json: bool, full: bool = False
) -> tuple[PreparedJob, int]:
    """The job, shown as far as it is not submitted, and the exit code: that of a refusal, or GOOD."""
    from runner.cli.progress import slow
    from runner.cli.wait import show_prepared
    from runner.preparation.job import prepare

    with slow("preparing the job"):
        prepared = prepare(request, say=say, keep=not dry_run)
    if first is not None:
        from runner.cli.rerun import show_changes

        show_changes(first, prepared)
    return prepared, show_prepared(prepared, with_script=dry_run, full=full, as_json=as_json)


@click.command(cls=JobCommand)
@job_options
def run(dry_run: bool, full: bool, as_json: bool, **_fields: Any) -> int:
    """Run GPUS ranks as a step in this shell's allocation (salloc); print the output of rank 0 and the verdict.

    Steps of any shape that fits can run one after another. Options and arguments are those of submit. Ctrl-C ends the
    step and keeps the allocation.
    """
    return run_step(request_of_call(step=True), dry_run=dry_run, full=full, as_json=as_json)


def run_step(request: Request, first: Run | None = None, *, dry_run: bool, as_json: bool, full: bool = False) -> int:
    """Run the step that is asked for, and show it; returns the exit code.

    Args:
        first: the run that it repeats; None where it repeats none.
    """
    from runner.cli.progress import slow
    from runner.cli.wait import show_start, wait_and_judge
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
        from runner.cli.logs import for_terminal

        content = b"\n".join(map(for_terminal, content.split(b"\n")))
    stream.buffer.write(content)
    stream.buffer.flush()
