"""How fast each rank computed, and the step times of the whole world, from a run's evidence. Pure; linear in ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, median_low

from runner.jobs.collect import Evidence
from runner.jobs.figure import Measurement
from runner.model.report import RankFacts, StepTimes

MOST_POINTS = 240


def rank_facts(evidence: Evidence, made: Measurement) -> tuple[RankFacts, ...]:
    """Each rank's compute time against the median of those that are not named as slow; empty where not every rank
    recorded it.
    """
    slow = made.stragglers
    if slow is None:
        return ()
    ranks = range(evidence.plan.tasks)
    named = {rank for rank in ranks if rank in slow.ranks or evidence.nodes[rank] in slow.nodes}
    quarters = [evidence.reports[rank].compute_quarters_p50_s for rank in ranks]
    healthy = [own for rank, own in enumerate(quarters) if rank not in named]
    middles = [median(quarter) for quarter in zip(*(healthy or quarters), strict=True)]
    return tuple(
        RankFacts(
            rank=rank,
            node=evidence.nodes[rank],
            local_rank=evidence.starts[rank].local_rank,
            compute_s=median(own),
            relative=median_low([value / middle for value, middle in zip(own, middles, strict=True)]) - 1.0,
            slow=rank in named,
        )
        for rank, own in zip(ranks, quarters, strict=True)
    )


def step_times(made: Measurement) -> StepTimes:
    """The world's step times, at most MOST_POINTS of them; each has the range of the groups that it stands for."""
    return points(made.ends_s, made.throughput.group_steps, made.throughput.cut_s)


def points(ends_s: Sequence[float], group_steps: int, cut_s: float) -> StepTimes:
    """Step times from the ends of groups, in seconds after the common start."""
    steps_s = [(end - before) / group_steps for before, end in zip([0.0, *ends_s[:-1]], ends_s, strict=True)]
    each = math.ceil(len(steps_s) / MOST_POINTS)
    blocks = [steps_s[at : at + each] for at in range(0, len(steps_s), each)]
    return StepTimes(
        groups=len(ends_s),
        groups_per_point=each,
        at_s=tuple(ends_s[min(at + each, len(ends_s)) - 1] for at in range(0, len(steps_s), each)),
        middle_s=tuple(median(block) for block in blocks),
        low_s=tuple(min(block) for block in blocks),
        high_s=tuple(max(block) for block in blocks),
        cut_s=cut_s,
    )
