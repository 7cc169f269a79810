"""Where the rate of one GPU is lost on the way to many, divided into one part for each step between levels. Pure.

With m_i the mean log rate per GPU of level i, c_i = m_(i+1) - m_i and l their sum, the efficiency is E = exp(l), and
the loss of step i is -c_i (E - 1) / l: efficiency and losses add up to 1 exactly (log-mean weights: Ang (2004), Energy
Policy 32). A loss below 0 is a gain and is shown as one. Intervals are of 95 %, by the delta method; shares of the
logarithm by Fieller (1954), JRSS B 16.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from runner.core.text import counted
from runner.model.study import Estimate, Loss, LossRow, Setting, Way
from runner.model.study import LaunchFacts as Launch
from runner.model.verdict import ArmFigure
from runner.statistics import single_gpus
from runner.statistics.launches import LEAST_LAUNCHES, ratio, satterthwaite
from runner.statistics.precision import t_quantile

# Shares are shown only where (t x error / whole loss)^2 is less: where the whole loss is clear of 0.
_LARGEST_FIELLER = 0.25

Block = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Decomposition:
    """Of the last level against the first; of each step its loss, and its share in the logarithm of the loss; no shares
    where the whole loss is not clear of 0.
    """

    efficiency: Estimate
    losses: tuple[Estimate, ...]
    shares: tuple[Estimate, ...] | None


class _Means:
    """The mean of each level over launches, and the errors of weighted sums of these means."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self.values = [
            math.fsum(row[at] for row in block) / len(block) for block in blocks for at in range(len(block[0]))
        ]

    def covariances(self, p: Sequence[float], q: Sequence[float]) -> list[float]:
        """What each block adds to the covariance of the sums with weights p and q."""
        parts, at = [], 0
        for block in self.blocks:
            levels = range(len(block[0]))
            means = self.values[at:]
            sums = [
                [math.fsum(weights[at + i] * (row[i] - means[i]) for i in levels) for row in block]
                for weights in (p, q)
            ]
            products = [x * y for x, y in zip(*sums, strict=True)]
            parts.append(math.fsum(products) / (len(block) - 1) / len(block))
            at += len(levels)
        return parts

    def error(self, weights: Sequence[float]) -> tuple[float, float]:
        """Of the sum: its degrees of freedom are k - 1 of one block, by Satterthwaite of several."""
        parts, freedoms = self.covariances(weights, weights), [len(block) - 1.0 for block in self.blocks]
        used = [at for at, part in enumerate(parts) if part > 0.0]
        freedom = satterthwaite([parts[at] for at in used], [freedoms[at] for at in used]) if used else min(freedoms)
        return math.sqrt(math.fsum(parts)), freedom


def decompose(blocks: Sequence[Block]) -> Decomposition:
    """The parts of a loss.

    Args:
        blocks: launches that are independent of each other, in the order of the levels; each row of a block is one
            launch, or one round of launches in which all arms took turns, and holds the log rate per GPU of the
            block's own levels. With a single block of rounds, what a round shares cancels. Without two rows in every
            block there are no intervals.

    Raises:
        ValueError: fewer than two levels, an empty block, or rows of different lengths.
    """
    if not blocks or not all(blocks) or any(len({len(row) for row in block}) != 1 for block in blocks):
        raise ValueError("every launch needs the levels of its block")
    means = _Means(blocks)
    levels = len(means.values)
    if levels < 2:
        raise ValueError("a loss needs two levels")
    steps = [after - before for before, after in pairwise(means.values)]
    total = means.values[-1] - means.values[0]
    # (E - 1) / l, and its derivative; 1 and 1/2 at 0
    weight = math.expm1(total) / total if abs(total) > 1e-9 else 1.0
    bend = (math.exp(total) * (total - 1.0) + 1.0) / (total * total) if abs(total) > 1e-4 else 0.5 + total / 3.0
    if min(len(block) for block in blocks) < 2:
        return Decomposition(Estimate(math.exp(total)), tuple(Estimate(-step * weight) for step in steps), None)

    def contrast(start: int, end: int) -> list[float]:
        return [float(at == end) - float(at == start) for at in range(levels)]

    whole, contrasts = contrast(0, levels - 1), [contrast(i, i + 1) for i in range(levels - 1)]
    losses = []
    for step, own in zip(steps, contrasts, strict=True):
        loss = -step * weight
        error, freedom = means.error([-weight * c - step * bend * w for c, w in zip(own, whole, strict=True)])
        half = t_quantile(0.975, freedom) * error
        losses.append(Estimate(loss, loss - half, loss + half))
    error, freedom = means.error(whole)
    efficiency, t, below = ratio(total, error, freedom), t_quantile(0.975, freedom), math.fsum(steps)
    if below >= 0.0 or (t * error) ** 2 >= _LARGEST_FIELLER * below * below:
        return Decomposition(efficiency, tuple(losses), None)
    shares = []
    for step, own in zip(steps, contrasts, strict=True):
        v_own, v_both = (math.fsum(means.covariances(own, other)) for other in (own, whole))
        # Fieller's limits of step / below
        a = below * below - t * t * (error * error)
        b = step * below - t * t * v_both
        root = math.sqrt(max(b * b - a * (step * step - t * t * v_own), 0.0))
        shares.append(Estimate(step / below, (b - root) / a, (b + root) / a))
    return Decomposition(efficiency, tuple(losses), tuple(shares))


HOOKS = "gradient hooks"
NODE = "node, power and input"
WAITING = "waiting for slower ranks"
COORDINATION = "coordination"
OVERLAP = "compute slowed by overlap"
EXPOSED = "exposed communication"
_CLOCK = 0.01  # clocks that differ by more change the rate by themselves


@dataclass(frozen=True)
class _Level:
    """``row``: what the step to this level takes, empty for the first. ``value``: its log rate per GPU."""

    row: str
    value: float
    clock_mhz: float | None
    note: str = ""


def attribution(gpus: int, settings: Setting, launches: Iterable[Launch], way: Way, *, strong: bool = False) -> Loss:
    """Where the loss at one size goes, by launches of the whole study; ``why`` says why there is no attribution.

    Takes proven launches of this size that alternated between their arms in one process, and those of one GPU alone,
    with the same settings and the same batch of each GPU, from one allocation: of each GPU of this size, where all of
    them were alone, and their mean counts. A repeat in which both ran is a round, whose common part cancels; with fewer
    than 3 complete rounds the repeats of each count as independent.
    """
    proven = [each for each in launches if each.state == "proven" and each.launch.settings == settings]
    together = [each for each in proven if each.launch.gpus == gpus and _arms(each).keys() >= {"uncoupled", "full"}]
    of_one = [each for each in proven if each.launch.gpus == 1 and each.images_per_s]
    solo, hooks, full = ([each for each in of_one if each.launch.arm == arm] for arm in ("solo", "solo-hooks", "full"))
    of_size = together[0].gpus_by_node if together else ()
    solo, lacks = single_gpus.launches_of_size(solo or full, of_size)
    hooks, hooks_lack = single_gpus.launches_of_size(hooks, of_size)
    if solo and solo[0].launch.arm == "full":
        lacks = "one GPU alone is the first of them"
    why = _refusal(gpus, way, solo, together, strong=strong)
    if why:
        return Loss(gpus, settings, why=why)
    groups, levels, note = [solo], [_alone("", "", solo)], _joined("with gradient hooks", lacks)
    if _repeats(hooks) >= LEAST_LAUNCHES:
        groups.append(hooks)
        levels.append(_alone(HOOKS, hooks_lack or lacks, hooks))
        note = hooks_lack
    groups.append(together)
    levels.append(_together(gpus, together, note))
    made = decompose(_blocks(groups, levels))
    rows = []
    described = [column for group in levels for column in zip(*group, strict=True)]
    for at, (before, after) in enumerate(pairwise(described)):
        clock = _clock_ratio(before, after)
        power = "includes power" if clock is not None and abs(clock - 1.0) > _CLOCK else ""
        share = made.shares[at] if made.shares is not None else None
        rows.append(LossRow(after[0].row, made.losses[at], clock, _joined(after[0].note, power), share))
    return Loss(gpus, settings, made.efficiency, tuple(rows))


def _refusal(gpus: int, way: Way, solo: Sequence[Launch], together: Sequence[Launch], *, strong: bool) -> str:
    if gpus == 1:
        return "one GPU alone is what the loss is measured against"
    if strong:
        return "with a fixed whole batch one GPU alone has a larger batch, and what that changes has no row of its own"
    if way == "separate":
        return "the launches were separate jobs, so that other nodes and other times are in their differences"
    for what, launches in (("one GPU alone", solo), ("the arms uncoupled and full in one process", together)):
        if (repeats := _repeats(launches)) < LEAST_LAUNCHES:
            return f"{counted(repeats, 'repeat')} with proven launches of {what}; {LEAST_LAUNCHES} are needed"
    return ""


def _repeats(launches: Sequence[Launch]) -> int:
    """In how many there is one: several GPUs that were alone in one repeat share what the repeat has in common."""
    return len({each.launch.repeat for each in launches})


def _arms(each: Launch) -> Mapping[str, ArmFigure]:
    return {arm.arm: arm for arm in each.arms}


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _alone(row: str, note: str, launches: Sequence[Launch]) -> list[list[_Level]]:
    """The level of each launch of one GPU alone."""
    logs = single_gpus.log_rates(launches)
    return [[_Level(row, log, each.sm_clock_mhz, note)] for each, log in zip(launches, logs, strict=True)]


def _together(gpus: int, launches: Sequence[Launch], note: str) -> list[list[_Level]]:
    """The levels of each launch whose process alternated between its arms; rows are those that all of them have."""
    has_coordination = all("coordination" in _arms(each) for each in launches)
    has_compute = all(arm.compute_s is not None for each in launches for arm in each.arms if arm.arm != "uncoupled")
    rows = []
    for arms in map(_arms, launches):
        uncoupled, full = arms["uncoupled"], arms["full"]
        coordination = arms.get("coordination", full)
        slowest = math.log(uncoupled.slowest_samples_per_s)
        if has_compute and coordination.jitter_s is not None:
            slowest -= math.log1p(coordination.jitter_s / uncoupled.slowest_step_s)
        clock, full_clock = uncoupled.sm_clock_mhz, full.sm_clock_mhz
        row = [_Level(NODE, math.log(uncoupled.samples_per_s / gpus), clock, note), _Level(WAITING, slowest, clock)]
        lacks = "" if has_coordination else "with coordination"
        if has_coordination:
            after = math.log(coordination.samples_per_s / gpus)
            row.append(_Level(COORDINATION, after, coordination.sm_clock_mhz))
            if has_compute:
                slowed_s = (full.compute_s or 0.0) - (coordination.compute_s or 0.0)
                slowed = after - math.log(max(1.0 + slowed_s / coordination.step_s, 0.01))
                row.append(_Level(OVERLAP, slowed, full_clock))
            else:
                lacks = "with what overlap slows"
        rows.append([*row, _Level(EXPOSED, math.log(full.samples_per_s / gpus), full_clock, lacks)])
    return rows


def _blocks(groups: Sequence[Sequence[Launch]], levels: Sequence[Sequence[Sequence[_Level]]]) -> list[Block]:
    """One block of rounds where at least three repeats have every group; else a block of repeats for each group."""
    means: list[dict[int, list[float]]] = []  # of each group: repeat -> means of its levels
    for group, rows in zip(groups, levels, strict=True):
        by_repeat: dict[int, list[Sequence[_Level]]] = {}
        for each, row in zip(group, rows, strict=True):
            by_repeat.setdefault(each.launch.repeat, []).append(row)
        means.append(
            {
                repeat: [fmean(level.value for level in column) for column in zip(*own, strict=True)]
                for repeat, own in sorted(by_repeat.items())
            }
        )
    repeats = set(means[0]).intersection(*means[1:])
    if len(repeats) == max(map(len, means)) >= LEAST_LAUNCHES:
        return [[[value for group_means in means for value in group_means[repeat]] for repeat in sorted(repeats)]]
    return [list(group_means.values()) for group_means in means]


def _clock_ratio(before: Sequence[_Level], after: Sequence[_Level]) -> float | None:
    known = [[level.clock_mhz for level in levels if level.clock_mhz] for levels in (before, after)]
    if len(known[0]) < len(before) or len(known[1]) < len(after):
        return None
    return fmean(known[1]) / fmean(known[0])
