"""Slow ranks and nodes are named with their cost; healthy ones are not."""

from __future__ import annotations

import math
from random import Random

import pytest

from runner.statistics.stragglers import Stragglers, critical_split, slow_units, stragglers


def judged(
    random: Random,
    nodes: int,
    per_node: int,
    *,
    spread: float = 0.01,
    slow_rank: float = 0.0,
    slow_node: float = 0.0,
    quarters: tuple[int, ...] = (0, 1, 2, 3),
) -> Stragglers:
    """A run in which the last rank, or the last node, is slower in the given quarters."""
    count = nodes * per_node
    times = []
    for rank in range(count):
        own = random.gauss(0.0, spread)
        excess = slow_rank * (rank == count - 1) + slow_node * (rank >= count - per_node)
        times.append(
            [0.1 * math.exp(own + random.gauss(0.0, 0.001)) * (1 + excess * (q in quarters)) for q in range(4)]
        )
    return stragglers(times, [f"node{rank // per_node}" for rank in range(count)], 0.2)


def test_one_slow_rank_of_eight_is_named_with_its_excess_and_cost() -> None:
    made = judged(Random(1), 1, 8, spread=0.005, slow_rank=0.1)
    assert list(made.ranks) == [7]
    assert made.ranks[7] == pytest.approx(0.1, abs=0.02)
    assert made.removable == pytest.approx(0.05, abs=0.01)  # of a step of 0.2 s
    assert not made.cannot_tell


def test_a_slow_node_is_named_and_not_its_ranks() -> None:
    made = judged(Random(2), 2, 8, slow_node=0.1)
    assert (list(made.nodes), list(made.ranks)) == (["node1"], [])


def test_healthy_ranks_are_not_named() -> None:
    random = Random(3)
    named = sum(bool(made.ranks or made.nodes) for made in (judged(random, 2, 8, spread=0.02) for _ in range(300)))
    assert named <= 4


def test_a_rank_that_is_slow_in_two_quarters_only_is_no_straggler_but_one_that_gets_slower_is_reported() -> None:
    assert not judged(Random(4), 1, 8, spread=0.001, slow_rank=0.1, quarters=(0, 1)).ranks
    assert list(judged(Random(5), 1, 8, spread=0.001, slow_rank=0.1, quarters=(2, 3)).slowed) == [7]


def test_a_difference_that_healthy_ranks_may_have_is_neither_named_nor_denied() -> None:
    made = judged(Random(6), 1, 2, spread=0.0, slow_rank=0.04)
    assert not made.ranks
    assert made.cannot_tell


def test_few_units_need_the_assumption_on_healthy_ones() -> None:
    assert critical_split(3) == math.inf
    assert slow_units([0.0, 0.0, 0.2], 0.02) == [2]
    assert slow_units([0.0, 0.0, 0.03], 0.02) == []


@pytest.mark.parametrize("quarters", [[], [[0.1, 0.1, 0.1]], [[0.1, 0.1, 0.1, 0.0]]])
def test_records_that_are_not_four_quarters_of_positive_times_are_refused(quarters: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="four medians above 0"):
        stragglers(quarters, ["a"] * len(quarters), 0.2)
