"""What shows that divided gradients were reduced: sums in buckets, over ranks that keep parts of a vector."""

import random
from typing import Any

import pytest
from gpu_runner_inside.meter.reduction import BUCKETS, LARGEST, error_of

SIZE, RANKS = 1000, 4


def buckets(values: list[float], begin: int = 0) -> list[float]:
    sums = [0.0] * BUCKETS
    for place, value in enumerate(values, start=begin):
        sums[place % BUCKETS] += value
    return sums


def looks(reduce: Any, common: float = 1.0, noise: float = 1.0) -> list[dict[str, Any]]:
    """Four ranks, whose gradients have a common part; ``reduce``: what a rank keeps, by all gradients and a place."""
    drawn = random.Random(7)
    shared = [common * drawn.gauss(0.0, 1.0) for _ in range(SIZE)]
    own = [[each + noise * drawn.gauss(0.0, 1.0) for each in shared] for _ in range(RANKS)]
    made = []
    for rank in range(RANKS):
        places = range(rank * SIZE // RANKS, (rank + 1) * SIZE // RANKS)
        made.append({
            "own": buckets(own[rank]), "own_part": buckets([own[rank][place] for place in places], places[0]),
            "reduced": buckets([reduce(own, rank, place) for place in places], places[0]),
        })  # fmt: skip
    return made


def mean(own: list[list[float]], _rank: int, place: int) -> float:
    return sum(each[place] for each in own) / RANKS


def own_part(own: list[list[float]], rank: int, place: int) -> float:
    return own[rank][place]


@pytest.mark.parametrize("factor", [1.0, 0.01, 65536.0])
def test_the_mean_is_what_was_reduced_whatever_it_was_scaled_by(factor: float) -> None:
    """Clipped by its norm, or with a loss scale; in coarser numbers, too."""
    error = error_of(looks(lambda *of: factor * mean(*of)))
    assert error is not None and error < 1e-9
    drawn = random.Random(3)
    error = error_of(looks(lambda *of: factor * mean(*of) * (1.0 + drawn.uniform(-1, 1) / 256)))
    assert error is not None and error < LARGEST


@pytest.mark.parametrize("noise", [10.0, 1.0, 0.1])
def test_own_parts_are_no_reduction_even_where_gradients_are_much_alike(noise: float) -> None:
    error = error_of(looks(own_part, noise=noise))
    assert error is not None and error >= 1.0 > LARGEST


@pytest.mark.parametrize(
    ("reduce", "noise"),
    [
        (lambda *of: max(min(mean(*of), 0.3), -0.3), 1.0),  # each value clipped
        (lambda *of: (mean(*of) + own_part(*of)) / 2, 1.0),
        (lambda *of: 0.0, 1.0),
        (lambda *of: float("nan"), 1.0),
        (mean, 1e-6),  # ranks whose gradients are the same
        (own_part, 0.0),
    ],
)
def test_what_is_neither_is_left_open(reduce: Any, noise: float) -> None:
    assert error_of(looks(reduce, noise=noise)) is None


def whole(reduce: Any, noise: float = 1.0) -> list[dict[str, Any]]:
    """Four ranks that keep whole gradients; ``reduce``: what a rank's optimizer gets, by all own ones."""
    drawn = random.Random(7)
    shared = [drawn.gauss(0.0, 1.0) for _ in range(SIZE)]
    own = [[each + noise * drawn.gauss(0.0, 1.0) for each in shared] for _ in range(RANKS)]
    made = [(own[rank], [reduce(own, rank, place) for place in range(SIZE)]) for rank in range(RANKS)]
    return [{"own": buckets(one), "reduced": buckets(other), "step": 1} for one, other in made]


@pytest.mark.parametrize(
    ("reduce", "noise", "error"),
    [
        (mean, 1.0, 0.0),
        (lambda *of: 512.0 * mean(*of), 1.0, 0.0),
        (own_part, 1.0, 1.0),
        (lambda own, _rank, place: own[0][place], 1.0, 1.0),  # a broadcast for an allreduce
        (lambda own, _rank, place: own[2][place], 0.1, 1.0),
        (lambda own, rank, place: mean(own, rank, place) if rank else own[0][place], 1.0, 1.0),
        (lambda *of: max(min(mean(*of), 0.3), -0.3), 1.0, None),
        (mean, 0.0, None),
    ],
)
def test_whole_gradients_are_the_mean_or_one_ranks_or_left_open(reduce: Any, noise: float, error: float | None) -> None:
    found = error_of(whole(reduce, noise))
    assert (found is None) is (error is None)
    assert found is None or (found > LARGEST) is (error == 1.0)


def test_looks_at_different_steps_or_of_nothing_are_left_open() -> None:
    seen = whole(mean)
    assert error_of([*seen[1:], {}]) is error_of([]) is error_of([seen[0], seen[1] | {"step": 2}]) is None
