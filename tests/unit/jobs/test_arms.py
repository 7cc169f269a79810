"""Arms that took turns in one run: their figures come from the raw records, and records that disagree prove nothing."""

import hashlib
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runner.jobs.collect import Evidence
from runner.jobs.verdict import judge
from runner.model.records import ArmRecord, GpuSummary, NodeRecord
from tests.support.evidence import GOOD, ended, node, on_all, report, with_plan

TURNS = ("uncoupled", "coordination", "full", "coordination", "uncoupled")
BEGAN_S = (1001.0, 1003.0, 1005.0, 1009.0, 1011.0)
Change = Callable[[int, int], dict[str, Any]]


def alternating(change: Change = lambda _rank, _place: {}, **of_report: Any) -> Evidence:
    """Four ranks whose computing takes 0.3 s a step (rank 3: 0.4 s), in each window but the run's own two groups.

    Args:
        change: what differs in a window's fields, by rank and place. of_report: further fields of every report.
    """
    reports = {}
    for rank in range(4):
        own_s = 0.4 if rank == 3 else 0.3
        arms = []
        for place, arm in enumerate(TURNS):
            others = {"uncoupled": (2 * own_s, 4 * own_s), "coordination": (0.9, 1.8)}
            ends_s = others.get(arm, (1.0, 2.0, 3.0 + rank / 10))
            window: dict[str, Any] = {
                "arm": arm, "group_steps": 2, "began_monotonic_s": BEGAN_S[place], "ends_s": ends_s,
                "compute_s": (own_s,) * (2 * len(ends_s)),
            } | change(rank, place)  # fmt: skip
            packed = struct.pack(f"<{len(window['ends_s'])}d", *window["ends_s"])
            arms.append(ArmRecord(**{"ends_checksum": hashlib.sha256(packed).hexdigest()[:16], **window}))
        reports[rank] = report(rank, **({"arms": tuple(arms)} | of_report))
    exits = on_all(ended, program_started_monotonic_s=1000.0, ended_monotonic_s=1015.0)
    return with_plan(replace(GOOD, reports=reports, exits=exits), arms=("uncoupled", "coordination", "full"))


def test_each_arm_has_its_figure_and_the_main_one_is_the_runs() -> None:
    verdict, plain = judge(alternating()), judge(GOOD)
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
    assert (plain.arms, plain.arm) == ((), "full")


def of_rank_one(**fields: Any) -> Change:
    """The first window of rank 1 is another."""
    return lambda rank, place: fields if (rank, place) == (1, 0) else {}


def every(number: int, **fields: Any) -> Change:
    """The window of that place is another on every rank."""
    return lambda _rank, place: fields if place == number else {}


def not_in_step(rank: int, place: int) -> dict[str, Any]:
    return {"ends_s": (0.1, 0.2) if rank else (1.0, 1.9), "compute_s": ()} if place == 1 else {}


PLANNED_TURNS = "did not take the planned turns"


@pytest.mark.parametrize(
    ("evidence", "says"),
    [
        (alternating(of_rank_one(arm="full")), PLANNED_TURNS),
        (alternating(of_rank_one(ends_s=(1.0, 0.5))), r"window 1 \(uncoupled\) of rank 1 do not rise"),
        (alternating(of_rank_one(ends_checksum="0" * 16)), "are not those that its program wrote"),
        (alternating(of_rank_one(began_monotonic_s=999.0)), "began before its program"),
        (alternating(of_rank_one(began_monotonic_s=1001.9)), "did not begin a window of the arm uncoupled together"),
        (alternating(every(1, began_monotonic_s=1001.5)), "or before the one in front of it had ended"),
        (alternating(of_rank_one(ends_s=(0.6,), compute_s=(0.3, 0.3))), "did not do the same steps in each arm"),
        (alternating(of_rank_one(compute_s=(0.3,))), "did not do the same steps in each arm"),
        (alternating(every(0, compute_s=(0.1,) * 5)), "does not fit its steps"),
        (alternating(of_rank_one(compute_s=(0.3, 0.3, 0.3, 9.0))), "does not fit its steps"),
        (alternating(every(4, began_monotonic_s=1014.0)), "after its program"),
        (alternating(every(2, began_monotonic_s=1005.1)), "two accounts"),
        (alternating(not_in_step), "times in the arm coordination are not of one training"),
        # Neither turns that no one asked for nor a run that leaves the planned ones out; and no other arm than planned.
        (with_plan(alternating(), arms=("full",)), PLANNED_TURNS),
        (with_plan(arms=("uncoupled", "full")), PLANNED_TURNS),
        (alternating(arm="uncoupled"), "the window is of the arm uncoupled, planned full"),
    ],
)
def test_windows_that_disagree_with_each_other_or_the_plan_prove_nothing(evidence: Evidence, says: str) -> None:
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.arms) == ("not-proven", ())
    assert any(re.search(says, reason) for reason in verdict.reasons), verdict.reasons


def diverged(arm: str) -> Evidence:
    return replace(GOOD, reports={rank: report(rank, arm=arm, parameter_checksum=f"p{rank}") for rank in range(4)})


def test_a_run_of_another_arm_is_judged_for_what_it_is() -> None:
    """Its parameters differ between ranks by right; it does not say that they were synchronised."""
    verdict = judge(with_plan(diverged("uncoupled"), arms=("uncoupled",)))
    assert (verdict.outcome, verdict.arm) == ("measured", "uncoupled"), verdict.reasons
    assert verdict.images_per_s == pytest.approx(sum(60 / (3.0 + rank / 10) for rank in range(4)))
    assert verdict.precision is None
    assert not any("synchronised" in sentence for sentence in verdict.proven)
    assert any("each rank trained for itself" in remark for remark in verdict.remarks)
    assert any("not synchronised" in reason for reason in judge(diverged("full")).reasons)


def with_clocks(number: int, main: float | None, others: tuple[float, ...]) -> NodeRecord:
    gpus = tuple(GpuSummary(uuid=f"GPU-{2 * number + index}", sm_clock_mhz_mean=main) for index in range(2))
    arms = {str(place): (clock, clock) for place, clock in zip((0, 1, 3, 4), others, strict=True)}
    return node(number, [], gpus=gpus, arms=arms, window_begin=None, window_end=None)


def test_each_arm_has_the_clocks_of_its_own_windows() -> None:
    nodes = {number: with_clocks(number, 1300.0, (1400.0, 1350.0, 1370.0, 1410.0)) for number in range(2)}
    verdict = judge(replace(alternating(), watched=nodes))
    assert [each.sm_clock_mhz for each in verdict.arms] == [1405.0, 1360.0, 1300.0]
    assert verdict.sm_clock_mhz == 1300.0
    unknown = judge(replace(alternating(), watched={0: nodes[0]}))
    assert unknown.sm_clock_mhz is None, "one of two nodes tells nothing of the other"
