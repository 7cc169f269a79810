"""Judging costs time in proportion to the ranks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec

from runner.jobs.collect import Evidence
from runner.jobs.verdict import judge
from runner.model.records import Result
from tests.support.evidence import GOOD, changed, ended, report, start
from tests.support.plans import PLAN

if TYPE_CHECKING:
    from types import FrameType

    from _typeshed import TraceFunction

ENDS_S = tuple(float(group) for group in range(1, 31))


def many(ranks: int) -> Evidence:
    """A good run of one rank on each node."""
    return changed(
        plan=msgspec.structs.replace(PLAN, tasks_per_node=(1,) * ranks),
        starts={rank: start(rank, size=ranks, host=f"n{rank}") for rank in range(ranks)},
        exits={rank: ended(rank, ended_monotonic_s=1100.0) for rank in range(ranks)},
        reports={
            rank: report(rank, world_size=ranks, ends_s=ENDS_S, group_steps=1, steps=30, elapsed_s=30.0)
            for rank in range(ranks)
        },
        result=Result("2", size=ranks, window_s=30.0, preliminary_images_per_s=10.0 * ranks),
        nccl=GOOD.nccl,
    )


def operations(evidence: Evidence) -> int:
    """Operations of Python's interpreter during a judgement: a measure of its work that no other load changes."""
    counted = 0

    def count(frame: FrameType, event: str, _argument: Any) -> TraceFunction:
        nonlocal counted
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        counted += event == "opcode"
        return count

    sys.settrace(count)
    try:
        verdict = judge(evidence)
    finally:
        sys.settrace(None)
    assert verdict.outcome == "measured"
    return counted


def test_eight_times_the_ranks_cost_no_more_than_ten_times_the_operations() -> None:
    operations(many(2))  # what the first judgement of a process prepares is not counted
    assert operations(many(1024)) < 10 * operations(many(128))
