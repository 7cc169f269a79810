"""Slow ranks and slow nodes, and what they cost.

Step times hide a straggler, because the allreduce makes all ranks wait; so the ranks' own compute times are compared.
Best split in one dimension: Hartigan (1975), Clustering Algorithms; outliers: Grubbs (1950), Ann. Math. Stat. 21; the
spread of healthy GPUs of one model: Sinha et al. (2022), SC22.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, median, median_low

_HEALTHY_RANK = 0.02  # standard deviation between healthy ranks of one GPU model: assumed, for few ranks only
_HEALTHY_NODE = 0.01
_MATERIAL = 0.02
_ALPHA = 0.0015  # of each of the at most five tests
_FEW_UNITS = 64  # below, the assumption on healthy units helps
# 99.85 % quantiles of the largest (mean of the k slowest - mean of the rest) / pooled deviation, k <= N / 2, of N
# normal values, by simulation. Between them linear in both logarithms.
_CRITICAL_SPLIT = (
    (4, 61.6), (5, 22.4), (6, 14.5), (7, 11.6), (8, 9.25), (10, 7.55), (12, 6.6), (16, 5.75), (20, 5.25), (24, 4.95),
    (32, 4.65), (48, 4.45), (256, 4.45), (512, 4.55), (1024, 4.70), (2048, 4.87), (4096, 4.95), (8192, 5.05),
    (16384, 5.17), (131072, 5.60),
)  # fmt: skip


@dataclass(frozen=True)
class Stragglers:
    """Slow nodes, ranks that their node does not explain, and ranks that got slower from the first quarter to the last,
    each with its excess over the others (0.1 is 10 % slower).

    Attributes:
        largest: the slowest rank's level over the mean of the others.
        removable: (slowest - slowest rank that is not named) / step time: what the named ranks cost at most.
    """

    nodes: Mapping[str, float]
    ranks: Mapping[int, float]
    slowed: Mapping[int, float]
    largest: float
    removable: float

    @property
    def cannot_tell(self) -> bool:
        """Nothing is named, and the slowest rank is so much slower as a slow one, or as one of so many healthy ones."""
        return not self.nodes and not self.ranks and self.largest >= _MATERIAL


def stragglers(quarters_s: Sequence[Sequence[float]], nodes: Sequence[str], step_s: float) -> Stragglers:
    """Ranks and nodes that were slow in at least three of the run's four quarters. O(N log N) for N ranks.

    A rank's level is the second smallest of its four log medians, each less the quarter's median over the ranks; a
    node's level is the lower median of its ranks'. Nodes are judged first, then ranks without their node's excess,
    then the growth from the first quarter to the last.

    Args:
        quarters_s: for each rank the medians of its compute time in each quarter, seconds.
        nodes: of each rank. step_s: median step time, seconds.

    Raises:
        ValueError: not four positive medians and a node for each rank, or no rank.
    """
    count = len(quarters_s)
    if count == 0 or len(nodes) != count or any(len(each) != 4 or min(each) <= 0.0 for each in quarters_s):
        raise ValueError("four medians above 0 and a node are needed for each rank")
    logs = [[math.log(value) for value in each] for each in quarters_s]
    middles = [median(quarter) for quarter in zip(*logs, strict=True)]
    relative = [[value - middle for value, middle in zip(each, middles, strict=True)] for each in logs]
    levels = [median_low(each) for each in relative]
    members: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        members.setdefault(node, []).append(rank)
    slow_nodes = _slow_nodes(levels, members)
    explained = [level - slow_nodes.get(node, 0.0) for level, node in zip(levels, nodes, strict=True)]
    slow_ranks = _excess(explained, _HEALTHY_RANK)
    # Of the growth a lasting difference between ranks cancels.
    slowed = _excess([each[3] - each[0] for each in relative], _HEALTHY_RANK / 2.0)
    slow = set(slow_ranks) | {rank for node in slow_nodes for rank in members[node]}
    compute = [median(each) for each in quarters_s]
    others = [value for rank, value in enumerate(compute) if rank not in slow]
    ordered = sorted(levels)
    return Stragglers(
        nodes={node: math.expm1(excess) for node, excess in slow_nodes.items()},
        ranks={rank: math.expm1(excess) for rank, excess in slow_ranks.items()},
        slowed={rank: math.expm1(excess) for rank, excess in slowed.items()},
        largest=math.expm1(ordered[-1] - math.fsum(ordered[:-1]) / (count - 1)) if count > 1 else 0.0,
        removable=max(max(compute) - max(others), 0.0) / step_s if slow and others else 0.0,
    )


def slow_units(levels: Sequence[float], healthy: float) -> list[int]:
    """Places of the units (ranks or nodes) that are slower than the others, ascending. O(N log N) for N units.

    For k = 1..N // 2 the k slowest are slow where the difference of means from the rest is at least 2 %, and
    either reaches the critical value of the best split in pooled deviations (from four units on), or exceeds what
    healthy units may differ by (below 64 units). Of the k that pass, the clearest is taken; then again without those.
    Levels are logarithms of seconds; ``healthy`` is the assumed standard deviation between healthy units.
    """
    order = sorted(range(len(levels)), key=levels.__getitem__, reverse=True)
    slow: list[int] = []
    for _ in range(8):
        taken = _clearest_split([levels[unit] for unit in order], healthy)
        if taken == 0:
            break
        slow, order = slow + order[:taken], order[taken:]
    return sorted(slow)


def critical_split(count: int) -> float:
    """See _CRITICAL_SPLIT. Infinite below four units: only the assumption on healthy units helps there."""
    if count < 4:
        return math.inf
    for (low, at_low), (high, at_high) in pairwise(_CRITICAL_SPLIT):
        if count <= high:
            share = math.log(count / low) / math.log(high / low)
            return math.exp(math.log(at_low) + share * math.log(at_high / at_low))
    return _CRITICAL_SPLIT[-1][1]


def _clearest_split(ordered: Sequence[float], healthy: float) -> int:
    """How many of the levels, slowest first, are slow; 0 where none passes."""
    count = len(ordered)
    if count < 2:
        return 0
    shifted = [level - ordered[-1] for level in ordered]  # keeps the sum of squares from cancelling
    total, squares = math.fsum(shifted), math.fsum(level * level for level in shifted)
    assumed = math.inf
    if count < _FEW_UNITS:
        assumed = healthy * NormalDist().inv_cdf(1.0 - _ALPHA / count) * math.sqrt(count / (count - 1.0))
    critical = critical_split(count)
    best, taken, top = 1.0, 0, 0.0
    for k in range(1, count // 2 + 1):
        top += shifted[k - 1]
        slow, rest = top / k, (total - top) / (count - k)
        gap = slow - rest
        if gap < _MATERIAL:
            continue
        ratio = gap / assumed
        if count >= 4:
            within = max(squares - k * slow * slow - (count - k) * rest * rest, 0.0)
            ratio = max(ratio, gap / max(math.sqrt(within / (count - 2)), 1e-9) / critical)
        if ratio > best:
            best, taken = ratio, k
    return taken


def _slow_nodes(levels: Sequence[float], members: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Slow nodes with their excess (log); none where all ranks share one node or have a node each."""
    if not 1 < len(members) < len(levels):
        return {}
    names = sorted(members)
    node_levels = [median_low([levels[rank] for rank in members[name]]) for name in names]
    fewest = min(len(members[name]) for name in names)
    healthy = max(_HEALTHY_NODE, 1.25 * _HEALTHY_RANK / math.sqrt(fewest))
    return {names[unit]: excess for unit, excess in _excess(node_levels, healthy).items()}


def _excess(levels: Sequence[float], healthy: float) -> dict[int, float]:
    """Each slow unit's level above the mean of the others."""
    slow = dict.fromkeys(slow_units(levels, healthy))
    others = [level for unit, level in enumerate(levels) if unit not in slow]
    base = math.fsum(others) / len(others) if others else 0.0
    return {unit: levels[unit] - base for unit in slow}
