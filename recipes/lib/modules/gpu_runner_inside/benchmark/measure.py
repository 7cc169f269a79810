"""Statistics of one run: what to discard, whether it is steady, how precise it is. Pure, standard library only.

All take group times: seconds that one group of steps took, in order. A group is a few steps, because the device is
synchronised at the ends of groups only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

MSER_BATCH = 5
LEAST_FOR_TRUNCATION = 4 * MSER_BATCH  # fewer values show no transient
LEAST_BATCHES = 20
LARGEST_AUTOCORRELATION = 0.1
LARGEST_TREND = 0.01


@dataclass(frozen=True)
class Precision:
    """Interval of the mean group time at 95 %, from batch means.

    Attributes:
        mean_s, low_s, high_s: seconds a group.
        batches: how many; batch: groups in each.
        autocorrelation: of the batch means, at lag one; above LARGEST_AUTOCORRELATION the interval is too narrow.
    """

    mean_s: float
    low_s: float
    high_s: float
    batches: int
    batch: int
    autocorrelation: float


def median(values: Sequence[float]) -> float:
    """Raises ValueError for no values."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the closest ranks (Hyndman and Fan's type 7). Raises ValueError for no values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    at = (len(ordered) - 1) * share
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def truncation(values: Sequence[float], batch: int = MSER_BATCH) -> int:
    """How many values at the start belong to the transient, by MSER-5 (White, 1997).

    The cut d minimises the squared error of the mean of what is left, sum((Y - mean)^2) / (n - d)^2 over means of
    ``batch`` values, within the first half. 0 with fewer than LEAST_FOR_TRUNCATION values.
    """
    if len(values) < LEAST_FOR_TRUNCATION:
        return 0
    means = batch_means(values, batch)
    count = len(means)
    best, best_error = 0, math.inf
    # From the end, so that sums of what is left grow by one mean at a time.
    total = squares = 0.0
    shift = means[-1]  # keeps the sum of squares from cancelling
    for start in range(count - 1, -1, -1):
        value = means[start] - shift
        total += value
        squares += value * value
        left = count - start
        if start <= count // 2:
            error = max(squares - total * total / left, 0.0) / (left * left)
            if error <= best_error:
                best, best_error = start, error
    return best * batch


def trend(values: Sequence[float]) -> float:
    """Least-squares slope times the window, as a share of the mean: 0.01 means 1 % slower at the end.

    0.0 for fewer than three values.
    """
    count = len(values)
    if count < 3:
        return 0.0
    middle = (count - 1) / 2
    mean = math.fsum(values) / count
    above = math.fsum((place - middle) * (value - mean) for place, value in enumerate(values))
    below = math.fsum((place - middle) ** 2 for place in range(count))
    return above / below * count / mean if mean else 0.0


def autocorrelation(values: Sequence[float]) -> float:
    """At lag one; 0.0 where all values are equal or fewer than two."""
    count = len(values)
    if count < 2:
        return 0.0
    mean = math.fsum(values) / count
    spread = math.fsum((value - mean) ** 2 for value in values)
    if spread <= 0.0:
        return 0.0
    return math.fsum((values[i] - mean) * (values[i + 1] - mean) for i in range(count - 1)) / spread


def batch_means(values: Sequence[float], batch: int) -> list[float]:
    """Means of consecutive batches; a rest at the end is left out."""
    whole = len(values) // batch
    return [math.fsum(values[i * batch : (i + 1) * batch]) / batch for i in range(whole)]


def precision(values: Sequence[float]) -> Precision | None:
    """The interval of the mean: batches doubled until they are uncorrelated, as long as 20 are left.

    None with fewer than LEAST_BATCHES values.
    """
    if len(values) < LEAST_BATCHES:
        return None
    batch, means = 1, list(values)
    while autocorrelation(means) >= LARGEST_AUTOCORRELATION and len(values) // (batch * 2) >= LEAST_BATCHES:
        batch *= 2
        means = batch_means(values, batch)
    count = len(means)
    mean = math.fsum(means) / count
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in means) / (count - 1))
    half = student_t(0.975, count - 1) * deviation / math.sqrt(count)
    return Precision(mean, mean - half, mean + half, count, batch, autocorrelation(means))


def student_t(share: float, freedom: int) -> float:
    """Quantile of Student's t, 0.5 <= share < 1, to about 1e-9 (bisection on the distribution function)."""
    low, high = 0.0, 1.0
    while _t_share(high, freedom) < share:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if _t_share(middle, freedom) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _t_share(value: float, freedom: int) -> float:
    """P(T <= value) for value >= 0, by the finite series (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(value / math.sqrt(freedom))
    cosine = math.cos(angle)
    term = total = 1.0 if freedom % 2 == 0 else cosine
    for step in range(2 if freedom % 2 == 0 else 3, freedom - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    if freedom % 2 == 0:
        between = math.sin(angle) * total
    else:
        between = 2.0 / math.pi * (angle + (math.sin(angle) * total if freedom > 1 else 0.0))
    return 0.5 + between / 2.0


@dataclass(frozen=True)
class RankWindow:
    """One rank's timed window.

    Attributes:
        images_per_step: images that this rank took in each step.
        group_steps: steps in each group.
        ends_s: when each group ended, in seconds since this rank left the barrier that all ranks left together.
    """

    images_per_step: int
    group_steps: int
    ends_s: Sequence[float]


@dataclass(frozen=True)
class Throughput:
    """The figure of a run.

    Attributes:
        images_per_s: all images of all ranks over ``window_s``.
        window_s: from the common start to the latest end, in seconds.
        steps: timed steps of each rank.
        truncated_groups: groups at the start that were left out as a transient, truncated_s: and their time.
        trend: see ``trend``; steady: whether it is below LARGEST_TREND, None with too few groups.
        precision: None with too few groups.
    """

    images_per_s: float
    window_s: float
    steps: int
    truncated_groups: int
    truncated_s: float
    trend: float
    steady: bool | None
    precision: Precision | None


def throughput(ranks: Sequence[RankWindow]) -> Throughput:
    """The run's throughput: sum over ranks of (steps x images) / (latest end - common start). Never a sum of rates.

    All ranks must have done the same groups. The groups' times are those of the slowest rank at each end.

    Raises:
        ValueError: no rank, no group, or ranks that did not do the same groups.
    """
    if not ranks or not ranks[0].ends_s:
        raise ValueError("nothing was timed")
    groups, group_steps = len(ranks[0].ends_s), ranks[0].group_steps
    if any(len(rank.ends_s) != groups or rank.group_steps != group_steps for rank in ranks):
        raise ValueError("the ranks did not do the same steps")
    latest = [max(rank.ends_s[group] for rank in ranks) for group in range(groups)]
    times = [end - start for start, end in _pairs([0.0, *latest])]
    cut = truncation(times)
    # The common start after a cut is the earliest rank's: the window is never shorter than the work took.
    start_s = 0.0 if cut == 0 else min(rank.ends_s[cut - 1] for rank in ranks)
    window_s = latest[-1] - start_s
    steps = (groups - cut) * group_steps
    kept = times[cut:]
    slope = trend(kept)
    return Throughput(
        images_per_s=sum(rank.images_per_step * steps for rank in ranks) / window_s,
        window_s=window_s,
        steps=steps,
        truncated_groups=cut,
        truncated_s=start_s,
        trend=slope,
        steady=abs(slope) < LARGEST_TREND if len(times) >= LEAST_FOR_TRUNCATION else None,
        precision=precision(kept),
    )


def _pairs(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(values[i], values[i + 1]) for i in range(len(values) - 1)]


def stragglers(medians_s: Sequence[float], quarters_s: Sequence[Sequence[float]]) -> list[int]:
    """Ranks whose own computing is slow.

    Slow is a median over 1.02 times the median of all ranks, with a robust z over 3.5 from eight ranks on, in at
    least three of the run's four quarters.

    Args:
        medians_s: each rank's median local compute time, in seconds; quarters_s: the same for each quarter.
    """
    return [
        rank
        for rank in range(len(medians_s))
        if _is_slow(rank, medians_s)
        and sum(_is_slow(rank, [each[quarter] for each in quarters_s]) for quarter in range(4)) >= 3
    ]


def _is_slow(rank: int, values: Sequence[float]) -> bool:
    middle = median(values)
    if len(values) < 2 or values[rank] <= 1.02 * middle:
        return False
    if len(values) < 8:
        return True
    deviation = median([abs(value - middle) for value in values])
    return deviation <= 0.0 or 0.6745 * (values[rank] - middle) / deviation > 3.5
