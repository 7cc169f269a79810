"""GPUs alone: how they differ, which is the slowest, and which have no rate."""

from __future__ import annotations

import math
from statistics import fmean

import msgspec
import pytest

from runner.model.study import Launch, LaunchFacts
from runner.statistics.single_gpus import launches_of_size, log_rates, single_gpus

RATES = {(0, 0): 100.0, (0, 1): 102.0, (1, 0): 98.0, (1, 1): 80.0}


def of_each(repeats: int = 2) -> list[LaunchFacts]:
    return [
        LaunchFacts(Launch(f"{place}-{repeat}", 1, "solo", repeat, 0, node=place[0], device=place[1]), "proven",
                    images_per_s=rate * 1.01**repeat)
        for repeat in range(1, repeats + 1)
        for place, rate in RATES.items()
    ]  # fmt: skip


def test_the_slowest_gpu_is_named_with_the_spread_between_them() -> None:
    (found,) = single_gpus(of_each())
    assert (found.arm, found.gpus, found.wanted, found.launches, found.missing) == ("solo", 4, 4, 2, ())
    assert found.slowest == "GPU 1 of node 1"
    assert found.slowest_by == pytest.approx(0.154, abs=0.001)
    assert found.spread == pytest.approx(0.112, abs=0.001)


def test_what_is_not_proven_is_named() -> None:
    made = of_each()
    made[0] = msgspec.structs.replace(made[0], state="not-proven", images_per_s=None)
    made[3], made[7] = (msgspec.structs.replace(made[at], state="missing", images_per_s=None) for at in (3, 7))
    (found,) = single_gpus(made)
    assert (found.gpus, found.wanted) == (3, 4)
    assert found.missing == ("GPU 0 of node 0 (1 of 2 launches)", "GPU 1 of node 1")


def test_a_size_has_the_gpus_of_its_ranks_and_all_of_them_where_one_has_no_rate_or_is_unknown() -> None:
    made = of_each(1)
    assert launches_of_size(made, (2,)) == (made[:2], "")
    assert launches_of_size(made, (1, 1)) == ([made[0], made[2]], "")
    assert launches_of_size(made, ()) == (made, "")
    assert launches_of_size(made[1:], (2,)) == (made[1:], "1 of its 2 GPUs have no rate alone")
    apart = [
        msgspec.structs.replace(each, launch=msgspec.structs.replace(each.launch, node=None, device=None))
        for each in made
    ]
    assert launches_of_size(apart, (2,)) == (apart, "")
    assert single_gpus(apart) == ()
    (alone,) = single_gpus(made[:1])
    assert (alone.gpus, alone.spread, alone.slowest) == (1, None, "")


def means(made: list[LaunchFacts]) -> list[float]:
    """Of the log rates of each repeat."""
    logs: dict[int, list[float]] = {}
    for each, log in zip(made, log_rates(made), strict=True):
        logs.setdefault(each.launch.repeat, []).append(log)
    return [fmean(found) for found in logs.values()]


@pytest.mark.parametrize("lacking", [(3,), (3, 6), (0, 5, 10), (3, 4, 5, 6)])
def test_a_repeat_that_lacks_gpus_has_the_mean_of_all(lacking: tuple[int, ...]) -> None:
    """Launch 3 is the slow GPU's in the first repeat: without it the mean of that repeat would be 6 % higher."""
    made = of_each(3)
    assert means([each for at, each in enumerate(made) if at not in lacking]) == pytest.approx(means(made), abs=1e-8)
    (found,) = single_gpus([each for at, each in enumerate(made) if at not in lacking])
    (whole,) = single_gpus(made)
    assert found.slowest_by == pytest.approx(whole.slowest_by)
    assert found.spread == pytest.approx(whole.spread)


def test_few_gpus_in_turn_are_taken_as_they_are() -> None:
    made = of_each(2)
    some = [made[0], made[1], made[6], made[7]]
    assert log_rates(some) == [math.log(each.images_per_s or 0.0) for each in some]
    assert log_rates([]) == []
