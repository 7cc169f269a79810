"""A report on a terminal: what to see first, the points or runs as a table, and where the files are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.cli.study_table import loss_lines, point_lines
from runner.cli.table import NARROWEST, show, width_of_terminal, wrapped_all
from runner.core.columns import lines_of
from runner.core.text import gpus_text
from runner.figures.tables import run_columns, settings_text
from runner.model.report import Report

_MOST_LINES = 20


def show_report(report: Report, directory: Path) -> None:
    """Print it, as wide as there is room; of any width where it does not go to a terminal."""
    show([*lines(report, width_of_terminal(at_least=NARROWEST)), f"files: {directory}/: {', '.join(report.files)}"])


def lines(report: Report, width: int | None) -> list[str]:
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
    return made + wrapped_all(_notes(report), width)


def _notes(report: Report) -> Iterator[str]:
    for loss in report.study.losses if report.study else ():
        if not loss.rows:
            at = " ".join(filter(None, (gpus_text(loss.gpus), settings_text(loss.settings))))
            yield f"loss at {at}: unknown: {loss.why}"
    for run in report.detailed:
        if run.problem:
            yield f"records do not hold: {run.row.run}: {run.problem}"
    yield from (f"doubt: {doubt.words}" for doubt in report.doubts if doubt.code != "demonstration")
    missing = [row for row in report.rows if row.state != "proven"]
    for row in missing[:_MOST_LINES]:
        yield f"not proven: {row.run or row.key}: {row.why or row.state}"
    if len(missing) > _MOST_LINES:
        yield f"{len(missing) - _MOST_LINES} more runs are not proven: runs.csv"
