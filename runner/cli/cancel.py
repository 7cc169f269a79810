"""``cancel``: cancel a run's job."""

from __future__ import annotations

import click

from runner.cli.options import RUN_OR_STUDY
from runner.core.errors import Exit
from runner.core.invocation import PROGRAM


@click.command()
@RUN_OR_STUDY
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(run: str | None, as_json: bool) -> int:
    """Cancel the job of RUN, or all jobs of STUDY (an id or name, or its beginning; a job id; a directory; or the
    newest run).
    """
    from runner.jobs.directory import RunDirectory
    from runner.jobs.lookup import kept_outcome
    from runner.jobs.states import cancel_run
    from runner.study.directory import find_subject

    directory = find_subject(run)
    if not isinstance(directory, RunDirectory):
        from runner.cli.study import cancel

        return cancel(directory, as_json=as_json)
    job_id, had_ended = cancel_run(directory)
    if as_json:
        from runner.cli import json_output
        from runner.model.output import Cancellation

        return json_output.show(Cancellation(directory.run_id, str(directory.path), job_id, had_ended))
    wait = f"`{PROGRAM} wait {directory.run_id}`"
    if had_ended:
        outcome = kept_outcome(directory)
        verdict = f": {outcome}" if outcome not in ("", "ended") else f"; {wait} prints its verdict"
        click.echo(f"job {job_id} has already ended{verdict}")
    else:
        click.echo(f"job {job_id} is being cancelled; {wait} waits until it has ended")
    return Exit.GOOD
