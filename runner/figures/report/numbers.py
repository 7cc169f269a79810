"""Numbers and names as a report shows them."""

from __future__ import annotations

from collections.abc import Iterable

from runner.model.report import Row
from runner.model.study import Estimate, PointFacts, StudyFacts

MOST_SERIES = 4
MINUS, NARROW, DASH = "\N{MINUS SIGN}", "\N{NARROW NO-BREAK SPACE}", "\N{EN DASH}"


def rate(value: float) -> str:
    """A rate in three to five digits: ``8.41``, ``148.2``, ``2 310``, ``36 900``."""
    if value == 0.0:
        return "0"
    if value < 10.0:
        return f"{value:.2f}"
    if value < 1000.0:
        return f"{value:.1f}"
    return f"{value:,.0f}".replace(",", NARROW)


def percent(share: float, digits: int = 1) -> str:
    """``92.4 %``; a share that rounds to 0 has no sign."""
    shown = f"{100.0 * share:.{digits}f}"
    negative = shown.startswith("-") and float(shown) != 0.0
    return f"{MINUS if negative else ''}{shown.lstrip('-')}{NARROW}%"


def interval(estimate: Estimate | None, show: str = "percent") -> str:
    """``91.0 % to 93.8 %``; empty where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    write = percent if show == "percent" else rate
    return f"{write(estimate.low)} to {write(estimate.high)}"


def seconds(value: float) -> str:
    """``412 ms``, ``3.21 s``."""
    return f"{1000.0 * value:.3g} ms" if value < 1.0 else f"{value:.3g} s"


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
