"""Where a loss goes: planted losses land in their own rows; what cannot be attributed is refused with why."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from benchmarks.planted_losses import HEALTHY, PLANTED, launches, share_in_its_row
from runner.model.study import LaunchFacts, Loss, Way
from runner.statistics import loss


def study(repeats: int = 3) -> list[LaunchFacts]:
    return launches(Random(7), 4, HEALTHY, repeats)


def attributed(made: list[LaunchFacts], gpus: int = 4, way: Way = "one-allocation") -> Loss:
    return loss.attribution(gpus, (), made, way)


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
    plain = [each for each in study() if each.launch.arm != "solo-hooks"]
    slower = [
        msgspec.structs.replace(
            each,
            arms=tuple(msgspec.structs.replace(arm, sm_clock_mhz=1370.0, compute_s=None) for arm in each.arms),
        )
        for each in plain
    ]
    rows = {row.name: row for row in attributed(slower).rows}
    assert list(rows) == [loss.NODE, loss.WAITING, loss.COORDINATION, loss.EXPOSED]
    assert rows[loss.NODE].note == "with gradient hooks; includes power"
    assert rows[loss.NODE].clock_ratio == pytest.approx(1370 / 1400)
    assert rows[loss.WAITING].note == ""
    assert rows[loss.EXPOSED].note == "with what overlap slows"


def test_without_the_coordination_arm_its_part_is_in_the_communication() -> None:
    made = [
        msgspec.structs.replace(each, arms=tuple(arm for arm in each.arms if arm.arm != "coordination"))
        for each in study()
    ]
    last = attributed(made).rows[-1]
    assert (last.name, last.note) == (loss.EXPOSED, "with coordination")


def test_clocks_that_are_unknown_say_nothing() -> None:
    made = [msgspec.structs.replace(each, sm_clock_mhz=None) for each in study()]
    rows = attributed(made).rows
    assert [row.clock_ratio for row in rows[:2]] == [None, None]
    assert rows[1].note == ""


@pytest.mark.parametrize(
    ("made", "gpus", "way", "why"),
    [
        (study(), 4, "separate", "separate jobs"),
        (study(), 1, "one-allocation", "what the loss is measured against"),
        (study(2), 4, "one-allocation", "2 repeats with proven launches"),
        (study(), 8, "one-allocation", "0 repeats with proven launches of the arms uncoupled and full"),
        (
            [each for each in study() if each.launch.gpus > 1],
            4,
            "one-allocation",
            "0 repeats with proven launches of one GPU alone",
        ),
        (
            [msgspec.structs.replace(each, state="not-proven") for each in study()],
            4,
            "one-allocation",
            "0 repeats with proven",
        ),
    ],
)
def test_what_cannot_be_attributed_says_why(made: list[LaunchFacts], gpus: int, way: Way, why: str) -> None:
    refused = attributed(made, gpus, way)
    assert why in refused.why
    assert refused.rows == ()
    assert refused.efficiency is None


def test_a_size_is_compared_with_its_own_gpus() -> None:
    """GPUs of another node are half as fast: in the mean of all they would be a gain, and none of this size's own."""
    made = study()
    other = [
        msgspec.structs.replace(
            each,
            images_per_s=0.5 * (each.images_per_s or 0.0),
            launch=msgspec.structs.replace(each.launch, key=f"{each.launch.key}-other", node=7),
        )
        for each in made
        if each.launch.arm == "solo"
    ]
    assert attributed([*made, *other]) == attributed(made)


def test_a_gpu_that_was_not_measured_by_itself_is_noted_and_the_others_are_the_base() -> None:
    made = [each for each in study() if (each.launch.arm, each.launch.node, each.launch.device) != ("solo", 1, 1)]
    rows = {row.name: row for row in attributed(made).rows}
    assert rows[loss.HOOKS].note == "1 of its 4 GPUs have no rate alone"
    assert rows[loss.NODE].note == ""
    assert rows[loss.HOOKS].loss.low is not None


def test_a_gpu_that_lacks_one_repeat_changes_no_row() -> None:
    """It is the slowest by a fifth: without it, that repeat would have a base that is 5 % higher."""
    made = [
        msgspec.structs.replace(each, images_per_s=0.8 * (each.images_per_s or 0.0)) if _is_on(each, 0, 1) else each
        for each in study()
    ]
    some = [each for each in made if not (_is_on(each, 0, 1) and each.launch.repeat == 2)]
    whole, lacking = attributed(made), attributed(some)
    for one, other in zip((whole.efficiency, *(row.loss for row in whole.rows)),
                          (lacking.efficiency, *(row.loss for row in lacking.rows)), strict=True):  # fmt: skip
        assert one is not None
        assert other is not None
        assert other.value == pytest.approx(one.value, abs=0.001)
        assert (other.high or 0.0) - (other.low or 0.0) == pytest.approx(
            (one.high or 0.0) - (one.low or 0.0), abs=0.003
        )


def _is_on(each: LaunchFacts, node: int, device: int) -> bool:
    return (each.launch.node, each.launch.device) == (node, device)


def test_where_no_gpu_ran_by_itself_the_base_is_the_size_of_one_and_the_row_says_so() -> None:
    made = [
        msgspec.structs.replace(each, launch=msgspec.structs.replace(each.launch, arm="full", node=None, device=None))
        for each in study()
        if each.launch.arm == "full" or (each.launch.arm == "solo" and _is_on(each, 0, 0))
    ]
    rows = {row.name: row.note for row in attributed(made).rows}
    assert rows[loss.NODE] == "with gradient hooks; one GPU alone is the first of them"
    assert rows[loss.WAITING] == ""


def test_single_gpus_in_one_repeat_are_one_repeat() -> None:
    made = [each for each in study() if each.launch.gpus > 1 or each.launch.repeat == 1]
    assert attributed(made).why == "1 repeat with proven launches of one GPU alone; 3 are needed"


def test_a_fixed_whole_batch_has_no_attribution() -> None:
    refused = loss.attribution(4, (), study(), "one-allocation", strong=True)
    assert "a larger batch" in refused.why


def test_rounds_that_are_not_complete_count_as_independent_launches() -> None:
    """A repeat whose launch on all GPUs failed leaves its launches on one GPU; the intervals become wider."""
    made = study(4)
    some = [each for each in made if each.launch.gpus == 1 or each.launch.repeat != 2]
    whole, independent = attributed(made), attributed(some)
    assert [row.name for row in independent.rows] == [row.name for row in whole.rows]
    for one in (whole, independent):
        assert one.efficiency is not None
        assert one.efficiency.low is not None
    assert independent.efficiency is not None
    assert whole.efficiency is not None
    widths = [(each.high or 0.0) - (each.low or 0.0) for each in (whole.efficiency, independent.efficiency)]
    assert widths[0] < widths[1]
