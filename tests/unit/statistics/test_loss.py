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
from runner.statistics.loss import Decomposition, decompose

# Rates of four levels in three rounds.
RATES = ((100.0, 101.0, 99.0), (97.0, 98.5, 96.2), (95.0, 96.0, 94.1), (88.0, 89.5, 87.0))


def in_rounds(rates: tuple[tuple[float, ...], ...] = RATES) -> Decomposition:
    return decompose([[[math.log(rate) for rate in column] for column in zip(*rates, strict=True)]])


def limits(part: Estimate) -> tuple[float | None, ...]:
    return part.value, part.low, part.high


def test_the_values_are_those_of_the_design() -> None:
    made = in_rounds()
    assert limits(made.efficiency) == pytest.approx((0.8816363, 0.8719118, 0.8914692), abs=1e-6)
    assert [limits(loss) for loss in made.losses] == [
        pytest.approx(values, abs=1e-6)
        for values in (
            (0.0263750, 0.0200820, 0.0326681), (0.0214893, 0.0154680, 0.0275105), (0.0704994, 0.0606825, 0.0803163)
        )
    ]  # fmt: skip
    assert made.shares is not None
    assert limits(made.shares[0]) == pytest.approx((0.2228305, 0.1821143, 0.2585015), abs=1e-6)
    apart = decompose([[[math.log(rate)] for rate in level] for level in RATES])
    assert limits(apart.efficiency) == pytest.approx((0.8816363, 0.8559606, 0.9080822), abs=1e-6)


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


def test_every_row_has_its_place_its_clocks_and_an_interval() -> None:
    made = attributed(study())
    names = [loss.HOOKS, loss.NODE, loss.WAITING, loss.COORDINATION, loss.OVERLAP, loss.EXPOSED]
    assert [row.name for row in made.rows] == names
    assert made.why == ""
    assert all(row.clock_ratio == 1.0 and row.note == "" for row in made.rows)
    assert all(row.loss.low is not None for row in made.rows)


def test_rows_say_what_else_they_hold() -> None:
    """Clocks that fall by 2 % under load, no launches with hooks alone, and computing that is not recorded."""
    slower = [
        changed(
            each, arms=tuple(msgspec.structs.replace(arm, sm_clock_mhz=1370.0, compute_s=None) for arm in each.arms)
        )
        for each in without(lambda each: each.launch.arm == "solo-hooks")
    ]
    rows = {row.name: row for row in attributed(slower).rows}
    assert list(rows) == [loss.NODE, loss.WAITING, loss.COORDINATION, loss.EXPOSED]
    assert rows[loss.NODE].note == "with gradient hooks; includes power"
    assert rows[loss.NODE].clock_ratio == pytest.approx(1370 / 1400)
    assert rows[loss.WAITING].note == ""
    assert rows[loss.EXPOSED].note == "with what overlap slows"


def test_without_the_coordination_arm_its_part_is_in_the_communication_and_unknown_clocks_say_nothing() -> None:
    arms = [tuple(arm for arm in each.arms if arm.arm != "coordination") for each in study()]
    rows = attributed(
        [changed(each, arms=arms, sm_clock_mhz=None) for each, arms in zip(study(), arms, strict=True)]
    ).rows
    assert (rows[-1].name, rows[-1].note) == (loss.EXPOSED, "with coordination")
    assert [(row.clock_ratio, row.note) for row in rows[:2]] == [(None, ""), (None, "")]


@pytest.mark.parametrize(
    ("made", "gpus", "way", "why"),
    [
        (study(), 4, "separate", "separate jobs"),
        (study(), 1, "one-allocation", "what the loss is measured against"),
        (study(2), 4, "one-allocation", "2 repeats with proven launches"),
        (study(), 8, "one-allocation", "0 repeats with proven launches of the arms uncoupled and full"),
        (without(lambda each: each.launch.gpus == 1), 4, "one-allocation", "0 repeats with proven launches of one GPU"),
        ([changed(each, state="not-proven") for each in study()], 4, "one-allocation", "0 repeats with proven"),
        (
            without(lambda each: each.launch.gpus == 1 and each.launch.repeat > 1),
            4,
            "one-allocation",
            "1 repeat with proven launches of one GPU alone; 3 are needed",
        ),
    ],
)
def test_what_cannot_be_attributed_says_why(made: list[LaunchFacts], gpus: int, way: Way, why: str) -> None:
    refused = attributed(made, gpus, way)
    assert why in refused.why
    assert (refused.rows, refused.efficiency) == ((), None)


def test_a_fixed_whole_batch_has_no_attribution() -> None:
    assert "a larger batch" in attributed(study(), strong=True).why


def test_a_size_is_compared_with_its_own_gpus() -> None:
    """GPUs of another node are half as fast: in the mean of all they would be a gain, and none of this size's own."""
    other = [
        changed(
            each, launch={"key": f"{each.launch.key}-other", "node": 7}, images_per_s=0.5 * (each.images_per_s or 0)
        )
        for each in study()
        if each.launch.arm == "solo"
    ]
    assert attributed([*study(), *other]) == attributed(study())


def test_a_gpu_that_was_not_measured_by_itself_is_noted_and_the_others_are_the_base() -> None:
    rows = {
        row.name: row for row in attributed(without(lambda each: each.launch.arm == "solo" and is_on(each, 1, 1))).rows
    }
    assert rows[loss.HOOKS].note == "1 of its 4 GPUs have no rate alone"
    assert rows[loss.NODE].note == ""
    assert rows[loss.HOOKS].loss.low is not None


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


def width(each: Estimate) -> float:
    assert each.low is not None and each.high is not None
    return each.high - each.low


def test_where_no_gpu_ran_by_itself_the_base_is_the_size_of_one_and_the_row_says_so() -> None:
    made = [
        changed(each, launch={"arm": "full", "node": None, "device": None})
        for each in study()
        if each.launch.arm == "full" or (each.launch.arm == "solo" and is_on(each, 0, 0))
    ]
    rows = {row.name: row.note for row in attributed(made).rows}
    assert rows[loss.NODE] == "with gradient hooks; one GPU alone is the first of them"
    assert rows[loss.WAITING] == ""


def test_rounds_that_are_not_complete_count_as_independent_launches() -> None:
    """A repeat whose launch on all GPUs failed leaves its launches on one GPU; the intervals become wider."""
    whole = attributed(study(4))
    independent = attributed(without(lambda each: each.launch.gpus > 1 and each.launch.repeat == 2, 4))
    assert [row.name for row in independent.rows] == [row.name for row in whole.rows]
    assert whole.efficiency is not None and independent.efficiency is not None
    assert width(whole.efficiency) < width(independent.efficiency)
