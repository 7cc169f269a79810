"""The figure of one run, from each rank's raw times: what is cut, how precise it is, whether it is steady."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.statistics.precision import Interval, mean_interval
from runner.statistics.steadiness import MARGIN, Steadiness, steadiness
from runner.statistics.transient import Transient, transient


@dataclass(frozen=True)
class RankWindow:
    """What one rank recorded of its timed window.

    Attributes:
        samples_per_step: samples (images) that this rank took in each step.
        steps_per_group: steps between two synchronisations of the device.
        ends_s: when each group ended, in seconds since all ranks left the barrier before the window; rising.
        group_samples: samples of each group, where the steps took different numbers; empty: those of each step.
    """

    samples_per_step: int
    steps_per_group: int
    ends_s: Sequence[float]
    group_samples: Sequence[int] = ()

    def samples(self, first: int = 0) -> int:
        """Samples of this rank from the group of this number on."""
        if self.group_samples:
            return sum(self.group_samples[first:])
        return self.samples_per_step * self.steps_per_group * (len(self.ends_s) - first)


@dataclass(frozen=True)
class GroupAnalysis:
    """A run's group times through the rules.

    Attributes:
        start: what the start of the window is; where its kind is ``cut``, the rest is about the kept groups.
        interval: of the mean group time, seconds; None where there are too few groups.
        steady: the verdict on the kept groups.
    """

    start: Transient
    interval: Interval | None
    steady: Steadiness

    @property
    def cut_groups(self) -> int:
        """Groups at the start that are left out of the figure."""
        return self.start.groups if self.start.kind == "cut" else 0


@dataclass(frozen=True)
class Throughput:
    """The figure of a run.

    Attributes:
        samples_per_s: samples of all ranks over ``window_s``, after the cut.
        low, high: its 95 % interval within this window; None where there are too few groups.
        uncut_samples_per_s: the same of the whole window.
        window_s: from the common start, or the earliest rank's end of the last group that is cut, to the latest end.
        steps: timed steps of each rank that the figure is made of; cut_steps: those that are left out.
        group_steps: steps of each group.
        cut_s: when the figure's window begins, seconds after the common start.
        analysis: of the group times.
    """

    samples_per_s: float
    low: float | None
    high: float | None
    uncut_samples_per_s: float
    window_s: float
    steps: int
    cut_steps: int
    group_steps: int
    cut_s: float
    analysis: GroupAnalysis


def analyse_groups(group_s: Sequence[float], margin: float = MARGIN) -> GroupAnalysis:
    """A run's group times, in order, through the rules for start, interval and steadiness.

    A cut stands only where what is kept is not "not steady"; else nothing is cut. A start that is a change of level by
    more than the margin makes the run not steady.

    Raises:
        ValueError: no group, or a time that is not above 0 and finite.
    """
    if not group_s or not all(math.isfinite(value) and value > 0.0 for value in group_s):
        raise ValueError("group times must be above 0 and finite")
    start = transient(group_s)
    kept = group_s[start.groups :] if start.kind == "cut" else group_s
    steady = steadiness(kept, margin)
    if start.kind == "cut" and steady.verdict == "not steady":
        start, kept = Transient("level", start.groups, start.excess), group_s
        steady = steadiness(kept, margin)
    if start.kind == "level" and abs(start.excess) > margin:
        steady = replace(steady, verdict="not steady", groups_needed=0)
    return GroupAnalysis(start, mean_interval(kept), steady)


def throughput(ranks: Sequence[RankWindow]) -> Throughput:
    """Sum over the ranks of (steps x samples) / (latest end - common start): never a sum of rates.

    The groups' times are those of the slowest rank at each end.

    Raises:
        ValueError: no rank, no group, ranks that did not do the same groups, or times that do not rise.
    """
    if not ranks or not ranks[0].ends_s:
        raise ValueError("nothing was timed")
    groups, group_steps = len(ranks[0].ends_s), ranks[0].steps_per_group
    if any(len(rank.ends_s) != groups or rank.steps_per_group != group_steps for rank in ranks):
        raise ValueError("the ranks did not do the same groups")
    latest = [max(ends) for ends in zip(*(rank.ends_s for rank in ranks), strict=True)]
    analysis = analyse_groups([end - before for before, end in zip([0.0, *latest[:-1]], latest, strict=True)])
    cut = analysis.cut_groups
    # After a cut the earliest rank's end: the window is never shorter than the work took.
    start_s = 0.0 if cut == 0 else min(rank.ends_s[cut - 1] for rank in ranks)
    window_s = latest[-1] - start_s
    samples = sum(rank.samples(cut) for rank in ranks)
    group_samples = samples / (groups - cut)
    interval = analysis.interval
    figure = samples / window_s
    return Throughput(
        samples_per_s=figure,
        # The figure is in it, though its window began at the earliest rank's end and the groups' times at the latest.
        low=None if interval is None else min(group_samples / interval.high, figure),
        high=None if interval is None or interval.low <= 0.0 else max(group_samples / interval.low, figure),
        uncut_samples_per_s=sum(rank.samples() for rank in ranks) / latest[-1],
        window_s=window_s,
        steps=(groups - cut) * group_steps,
        cut_steps=cut * group_steps,
        group_steps=group_steps,
        cut_s=start_s,
        analysis=analysis,
    )
