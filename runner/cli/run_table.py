"""The list of runs as text, as wide as there is room: a table, and where that is too wide two lines for each run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from runner.cli.table import GAP, fitting
from runner.cli.text import age
from runner.core.text import gpus_text, printable
from runner.model.figure import in_short
from runner.model.listed_run import ListedRun

_COLUMNS = ("RUN", "NAME", "JOB", "STATE", "GPUS", "SITE", "AGE", "RESULT")
_TO_THE_RIGHT = frozenset(("GPUS", "AGE"))
# What a narrow table leaves out, in this order: the id of a run contains its name, a result says that it has ended, and
# the id finds all the rest.
_LEFT_OUT = ("NAME",)
_FEWER = ("RUN", "JOB", "GPUS", "SITE", "AGE", "RESULT")
_LEFT_OUT_OF_FEWER = ("JOB", "SITE", "AGE")
_NOTHING = "-"
_REASON = 32  # characters of why a job waits


def lines(runs: Sequence[ListedRun], now: datetime, width: int | None) -> list[str]:
    """The table, no line wider than ``width`` as far as ids allow; None for any width."""
    rows = [_cells(run, now) for run in runs]
    table = fitting(rows, _COLUMNS, _TO_THE_RIGHT, _LEFT_OUT, width)
    if table is None:
        rows = [row | {"RESULT": _state_or_result(row)} for row in rows]
        table = fitting(rows, _FEWER, _TO_THE_RIGHT, _LEFT_OUT_OF_FEWER, width)
    return table or [line for row in rows for line in _two_lines(row, width or 0)]


def _cells(run: ListedRun, now: datetime) -> dict[str, str]:
    """What stands in each column; the parts of a job's id after the first only distinguish machines."""
    cells = {
        "RUN": run.run,
        "NAME": run.name,
        "JOB": run.job.partition(".")[0],
        "STATE": run.state,
        "GPUS": str(run.gpus) if run.gpus else "",
        "SITE": run.site,
        "AGE": age((now - run.submitted).total_seconds()) if run.submitted else "",
        "RESULT": _result(run),
    }
    return {name: printable(text) or _NOTHING for name, text in cells.items()}


def _result(run: ListedRun) -> str:
    """The verdict; of a job that waits the reason, as Slurm's own list shows it."""
    if run.reason:
        reason = run.reason.removeprefix("Not Running: ")  # how PBS begins
        return f"({reason if len(reason) <= _REASON else reason[: _REASON - 3] + '...'})"
    figure = run.figure
    if figure is None:
        return run.outcome or ""
    return f"{figure.value:.1f} {figure.unit}/s" + (f" ({in_short(figure.doubts)})" if figure.doubts else "")


def _state_or_result(row: dict[str, str]) -> str:
    if row["RESULT"].startswith("("):
        return f"{row['STATE']} {row['RESULT']}"
    return row["STATE"] if row["RESULT"] == _NOTHING else row["RESULT"]


def _two_lines(row: dict[str, str], width: int) -> list[str]:
    """The id, and below it what else fits, the most telling first."""
    facts = [_state_or_result(row), gpus_text(int(row["GPUS"] or 0)), row["AGE"], row["SITE"], f"job {row['JOB']}"]
    line = f"{GAP}{facts[0]}"
    for fact in facts[1:]:
        if len(line) + len(GAP) + len(fact) <= width:
            line += f"{GAP}{fact}"
    return [row["RUN"], line]
