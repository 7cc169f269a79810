"""Judging costs time in proportion to the ranks."""

from __future__ import annotations

import time

import msgspec

from runner.jobs.collect import Evidence
from runner.jobs.verdict import judge
from runner.model.records import Result
from tests.support.evidence import GOOD, changed, ended, report, start
from tests.support.plans import PLAN

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


def seconds(evidence: Evidence) -> float:
    """Processor time of a judgement; the least of three."""
    times = []
    for _ in range(3):
        began = time.process_time()
        assert judge(evidence).outcome == "measured"
        times.append(time.process_time() - began)
    return min(times)


def test_eight_times_the_ranks_cost_less_than_twenty_times_the_time() -> None:
    assert seconds(many(8192)) < 20 * seconds(many(1024))
