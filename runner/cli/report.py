"""``report``: a page, a picture, tables and JSON of a study or of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.options import by_shell, say
from runner.errors import Exit, UsageError

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory
    from runner.model.report import Report


@click.command()
@click.argument("subjects", nargs=-1, metavar="[STUDY | RUN...]", shell_complete=by_shell("runs and studies"))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory for the files: a new one, or that of an earlier report. [default: report-ID]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(subjects: tuple[str, ...], output: Path | None, as_json: bool) -> int:
    """Report a STUDY or RUNs: a page for a browser, a picture for slides, tables (CSV) and JSON; the figures here as a
    table.

    Each is an id, a name, the beginning of one, a run's job id or a directory; by default the newest run.
    """
    from runner.report import writing

    report, name = _report(subjects)
    directory = output if output is not None else Path(f"report-{name}")
    complete = writing.write(report, directory, say)
    if as_json:
        from runner.cli import json_output

        return json_output.show(complete)
    from runner.cli.report_table import show_report

    show_report(complete, directory)
    return Exit.GOOD


def _report(names: tuple[str, ...]) -> tuple[Report, str]:
    """The report on what these names mean, each once, and a name for it."""
    from runner.cli.subject import find_subject
    from runner.jobs.directory import RunDirectory
    from runner.jobs.lookup import find
    from runner.report.gather import of_runs, of_study

    meant = {each.path: each for each in ([find_subject(name) for name in names] or [find(None)])}
    runs = [each for each in meant.values() if isinstance(each, RunDirectory)]
    studies = [each for each in meant.values() if not isinstance(each, RunDirectory)]
    if not studies:
        more = f"-and-{len(runs) - 1}-more" if len(runs) > 1 else ""
        return of_runs([(run, _state(run)) for run in runs]), f"{runs[0].run_id}{more}"
    if len(meant) > 1:
        others = f"{len(studies)} studies" if not runs else f"a study and {len(runs)} runs"
        raise UsageError(
            f"a report is on one study or on runs, and these are {others}",
            fix="report each study alone; `compare` holds two against each other",
        )
    from runner.study.gather import facts

    return of_study(facts(studies[0])), studies[0].path.name


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
