"""The heat map of ranks or nodes, and the bars of where the loss goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from runner.core.text import efficiency, percent, settings_text
from runner.figures.report.picture import WIDTH, Drawing, Markup, shortened, tag, text_at, ticks
from runner.model.report import RankFacts
from runner.model.study import Loss

# Excess over the typical rank from which a step of the scale begins.
_STEPS = (-math.inf, 0.005, 0.01, 0.02, 0.05)
_MOST_RANK_NODES = 16  # with more, a cell is a node
_MOST_CELLS = 512  # with more nodes, a cell is several
_NAMES = 86
_MOST_NAMED = 4
_MARK = "\N{BLACK UP-POINTING TRIANGLE}"
_LEAST_TEXT = 31.0  # a cell at least so wide has its value in it


@dataclass(frozen=True)
class Cell:
    """A rank, a node, or several: name, excess of its slowest rank, and whether it was named as slow."""

    name: str
    excess: float
    slow: bool


def node_cells(ranks: Sequence[RankFacts], most: int = _MOST_CELLS) -> list[Cell]:
    """A cell for each node, of its slowest rank; for several nodes in a row where there are too many."""
    nodes = list(_by_node(ranks).items())
    each = math.ceil(len(nodes) / most)
    cells = []
    for group in (nodes[at : at + each] for at in range(0, len(nodes), each)):
        own = [rank for _, ranks_of_node in group for rank in ranks_of_node]
        name = group[0][0] if len(group) == 1 else f"{group[0][0]} to {group[-1][0]}"
        cells.append(Cell(name, max(rank.relative for rank in own), any(rank.slow for rank in own)))
    return cells


def _by_node(ranks: Sequence[RankFacts]) -> dict[str, list[RankFacts]]:
    nodes: dict[str, list[RankFacts]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node, []).append(rank)
    return nodes


def heat_map(ranks: Sequence[RankFacts], demonstration: str) -> Drawing:
    """Ranks by node, or nodes; of a demonstration none is named as slow."""
    nodes = _by_node(ranks)
    is_small = len(nodes) <= _MOST_RANK_NODES and max(map(len, nodes.values())) <= 16
    body, bottom = _ranks(nodes) if is_small else _nodes(node_cells(ranks))
    for step, limit in enumerate((*(f"to {100 * least:g}" for least in _STEPS[1:]), "more")):
        x = 2.0 + step * 74
        body.append(tag("rect", x=x, y=bottom + 14, width=16, height=12, rx=2, class_=f"heat h{step}"))
        body.append(text_at(limit, x + 21, bottom + 24, "t tick"))
    meaning = "stands out" if demonstration else "named as slow"
    body.append(text_at(f"{_MARK} {meaning}", 2, bottom + 46, "t quiet"))
    body.append(text_at("% slower than typical", WIDTH - 4, bottom + 46, "t quiet", "end"))
    return bottom + 52, body


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


def _nodes(cells: Sequence[Cell]) -> tuple[list[Markup], float]:
    """Cells in rows, read like text; the slow ones are named below."""
    columns = 16 if len(cells) <= 256 else 32
    wide = (WIDTH - 4) / columns
    body: list[Markup] = []
    for place, cell in enumerate(cells):
        body += _cell(cell, 2 + place % columns * wide, 4.0 + place // columns * wide, wide - 2, wide - 2)
    bottom = 4.0 + math.ceil(len(cells) / columns) * wide
    slow = sorted((cell for cell in cells if cell.slow), key=lambda cell: -cell.excess)
    for line, cell in enumerate(slow[:_MOST_NAMED]):
        named = f"{_MARK} {shortened(cell.name, 240)}: {percent(cell.excess)} slower"
        body.append(text_at(named, 2, bottom + 14 + 18 * line))
    return body, bottom + 18 * min(len(slow), _MOST_NAMED)


def _cell(cell: Cell, x: float, y: float, wide: float, high: float) -> Iterator[Markup]:
    step = max(place for place, least in enumerate(_STEPS) if cell.excess >= least)
    yield tag("rect", x=x, y=y, width=wide, height=high, rx=2, class_=f"heat h{step}{' slow' if cell.slow else ''}")
    if wide >= _LEAST_TEXT:
        sign = "+" if round(100 * cell.excess) > 0 else ""
        mark = _MARK if cell.slow and wide >= 40 else ""
        shown = f"{mark}{sign}{percent(cell.excess, 0)[:-2]}"
        yield text_at(shown, x + wide / 2, y + high / 2 + 4, f"t on{step}", "middle")
    elif cell.slow:
        shape = f"M{x + wide / 2:.1f} {y + high * 0.25:.1f}l{wide * 0.28:.1f} {high * 0.5:.1f}h{-wide * 0.56:.1f}Z"
        yield tag("path", d=shape, class_=f"mark m{step}")


_LEFT, _RIGHT = 44, 66
_BAR, _GAP = 26, 14
_MOST_BARS = 8
# What tells parts apart without colour: none, strokes both ways, dots, bars, and a lattice.
_PATTERNS = ("M0 0", "M-2 2l4 -4M0 8l8 -8M6 10l4 -4", "M-2 6l4 4M0 0l8 8M6 -2l4 4", "M0 4h8", "M4 0V8", "M0 4h8M4 0V8")
_SLIVER = 0.4  # narrower parts are left to the table


def losses(rows: Sequence[Loss]) -> Drawing:
    """Bars of what is lost; a part that gains (a negative loss) stands left of the line."""
    shown = rows[-_MOST_BARS:]
    names = list(dict.fromkeys(row.name for loss in shown for row in loss.rows))
    low = min(sum(min(row.loss.value, 0.0) for row in loss.rows) for loss in shown)
    high = max(sum(max(row.loss.value, 0.0) for row in loss.rows) for loss in shown)
    high = max(high, low + 0.01)
    bottom = 10 + len(shown) * (_BAR + _GAP)

    def x(share: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (share - low) / (high - low)

    patterns = [
        tag("pattern", tag("path", d=d, class_="pattern"), id=f"loss-pattern{number}",
            width=8, height=8, patternUnits="userSpaceOnUse")
        for number, d in enumerate(_PATTERNS)
    ]  # fmt: skip
    body = [tag("defs", patterns)]
    for value in ticks(low, high):
        at = x(value)
        body.append(tag("line", x1=at, x2=at, y1=4, y2=bottom, class_="axis" if value == 0.0 else "grid"))
        body.append(text_at(percent(value, 0 if high - low > 0.04 else 1), at, bottom + 16, "t tick", "middle"))
    many = len({loss.settings for loss in shown}) > 1
    for place, loss in enumerate(shown):
        body += _bar(loss, 10 + place * (_BAR + _GAP), x, names, settings_text(loss.settings) if many else "")
    shares = {row.name: row for row in shown[-1].rows}  # at the largest size
    for place, name in enumerate(names):
        y, row = bottom + 44 + 20 * place, shares.get(name)
        body += _part(place, 2, y - 10, 22, 13)
        body.append(text_at(f"{name}{f', {row.note}' if row is not None and row.note else ''}", 32, y))
        if row is not None:
            body.append(text_at(efficiency(row.loss.value), WIDTH - 4, y, "t value", "end"))
    return bottom + 44 + 20 * len(names), body


def _bar(loss: Loss, y: float, x: Callable[[float], float], names: Sequence[str], setting: str) -> Iterator[Markup]:
    yield text_at(f"{loss.gpus}", _LEFT - 8, y + _BAR / 2 + 4, "t tick", "end")
    left, right = 0.0, 0.0
    for row in loss.rows:
        share = row.loss.value
        start = right if share >= 0.0 else left + share
        right, left = (right + share, left) if share >= 0.0 else (right, left + share)
        wide = x(start + abs(share)) - x(start)
        if wide >= _SLIVER:
            yield from _part(names.index(row.name), x(start), y, wide, _BAR)
    total = sum(row.loss.value for row in loss.rows)
    yield text_at(efficiency(total), x(max(right, 0.0)) + 6, y + _BAR / 2 + 4, "t value halo")
    if setting:
        yield text_at(setting, _LEFT, y - 3, "t quiet halo")


def _part(number: int, x: float, y: float, width: float, height: float) -> tuple[Markup, Markup]:
    """An area with its colour, and with its pattern."""
    part = number % len(_PATTERNS)
    pattern = f"url(#loss-pattern{part})"
    return (
        tag("rect", x=x, y=y, width=width, height=height, class_=f"part p{part}"),
        tag("rect", x=x, y=y, width=width, height=height, class_="part-edge", fill=pattern),
    )
