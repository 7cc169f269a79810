"""Escaped HTML and SVG, and what all pictures share: their frame, their scales and their labels.

What is not ``Markup`` cannot become a tag, an attribute or a script. A picture is drawn for a width of 400: a phone
shows it at 0.8 of that, a desktop at 1.3. Colours are classes of style.css. Nothing is shown by colour alone: series
differ by marker and dash, parts of bars by pattern.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.core.columns import Table
from runner.core.text import printable

_SPACES = "\n\t\N{NARROW NO-BREAK SPACE}"


class Markup(str):
    """Text that is markup already; only this module and shipped style sheets make it."""

    __slots__ = ()


Child = str | Iterable[str] | None
Drawing = tuple[float, Iterable[Markup]]  # height, and what is in it


def escaped(value: str) -> Markup:
    """``value`` as a person sees it in a terminal: control characters, halves of characters and marks that reorder the
    line are shown by their codes, and all that means something in HTML is escaped.
    """
    return Markup(html.escape(printable(value, _SPACES)))


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """``<name attributes>children</name>``. An attribute that is None is left out; ``class_`` is ``class``, and other
    ``_`` are ``-``.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_written(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>" if name == "meta" else f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """The children one after another: markup as it is, everything else escaped."""
    pieces: list[str] = []
    for child in children:
        if isinstance(child, str):
            pieces.append(child if isinstance(child, Markup) else escaped(child))
        elif child is not None:
            pieces.append(join(*child))
    return Markup("".join(pieces))


def _written(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


WIDTH = 400
MARKERS = ("circle", "square", "triangle", "diamond")
_LABEL_HEIGHT = 22  # of the line that labels a demonstration
_CHARACTER = 8.0  # mean width of a character of a picture's text


@dataclass(frozen=True)
class Picture:
    """A picture of the page: ``key`` is unique on it, ``takeaway`` a sentence for under the title, ``table`` what it
    shows.
    """

    key: str
    title: str
    takeaway: str
    svg: Markup
    table: Table


def svg(key: str, title: str, description: str, drawing: Drawing, demonstration: str) -> Markup:
    """The frame of a picture: named and described for who cannot see it, labelled where it is a demonstration."""
    height, body = drawing
    above = _LABEL_HEIGHT if demonstration else 0
    label = (
        tag("rect", x=0.5, y=0.5, width=264, height=17, rx=8.5, class_="demo-frame"),
        tag("text", "DEMONSTRATION, NO PERFORMANCE CLAIM", x=10, y=12.5, textLength=244, class_="demo"),
        tag("g", body, transform=f"translate(0 {above})"),
    )
    claim = " Demonstration, no performance claim." if demonstration else ""
    return tag(
        "svg",
        tag("title", title, id=f"{key}-title"),
        tag("desc", f"{description}{claim}", id=f"{key}-desc"),
        label if demonstration else body,
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        viewBox=f"0 0 {WIDTH} {height + above:.0f}",
        class_="picture",
    )


def text_at(content: str, x: float, y: float, kind: str = "t", anchor: str | None = None) -> Markup:
    """A line of text; ``anchor``: which end of it stands at ``x``, by default its start."""
    return tag("text", content, x=x, y=y, class_=kind, text_anchor=anchor)


def width_of(content: str) -> float:
    """About how wide a text is."""
    return _CHARACTER * len(content)


def shortened(content: str, width: float) -> str:
    """As much of a text as fits."""
    most = max(int(width / _CHARACTER), 2)
    return content if len(content) <= most else f"{content[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def marker(number: int, x: float, y: float, size: float) -> Markup:
    """A point of the series of this number."""
    kind, shape = f"point s{number % len(MARKERS)}", MARKERS[number % len(MARKERS)]
    if shape == "circle":
        return tag("circle", cx=x, cy=y, r=size, class_=kind)
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "triangle": ((0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
        "diamond": ((0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)),
    }[shape]
    points = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners)
    return tag("polygon", points=points, class_=kind)


def path(points: Iterable[tuple[float, float]]) -> str:
    """The ``d`` of a line through points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def band(upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], kind: str) -> Markup:
    """The area between two lines."""
    return tag("path", d=f"{path([*upper, *reversed(lower)])}Z", class_=f"band {kind}")


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
    for place in reversed(range(len(positions))):
        if not kept or positions[kept[-1]] - positions[place] >= least:
            kept.append(place)
    return sorted(kept)
