"""The time line of a run: step times over its window, with the range that each point stands for."""

from __future__ import annotations

from collections.abc import Iterator

from runner.figures.report.markup import Markup, tag
from runner.figures.report.pictures.picture import WIDTH, path, svg, text, ticks
from runner.model.report import StepTimes

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
        yield text(f"{value:g}", _LEFT - 7, at + 4, "t tick", "end")
    yield tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=bottom, y2=bottom, class_="axis")
    for value in ticks(0.0, end_s, 6):
        yield text(f"{value:g}", x(value), bottom + 16, "t tick", "middle")
    yield text(f"step time, {unit}", 2, bottom + 34, "t quiet")
    yield text("seconds in the window", WIDTH - 4, bottom + 34, "t quiet", "end")
    if steps.groups_per_point > 1:
        upper = [(x(at), y(value)) for at, value in zip(steps.at_s, steps.high_s, strict=True)]
        lower = [(x(at), y(value)) for at, value in zip(steps.at_s, steps.low_s, strict=True)]
        yield tag("path", d=f"{path([*upper, *reversed(lower)])}Z", class_="band steps")
    line = [(x(at), y(value)) for at, value in zip(steps.at_s, steps.middle_s, strict=True)]
    yield tag("path", d=path([(_LEFT, line[0][1]), *line]), class_="curve s0 thin")
    if steps.cut_s > 0.0:
        yield tag("rect", x=_LEFT, y=_TOP, width=x(steps.cut_s) - _LEFT, height=_PLOT, class_="cut")
        yield tag("line", x1=x(steps.cut_s), x2=x(steps.cut_s), y1=_TOP, y2=bottom, class_="axis")
        yield text("left out", x(steps.cut_s) + 5, _TOP + 12, "t quiet halo")
