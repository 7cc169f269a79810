"""``report``: a page, a picture, tables and JSON of a study or of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from runner.cli.options import SIGN, answer, by_shell, path_option, say, warn
from runner.cli.study import loss_lines, point_lines
from runner.cli.table import NARROWEST, width_of_terminal, wrapped_all
from runner.core.columns import lines_of
from runner.core.errors import UsageError
from runner.core.text import point_text
from runner.figures.report import writing
from runner.figures.tables import attempt_columns, goodput_text, run_columns
from runner.jobs.directory import Run
from runner.model.report import Report
from runner.study.directory import find_subjects
from runner.study.readers import bundle_of, report_of

_MOST_LINES = 20


@click.command()
@click.argument("subjects", nargs=-1, metavar="[STUDY | RUN...]", shell_complete=by_shell("runs and studies"))
@path_option(
    "-o", "--output", metavar="DIR",
    help="Directory for the files: a new one, or that of an earlier report. [default: report-ID]",
)  # fmt: skip
@path_option("--bundle", help="Write a bundle, too: the runs with all that their figures are made from, for `verify`.")
@SIGN
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    subjects: tuple[str, ...], output: Path | None, bundle: Path | None, key: Path | None, as_json: bool
) -> int:
    """Report a STUDY or RUNs: a page for a browser, a picture for slides, tables (CSV) and JSON; the figures here as a
    table.

    Each is an id, a name, the beginning of one, a run's job id or a directory; by default the newest run, or
    the study that it is of.
    """
    if key is not None and bundle is None:
        raise UsageError("only a bundle is signed", fix="give --bundle FILE")
    named = find_subjects(subjects)
    if not subjects and isinstance(named[0], Run) and (study := named[0].group) is not None:
        named = find_subjects((str(study),))
    if bundle is not None:
        made = bundle_of(named, bundle, key)
        say(f"bundle {made.file}, {made.size_bytes} bytes{', signed' if made.signed else ''}, sha256 {made.sha256}")
    report, name = report_of(named, warn)
    directory = output if output is not None else Path(f"report-{name}")
    complete = writing.write(report, directory, say)
    lines = report_lines(complete, width_of_terminal(at_least=NARROWEST))
    lines.append(f"files: {directory}/: {', '.join(complete.files)}")
    return answer(complete, lines, as_json=as_json)


def report_lines(report: Report, width: int | None) -> list[str]:
    """The report in words and one table, no line wider than ``width`` as far as names allow."""
    label = [f"[{report.demonstration}]"] if report.demonstration else []
    made = wrapped_all([report.title, f"{report.subtitle}.", *label], width)
    made += wrapped_all(
        (f"{each.name}: {each.value}{f' ({each.note})' if each.note else ''}" for each in report.highlights), width
    )
    if report.study is not None:
        made += ["", *point_lines(report.study.points, report.unit, width), *loss_lines(report.study.losses, width)]
    else:
        made += ["", *lines_of(run_columns(report.rows), report.rows, width)]
    for chain in report.chains:
        made += ["", *wrapped_all([f"{chain.name}: {goodput_text(chain)}"], width)]
        made += lines_of(attempt_columns(), chain.attempts, width)
    return made + wrapped_all(_notes(report), width)


def _notes(report: Report) -> Iterator[str]:
    for loss in report.study.losses if report.study else ():
        if not loss.rows:
            at = point_text(loss.gpus, loss.settings, " ")
            yield f"loss at {at}: unknown: {loss.why}"
    for run in report.detailed:
        if run.problem:
            yield f"records do not hold: {run.row.run}: {run.problem}"
    yield from (f"doubt: {doubt.words}" for doubt in report.doubts if doubt.code != "demonstration")
    missing = [row for row in report.rows if row.state != "proven"]
    for row in missing[:_MOST_LINES]:
        state = row.state if row.state == "ran" else "not proven"
        yield f"{state}: {row.run or row.key}: {row.why or row.state}"
    if len(missing) > _MOST_LINES:
        yield f"{len(missing) - _MOST_LINES} more runs without a proven figure: runs.csv"
