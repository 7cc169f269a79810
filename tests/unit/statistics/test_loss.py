"""A loss divided into its steps: values of the simulated design, exact sums, and no share of nothing. Planted losses
land in their own rows; what cannot be attributed is refused with why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from benchmarks.planted_losses import HEALTHY, PLANTED, launches, share_in_its_row
from runner.model.study import Estimate, LaunchFacts, Loss, Way
from runner.statistics import loss
from runner.statistics.loss import COORDINATION, EXPOSED, HOOKS, NODE, OVERLAP, WAITING, Decomposition, decompose

# Rates of four levels in three rounds.
RATES = ((100.0, 101.0, 99.0), (97.0, 98.5, 96.2), (95.0, 96.0, 94.1), (88.0, 89.5, 87.0))


def in_rounds(rates: tuple[tuple[float, ...], ...] = RATES) -> Decomposition:
    return decompose([[[math.log(rate) for rate in column] for column in zip(*rates, strict=True)]])


def limits(part: Estimate) -> tuple[float | None, ...]:
    return part.value, part.low, part.high


def test_the_values_are_those_of_the_design() -> None:
    made = in_rounds()
    apart = decompose([[[math.log(rate)] for rate in level] for level in RATES])
    assert made.shares is not None
    for part, values in (
        (made.efficiency, (0.8816363, 0.8719118, 0.8914692)),
        (made.losses[0], (0.0263750, 0.0200820, 0.0326681)),
        (made.losses[1], (0.0214893, 0.0154680, 0.0275105)),
        (made.losses[2], (0.0704994, 0.0606825, 0.0803163)),
        (made.shares[0], (0.2228305, 0.1821143, 0.2585015)),
        (apart.efficiency, (0.8816363, 0.8559606, 0.9080822)),
    ):
        assert limits(part) == pytest.approx(values, abs=1e-6)


def test_rows_and_efficiency_add_up_to_one_with_gains_among_them() -> None:
    random = Random(1)
    for _ in range(100):
        rates = tuple(tuple(100.0 * math.exp(random.gauss(0.0, 0.2)) for _ in range(3)) for _ in range(6))
        made = in_rounds(rates)
        assert made.efficiency.value + math.fsum(loss.value for loss in made.losses) == pytest.approx(1.0, abs=1e-12)
        assert made.shares is None or math.fsum(each.value for each in made.shares) == pytest.approx(1.0)


def test_a_loss_that_may_be_none_has_no_shares_and_one_round_no_interval() -> None:
    assert in_rounds(((100.0, 101.0, 99.0), (99.0, 101.5, 99.0))).shares is None
    one = in_rounds(((100.0,), (90.0,), (80.0,)))
    assert one.efficiency.value == pytest.approx(0.8)
    assert (one.efficiency.low, one.shares, [loss.low for loss in one.losses]) == (None, None, [None, None])


@pytest.mark.parametrize("blocks", [[], [[]], [[[1.0]]], [[[1.0, 2.0], [1.0]]]])
def test_what_is_no_loss_between_levels_is_refused(blocks: list[list[list[float]]]) -> None:
    with pytest.raises(ValueError, match="level"):
        decompose(blocks)


def study(repeats: int = 3) -> list[LaunchFacts]:
    return launches(Random(7), 4, HEALTHY, repeats)


def without(lacks: Callable[[LaunchFacts], bool], repeats: int = 3) -> list[LaunchFacts]:
    return [each for each in study(repeats) if not lacks(each)]


def changed(each: LaunchFacts, *, launch: dict[str, Any] | None = None, **facts: Any) -> LaunchFacts:
    return msgspec.structs.replace(each, launch=msgspec.structs.replace(each.launch, **launch or {}), **facts)


def attributed(made: list[LaunchFacts], gpus: int = 4, way: Way = "one-allocation", *, strong: bool = False) -> Loss:
    return loss.attribution(gpus, (), made, way, strong=strong)


def is_on(each: LaunchFacts, node: int, device: int) -> bool:
    return (each.launch.node, each.launch.device) == (node, device)


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("gpus", [4, 16])
def test_a_planted_loss_lands_in_its_own_row(name: str, gpus: int) -> None:
    own, remainder = share_in_its_row(3, gpus, name)
    assert own > 0.8
    assert remainder < 1e-12


def with_arms(made: list[LaunchFacts], lacks: str = "", **facts: Any) -> list[LaunchFacts]:
    """With other facts of their arms, and without one of them."""
    return [
        changed(each, arms=tuple(msgspec.structs.replace(arm, **facts) for arm in each.arms if arm.arm != lacks))
        for each in made
    ]


EVERY = (HOOKS, NODE, WAITING, COORDINATION, OVERLAP, EXPOSED)
# Launches, and: the rows that they give, those notes that are not empty, and the ratio of the clocks under load.
ROWS: dict[str, tuple[list[LaunchFacts], tuple[str, ...], dict[str, str], float | None]] = {
    "all that there is": (study(), EVERY, {}, 1.0),
    "no hooks alone, clocks that fall, computing that is not recorded": (
        with_arms(without(lambda each: each.launch.arm == "solo-hooks"), sm_clock_mhz=1370.0, compute_s=None),
        (NODE, WAITING, COORDINATION, EXPOSED),
        {NODE: "with gradient hooks; includes power", EXPOSED: "with what overlap slows"},
        1370 / 1400,
    ),
    "no coordination arm": (
        with_arms(study(), "coordination"), (HOOKS, NODE, WAITING, EXPOSED), {EXPOSED: "with coordination"}, 1.0,
    ),
    "unknown clocks": ([changed(each, sm_clock_mhz=None) for each in study()], EVERY, {}, None),
    "a GPU that was not measured by itself": (
        without(lambda each: each.launch.arm == "solo" and is_on(each, 1, 1)), EVERY,
        {HOOKS: "1 of its 4 GPUs have no rate alone"}, 1.0,
    ),
    "no GPU by itself: the size of one": (
        [
            changed(each, launch={"arm": "full", "node": None, "device": None})
            for each in study()
            if each.launch.arm == "full" or (each.launch.arm == "solo" and is_on(each, 0, 0))
        ],
        EVERY[1:], {NODE: "with gradient hooks; one GPU alone is the first of them"}, 1.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ROWS)
def test_rows_have_their_place_their_clocks_an_interval_and_say_what_else_they_hold(case: str) -> None:
    made, names, notes, clocks = ROWS[case]
    loss = attributed(made)
    assert (loss.why, tuple(row.name for row in loss.rows)) == ("", names)
    assert {row.name: row.note for row in loss.rows if row.note} == notes
    by_name = {row.name: row for row in loss.rows}
    assert by_name[names[0]].clock_ratio == (clocks and pytest.approx(clocks))
    assert all(row.loss.low is not None for row in loss.rows)


REFUSED: dict[str, tuple[list[LaunchFacts], dict[str, Any], str]] = {
    "separate jobs": (study(), {"way": "separate"}, "separate jobs"),
    "one GPU": (study(), {"gpus": 1}, "what the loss is measured against"),
    "two repeats": (study(2), {}, "2 repeats with proven launches"),
    "another size": (study(), {"gpus": 8}, "0 repeats with proven launches of the arms uncoupled and full"),
    "none alone": (without(lambda each: each.launch.gpus == 1), {}, "0 repeats with proven launches of one GPU"),
    "not proven": ([changed(each, state="not-proven") for each in study()], {}, "0 repeats with proven"),
    "one alone": (
        without(lambda each: each.launch.gpus == 1 and each.launch.repeat > 1), {},
        "1 repeat with proven launches of one GPU alone; 3 are needed",
    ),
    "a fixed whole batch": (study(), {"strong": True}, "a larger batch"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_attributed_says_why(case: str) -> None:
    made, how, why = REFUSED[case]
    refused = attributed(made, **how)
    assert why in refused.why
    assert (refused.rows, refused.efficiency) == ((), None)


def test_a_size_is_compared_with_its_own_gpus() -> None:
    """GPUs of another node are half as fast: in the mean of all they would be a gain, and none of this size's own."""
    other = [
        changed(each, launch={"key": f"{each.launch.key}-other", "node": 7}, images_per_s=(each.images_per_s or 0) / 2)
        for each in study()
        if each.launch.arm == "solo"
    ]
    assert attributed([*study(), *other]) == attributed(study())


def test_a_gpu_that_lacks_one_repeat_changes_no_row() -> None:
    """It is the slowest by a fifth: without it, that repeat would have a base that is 5 % higher."""
    made = [
        changed(each, images_per_s=0.8 * (each.images_per_s or 0.0)) if is_on(each, 0, 1) else each for each in study()
    ]
    whole = attributed(made)
    lacking = attributed([each for each in made if not (is_on(each, 0, 1) and each.launch.repeat == 2)])
    for one, other in zip((whole.efficiency, *(row.loss for row in whole.rows)),
                          (lacking.efficiency, *(row.loss for row in lacking.rows)), strict=True):  # fmt: skip
        assert one is not None and other is not None
        assert other.value == pytest.approx(one.value, abs=0.001)
        assert width(other) == pytest.approx(width(one), abs=0.003)


def width(each: Estimate | None) -> float:
    assert each is not None and each.low is not None and each.high is not None
    return each.high - each.low


def test_rounds_that_are_not_complete_count_as_independent_launches() -> None:
    """A repeat whose launch on all GPUs failed leaves its launches on one GPU; the intervals become wider."""
    whole = attributed(study(4))
    independent = attributed(without(lambda each: each.launch.gpus > 1 and each.launch.repeat == 2, 4))
    assert [row.name for row in independent.rows] == [row.name for row in whole.rows]
    assert width(whole.efficiency) < width(independent.efficiency)
