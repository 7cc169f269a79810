"""From raw times to the figure of a run, of each arm of it, and whether its start is left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Literal

from runner.model.expectation import Range
from runner.model.request import RunArm
from runner.model.verdict import ArmFigure
from runner.statistics.precision import LEAST_GROUPS, clipped, long_run_deviation, mean_interval
from runner.statistics.steadiness import MARGIN, Steadiness, steadiness


@dataclass(frozen=True)
class ArmWindow:
    """What one rank recorded of one window; ``compute_s``: own computing of each step, or of some that are the same on
    every rank; empty where it is unknown.
    """

    samples: int
    steps: int
    end_s: float  # of its last group, since the ranks left the barrier before the window
    compute_s: Sequence[float] = ()


def arm_figure(arm: RunArm, windows: Sequence[Sequence[ArmWindow]], sm_clock_mhz: float | None = None) -> ArmFigure:
    """The figure of an arm: of each window every rank's, all with the same ranks and steps. O(steps x ranks).

    Raises:
        ValueError: no window, or windows without a rank, a step or a time.
    """
    if not windows or not all(windows) or min(each.end_s for window in windows for each in window) <= 0.0:
        raise ValueError("nothing was timed")
    ranks = range(len(windows[0]))
    own_s = [math.fsum(window[rank].end_s for window in windows) for rank in ranks]
    samples = [sum(window[rank].samples for window in windows) for rank in ranks]
    steps = sum(window[0].steps for window in windows)
    together_s = math.fsum(max(each.end_s for each in window) for window in windows)
    rates = [count / seconds for count, seconds in zip(samples, own_s, strict=True)]
    is_alone = arm == "uncoupled"
    compute_s, jitter_s = _computing(windows)
    return ArmFigure(
        arm=arm,
        samples_per_s=math.fsum(rates) if is_alone else sum(samples) / together_s,
        slowest_samples_per_s=min(rates),
        step_s=math.fsum(own_s) / len(own_s) / steps if is_alone else together_s / steps,
        slowest_step_s=max(own_s) / steps,
        window_s=together_s,
        compute_s=compute_s,
        jitter_s=jitter_s,
        sm_clock_mhz=sm_clock_mhz,
    )


def _computing(windows: Sequence[Sequence[ArmWindow]]) -> tuple[float | None, float | None]:
    """The longest of the ranks' means, and by how much more the mean of each step's longest is."""
    counts = [{len(each.compute_s) for each in window} for window in windows]
    if any(len(count) > 1 or 0 in count for count in counts):
        return None, None
    steps = sum(map(sum, counts))
    own_s = (math.fsum(math.fsum(each.compute_s) for each in of_rank) for of_rank in zip(*windows, strict=True))
    longest = max(seconds / steps for seconds in own_s)
    by_step = (max(values) for window in windows for values in zip(*(each.compute_s for each in window), strict=True))
    return longest, max(math.fsum(by_step) / steps - longest, 0.0)


LARGEST_CUT = 0.25  # of the window
_DETECTED_Z = 3.5  # false in less than 1 % of stationary series, by simulation
_PROLONGED_Z = 2.5
_MATERIAL = 0.002  # of the mean
_DECAY = 1.5  # its first half is at least so many times as far from the rest as its second half


@dataclass(frozen=True)
class Transient:
    """What the start of the window is.

    Attributes:
        kind: ``cut``: the first ``groups`` groups are left out of the figure. Nothing is cut of a start that is
            ``immaterial`` (worth at most 0.2 % of the mean), or a change of ``level``, or longer than a quarter.
        excess: how much slower they are than the rest (0.1: 10 %; below 0: faster).
        change: mean of all groups over mean of the kept ones, less one; 0.0 where nothing is cut.
    """

    kind: Literal["none", "cut", "immaterial", "level"]
    groups: int = 0
    excess: float = 0.0
    change: float = 0.0


def transient(values: Sequence[float]) -> Transient:
    """The start of a window of group times. O(n) for n values.

    With K = n // 4 and s = long_run_deviation of the last three quarters, on clipped values: it is detected where
    |mean(first k) - mean(rest)| / (s sqrt(1/k + 1/(n-K))) reaches 3.5 for some k in 2..K, and prolonged while a
    further block reaches 2.5. Up to n // 10 groups any shape is cut; up to K groups only a decay.
    """
    n = len(values)
    end = _detected_end(clipped(values), n // 4) if n >= LEAST_GROUPS else 0
    if end == 0:
        return Transient("none")
    kept_mean = math.fsum(values[end:]) / (n - end)
    excess = math.fsum(values[:end]) / end / kept_mean - 1.0
    change = math.fsum(values) / n / kept_mean - 1.0
    if end > n // 10 and not _decays(values, end):
        return Transient("level", end, excess)
    if abs(change) <= _MATERIAL:
        return Transient("immaterial", end, excess)
    return Transient("cut", end, excess, change)


def _detected_end(values: Sequence[float], quarter: int) -> int:
    """After how many groups the start ends; 0 where none is detected."""
    n = len(values)
    rest = values[quarter:]
    rest_mean = math.fsum(rest) / len(rest)
    deviation = long_run_deviation([value - rest_mean for value in rest], 1) or 1e-12 * abs(rest_mean)
    end, limit = 0, _DETECTED_Z
    while end < quarter - 1:
        best, best_end, total = 0.0, 0, 0.0
        for k in range(1, quarter - end + 1):
            total += values[end + k - 1] - rest_mean
            z = abs(total / k) / (deviation * math.sqrt(1.0 / k + 1.0 / (n - quarter)))
            if k >= 2 and z > best:
                best, best_end = z, end + k
        if best < limit:
            break
        end, limit = best_end, _PROLONGED_Z
    return end


def _decays(values: Sequence[float], end: int) -> bool:
    quarter = len(values) // 4
    if end >= quarter - 1:
        return False
    base, half = median(values[quarter:]), end // 2
    first, second = median(values[:half]) - base, median(values[half:end]) - base
    return first * second >= 0.0 and abs(first) >= _DECAY * abs(second)


@dataclass(frozen=True)
class RankWindow:
    """What one rank recorded of its timed window.

    Attributes:
        samples_per_step: that this rank took. steps_per_group: between two synchronisations of the device.
        ends_s: when each group ended, in seconds since all ranks left the barrier before the window; rising.
        group_samples: of each group, where the steps took different numbers; empty: those of each step.
    """

    samples_per_step: int
    steps_per_group: int
    ends_s: Sequence[float]
    group_samples: Sequence[int] = ()

    def by_group(self) -> Sequence[int]:
        """Samples of this rank in each group."""
        return self.group_samples or [self.samples_per_step * self.steps_per_group] * len(self.ends_s)


@dataclass(frozen=True)
class GroupAnalysis:
    """A run's group times through the rules: ``interval`` and ``steady`` are those of the groups that are kept."""

    start: Transient
    interval: Range | None  # of the mean group time
    steady: Steadiness

    @property
    def cut_groups(self) -> int:
        """Groups at the start that are left out of the figure."""
        return self.start.groups if self.start.kind == "cut" else 0


@dataclass(frozen=True)
class Throughput:
    """The figure of a run.

    Attributes:
        samples_per_s: samples of all ranks over ``window_s``, after the cut; uncut_samples_per_s: of the whole window.
        low, high: its 95 % interval within this window; None where there are too few groups.
        window_s: from the common start, or the earliest rank's end of the last group that is cut, to the latest end.
        steps: timed steps of each rank that the figure is made of; cut_steps: those that are left out.
        cut_s: when the figure's window begins, seconds after the common start.
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


@lru_cache(maxsize=4)  # a judgement asks for the same run's more than once
def analyse_groups(group_s: tuple[float, ...], samples: tuple[int, ...] = ()) -> GroupAnalysis:
    """A run's group times, in order, through the rules for start, interval and steadiness.

    A cut stands only where what is kept is not "not steady"; else nothing is cut. A start that is a change of level by
    more than the margin makes the run not steady.

    Args:
        samples: of each group, all ranks together; empty: all groups took the same number.

    Raises:
        ValueError: no group, or a time that is not above 0 and finite.
    """
    if not group_s or not all(math.isfinite(value) and value > 0.0 for value in group_s):
        raise ValueError("group times must be above 0 and finite")
    start = transient(_even_times(group_s, samples, len(group_s) // 4))
    first = start.groups if start.kind == "cut" else 0
    kept = _even_times(group_s[first:], samples[first:])
    steady = steadiness(kept)
    if start.kind == "cut" and steady.verdict == "not steady":
        start, kept = Transient("level", start.groups, start.excess), _even_times(group_s, samples)
        steady = steadiness(kept)
    if start.kind == "level" and abs(start.excess) > MARGIN:
        steady = replace(steady, verdict="not steady", groups_needed=0)
    return GroupAnalysis(start, mean_interval(kept), steady)


def _even_times(group_s: Sequence[float], samples: Sequence[int], first: int = 0) -> Sequence[float]:
    """Group times less what samples beyond the mean took, at the rate from the group ``first`` on.

    Their mean from there is that of the times, and their error that of the ratio samples / time (Cochran 1977, Sampling
    Techniques, 6.3).
    """
    counts = samples[first:]
    if len(set(samples)) < 2 or not sum(counts):
        return group_s
    mean_s, sample_s = math.fsum(group_s[first:]) / len(counts), math.fsum(group_s[first:]) / sum(counts)
    return [mean_s + seconds - count * sample_s for seconds, count in zip(group_s, samples, strict=True)]


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
    group_s = tuple(end - before for before, end in zip([0.0, *latest[:-1]], latest, strict=True))
    samples = tuple(map(sum, zip(*(rank.by_group() for rank in ranks), strict=True)))
    analysis = analyse_groups(group_s, samples)
    cut, interval = analysis.cut_groups, analysis.interval
    # After a cut the earliest rank's end: the window is never shorter than the work took.
    start_s = 0.0 if cut == 0 else min(rank.ends_s[cut - 1] for rank in ranks)
    window_s = latest[-1] - start_s
    kept = sum(samples[cut:])
    group_samples, figure = kept / (groups - cut), kept / window_s
    return Throughput(
        samples_per_s=figure,
        # The figure is in it, though its window began at the earliest rank's end and the groups' times at the latest.
        low=None if interval is None else min(group_samples / interval.high, figure),
        high=None if interval is None or interval.low <= 0.0 else max(group_samples / interval.low, figure),
        uncut_samples_per_s=sum(samples) / latest[-1],
        window_s=window_s,
        steps=(groups - cut) * group_steps,
        cut_steps=cut * group_steps,
        group_steps=group_steps,
        cut_s=start_s,
        analysis=analysis,
    )
