"""Points, runs, ranks and losses as tables for terminals, pages and CSV; and what they are called. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from runner.core.columns import Cell, Column
from runner.core.numbers import percent, rate, seconds, span, with_span
from runner.core.text import first_of
from runner.model.report import RankFacts, Row, RunReport
from runner.model.study import Estimate, Loss, LossRow, PointFacts, StudyFacts

MOST_SERIES = 4
_MOST_NODES = 4
T = TypeVar("T")


def share(estimate: Estimate | None) -> str:
    """``90.0 % (85.0 % to 95.0 %)``; empty without one."""
    return "" if estimate is None else with_span(estimate.value, estimate.low, estimate.high)


def interval(estimate: Estimate | None, write: Callable[[float], str] = percent) -> str:
    """``91.0 % to 93.8 %``; empty where there is none."""
    return "" if estimate is None else span(estimate.low, estimate.high, write)


def _number(value: float | None, write: Callable[[float], str] = rate) -> str:
    return "" if value is None else write(value)


def _value(estimate: Estimate | None) -> str:
    return "" if estimate is None else rate(estimate.value)


def _three(name: str, of: Callable[[T], Estimate | None]) -> tuple[tuple[str, Callable[[T], Cell]], ...]:
    """An estimate as columns of CSV: its value, and the ends of its interval."""

    def end(which: str) -> Callable[[T], Cell]:
        return lambda row: getattr(of(row), which, None)

    return ((name, end("value")), (f"{name}_low", end("low")), (f"{name}_high", end("high")))


def point_columns(unit: str) -> tuple[Column[PointFacts], ...]:
    """A study's points. What differs between points stays in the narrowest table, and what no other column says."""
    return (
        Column("GPUs", lambda p: str(p.gpus), (("gpus", lambda p: p.gpus),), right=True),
        Column("arm", lambda p: p.arm, (("arm", lambda p: p.arm),), leave=3),
        Column("setting", lambda p: settings_text(p.settings), (("settings", lambda p: settings_text(p.settings)),)),
        Column(
            "proven", lambda p: f"{p.proven}/{p.wanted}",
            (("proven", lambda p: p.proven), ("wanted", lambda p: p.wanted)), right=True, leave=1,
        ),
        Column("", values=(("unit", lambda _p: unit),)),
        Column(
            f"{unit}/s", lambda p: _value(p.images_per_s),
            _three("images_per_s", lambda p: p.images_per_s), right=True,
        ),
        Column("95 %", lambda p: interval(p.images_per_s, rate), leave=2),
        Column("per GPU", lambda p: _value(of_each(p)), right=True, leave=5),
        Column(
            "efficiency", lambda p: share(p.efficiency_of_one),
            _three("efficiency_of_one", lambda p: p.efficiency_of_one),
        ),
        Column(
            "of uncoupled", lambda p: share(p.efficiency_of_uncoupled),
            _three("efficiency_of_uncoupled", lambda p: p.efficiency_of_uncoupled), leave=4,
        ),
        Column("", values=(("spread", lambda p: p.spread),)),
    )  # fmt: skip


def run_columns(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """Runs; of runs that count different things each rate comes with its unit."""
    is_mixed = len(units_of(rows)) > 1
    return (
        Column("", values=(("key", lambda r: r.key),)),
        Column("run", lambda r: launch_text(r) if r.repeat else r.run, (("run", lambda r: r.run),)),
        Column(
            "GPUs", lambda r: str(r.gpus), (("gpus", lambda r: r.gpus), ("arm", lambda r: r.arm)), right=True, leave=1,
        ),
        Column(
            "differs", lambda r: "" if r.repeat else kind_text(r),
            (("settings", lambda r: settings_text(r.settings)), ("repeat", lambda r: r.repeat or None)), leave=3,
        ),
        Column(
            "state", lambda r: f"{r.state}, synchronisation not examined" if r.synchronisation else r.state,
            (("state", lambda r: r.state), ("unit", lambda r: r.unit)), leave=4,
        ),
        Column(
            "rate" if is_mixed else f"{unit_of(rows)}/s",
            lambda r: _number(r.images_per_s, lambda value: f"{rate(value)}{f' {r.unit}/s' if is_mixed else ''}"),
            (("images_per_s", lambda r: r.images_per_s), ("images_per_s_low", lambda r: r.low),
             ("images_per_s_high", lambda r: r.high)),
            right=True, leave=2,
        ),
        Column("per GPU", lambda r: _number(r.per_gpu), (("images_per_s_per_gpu", lambda r: r.per_gpu),), right=True),
        Column("step", lambda r: _number(r.step_s, seconds), (("step_s", lambda r: r.step_s),), right=True, leave=5),
        Column("", values=(("sm_clock_mhz", lambda r: r.sm_clock_mhz),)),
        Column("nodes", lambda r: first_of(r.nodes, _MOST_NODES), (("nodes", lambda r: " ".join(r.nodes)),), leave=6),
        Column("", values=(
            ("demonstration", lambda r: r.demonstration), ("why", lambda r: r.why),
            ("directory", lambda r: r.directory),
        )),
    )  # fmt: skip


def rank_columns(*, demonstration: bool) -> tuple[Column[tuple[RunReport, RankFacts]], ...]:
    """Ranks, each with its run; of a demonstration none is named as slow."""
    named, slow = ("stands out", "yes") if demonstration else ("named", "slow")
    return (
        Column("", values=(
            ("key", lambda r: r[0].row.key), ("run", lambda r: r[0].row.run), ("gpus", lambda r: r[0].row.gpus),
        )),
        Column("rank", lambda r: str(r[1].rank), (("rank", lambda r: r[1].rank),), right=True),
        Column("node", lambda r: r[1].node, (("node", lambda r: r[1].node), ("local_rank", lambda r: r[1].local_rank))),
        Column(
            "compute time of a step", lambda r: seconds(r[1].compute_s), (("compute_s", lambda r: r[1].compute_s),),
            right=True,
        ),
        Column(
            "over the typical rank", lambda r: percent(r[1].relative), (("relative", lambda r: r[1].relative),),
            right=True,
        ),
        Column(named, lambda r: slow if r[1].slow else "", (("slow", lambda r: r[1].slow),)),
    )  # fmt: skip


def loss_columns() -> tuple[Column[tuple[Loss, LossRow | None]], ...]:
    """What is lost at each size; without a part where there is no attribution."""

    def of(name: str) -> Callable[[tuple[Loss, LossRow | None]], Cell]:
        return lambda each: getattr(each[1], name, None)

    def part(each: tuple[Loss, LossRow | None]) -> Estimate | None:
        return None if each[1] is None else each[1].loss

    return (
        Column("GPUs", lambda each: str(each[0].gpus), (("gpus", lambda each: each[0].gpus),), right=True),
        Column(
            "setting", lambda each: settings_text(each[0].settings),
            (("settings", lambda each: settings_text(each[0].settings)),),
        ),
        Column("lost to", lambda each: each[1].name if each[1] else "", (("lost_to", of("name")),)),
        Column(
            "of the ideal", lambda each: share(part(each)), _three("loss", part),
        ),
        Column(
            "ratio of clocks", lambda each: _number(each[1].clock_ratio if each[1] else None, "{:.3f}".format),
            (("clock_ratio", of("clock_ratio")),), right=True, leave=1,
        ),
        Column("note", lambda each: each[1].note if each[1] else "", (("note", of("note")),)),
        Column("", values=(("why", lambda each: None if each[1] else each[0].why),)),
    )  # fmt: skip


def losses_of(losses: Iterable[Loss]) -> list[tuple[Loss, LossRow | None]]:
    """The rows of ``loss_columns``."""
    return [(loss, row) for loss in losses for row in (loss.rows or (None,))]


def settings_text(settings: Iterable[tuple[str, str]]) -> str:
    """``batch-size=128, precision=fp32``; empty for none."""
    return ", ".join(f"{name}={value}" for name, value in settings)


def kind_text(row: Row) -> str:
    """In what a single run is another than those beside it: its arm, where that is not training, and its settings."""
    return ", ".join(filter(None, (row.arm and f"arm {row.arm}", settings_text(row.settings))))


def launch_text(row: Row) -> str:
    """What a row is called: the launch's arm, setting and repeat, or the run's id."""
    if not row.repeat:
        return f"{row.run} ({kind_text(row)})" if kind_text(row) else row.run
    return ", ".join(filter(None, (row.arm, settings_text(row.settings), f"repeat {row.repeat}")))


def units_of(rows: Iterable[Row]) -> list[str]:
    """What the figures of the proven runs count, each once."""
    return list(dict.fromkeys(row.unit for row in rows if row.images_per_s is not None))


def unit_of(rows: Iterable[Row]) -> str:
    """What the figures of the proven runs count: ``images``, ``tokens``; ``images or tokens`` where runs differ."""
    return " or ".join(units_of(rows)) or "images"


def of_each(point: PointFacts) -> Estimate | None:
    """A point's figure by GPU."""
    whole = point.images_per_s
    if whole is None or not point.gpus:
        return None
    shares = [None if value is None else value / point.gpus for value in (whole.low, whole.high)]
    return Estimate(whole.value / point.gpus, *shares)


def curve(points: Iterable[PointFacts], settings: tuple[tuple[str, str], ...], arm: str = "full") -> list[PointFacts]:
    """The points of one arm and setting that have a figure, smallest size first."""
    own = [point for point in points if point.arm == arm and point.settings == settings and point.images_per_s]
    return sorted(own, key=lambda point: point.gpus)


def all_settings(points: Iterable[PointFacts]) -> list[tuple[tuple[str, str], ...]]:
    """Every setting of the points, in their order."""
    return list(dict.fromkeys(point.settings for point in points))


def main_settings(study: StudyFacts) -> list[tuple[tuple[str, str], ...]]:
    """The settings that are drawn: those of the greatest figures at the largest size, the greatest first."""

    def rank(settings: tuple[tuple[str, str], ...]) -> tuple[int, float]:
        own = curve(study.points, settings)
        last = own[-1].images_per_s if own else None
        return (-own[-1].gpus if own else 0, -(last.value if last else 0.0))

    known = [settings for settings in all_settings(study.points) if curve(study.points, settings)]
    return sorted(known, key=rank)[:MOST_SERIES]
