"""``report``: a page, a picture, tables and JSON of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.options import by_shell, say
from runner.errors import Exit

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory
    from runner.model.report import Report


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=by_shell("runs"))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory for the files: a new one, or that of an earlier report. [default: report-ID]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(runs: tuple[str, ...], output: Path | None, as_json: bool) -> int:
    """Report RUNs: a page for a browser, a picture for slides, tables (CSV) and JSON; the figures here as a table.

    Each RUN is an id, a name, the beginning of one, a job's id or a directory; by default the newest run.
    """
    from runner.report import writing

    report, name = _of_runs(runs)
    directory = output if output is not None else Path(f"report-{name}")
    complete = writing.write(report, directory, say)
    if as_json:
        from runner.cli import json_output

        return json_output.show(complete)
    from runner.cli.report_table import show_report

    show_report(complete, directory)
    return Exit.GOOD


def _of_runs(names: tuple[str, ...]) -> tuple[Report, str]:
    """The report on the runs that these names mean, each once, and a name for it."""
    from runner.jobs.lookup import find
    from runner.report.gather import of_runs

    found = {run.path: run for run in ([find(name) for name in names] or [find(None)])}
    runs = [(run, _state(run)) for run in found.values()]
    more = f"-and-{len(runs) - 1}-more" if len(runs) > 1 else ""
    return of_runs(runs), f"{runs[0][0].run_id}{more}"


def _state(run: RunDirectory) -> str:
    """The state of a run that has no verdict; a run that has ended is judged first."""
    from runner.cli.show import warn
    from runner.errors import RunnerError
    from runner.jobs.life import Standing, standing

    try:
        now = standing(run)
    except RunnerError as error:
        warn(f"{run.run_id}: {error.what}")
        return "unknown"
    return now.progress.state.phase if isinstance(now, Standing) and now.progress.state else ""
