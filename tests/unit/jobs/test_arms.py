"""Arms that took turns in one run: their figures come from the raw records, and records that disagree prove nothing."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from runner.jobs.verdict import judge
from runner.model.records import GpuSummary, NodeRecord
from tests.support.arm_records import Change, alternating
from tests.support.evidence import GOOD, changed, node
from tests.support.plans import PLAN


def test_each_arm_has_its_figure_and_the_main_one_is_the_runs() -> None:
    verdict = judge(alternating())
    plain = judge(GOOD)
    assert verdict.outcome == "measured", verdict.reasons
    assert verdict.images_per_s == plain.images_per_s
    uncoupled, coordination, full = verdict.arms
    assert [each.arm for each in verdict.arms] == ["uncoupled", "coordination", "full"]
    # Two windows of 4 steps of 10 samples each.
    assert uncoupled.samples_per_s == pytest.approx(3 * 10 / 0.3 + 10 / 0.4)
    assert uncoupled.slowest_samples_per_s == pytest.approx(10 / 0.4)
    assert coordination.samples_per_s == pytest.approx(320 / 3.6)
    assert coordination.compute_s == pytest.approx(0.4)
    assert full.samples_per_s == verdict.images_per_s
    assert plain.arms == ()
    assert plain.arm == "full"


def of_rank_one(**fields: Any) -> Change:
    """The first window of rank 1 is another."""
    return lambda rank, place, window: window | fields if (rank, place) == (1, 0) else window


def every(**fields: Any) -> Change:
    """The second window, of the arm coordination, is another on every rank."""
    return lambda _rank, place, window: window | fields if place == 1 else window


def of_the_second_rank_on_a_node(rank: int, place: int, window: dict[str, Any]) -> dict[str, Any]:
    return window | {"began_monotonic_s": 1001.9} if (rank, place) == (1, 0) else window


def not_in_step(rank: int, place: int, window: dict[str, Any]) -> dict[str, Any]:
    return window | {"ends_s": (0.1, 0.2) if rank else (1.0, 1.9), "compute_s": ()} if place == 1 else window


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (of_rank_one(arm="full"), "did not take the planned turns"),
        (of_rank_one(ends_s=(1.0, 0.5)), r"window 1 \(uncoupled\) of rank 1 do not rise"),
        (of_rank_one(ends_checksum="0" * 16), "are not those that its program wrote"),
        (of_rank_one(began_monotonic_s=999.0), "began before its program"),
        (every(began_monotonic_s=1001.5), "or before the one in front of it had ended"),
        (of_rank_one(ends_s=(0.6,), compute_s=(0.3, 0.3)), "did not do the same steps in each arm"),
        (of_rank_one(compute_s=(0.3,)), "did not do the same steps in each arm"),
        (lambda _r, place, each: each | {"compute_s": (0.1,) * 5} if place == 0 else each, "does not fit its steps"),
        (of_rank_one(compute_s=(0.3, 0.3, 0.3, 9.0)), "does not fit its steps"),
        (lambda _r, place, each: each | {"began_monotonic_s": 1014.0} if place == 4 else each, "after its program"),
        (lambda _r, place, each: each | {"began_monotonic_s": 1005.1} if place == 2 else each, "two accounts"),
        (of_the_second_rank_on_a_node, "did not begin a window of the arm uncoupled together"),
        (not_in_step, "times in the arm coordination are not of one training"),
    ],
)
def test_windows_that_disagree_prove_nothing(change: Change, says: str) -> None:
    verdict = judge(alternating(change))
    assert verdict.outcome == "not-proven"
    assert verdict.arms == ()
    assert any(re.search(says, reason) for reason in verdict.reasons), verdict.reasons


def test_arms_that_were_not_planned_prove_nothing() -> None:
    """Neither turns that no one asked for nor a run that leaves the planned ones out; and no other arm than planned."""
    unplanned = alternating()
    fields = {name: getattr(unplanned, name) for name in type(unplanned).__dataclass_fields__}
    for evidence in (
        changed(**(fields | {"plan": PLAN})),
        changed(plan=msgspec.structs.replace(PLAN, arms=("uncoupled", "full"))),
    ):
        assert any("planned turns" in reason for reason in judge(evidence).reasons)
    other = judge(alternating(arm="uncoupled"))
    assert "the window is of the arm uncoupled, planned full" in other.reasons


def diverged(arm: str) -> dict[int, Any]:
    return {
        rank: msgspec.structs.replace(each, arm=arm, parameter_checksum=f"p{rank}")
        for rank, each in GOOD.reports.items()
    }


def test_a_run_of_another_arm_is_judged_for_what_it_is() -> None:
    """Its parameters differ between ranks by right; it does not say that they were synchronised."""
    plan = msgspec.structs.replace(PLAN, arms=("uncoupled",))
    verdict = judge(changed(plan=plan, reports=diverged("uncoupled")))
    assert (verdict.outcome, verdict.arm) == ("measured", "uncoupled"), verdict.reasons
    assert verdict.images_per_s == pytest.approx(sum(60 / (3.0 + rank / 10) for rank in range(4)))
    assert verdict.precision is None
    assert not any("synchronised" in sentence for sentence in verdict.proven)
    assert any("each rank trained for itself" in remark for remark in verdict.remarks)
    full = judge(changed(reports=diverged("full")))
    assert any("not synchronised" in reason for reason in full.reasons)


def with_clocks(main: float | None, others: tuple[float, ...]) -> dict[int, NodeRecord]:
    return {
        number: node(
            number,
            [],
            gpus=tuple(GpuSummary(uuid=f"GPU-{2 * number + index}", sm_clock_mhz_mean=main) for index in range(2)),
            arms={str(place): (clock, clock) for place, clock in zip((0, 1, 3, 4), others, strict=True)},
            window_begin=None,
            window_end=None,
        )
        for number in range(2)
    }


def test_each_arm_has_the_clocks_of_its_own_windows() -> None:
    evidence = alternating()
    fields = {name: getattr(evidence, name) for name in type(evidence).__dataclass_fields__}
    verdict = judge(changed(**(fields | {"watched": with_clocks(1300.0, (1400.0, 1350.0, 1370.0, 1410.0))})))
    assert [each.sm_clock_mhz for each in verdict.arms] == [1405.0, 1360.0, 1300.0]
    assert verdict.sm_clock_mhz == 1300.0
    unknown = judge(changed(**(fields | {"watched": {0: with_clocks(1300.0, (1.0, 1.0, 1.0, 1.0))[0]}})))
    assert unknown.sm_clock_mhz is None, "one of two nodes tells nothing of the other"
