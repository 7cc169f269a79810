"""Curves over the number of GPUs, and the time line of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from runner.figures.report.picture import (
    MARKERS,
    WIDTH,
    Drawing,
    Markup,
    apart,
    band,
    marker,
    path,
    tag,
    text_at,
    ticks,
    width_of,
)
from runner.model.report import StepTimes
from runner.model.study import Estimate

_LEFT = 62
_LEAST_SPAN = 0.04  # of the median: noise of 0.1 % shall not fill the picture
_HEIGHT, _RIGHT, _TOP, _BOTTOM, _LEGEND = 270, 22, 16, 42, 20
_LONG = 26
_MOST_DOTS = 60  # launches shown at one size


def time_line(steps: StepTimes) -> Drawing:
    """Step times over the window, with the range that each point stands for; what was left out is hatched."""
    middle = sorted(steps.middle_s)[len(steps.middle_s) // 2]
    low, high = min(steps.low_s), max(steps.high_s)
    missing = max(_LEAST_SPAN * middle - (high - low), 0.0) / 2
    low, high = max(low - missing, 0.0), high + missing
    margin = 0.06 * (high - low)
    low, high = max(low - margin, 0.0), high + margin
    unit, factor = ("ms", 1000.0) if middle < 1.0 else ("s", 1.0)
    top, bottom, right, end_s = 12, 132, WIDTH - 8, steps.at_s[-1]

    def x(at_s: float) -> float:
        return _LEFT + (right - _LEFT) * at_s / end_s

    def y(value_s: float) -> float:
        return top + (bottom - top) * (high - value_s) / (high - low)

    def line(values_s: Sequence[float]) -> list[tuple[float, float]]:
        return [(x(at), y(value)) for at, value in zip(steps.at_s, values_s, strict=True)]

    body = []
    for value in ticks(low * factor, high * factor, 4):
        at = y(value / factor)
        body.append(tag("line", x1=_LEFT, x2=right, y1=at, y2=at, class_="grid"))
        body.append(text_at(f"{value:g}", _LEFT - 7, at + 4, "t tick", "end"))
    body.append(tag("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    body += [text_at(f"{value:g}", x(value), bottom + 16, "t tick", "middle") for value in ticks(0.0, end_s, 6)]
    body.append(text_at(f"step time, {unit}", 2, bottom + 34, "t quiet"))
    body.append(text_at("seconds in the window", WIDTH - 4, bottom + 34, "t quiet", "end"))
    if steps.groups_per_point > 1:
        body.append(band(line(steps.high_s), line(steps.low_s), "steps"))
    middles = line(steps.middle_s)
    body.append(tag("path", d=path([(_LEFT, middles[0][1]), *middles]), class_="curve s0 thin"))
    if steps.cut_s > 0.0:
        cut = x(steps.cut_s)
        body.append(tag("rect", x=_LEFT, y=top, width=cut - _LEFT, height=bottom - top, class_="cut"))
        body.append(tag("line", x1=cut, x2=cut, y1=top, y2=bottom, class_="axis"))
        body.append(text_at("left out", cut + 5, top + 12, "t quiet halo"))
    return bottom + 40, body


@dataclass(frozen=True)
class Series:
    """Measured points of one setting: size -> estimate; dots: size -> figure of each launch."""

    name: str
    points: tuple[tuple[int, Estimate], ...]
    dots: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Reference:
    """What measured points are held against, ``ideal`` or ``expected``: a line, or a range where it has one; size ->
    (low, middle, high).
    """

    name: str
    points: tuple[tuple[int, tuple[float, float, float]], ...]


@dataclass(frozen=True)
class Axes:
    """The scale of the values: of what, with its unit; a value in words; its ends; by factors where logarithmic."""

    name: str
    write: Callable[[float], str]
    low: float
    high: float
    logarithmic: bool = False


@dataclass(frozen=True)
class _Plot:
    """Where sizes and values stand: equal steps for equal factors of sizes."""

    axes: Axes
    sizes: Sequence[int]
    top: float

    @property
    def bottom(self) -> float:
        return self.top + _HEIGHT - _TOP - _BOTTOM

    def x(self, size: int) -> float:
        if len(self.sizes) < 2:
            return (_LEFT + WIDTH - _RIGHT) / 2
        first, last = math.log(self.sizes[0]), math.log(self.sizes[-1])
        left, right = _LEFT + 22, WIDTH - _RIGHT - 14
        return left + (right - left) * (math.log(size) - first) / (last - first)

    def y(self, value: float) -> float:
        low, high, at = (
            math.log(max(each, 1e-12)) if self.axes.logarithmic else each
            for each in (self.axes.low, self.axes.high, value)
        )
        return self.bottom - (self.bottom - self.top) * (at - low) / ((high - low) or 1.0)

    def grid(self) -> Iterator[Markup]:
        axes, bottom = self.axes, self.bottom
        values = ticks(axes.low, axes.high)
        if axes.logarithmic:
            powers = range(math.floor(math.log10(axes.low)), math.ceil(math.log10(axes.high)) + 1)
            values = [step * 10.0**power for power in powers for step in (1, 2, 5)]
            values = [value for value in values if axes.low <= value <= axes.high]
            values = values if len(values) <= 6 else [value for value in values if f"{value:e}"[0] == "1"]
        for value in values:
            written, y = axes.write(value).removesuffix(".0").removesuffix(".00"), self.y(value)
            yield tag("line", x1=_LEFT, x2=WIDTH - 4, y1=y, y2=y, class_="grid")
            yield text_at(written, _LEFT - 7, y + 4, "t tick", "end")
        yield tag("line", x1=_LEFT, x2=WIDTH - 4, y1=bottom, y2=bottom, class_="axis")
        positions = [self.x(size) for size in self.sizes]
        for place in apart(positions, 26):
            yield text_at(str(self.sizes[place]), positions[place], bottom + 17, "t tick", "middle")
        yield text_at("GPUs", WIDTH - 4, bottom + 35, "t quiet", "end")
        yield text_at(axes.name, 2, bottom + 35, "t quiet")

    def reference(self, each: Reference) -> Iterator[Markup]:
        lower, line, upper = ([(self.x(size), self.y(limits[at])) for size, limits in each.points] for at in range(3))
        if any(low != high for _, (low, _, high) in each.points):
            yield band(upper, lower, each.name)
        if len(each.points) > 1:
            yield tag("path", d=path(line), class_=f"ref {each.name}")

    def lines(self, number: int, each: Series) -> Iterator[Markup]:
        kind = f"s{number % len(MARKERS)}"
        for size in sorted({size for size, _ in each.dots}):
            values = sorted(value for other, value in each.dots if other == size)
            for value in values[:: math.ceil(len(values) / _MOST_DOTS)]:
                yield tag("circle", cx=self.x(size) + 9.0, cy=self.y(value), r=1.8, class_=f"dot {kind}")
        if len(each.points) > 1:
            line = path((self.x(size), self.y(one.value)) for size, one in each.points)
            yield tag("path", d=line, class_=f"curve {kind}")
        for size, one in each.points:
            if one.low is not None and one.high is not None:
                at, low, high = self.x(size), self.y(one.low), self.y(one.high)
                whisker = f"M{at:.1f} {low:.1f}V{high:.1f}M{at - 5:.1f} {low:.1f}h10M{at - 5:.1f} {high:.1f}h10"
                yield tag("path", d=whisker, class_=f"whisker {kind}")

    def points(self, number: int, each: Series, *, below: bool, every: bool) -> Iterator[Markup]:
        """Markers and values; of the values only the last one unless ``every``."""
        for size, one in each.points:
            yield marker(number, self.x(size), self.y(one.value), 4.5)
        places = apart([self.x(size) for size, _ in each.points], 50) if every else [len(each.points) - 1]
        for place in places if each.points else ():
            size, one = each.points[place]
            x, y, edge = self.x(size), self.y(one.value), one.low if below else one.high
            shown, at = self.axes.write(one.value), y if edge is None else self.y(edge)
            half = width_of(shown) / 2
            middle = min(max(x, _LEFT + half + 2), WIDTH - half - 2)
            if abs(at - y) > _LONG:  # beside the whisker, not at its far end
                middle, at = x + (half + 8 if place == 0 else -half - 8), y
            yield text_at(shown, middle, at + (19 if below else -9), "t value halo", "middle")


def curves(axes: Axes, series: Sequence[Series], references: Sequence[Reference]) -> Drawing:
    """The first series' values stand at its points, of the others at their last one."""
    sizes = {size for each in series for size, _ in (*each.points, *each.dots)}
    sizes |= {size for each in references for size, _ in each.points}
    rows, legend = _legend(series, references)
    plot = _Plot(axes, sorted(sizes), _TOP + _LEGEND * rows)
    body = [*legend, *plot.grid()]
    for each in references:
        body += plot.reference(each)
    for number, one in enumerate(series):
        body += plot.lines(number, one)
    # Values stand below where another series, or else what is ideal, lies above.
    levels = [one.points[-1][1].value if one.points else 0.0 for one in series]
    for number, one in enumerate(series):
        below = bool(references) if len(series) == 1 else levels[number] < max(levels)
        body += plot.points(number, one, below=below, every=len(series) < 3)
    return plot.bottom + _BOTTOM, body


def _legend(series: Sequence[Series], references: Sequence[Reference]) -> tuple[int, list[Markup]]:
    """How many rows the names of all lines take, and these."""
    entries: list[tuple[str, int | None]] = [(each.name, number) for number, each in enumerate(series)]
    entries += [(each.name, None) for each in references]
    body: list[Markup] = []
    rows, x = 0, math.inf
    for name, number in entries:
        width = width_of(name) + 42
        if x - 2.0 + width > WIDTH:
            rows, x = rows + 1, 2.0
        y = 15.0 + _LEGEND * (rows - 1)
        piece = f"M{x:.1f} {y - 4:.1f}h26"
        if number is not None:
            body.append(tag("path", d=piece, class_=f"curve s{number % len(MARKERS)}"))
            body.append(marker(number, x + 13, y - 4, 4.0))
        else:
            if name == "expected":
                body.append(tag("rect", x=x, y=y - 9, width=26, height=10, class_="band expected"))
            body.append(tag("path", d=piece, class_=f"ref {name}"))
        body.append(text_at(name, x + 32, y))
        x += width
    return rows, body
