"""How fast each rank computes, by node: darker is slower. Many ranks are drawn by node, very many nodes by groups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.core.text import percent
from runner.figures.report.markup import Markup, tag
from runner.figures.report.pictures.picture import WIDTH, shortened, svg, text
from runner.model.report import RankFacts

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
        body, bottom = _grid(node_cells(ranks))
    return svg(key, title, description, bottom + 52, [*body, *_scale(bottom + 14, demonstration)], demonstration)


def _ranks(nodes: dict[str, list[RankFacts]]) -> tuple[list[Markup], float]:
    """A row for each node, a cell for each of its ranks."""
    columns = max(map(len, nodes.values()))
    wide = min((WIDTH - _NAMES - 4) / columns, 72.0)
    high = min(max(176.0 / len(nodes), 22.0), 64.0)
    body: list[Markup] = []
    for line, (name, own) in enumerate(nodes.items()):
        y = 4.0 + line * (high + 4)
        body.append(text(shortened(name, _NAMES - 8), _NAMES - 8, y + high / 2 + 4, "t tick", "end"))
        for place, rank in enumerate(own):
            cell = Cell(str(rank.rank), rank.relative, rank.slow)
            body += _cell(cell, _NAMES + place * wide, y, wide - 3, high)
    return body, 4.0 + len(nodes) * (high + 4)


def _grid(cells: Sequence[Cell]) -> tuple[list[Markup], float]:
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
            text(
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
        yield text(
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
        yield text(label, x + 21, y + 10, "t tick")
    meaning = "stands out" if demonstration else "named as slow"
    yield text(f"\N{BLACK UP-POINTING TRIANGLE} {meaning}", 2, y + 32, "t quiet")
    yield text("% slower than typical", WIDTH - 4, y + 32, "t quiet", "end")
