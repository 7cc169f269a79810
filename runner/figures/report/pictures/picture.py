"""What all pictures share: their size, their frame with a name for screen readers, and their scales.

A picture is drawn for a width of 400: a phone shows it at 0.8 of that, a desktop at 1.3. Colours are classes of
style.css. Nothing is shown by colour alone: series differ by marker and dash, parts of bars by pattern.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.core.columns import Table
from runner.figures.report.markup import Markup, tag

WIDTH = 400
LABEL_HEIGHT = 22  # of the line that labels a demonstration
MARKERS = ("circle", "square", "triangle", "diamond")
_CHARACTER = 8.0  # mean width of a character of a picture's text


@dataclass(frozen=True)
class Picture:
    """A picture of the page.

    Attributes:
        key: unique on the page. takeaway: one sentence for under the title.
        svg: the picture. table: what it shows.
    """

    key: str
    title: str
    takeaway: str
    svg: Markup
    table: Table


def svg(key: str, title: str, description: str, height: float, body: Iterable[Markup], demonstration: str) -> Markup:
    """The frame of a picture: named and described for who cannot see it, labelled where it is a demonstration."""
    above = LABEL_HEIGHT if demonstration else 0
    label = demonstration_label() if demonstration else ()
    return tag(
        "svg",
        tag("title", title, id=f"{key}-title"),
        tag(
            "desc", f"{description}{' Demonstration, no performance claim.' if demonstration else ''}", id=f"{key}-desc"
        ),
        label,
        tag("g", body, transform=f"translate(0 {above})") if above else body,
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        viewBox=f"0 0 {WIDTH} {height + above:.0f}",
        class_="picture",
    )


def demonstration_label() -> tuple[Markup, ...]:
    """What stands on each picture whose figures are no performance claim."""
    return (
        tag("rect", x=0.5, y=0.5, width=264, height=17, rx=8.5, class_="demo-frame"),
        tag("text", "DEMONSTRATION, NO PERFORMANCE CLAIM", x=10, y=12.5, textLength=244, class_="demo"),
    )


def text(content: str, x: float, y: float, kind: str = "t", anchor: str = "start") -> Markup:
    """A line of text; ``anchor``: which end of it stands at ``x``."""
    return tag("text", content, x=float(x), y=float(y), class_=kind, text_anchor=None if anchor == "start" else anchor)


def width_of(content: str) -> float:
    """About how wide a text is."""
    return _CHARACTER * len(content)


def shortened(content: str, width: float) -> str:
    """As much of a text as fits."""
    most = max(int(width / _CHARACTER), 2)
    return content if len(content) <= most else f"{content[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def marker(shape: str, x: float, y: float, size: float, kind: str) -> Markup:
    """A point of a series."""
    if shape == "circle":
        return tag("circle", cx=float(x), cy=float(y), r=float(size), class_=kind)
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "triangle": ((0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
        "diamond": ((0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)),
    }[shape]
    return tag(
        "polygon", points=" ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners), class_=kind
    )


def path(points: Iterable[tuple[float, float]]) -> str:
    """The ``d`` of a line through points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most so many: steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not span > 0.0:
        return [low]
    raw = span / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= raw * (1.0 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def apart(positions: Sequence[float], least: float) -> list[int]:
    """Places of positions, rising, that have room for a label; the last one is always among them."""
    kept: list[int] = []
    for place in range(len(positions) - 1, -1, -1):
        if not kept or positions[kept[-1]] - positions[place] >= least:
            kept.append(place)
    return sorted(kept)
