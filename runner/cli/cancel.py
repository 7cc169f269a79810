"""``cancel``: end a run's job."""

from __future__ import annotations

import click

from runner.errors import Exit


@click.command()
@click.argument("run", required=False)
def command(run: str | None) -> int:
    """Cancel the job of RUN (an id, a directory, or the newest)."""
    from runner.jobs.cancel import cancel
    from runner.jobs.directory import find
    from runner.jobs.submission import scheduler_of

    found = find(run)
    scheduler, job_id = scheduler_of(found)
    # A job of that id from another directory is another run's: its state is unknown here, and it is left alone.
    if scheduler.state(job_id, found.path).phase in ("ended", "unknown"):
        click.echo(f"job {job_id} has ended already; `python -m runner wait {found.run_id}` prints its verdict")
        return Exit.GOOD
    cancel(found, scheduler, job_id)
    click.echo(f"job {job_id} is being cancelled; `python -m runner wait {found.run_id}` waits for its end")
    return Exit.GOOD
