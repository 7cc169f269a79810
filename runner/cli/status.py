"""``status``: where a run stands."""

from __future__ import annotations

import json

import click
import msgspec

from runner.errors import Exit


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(run: str | None, as_json: bool) -> int:
    """Say where RUN stands (an id, a directory, or the newest)."""
    from runner.cli.show import describe, show_verdict
    from runner.jobs.directory import find
    from runner.jobs.submission import scheduler_of
    from runner.jobs.watch import progress
    from runner.model.plan import Plan
    from runner.model.verdict import Verdict

    found = find(run)
    verdict = found.read("verdict.json", Verdict)
    if verdict is not None:
        show_verdict(found, verdict, as_json=as_json)
        return Exit.GOOD
    scheduler, job_id = scheduler_of(found)
    plan = found.read("plan.json", Plan)
    stand = progress(found, scheduler.state(job_id, found.path), 0.0)
    if as_json:
        facts = {
            "run": found.run_id,
            "directory": str(found.path),
            "job": job_id,
            "state": msgspec.to_builtins(stand.state),
            "started": stand.started,
            "ended": stand.ended,
        }
        click.echo(json.dumps(facts))
        return Exit.GOOD
    click.echo(f"run {found.run_id}, job {job_id}: {describe(stand, plan.tasks if plan else 0)}")
    click.echo(f"  run directory: {found.path}")
    if stand.state is not None and stand.state.phase in ("ended", "unknown"):
        click.echo(f"  its verdict: python -m runner wait {found.run_id}")
    return Exit.GOOD
