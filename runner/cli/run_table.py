"""The list of runs as text, as wide as there is room: a table, and where that is too wide two lines for each run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from runner.core.columns import GAP, Column, for_terminal
from runner.core.text import age, gpus_text, plain, rate
from runner.model.figure import in_short
from runner.model.output import ListedRun

_REASON = 32  # characters of why a job waits


def lines(runs: Sequence[ListedRun], now: datetime, width: int | None) -> list[str]:
    """The table, no line wider than ``width`` as far as ids allow; None for any width."""
    run = Column[ListedRun]("run", values="run")
    gpus = Column[ListedRun]("GPUs", lambda each: str(each.gpus) if each.gpus else "", right=True)
    # What a narrow table leaves out: the id of a run contains its name, a result says that it has ended, and the id
    # finds all the rest.
    whole: tuple[Column[ListedRun], ...] = (
        run,
        Column("name", values="name", leave=1),
        Column("job", _job),
        Column("state", values="state"),
        gpus,
        Column("site", values="site"),
        Column("age", lambda each: _age(each, now), right=True),
        Column("result", _result),
    )
    fewer: tuple[Column[ListedRun], ...] = (
        run,
        Column("job", _job, leave=3),
        gpus,
        Column("site", values="site", leave=2),
        Column("age", lambda each: _age(each, now), right=True, leave=1),
        Column("result", _state_or_result),
    )
    table = for_terminal(whole, runs, width, whole=True) or for_terminal(fewer, runs, width, whole=True)
    return table or [line for each in runs for line in _two_lines(each, now, width or 0)]


def _job(run: ListedRun) -> str:
    """The parts of a job's id after the first only distinguish machines."""
    return run.job.partition(".")[0]


def _age(run: ListedRun, now: datetime) -> str:
    return age((now - run.submitted).total_seconds()) if run.submitted else ""


def _result(run: ListedRun) -> str:
    """The verdict; of a job that waits the reason, as Slurm's own list shows it."""
    if run.reason:
        reason = run.reason.removeprefix("Not Running: ")  # how PBS begins
        return f"({reason if len(reason) <= _REASON else reason[: _REASON - 3] + '...'})"
    figure = run.figure
    if figure is None:
        return run.outcome or ""
    return f"{rate(figure.value)} {figure.unit}/s" + (f" ({in_short(figure.doubts)})" if figure.doubts else "")


def _state_or_result(run: ListedRun) -> str:
    result = _result(run)
    return f"{run.state} {result}" if result.startswith("(") else result or run.state


def _two_lines(run: ListedRun, now: datetime, width: int) -> list[str]:
    """The id, and below it what else fits, the most telling first."""
    facts = [gpus_text(run.gpus or 0), _age(run, now) or "-", run.site, f"job {_job(run) or '-'}"]
    line = plain(f"{GAP}{_state_or_result(run)}")
    for fact in map(plain, facts):
        if len(line) + len(GAP) + len(fact) <= width:
            line += f"{GAP}{fact}"
    return [plain(run.run), line]
