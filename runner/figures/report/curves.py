"""Curves over the number of GPUs, and the time line of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from runner.figures.report.picture import (
    MARKERS,
    WIDTH,
    Markup,
    apart,
    marker,
    path,
    svg,
    tag,
    text_at,
    ticks,
    width_of,
)
from runner.model.report import StepTimes
from runner.model.study import Estimate

_LEFT, _RIGHT, _TOP, _PLOT, _BOTTOM = 62, 8, 12, 120, 40
_LEAST_SPAN = 0.04  # of the median: noise of 0.1 % shall not fill the picture


def time_line(key: str, title: str, description: str, steps: StepTimes, demonstration: str) -> Markup:
    """The picture; what was left out of the figure is hatched."""
    body = _body(steps)
    return svg(key, title, description, _TOP + _PLOT + _BOTTOM, body, demonstration)


def _body(steps: StepTimes) -> Iterator[Markup]:
    middle = sorted(steps.middle_s)[len(steps.middle_s) // 2]
    low, high = min(steps.low_s), max(steps.high_s)
    missing = max(_LEAST_SPAN * middle - (high - low), 0.0) / 2
    low, high = max(low - missing, 0.0), high + missing
    margin = 0.06 * (high - low)
    low, high = max(low - margin, 0.0), high + margin
    end_s = steps.at_s[-1]
    unit, factor = ("ms", 1000.0) if middle < 1.0 else ("s", 1.0)

    def x(at_s: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * at_s / end_s

    def y(value_s: float) -> float:
        return _TOP + _PLOT * (high - value_s) / (high - low)

    bottom = _TOP + _PLOT
    for value in ticks(low * factor, high * factor, 4):
        at = y(value / factor)
        yield tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=at, y2=at, class_="grid")
        yield text_at(f"{value:g}", _LEFT - 7, at + 4, "t tick", "end")
    yield tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=bottom, y2=bottom, class_="axis")
    for value in ticks(0.0, end_s, 6):
        yield text_at(f"{value:g}", x(value), bottom + 16, "t tick", "middle")
    yield text_at(f"step time, {unit}", 2, bottom + 34, "t quiet")
    yield text_at("seconds in the window", WIDTH - 4, bottom + 34, "t quiet", "end")
    if steps.groups_per_point > 1:
        upper = [(x(at), y(value)) for at, value in zip(steps.at_s, steps.high_s, strict=True)]
        lower = [(x(at), y(value)) for at, value in zip(steps.at_s, steps.low_s, strict=True)]
        yield tag("path", d=f"{path([*upper, *reversed(lower)])}Z", class_="band steps")
    line = [(x(at), y(value)) for at, value in zip(steps.at_s, steps.middle_s, strict=True)]
    yield tag("path", d=path([(_LEFT, line[0][1]), *line]), class_="curve s0 thin")
    if steps.cut_s > 0.0:
        yield tag("rect", x=_LEFT, y=_TOP, width=x(steps.cut_s) - _LEFT, height=_PLOT, class_="cut")
        yield tag("line", x1=x(steps.cut_s), x2=x(steps.cut_s), y1=_TOP, y2=bottom, class_="axis")
        yield text_at("left out", x(steps.cut_s) + 5, _TOP + 12, "t quiet halo")


_HEIGHT = 270
_CURVE_LEFT, _CURVE_RIGHT, _CURVE_TOP, _CURVE_BOTTOM = 62, 22, 16, 42
_LEGEND = 20
_LONG = 26
_MOST_DOTS = 60  # launches shown at one size


@dataclass(frozen=True)
class Series:
    """Measured points of one setting: size -> estimate; dots: size -> figure of each launch."""

    name: str
    points: tuple[tuple[int, Estimate], ...]
    dots: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Reference:
    """What measured points are held against: a line, or a range where it has one; size -> (low, middle, high)."""

    name: str
    kind: str
    points: tuple[tuple[int, tuple[float, float, float]], ...]


@dataclass(frozen=True)
class Axes:
    """The scale of the values.

    Attributes:
        name: of what, with its unit. write: a value in words.
        low, high: of the axis; logarithmic: steps are factors.
    """

    name: str
    write: Callable[[float], str]
    low: float
    high: float
    logarithmic: bool = False


def curves(
    key: str,
    title: str,
    description: str,
    axes: Axes,
    series: Sequence[Series],
    references: Sequence[Reference],
    demonstration: str,
) -> Markup:
    """The picture. The first series' values stand at its points, of the others at their last one."""
    sizes = sorted(
        {size for each in series for size, _ in (*each.points, *each.dots)}
        | {size for each in references for size, _ in each.points}
    )
    legend_rows = _legend_rows(series, references)
    top = _CURVE_TOP + _LEGEND * len(legend_rows)
    bottom = top + _HEIGHT - _CURVE_TOP - _CURVE_BOTTOM
    x, y = _across(sizes), _upward(axes, top, bottom)
    body = [
        *_legend(legend_rows),
        *_grid(axes, sizes, x, y, bottom),
        *(part for each in references for part in _reference(each, x, y)),
        *(part for number, each in enumerate(series) for part in _lines(number, each, x, y)),
        *(
            part
            for number, each in enumerate(series)
            for part in _points(
                number, each, axes, x, y, below=_is_below(number, series, references), every=len(series) < 3
            )
        ),
    ]
    return svg(key, title, description, bottom + _CURVE_BOTTOM, body, demonstration)


def _is_below(number: int, series: Sequence[Series], references: Sequence[Reference]) -> bool:
    """Whether a series' values stand below its points: where another series, or else what is ideal, lies above it."""

    def level(each: Series) -> float:
        return each.points[-1][1].value if each.points else 0.0

    if len(series) == 1:
        return bool(references)
    return level(series[number]) < max(level(each) for each in series)


def _across(sizes: Sequence[int]) -> Callable[[int], float]:
    """Positions of sizes: equal steps for equal factors."""
    if len(sizes) < 2:
        return lambda _size: (_CURVE_LEFT + WIDTH - _CURVE_RIGHT) / 2
    first, last = math.log(sizes[0]), math.log(sizes[-1])
    left, right = _CURVE_LEFT + 22, WIDTH - _CURVE_RIGHT - 14
    return lambda size: left + (right - left) * (math.log(size) - first) / (last - first)


def _upward(axes: Axes, top: float, bottom: float) -> Callable[[float], float]:
    scale = (lambda value: math.log(max(value, 1e-12))) if axes.logarithmic else (lambda value: value)
    low, high = scale(axes.low), scale(axes.high)
    return lambda value: bottom - (bottom - top) * (scale(value) - low) / ((high - low) or 1.0)


def _grid(
    axes: Axes, sizes: Sequence[int], x: Callable[[int], float], y: Callable[[float], float], bottom: float
) -> Iterator[Markup]:
    if axes.logarithmic:
        first, last = math.log10(axes.low), math.log10(axes.high)
        powers = range(math.floor(first), math.ceil(last) + 1)
        values = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        values = [value for value in values if axes.low <= value <= axes.high]
        values = values if len(values) <= 6 else [value for value in values if f"{value:e}"[0] == "1"]
    else:
        values = ticks(axes.low, axes.high)
    for value in values:
        yield tag("line", x1=_CURVE_LEFT, x2=WIDTH - 4, y1=y(value), y2=y(value), class_="grid")
        yield text_at(
            axes.write(value).removesuffix(".0").removesuffix(".00"), _CURVE_LEFT - 7, y(value) + 4, "t tick", "end"
        )
    yield tag("line", x1=_CURVE_LEFT, x2=WIDTH - 4, y1=bottom, y2=bottom, class_="axis")
    positions = [x(size) for size in sizes]
    for place in apart(positions, 26):
        yield text_at(str(sizes[place]), positions[place], bottom + 17, "t tick", "middle")
    yield text_at("GPUs", WIDTH - 4, bottom + 35, "t quiet", "end")
    yield text_at(axes.name, 2, bottom + 35, "t quiet")


def _reference(each: Reference, x: Callable[[int], float], y: Callable[[float], float]) -> Iterator[Markup]:
    if any(low != high for _, (low, _, high) in each.points):
        upper = [(x(size), y(high)) for size, (_, _, high) in each.points]
        lower = [(x(size), y(low)) for size, (low, _, _) in each.points]
        yield tag("path", d=f"{path([*upper, *reversed(lower)])}Z", class_=f"band {each.kind}")
    if len(each.points) > 1:
        yield tag(
            "path", d=path((x(size), y(middle)) for size, (_, middle, _) in each.points), class_=f"ref {each.kind}"
        )


def _lines(number: int, each: Series, x: Callable[[int], float], y: Callable[[float], float]) -> Iterator[Markup]:
    kind = f"s{number % len(MARKERS)}"
    for size in sorted({size for size, _ in each.dots}):
        values = sorted(value for other, value in each.dots if other == size)
        for value in values[:: math.ceil(len(values) / _MOST_DOTS)]:
            yield tag("circle", cx=x(size) + 9.0, cy=y(value), r=1.8, class_=f"dot {kind}")
    if len(each.points) > 1:
        yield tag("path", d=path((x(size), y(one.value)) for size, one in each.points), class_=f"curve {kind}")
    for size, one in each.points:
        if one.low is not None and one.high is not None:
            at, low, high = x(size), y(one.low), y(one.high)
            whisker = f"M{at:.1f} {low:.1f}V{high:.1f}M{at - 5:.1f} {low:.1f}h10M{at - 5:.1f} {high:.1f}h10"
            yield tag("path", d=whisker, class_=f"whisker {kind}")


def _points(
    number: int,
    each: Series,
    axes: Axes,
    x: Callable[[int], float],
    y: Callable[[float], float],
    *,
    below: bool,
    every: bool,
) -> Iterator[Markup]:
    """Markers and values; of the values only the last one unless ``every``."""
    kind = f"s{number % len(MARKERS)}"
    for size, one in each.points:
        yield marker(MARKERS[number % len(MARKERS)], x(size), y(one.value), 4.5, f"point {kind}")
    positions = [x(size) for size, _ in each.points]
    places = apart(positions, 50) if every else [len(positions) - 1]
    for place in places if each.points else ():
        size, one = each.points[place]
        edge = one.low if below else one.high
        shown, at = axes.write(one.value), y(one.value if edge is None else edge) + (19 if below else -9)
        half = width_of(shown) / 2
        middle = min(max(x(size), _CURVE_LEFT + half + 2), WIDTH - half - 2)
        if edge is not None and abs(y(edge) - y(one.value)) > _LONG:  # beside the whisker, not at its far end
            middle = x(size) + (half + 8 if place == 0 else -half - 8)
            at = y(one.value) + (19 if below else -9)
        yield text_at(shown, middle, at, "t value halo", "middle")


def _legend_rows(series: Sequence[Series], references: Sequence[Reference]) -> list[list[tuple[str, str, int]]]:
    """(name, kind, number) of everything in the picture, in rows that fit."""
    entries = [(each.name, "series", number) for number, each in enumerate(series)]
    entries += [(each.name, each.kind, 0) for each in references]
    rows: list[list[tuple[str, str, int]]] = [[]]
    used = 0.0
    for entry in entries:
        needs = width_of(entry[0]) + 42
        if rows[-1] and used + needs > WIDTH:
            rows.append([])
            used = 0.0
        rows[-1].append(entry)
        used += needs
    return rows if entries else []


def _legend(rows: Sequence[Sequence[tuple[str, str, int]]]) -> Iterator[Markup]:
    for line, row in enumerate(rows):
        x, y = 2.0, 15.0 + _LEGEND * line
        for name, kind, number in row:
            if kind == "series":
                own = f"s{number % len(MARKERS)}"
                yield tag("path", d=f"M{x:.1f} {y - 4:.1f}h26", class_=f"curve {own}")
                yield marker(MARKERS[number % len(MARKERS)], x + 13, y - 4, 4.0, f"point {own}")
            else:
                if kind == "expected":
                    yield tag("rect", x=x, y=y - 9, width=26, height=10, class_="band expected")
                yield tag("path", d=f"M{x:.1f} {y - 4:.1f}h26", class_=f"ref {kind}")
            yield text_at(name, x + 32, y, "t")
            x += width_of(name) + 42
