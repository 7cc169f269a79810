"""``wait``: until a run has ended, then its verdict."""

from __future__ import annotations

import click


@click.command()
@click.argument("run", required=False)
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), help="Seconds to wait at most (then exit 9).")
@click.option("--cancel-on-interrupt", is_flag=True, help="Ctrl-C cancels the job, too.")
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(run: str | None, timeout_s: float | None, cancel_on_interrupt: bool, as_json: bool) -> int:
    """Wait for RUN's end (an id, a directory, or the newest) and print its verdict."""
    from runner.cli.show import wait_and_judge
    from runner.jobs.directory import find

    return wait_and_judge(find(run), timeout_s=timeout_s, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)
