"""``status``: the state of a run."""

from __future__ import annotations

import click

from runner.cli.options import RUN
from runner.errors import Exit
from runner.invocation import PROGRAM


@click.command()
@RUN
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(run: str | None, as_json: bool) -> int:
    """Show the state of RUN (an id or name, or its beginning; a job id; a directory; or the newest)."""
    from runner.cli.show import describe, show_verdict
    from runner.jobs.life import Standing, standing
    from runner.jobs.lookup import find

    directory = find(run)
    now = standing(directory)
    if as_json:
        from runner.cli import json_output
        from runner.jobs.facts import run_facts

        return json_output.show(run_facts(directory, now))
    if not isinstance(now, Standing):
        show_verdict(directory, now)
        return Exit.GOOD
    state = now.progress.state
    click.echo(f"run {directory.run_id}, job {now.job_id}: {describe(now.progress, now.tasks)}")
    click.echo(f"  run directory: {directory.path}")
    if state is not None and state.phase in ("ended", "unknown"):
        click.echo(f"  next: {PROGRAM} wait {directory.run_id}")
    return Exit.GOOD
