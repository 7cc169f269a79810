"""Where the rest goes: what is lost at each size, as stacked bars whose parts differ by pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from runner.core.text import percent
from runner.figures.report.markup import Markup, tag
from runner.figures.report.pictures.picture import WIDTH, svg, text, ticks
from runner.figures.tables import settings_text
from runner.model.study import Loss

_LEFT, _RIGHT = 44, 66
_BAR, _GAP = 26, 14
_MOST_BARS = 8
_PARTS = 6  # patterns that there are
_SLIVER = 0.4  # narrower parts are left to the table


def losses(key: str, title: str, description: str, rows: Sequence[Loss], demonstration: str) -> Markup:
    """Bars of what is lost; a part that gains (a negative loss) stands left of the line."""
    shown = rows[-_MOST_BARS:]
    names = list(dict.fromkeys(row.name for loss in shown for row in loss.rows))
    low = min((sum(min(row.loss.value, 0.0) for row in loss.rows) for loss in shown), default=0.0)
    high = max((sum(max(row.loss.value, 0.0) for row in loss.rows) for loss in shown), default=0.0)
    high = max(high, low + 0.01)
    many = len({loss.settings for loss in shown}) > 1

    def x(share: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (share - low) / (high - low)

    bottom = 10 + len(shown) * (_BAR + _GAP)
    body = [
        *_patterns(key),
        *_grid(x, low, high, bottom),
        *(
            part
            for place, loss in enumerate(shown)
            for part in _bar(key, loss, 10 + place * (_BAR + _GAP), x, names, many)
        ),
        *_legend(key, names, shown[-1], bottom + 44),
    ]
    return svg(key, title, description, bottom + 44 + 20 * len(names), body, demonstration)


def _grid(x: Callable[[float], float], low: float, high: float, bottom: float) -> Iterator[Markup]:
    for value in ticks(low, high):
        at = x(value)
        yield tag("line", x1=at, x2=at, y1=4, y2=bottom, class_="axis" if value == 0.0 else "grid")
        yield text(percent(value, 0 if high - low > 0.04 else 1), at, bottom + 16, "t tick", "middle")


def _bar(
    key: str, loss: Loss, y: float, x: Callable[[float], float], names: Sequence[str], many: bool
) -> Iterator[Markup]:
    label = settings_text(loss.settings) if many else ""
    yield text(f"{loss.gpus}", _LEFT - 8, y + _BAR / 2 + 4, "t tick", "end")
    left, right = 0.0, 0.0
    for row in loss.rows:
        share = row.loss.value
        start = right if share >= 0.0 else left + share
        right, left = (right + share, left) if share >= 0.0 else (right, left + share)
        wide = x(start + abs(share)) - x(start)
        if wide >= _SLIVER:
            part = names.index(row.name) % _PARTS
            yield tag("rect", x=x(start), y=float(y), width=wide, height=_BAR, class_=f"part p{part}")
            yield tag(
                "rect",
                x=x(start),
                y=float(y),
                width=wide,
                height=_BAR,
                class_="part-edge",
                fill=f"url(#{key}-pattern{part})",
            )
    total = sum(row.loss.value for row in loss.rows)
    yield text(percent(total), x(max(right, 0.0)) + 6, y + _BAR / 2 + 4, "t value halo")
    if label:
        yield text(label, _LEFT, y - 3, "t quiet halo")


def _legend(key: str, names: Sequence[str], loss: Loss, top: float) -> Iterator[Markup]:
    """Every part with its pattern, and its share at the largest size."""
    shares = {row.name: row for row in loss.rows}
    for place, name in enumerate(names):
        y, part = top + 20 * place, place % _PARTS
        yield tag("rect", x=2, y=y - 10, width=22, height=13, class_=f"part p{part}")
        yield tag("rect", x=2, y=y - 10, width=22, height=13, class_="part-edge", fill=f"url(#{key}-pattern{part})")
        row = shares.get(name)
        note = f", {row.note}" if row is not None and row.note else ""
        yield text(f"{name}{note}", 32, y, "t")
        if row is not None:
            yield text(percent(row.loss.value), WIDTH - 4, y, "t value", "end")


def _patterns(key: str) -> Iterator[Markup]:
    """What tells parts apart without colour: none, strokes both ways, dots, bars, and a lattice."""
    drawn = (
        "",
        "M-2 2l4 -4M0 8l8 -8M6 10l4 -4",
        "M-2 6l4 4M0 0l8 8M6 -2l4 4",
        "M0 4h8",
        "M4 0V8",
        "M0 4h8M4 0V8",
    )
    yield tag(
        "defs",
        [
            tag(
                "pattern",
                tag("path", d=d or "M0 0", class_="pattern"),
                id=f"{key}-pattern{number}",
                width=8,
                height=8,
                patternUnits="userSpaceOnUse",
            )
            for number, d in enumerate(drawn)
        ],
    )
