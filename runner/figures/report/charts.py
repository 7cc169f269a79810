"""The heat map of ranks or nodes, and the bars of where the loss goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from runner.core.text import percent
from runner.figures.report.picture import WIDTH, Markup, shortened, svg, tag, text_at, ticks
from runner.figures.tables import settings_text
from runner.model.report import RankFacts
from runner.model.study import Loss

# Excess over the typical rank from which a step of the scale begins.
STEPS = (-math.inf, 0.005, 0.01, 0.02, 0.05)
_MOST_RANK_NODES = 16  # with more, a cell is a node
_MOST_CELLS = 512  # with more nodes, a cell is several
_NAMES = 86
_MOST_NAMED = 4
_LEAST_TEXT = 31.0  # a cell at least so wide has its value in it


@dataclass(frozen=True)
class Cell:
    """A rank, a node, or several: name, excess of its slowest rank, and whether it was named as slow."""

    name: str
    excess: float
    slow: bool


def step_of(excess: float) -> int:
    """The step of the scale, from 0 (as fast as the typical rank) to 4."""
    return max(place for place, least in enumerate(STEPS) if excess >= least)


def by_node(ranks: Sequence[RankFacts]) -> dict[str, list[RankFacts]]:
    """Ranks under their nodes, in rank order."""
    nodes: dict[str, list[RankFacts]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node, []).append(rank)
    return nodes


def node_cells(ranks: Sequence[RankFacts], most: int = _MOST_CELLS) -> list[Cell]:
    """A cell for each node, of its slowest rank; for several nodes in a row where there are too many."""
    nodes = [
        Cell(name, max(rank.relative for rank in own), any(rank.slow for rank in own))
        for name, own in by_node(ranks).items()
    ]
    each = math.ceil(len(nodes) / most)
    groups = [nodes[at : at + each] for at in range(0, len(nodes), each)]
    return [
        Cell(
            group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}",
            max(cell.excess for cell in group),
            any(cell.slow for cell in group),
        )
        for group in groups
    ]


def heat_map(key: str, title: str, description: str, ranks: Sequence[RankFacts], demonstration: str) -> Markup:
    """The picture."""
    nodes = by_node(ranks)
    if len(nodes) <= _MOST_RANK_NODES and max(map(len, nodes.values())) <= 16:
        body, bottom = _ranks(nodes)
    else:
        body, bottom = _heat_grid(node_cells(ranks))
    return svg(key, title, description, bottom + 52, [*body, *_scale(bottom + 14, demonstration)], demonstration)


def _ranks(nodes: dict[str, list[RankFacts]]) -> tuple[list[Markup], float]:
    """A row for each node, a cell for each of its ranks."""
    columns = max(map(len, nodes.values()))
    wide = min((WIDTH - _NAMES - 4) / columns, 72.0)
    high = min(max(176.0 / len(nodes), 22.0), 64.0)
    body: list[Markup] = []
    for line, (name, own) in enumerate(nodes.items()):
        y = 4.0 + line * (high + 4)
        body.append(text_at(shortened(name, _NAMES - 8), _NAMES - 8, y + high / 2 + 4, "t tick", "end"))
        for place, rank in enumerate(own):
            cell = Cell(str(rank.rank), rank.relative, rank.slow)
            body += _cell(cell, _NAMES + place * wide, y, wide - 3, high)
    return body, 4.0 + len(nodes) * (high + 4)


def _heat_grid(cells: Sequence[Cell]) -> tuple[list[Markup], float]:
    """Cells in rows, read like text; the slow ones are named below."""
    columns = 16 if len(cells) <= 256 else 32
    wide = (WIDTH - 4) / columns
    body: list[Markup] = []
    for place, cell in enumerate(cells):
        body += _cell(cell, 2 + place % columns * wide, 4.0 + place // columns * wide, wide - 2, wide - 2)
    bottom = 4.0 + math.ceil(len(cells) / columns) * wide
    slow = sorted((cell for cell in cells if cell.slow), key=lambda cell: -cell.excess)
    for line, cell in enumerate(slow[:_MOST_NAMED]):
        name = shortened(cell.name, 240)
        body.append(
            text_at(
                f"\N{BLACK UP-POINTING TRIANGLE} {name}: {percent(cell.excess)} slower", 2, bottom + 14 + 18 * line, "t"
            )
        )
    return body, bottom + 18 * min(len(slow), _MOST_NAMED)


def _cell(cell: Cell, x: float, y: float, wide: float, high: float) -> Iterator[Markup]:
    step = step_of(cell.excess)
    yield tag("rect", x=x, y=y, width=wide, height=high, rx=2, class_=f"heat h{step}{' slow' if cell.slow else ''}")
    if wide >= _LEAST_TEXT:
        sign = "+" if round(100 * cell.excess) > 0 else ""
        mark = "\N{BLACK UP-POINTING TRIANGLE}" if cell.slow and wide >= 40 else ""
        yield text_at(
            f"{mark}{sign}{percent(cell.excess, 0)[:-2]}", x + wide / 2, y + high / 2 + 4, f"t on{step}", "middle"
        )
    elif cell.slow:
        shape = f"M{x + wide / 2:.1f} {y + high * 0.25:.1f}l{wide * 0.28:.1f} {high * 0.5:.1f}h{-wide * 0.56:.1f}Z"
        yield tag("path", d=shape, class_=f"mark m{step}")


def _scale(y: float, demonstration: str) -> Iterator[Markup]:
    """The steps of the scale with their limits, and what the mark means: a demonstration names none as slow."""
    limits = [f"to {100 * least:g}" for least in STEPS[1:]]
    for step, label in enumerate((*limits, "more")):
        x = 2.0 + step * 74
        yield tag("rect", x=x, y=y, width=16, height=12, rx=2, class_=f"heat h{step}")
        yield text_at(label, x + 21, y + 10, "t tick")
    meaning = "stands out" if demonstration else "named as slow"
    yield text_at(f"\N{BLACK UP-POINTING TRIANGLE} {meaning}", 2, y + 32, "t quiet")
    yield text_at("% slower than typical", WIDTH - 4, y + 32, "t quiet", "end")


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
        *_loss_grid(x, low, high, bottom),
        *(
            part
            for place, loss in enumerate(shown)
            for part in _bar(key, loss, 10 + place * (_BAR + _GAP), x, names, many)
        ),
        *_legend(key, names, shown[-1], bottom + 44),
    ]
    return svg(key, title, description, bottom + 44 + 20 * len(names), body, demonstration)


def _loss_grid(x: Callable[[float], float], low: float, high: float, bottom: float) -> Iterator[Markup]:
    for value in ticks(low, high):
        at = x(value)
        yield tag("line", x1=at, x2=at, y1=4, y2=bottom, class_="axis" if value == 0.0 else "grid")
        yield text_at(percent(value, 0 if high - low > 0.04 else 1), at, bottom + 16, "t tick", "middle")


def _bar(
    key: str, loss: Loss, y: float, x: Callable[[float], float], names: Sequence[str], many: bool
) -> Iterator[Markup]:
    label = settings_text(loss.settings) if many else ""
    yield text_at(f"{loss.gpus}", _LEFT - 8, y + _BAR / 2 + 4, "t tick", "end")
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
    yield text_at(percent(total), x(max(right, 0.0)) + 6, y + _BAR / 2 + 4, "t value halo")
    if label:
        yield text_at(label, _LEFT, y - 3, "t quiet halo")


def _legend(key: str, names: Sequence[str], loss: Loss, top: float) -> Iterator[Markup]:
    """Every part with its pattern, and its share at the largest size."""
    shares = {row.name: row for row in loss.rows}
    for place, name in enumerate(names):
        y, part = top + 20 * place, place % _PARTS
        yield tag("rect", x=2, y=y - 10, width=22, height=13, class_=f"part p{part}")
        yield tag("rect", x=2, y=y - 10, width=22, height=13, class_="part-edge", fill=f"url(#{key}-pattern{part})")
        row = shares.get(name)
        note = f", {row.note}" if row is not None and row.note else ""
        yield text_at(f"{name}{note}", 32, y, "t")
        if row is not None:
            yield text_at(percent(row.loss.value), WIDTH - 4, y, "t value", "end")


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
