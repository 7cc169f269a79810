"""Tidy CSV: one row per run, rank, point and loss; a column is one quantity, with its unit in its name. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from runner.core.text import printable
from runner.figures.export.writers import never_a_formula
from runner.figures.report.numbers import settings_text
from runner.model.figure import in_words
from runner.model.report import Report
from runner.model.study import Estimate

Cell = str | int | float | bool | None


def csv_files(report: Report) -> dict[str, str]:
    """Name of a file -> its content. Values that are unknown are empty."""
    files = {"runs.csv": _csv(RUNS, _runs(report)), "ranks.csv": _csv(RANKS, _ranks(report))}
    if report.study is not None:
        files |= {"points.csv": _csv(POINTS, _points(report)), "losses.csv": _csv(LOSSES, _losses(report))}
    return files


RUNS = (
    "key", "run", "gpus", "arm", "settings", "repeat", "state", "unit", "images_per_s", "images_per_s_low",
    "images_per_s_high", "images_per_s_per_gpu", "step_s", "sm_clock_mhz", "nodes", "demonstration", "why",
    "directory", "doubts",
)  # fmt: skip
RANKS = ("key", "run", "gpus", "rank", "node", "local_rank", "compute_s", "relative", "slow")
_THREE = ("", "_low", "_high")
POINTS = (
    "gpus", "arm", "settings", "proven", "wanted", "unit", *(f"images_per_s{end}" for end in _THREE),
    *(f"efficiency_of_one{end}" for end in _THREE), *(f"efficiency_of_uncoupled{end}" for end in _THREE), "spread",
    "doubts",
)  # fmt: skip
LOSSES = ("gpus", "settings", "lost_to", *(f"loss{end}" for end in _THREE), "clock_ratio", "note", "why")


def _runs(report: Report) -> Iterable[Sequence[Cell]]:
    for row in report.rows:
        yield (
            row.key, row.run, row.gpus, row.arm, settings_text(row.settings), row.repeat or None, row.state,
            row.unit, row.images_per_s, row.low, row.high, row.per_gpu, row.step_s, row.sm_clock_mhz,
            " ".join(row.nodes), row.demonstration, row.why, row.directory,
            in_words(row.figure.doubts) if row.figure else "",
        )  # fmt: skip


def _ranks(report: Report) -> Iterable[Sequence[Cell]]:
    for each in report.detailed:
        for rank in each.ranks:
            own = (rank.rank, rank.node, rank.local_rank, rank.compute_s, rank.relative, int(rank.slow))
            yield (each.row.key, each.row.run, each.row.gpus, *own)


def _points(report: Report) -> Iterable[Sequence[Cell]]:
    for point in report.study.points if report.study else ():
        estimates = (point.images_per_s, point.efficiency_of_one, point.efficiency_of_uncoupled)
        own = (point.gpus, point.arm, settings_text(point.settings), point.proven, point.wanted, report.unit)
        yield (*own, *(value for each in estimates for value in _values(each)), point.spread, in_words(point.doubts))


def _losses(report: Report) -> Iterable[Sequence[Cell]]:
    for loss in report.study.losses if report.study else ():
        settings = settings_text(loss.settings)
        if not loss.rows:
            yield (loss.gpus, settings, None, None, None, None, None, None, loss.why)
        for row in loss.rows:
            yield (loss.gpus, settings, row.name, *_values(row.loss), row.clock_ratio, row.note, None)


def _values(estimate: Estimate | None) -> tuple[Cell, Cell, Cell]:
    return (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)


def _csv(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_cell(cell) for cell in row] for row in rows)
    return file.getvalue()


def _cell(cell: Cell) -> Cell:
    """Text without control characters, and never a formula."""
    if not isinstance(cell, str):
        return cell
    return never_a_formula(printable(cell))
