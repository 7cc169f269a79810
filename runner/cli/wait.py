"""``wait``: wait for a run to finish, then print its verdict."""

from __future__ import annotations

import click

from runner.cli.options import RUN_OR_STUDY


@click.command()
@RUN_OR_STUDY
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), help="Maximum time to wait, in seconds; then exit with 9."
)
@click.option("--cancel-on-interrupt", is_flag=True, help="Ctrl-C also cancels the job.")
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(run: str | None, timeout_s: float | None, cancel_on_interrupt: bool, as_json: bool) -> int:
    """Wait for RUN to finish, then print its verdict; or for all jobs of STUDY, then print its figures.

    An id or name, or its beginning; a job id; a directory; or the newest run.
    """
    from runner.cli.show import wait_and_judge
    from runner.jobs.directory import RunDirectory
    from runner.study.directory import find_subject

    subject = find_subject(run)
    if not isinstance(subject, RunDirectory):
        from runner.cli.study import wait_for

        return wait_for(subject, timeout_s=timeout_s, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)
    return wait_and_judge(subject, timeout_s=timeout_s, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)
