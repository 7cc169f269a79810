"""A report on a terminal: what to see first, the points or runs as a table, and where the files are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from runner.cli.table import aligned, fitting, width_of_terminal, wrapped
from runner.core.text import gpus_text, printable
from runner.model.report import Report

_NARROWEST = 40
_MOST_LINES = 20


def show_report(report: Report, directory: Path) -> None:
    """Print it, as wide as there is room; of any width where it does not go to a terminal."""
    for line in lines(report, width_of_terminal(at_least=_NARROWEST)):
        click.echo(line)
    click.echo(f"files: {printable(str(directory))}/: {', '.join(report.files)}")


def lines(report: Report, width: int | None) -> list[str]:
    """The report in words and one table, no line wider than ``width`` as far as names allow."""
    texts = [report.title, f"{report.subtitle}."]
    texts += [f"[{report.demonstration}]"] if report.demonstration else []
    made = [line for text in texts for line in _wrapped(text, width, "")]
    for each in report.highlights:
        note = f" ({each.note})" if each.note else ""
        made += _wrapped(f"{each.name}: {each.value}{note}", width, "  ")
    made += ["", *_table(*(_points(report) if report.study is not None else _runs(report)), width)]
    made += list(_losses(report, width))
    for run in report.detailed:
        if run.problem:
            made += _wrapped(f"records do not hold: {run.row.run}: {run.problem}", width, "  ")
    for doubt in report.doubts:
        made += _wrapped(f"doubt: {doubt.words}", width, "  ") if doubt.code != "demonstration" else []
    missing = [row for row in report.rows if row.state != "proven"]
    for row in missing[:_MOST_LINES]:
        made += _wrapped(f"not proven: {row.run or row.key}: {row.why or row.state}", width, "  ")
    if len(missing) > _MOST_LINES:
        made.append(f"{len(missing) - _MOST_LINES} more runs are not proven: runs.csv")
    return made


def _points(report: Report) -> tuple[list[str], list[list[str]]]:
    from runner.figures.report.numbers import interval, of_each, percent, rate, settings_text

    head = ["GPUS", "PER GPU", "EFFICIENCY", "95 %", f"{report.unit.upper()}/S", "PROVEN", "ARM", "SETTING"]
    rows = []
    for point in report.study.points if report.study else ():
        each, share = of_each(point), point.efficiency_of_one
        rows.append(
            [
                str(point.gpus),
                rate(each.value) if each else "-",
                percent(share.value) if share else "-",
                interval(share) or "-",
                rate(point.images_per_s.value) if point.images_per_s else "-",
                f"{point.proven}/{point.wanted}",
                point.arm,
                settings_text(point.settings) or "-",
            ]
        )
    return head, rows


def _runs(report: Report) -> tuple[list[str], list[list[str]]]:
    from runner.figures.report.numbers import kind_text, rate, units_of

    is_mixed = len(units_of(report.rows)) > 1
    is_unlike = any(kind_text(row) for row in report.rows)
    rows = [
        [
            row.run,
            rate(row.per_gpu) if row.per_gpu is not None else "-",
            str(row.gpus),
            f"{rate(row.images_per_s)}{f' {row.unit}/s' if is_mixed else ''}" if row.images_per_s is not None else "-",
            row.state,
            *((kind_text(row) or "-",) if is_unlike else ()),
        ]
        for row in report.rows
    ]
    rate_name = "RATE" if is_mixed else f"{report.unit.upper()}/S"
    return ["RUN", "PER GPU", "GPUS", rate_name, "STATE", *(("DIFFERS",) if is_unlike else ())], rows


def _losses(report: Report, width: int | None) -> Iterator[str]:
    from runner.figures.report.numbers import interval, percent, settings_text

    for loss in report.study.losses if report.study else ():
        at = " ".join(filter(None, (f"{gpus_text(loss.gpus)}", settings_text(loss.settings))))
        if not loss.rows:
            yield from _wrapped(f"loss at {at}: unknown: {loss.why}", width, "  ")
            continue
        yield f"loss at {printable(at)}"
        for row in loss.rows:
            sure, note = interval(row.loss), f", {row.note}" if row.note else ""
            more = f" ({sure})" if sure else ""
            yield from _wrapped(f"  {percent(row.loss.value)} {row.name}{more}{note}", width, "    ")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Columns from the left, as many as fit; at least two."""
    cells = [dict(zip(head, map(_shown, row), strict=True)) for row in rows]
    return fitting(cells, head, (), tuple(reversed(head[2:])), width) or aligned(cells, head[:2])


def _wrapped(text: str, width: int | None, indent: str) -> list[str]:
    return wrapped(_shown(text), width, then=indent)


def _shown(text: str) -> str:
    return printable(text.replace("\N{NARROW NO-BREAK SPACE}", " "))
