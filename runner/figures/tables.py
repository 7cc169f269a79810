"""Points, runs, ranks and losses as tables for terminals, pages and CSV; and what they are called. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from runner.core.columns import Cell, Column
from runner.core.text import duration, efficiency, first_of, percent, rate, seconds, settings_text, span, with_span
from runner.model.figure import in_words
from runner.model.report import AttemptTimes, ChainTimes, RankFacts, Row, RunReport
from runner.model.study import Estimate, Loss, LossRow, PointFacts, Setting, StudyFacts

MOST_SERIES = 4
_MOST_NODES = 4


def share(estimate: Estimate | None) -> str:
    """``90.0 % (85.0 % to 95.0 %)``; empty without one."""
    return "" if estimate is None else with_span(estimate.value, estimate.low, estimate.high)


def interval(estimate: Estimate | None, write: Callable[[float], str] = efficiency) -> str:
    """``91.0 % to 93.8 %``; empty where there is none."""
    return "" if estimate is None else span(estimate.low, estimate.high, write)


def _number(value: float | None, write: Callable[[float], str] = rate) -> str:
    return "" if value is None else write(value)


def _value(estimate: Estimate | None) -> str:
    return "" if estimate is None else rate(estimate.value)


def _three(name: str, path: str) -> dict[str, str]:
    """An estimate as columns of CSV: its value, and the ends of its interval."""
    return {f"{name}{end and '_'}{end}": f"{path}.{end or 'value'}" for end in ("", "low", "high")}


def point_columns(unit: str) -> tuple[Column[PointFacts], ...]:
    """A study's points. What differs between points stays in the narrowest table, and what no other column says."""
    of_one, of_uncoupled = "efficiency_of_one", "efficiency_of_uncoupled"
    return (
        Column("GPUs", values="gpus", right=True),
        Column("arm", values="arm"),
        Column("setting", values={"settings": lambda p: settings_text(p.settings)}),
        Column("proven", lambda p: f"{p.proven}/{p.wanted}", "proven wanted", right=True, leave=1),
        Column("", values={"unit": lambda _p: unit}),
        Column(f"{unit}/s", lambda p: _value(p.images_per_s), _three("images_per_s", "images_per_s"), right=True),
        Column("95 %", lambda p: interval(p.images_per_s, rate), leave=2),
        Column("per GPU", lambda p: _value(estimate_per_gpu(p)), right=True, leave=5),
        Column("efficiency", lambda p: share(p.efficiency_of_one), _three(of_one, of_one)),
        Column("of uncoupled", lambda p: share(p.efficiency_of_uncoupled), _three(of_uncoupled, of_uncoupled), leave=4),
        Column("", values="scaling spread"),
        Column("", values={"doubts": lambda p: in_words(p.doubts)}),
    )


def run_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Runs; of runs that count different things each rate comes with its unit."""
    is_mixed = len(units_of(rows)) > 1
    differs: dict[str, str | Callable[[Row], Cell]] = {
        "settings": lambda r: settings_text(r.settings),
        "repeat": lambda r: r.repeat or None,
    }
    figure = {"images_per_s": "images_per_s", "images_per_s_low": "low", "images_per_s_high": "high"}

    def figure_text(row: Row) -> str:
        return _number(row.images_per_s, lambda value: f"{rate(value)} {row.unit}/s" if is_mixed else rate(value))

    return (
        Column("", values="key"),
        Column("run", lambda r: launch_text(r) if r.repeat else r.run, "run"),
        Column("values", values={"values": lambda r: settings_text(r.values.items())}),
        Column("GPUs", values="gpus arm", right=True, leave=1),
        Column("differs", lambda r: "" if r.repeat else kind_text(r), differs, leave=3),
        Column("state", lambda r: r.state, "state unit", leave=4),
        Column("rate" if is_mixed else f"{unit_of(rows)}/s", figure_text, figure, right=True, leave=2),
        Column("per GPU", lambda r: _number(r.per_gpu), {"images_per_s_per_gpu": "per_gpu"}, right=True),
        Column("step", lambda r: _number(r.step_s, seconds), "step_s", right=True, leave=5),
        Column("", values="sm_clock_mhz"),
        Column("nodes", lambda r: first_of(r.nodes, _MOST_NODES), {"nodes": lambda r: " ".join(r.nodes)}, leave=6),
        Column("", values="demonstration why directory"),
        Column("doubts", lambda r: _doubts(r, labelled=True), {"doubts": _doubts}, leave=7),
    )


def _doubts(row: Row, *, labelled: bool = False) -> str:
    return in_words(row.figure.doubts, labelled=labelled) if row.figure else ""


class Ranked(NamedTuple):
    """A rank, and the run that it is of."""

    run: RunReport
    rank: RankFacts


def rank_columns(*, demonstration: bool) -> tuple[Column[Ranked], ...]:
    """Ranks; of a demonstration none is named as slow. ``demonstration``: what a page shows is of one."""
    named, slow = ("stands out", "yes") if demonstration else ("named", "slow")
    own: dict[str, str | Callable[[Ranked], Cell]] = {
        "stands_out": "rank.slow",
        "slow": lambda r: None if r.run.row.demonstration else r.rank.slow,
    }
    return (
        Column("", values={name: f"run.row.{name}" for name in ("key", "run", "gpus")}),
        Column("rank", values={"rank": "rank.rank"}, right=True),
        Column("node", values={"node": "rank.node", "local_rank": "rank.local_rank"}),
        Column("compute time of a step", lambda r: seconds(r.rank.compute_s), {"compute_s": "rank.compute_s"}),
        Column("over the typical rank", lambda r: percent(r.rank.relative), {"relative": "rank.relative"}),
        Column(named, lambda r: slow if r.rank.slow else "", own),
        Column("", values={"demonstration": "run.row.demonstration", "doubts": lambda r: _doubts(r.run.row)}),
    )


def attempt_columns() -> tuple[Column[AttemptTimes], ...]:
    """The time line of a chain."""
    return (
        Column("attempt", values="attempt", right=True),
        Column("began", lambda each: f"{each.began:%Y-%m-%d %H:%M:%S}" if each.began else ""),
        Column("start-up", lambda each: seconds(each.start_up_s), right=True),
        Column("counts", lambda each: seconds(each.kept_s), right=True),
        Column("repeated", lambda each: seconds(each.lost_s), right=True),
        Column("end", lambda each: each.end or "running"),
    )


def goodput_text(chain: ChainTimes) -> str:
    """``goodput 97.1 % apart from start-up, which took 12 s of 5 min``."""
    if chain.goodput is None:
        return "goodput is not known yet"
    own = "" if chain.by_first_step else " (until its ranks had met: the program leaves no `first-step`)"
    whole_s = chain.start_up_s + chain.kept_s + chain.lost_s
    took = f"{duration(chain.start_up_s)} of {duration(whole_s)}"
    return f"goodput {percent(chain.goodput)} apart from start-up, which took {took}{own}"


class Lost(NamedTuple):
    """A part of what is lost at one size; None where there is no attribution."""

    all: Loss
    part: LossRow | None
    doubts: str = ""


def loss_columns() -> tuple[Column[Lost], ...]:
    """What is lost at each size."""
    return (
        Column("GPUs", values={"gpus": "all.gpus"}, right=True),
        Column("setting", values={"settings": lambda each: settings_text(each.all.settings)}),
        Column("lost to", values={"lost_to": "part.name"}),
        Column("of the ideal", lambda each: share(each.part.loss if each.part else None), _three("loss", "part.loss")),
        Column(
            "ratio of clocks",
            lambda each: _number(each.part.clock_ratio if each.part else None, "{:.3f}".format),
            {"clock_ratio": "part.clock_ratio"},
            right=True,
            leave=1,
        ),
        Column("note", values={"note": "part.note"}),
        Column("", values={"why": lambda each: None if each.part else each.all.why, "doubts": "doubts"}),
    )


def losses_of(losses: Iterable[Loss], points: Sequence[PointFacts] = ()) -> list[Lost]:
    """The rows of ``loss_columns``; the doubts are those of the ``points`` at that size, and at one GPU."""

    def doubts(loss: Loss) -> str:
        made_of = (each for each in points if each.settings == loss.settings and each.gpus in (1, loss.gpus))
        return in_words(dict.fromkeys(doubt for each in made_of for doubt in each.doubts))

    return [Lost(loss, row, doubts(loss)) for loss in losses for row in (loss.rows or (None,))]


def kind_text(row: Row) -> str:
    """In what a single run is another than those beside it: its arm, where that is not training, and its settings."""
    return ", ".join(filter(None, (row.arm and f"arm {row.arm}", settings_text(row.settings))))


def chosen_text(row: Row) -> str:
    """Which of several runs one is: its kind, and what its sweep gave it."""
    return ", ".join(filter(None, (kind_text(row), settings_text(row.values.items()))))


def launch_text(row: Row) -> str:
    """What a row is called: the launch's arm, setting and repeat, or the run's id."""
    if not row.repeat:
        return f"{row.run} ({chosen_text(row)})" if chosen_text(row) else row.run
    return ", ".join(filter(None, (row.arm, settings_text(row.settings), f"repeat {row.repeat}")))


def units_of(rows: Iterable[Row]) -> list[str]:
    """What the figures of the proven runs count, each once."""
    return list(dict.fromkeys(row.unit for row in rows if row.images_per_s is not None))


def unit_of(rows: Iterable[Row]) -> str:
    """What the figures of the proven runs count: ``images``, ``tokens``; ``images or tokens`` where runs differ."""
    return " or ".join(units_of(rows)) or "images"


def estimate_per_gpu(point: PointFacts) -> Estimate | None:
    """A point's figure by GPU."""
    whole = point.images_per_s
    if whole is None or not point.gpus:
        return None
    shares = [None if value is None else value / point.gpus for value in (whole.low, whole.high)]
    return Estimate(whole.value / point.gpus, *shares)


def curve(points: Iterable[PointFacts], settings: Setting, arm: str = "full") -> list[PointFacts]:
    """The points of one arm and setting that have a figure, smallest size first."""
    own = [point for point in points if point.arm == arm and point.settings == settings and point.images_per_s]
    return sorted(own, key=lambda point: point.gpus)


def all_settings(points: Iterable[PointFacts]) -> list[Setting]:
    """Every setting of the points, in their order."""
    return list(dict.fromkeys(point.settings for point in points))


def main_settings(study: StudyFacts) -> list[Setting]:
    """The settings that are drawn: those of the greatest figures at the largest size, the greatest first."""

    def rank(settings: Setting) -> tuple[int, float]:
        own = curve(study.points, settings)
        last = own[-1].images_per_s if own else None
        return (-own[-1].gpus if own else 0, -(last.value if last else 0.0))

    known = [settings for settings in all_settings(study.points) if curve(study.points, settings)]
    return sorted(known, key=rank)[:MOST_SERIES]
