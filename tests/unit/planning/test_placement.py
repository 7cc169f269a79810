"""How many ranks go on which node."""

from __future__ import annotations

import pytest

from runner.core.errors import RefusedError, UsageError
from runner.model.site import NodeShape
from runner.planning.placement import place

DGX = NodeShape(cores=128, memory_mb=1_000_000, gpus=8, threads_per_core=2)


@pytest.mark.parametrize(
    ("gpus", "nodes", "placed"),
    [
        (1, None, (1,)),
        (8, None, (8,)),
        (16, None, (8, 8)),
        (12, None, (6, 6)),
        (9, None, (8, 1)),
        (13, None, (8, 5)),
        (3, 2, (2, 1)),
        (16, 4, (4, 4, 4, 4)),
        (17, 4, (8, 7, 1, 1)),
        (2, 2, (1, 1)),
    ],
)
def test_fewest_nodes_equal_split_else_full_nodes_first(gpus: int, nodes: int | None, placed: tuple[int, ...]) -> None:
    assert place(gpus, nodes, DGX) == placed


@pytest.mark.parametrize("gpus", range(1, 65))
def test_every_rank_is_placed_and_no_node_is_empty_or_over_full(gpus: int) -> None:
    placed = place(gpus, None, DGX)
    assert sum(placed) == gpus
    assert all(1 <= count <= 8 for count in placed)


@pytest.mark.parametrize(
    ("gpus", "nodes", "says"),
    [(0, None, "0 GPUs"), (-1, None, "-1 GPUs"), (8, 0, "0 nodes"), (8, -2, "-2 nodes"), (2, 3, "2 GPUs .* 3 nodes")],
)
def test_impossible_numbers_are_usage_errors(gpus: int, nodes: int | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        place(gpus, nodes, DGX)


def test_more_than_nodes_hold_is_refused_with_what_would_do() -> None:
    with pytest.raises(RefusedError) as caught:
        place(12, 1, DGX)
    assert "2 nodes or more" in caught.value.fix


def test_more_than_the_site_has_is_refused_with_what_it_has() -> None:
    with pytest.raises(RefusedError) as caught:
        place(10**9, None, NodeShape(cores=128, memory_mb=1, gpus=8, count=4))
    assert "32 GPUs or fewer" in caught.value.fix
