"""``report``: a page, a picture, tables and JSON of a study or of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.bundling import KEY, bundle_of
from runner.cli.options import by_shell, say
from runner.errors import Exit, UsageError
from runner.text import counted

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory
    from runner.model.report import Report
    from runner.study.directory import StudyDirectory


@click.command()
@click.argument("subjects", nargs=-1, metavar="[STUDY | RUN...]", shell_complete=by_shell("runs and studies"))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory for the files: a new one, or that of an earlier report. [default: report-ID]",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="FILE",
    shell_complete=by_shell("files"),
    help="Write a bundle, too: the runs with all that their figures are made from, for `verify`.",
)
@KEY
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    subjects: tuple[str, ...], output: Path | None, bundle: Path | None, key: Path | None, as_json: bool
) -> int:
    """Report a STUDY or RUNs: a page for a browser, a picture for slides, tables (CSV) and JSON; the figures here as a
    table.

    Each is an id, a name, the beginning of one, a run's job id or a directory; by default the newest run.
    """
    from runner.report import writing

    if key is not None and bundle is None:
        raise UsageError("only a bundle is signed", fix="give --bundle FILE")
    found = _found(subjects)
    if bundle is not None:
        made = bundle_of(found, bundle, key)
        say(f"bundle {made.file}, {made.size_bytes} bytes{', signed' if made.signed else ''}, sha256 {made.sha256}")
    report, name = _report(found)
    directory = output if output is not None else Path(f"report-{name}")
    complete = writing.write(report, directory, say)
    if as_json:
        from runner.cli import json_output

        return json_output.show(complete)
    from runner.cli.report_table import show_report

    show_report(complete, directory)
    return Exit.GOOD


def _found(names: tuple[str, ...]) -> tuple[RunDirectory | StudyDirectory, ...]:
    """What these names mean, each once; the newest run without any."""
    from runner.cli.subject import find_subject
    from runner.jobs.lookup import find

    return tuple({each.path: each for each in ([find_subject(name) for name in names] or [find(None)])}.values())


def _report(meant: Sequence[RunDirectory | StudyDirectory]) -> tuple[Report, str]:
    """The report on runs or on a study, and a name for it."""
    from runner.jobs.directory import RunDirectory
    from runner.report.gather import of_runs, of_study

    runs = [each for each in meant if isinstance(each, RunDirectory)]
    studies = [each for each in meant if not isinstance(each, RunDirectory)]
    if not studies:
        more = f"-and-{len(runs) - 1}-more" if len(runs) > 1 else ""
        return of_runs([(run, _state(run)) for run in runs]), f"{runs[0].run_id}{more}"
    if len(meant) > 1:
        others = f"{len(studies)} studies" if not runs else f"a study and {counted(len(runs), 'run')}"
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
