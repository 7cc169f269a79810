"""Where the rate of one GPU is lost on the way to many, divided into one part for each step between levels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from runner.core.text import counted
from runner.model.study import Estimate, Loss, LossRow, Way
from runner.model.study import LaunchFacts as Launch
from runner.model.verdict import ArmFigure
from runner.statistics import single_gpus
from runner.statistics.launches import LEAST_LAUNCHES, ratio, satterthwaite
from runner.statistics.precision import t_quantile

# Shares are shown only where (t x error / whole loss)^2 is less: where the whole loss is clear of 0.
LARGEST_FIELLER = 0.25

Block = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Decomposition:
    """Attributes:
    efficiency: of the last level against the first.
    losses: of each step; with the efficiency they add up to 1.
    shares: of each step in the logarithm of the loss; they add up to 1. None where the whole loss is not clear of 0.
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
        self.has_errors = min(len(block) for block in blocks) > 1

    def covariance(self, p: Sequence[float], q: Sequence[float]) -> float:
        """Of the sums with weights p and q."""
        return math.fsum(self._parts(p, q))

    def freedom(self, weights: Sequence[float]) -> float:
        """Degrees of freedom of the error of the sum: k - 1 of one block, by Satterthwaite of several."""
        parts, freedoms = self._parts(weights, weights), [len(block) - 1.0 for block in self.blocks]
        used = [at for at, part in enumerate(parts) if part > 0.0]
        return satterthwaite([parts[at] for at in used], [freedoms[at] for at in used]) if used else min(freedoms)

    def half(self, weights: Sequence[float]) -> float:
        """Half the width of the sum's interval."""
        return t_quantile(0.975, self.freedom(weights)) * math.sqrt(self.covariance(weights, weights))

    def _parts(self, p: Sequence[float], q: Sequence[float]) -> list[float]:
        """What each block adds to the covariance."""
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
    steps = [means.values[i + 1] - means.values[i] for i in range(levels - 1)]
    total = means.values[-1] - means.values[0]
    # (E - 1) / l, and its derivative; 1 and 1/2 at 0
    weight = math.expm1(total) / total if abs(total) > 1e-9 else 1.0
    bend = (math.exp(total) * (total - 1.0) + 1.0) / (total * total) if abs(total) > 1e-4 else 0.5 + total / 3.0
    whole = _contrast(levels, 0, levels - 1)
    contrasts = [_contrast(levels, i, i + 1) for i in range(levels - 1)]
    losses = []
    for step, contrast in zip(steps, contrasts, strict=True):
        loss = -step * weight
        if means.has_errors:
            half = means.half([-weight * c - step * bend * w for c, w in zip(contrast, whole, strict=True)])
            losses.append(Estimate(loss, loss - half, loss + half))
        else:
            losses.append(Estimate(loss))
    error, freedom = math.inf, 1.0
    if means.has_errors:
        error, freedom = math.sqrt(means.covariance(whole, whole)), means.freedom(whole)
    return Decomposition(
        ratio(total, error, freedom), tuple(losses), _shares(means, steps, contrasts, whole, error, freedom)
    )


def _contrast(levels: int, start: int, end: int) -> list[float]:
    return [float(at == end) - float(at == start) for at in range(levels)]


def _shares(
    means: _Means,
    steps: Sequence[float],
    contrasts: Sequence[Sequence[float]],
    whole: Sequence[float],
    error: float,
    freedom: float,
) -> tuple[Estimate, ...] | None:
    total = math.fsum(steps)
    t = t_quantile(0.975, freedom)
    if total >= 0.0 or (t * error) ** 2 >= LARGEST_FIELLER * total * total:
        return None
    return tuple(
        _fieller(step, total, means.covariance(contrast, contrast), error * error, means.covariance(contrast, whole), t)
        for step, contrast in zip(steps, contrasts, strict=True)
    )


def _fieller(top: float, below: float, v_top: float, v_below: float, v_both: float, t: float) -> Estimate:
    """top / below with Fieller's limits; they are finite because ``below`` is clear of 0 where this is called."""
    a = below * below - t * t * v_below
    b = top * below - t * t * v_both
    c = top * top - t * t * v_top
    root = math.sqrt(max(b * b - a * c, 0.0))
    return Estimate(top / below, (b - root) / a, (b + root) / a)


HOOKS = "gradient hooks"
NODE = "node, power and input"
WAITING = "waiting for slower ranks"
COORDINATION = "coordination"
OVERLAP = "compute slowed by overlap"
EXPOSED = "exposed communication"
POWER = "includes power"
_CLOCK = 0.01  # clocks that differ by more change the rate by themselves


@dataclass(frozen=True)
class _Level:
    """``row``: what the step to this level takes, empty for the first. ``value``: its log rate per GPU."""

    row: str
    value: float
    clock_mhz: float | None
    note: str = ""


def attribution(
    gpus: int, settings: tuple[tuple[str, str], ...], launches: Iterable[Launch], way: Way, *, strong: bool = False
) -> Loss:
    """Where the loss at one size goes; ``why`` says why there is no attribution.

    Takes proven launches of this size that alternated between their arms in one process, and those of one GPU alone,
    with the same settings and the same batch of each GPU, from one allocation: of each GPU of this size, where all of
    them were alone, and their mean counts. A repeat in which both ran is a round, whose common part cancels; with fewer
    than 3 complete rounds the repeats of each count as independent.

    Args:
        launches: of the whole study. strong: the whole batch is fixed, so that each size has another batch of a GPU.
    """
    proven = [each for each in launches if each.state == "proven" and each.launch.settings == settings]
    together = [each for each in proven if each.launch.gpus == gpus and _arms(each).keys() >= {"uncoupled", "full"}]
    of_one = [each for each in proven if each.launch.gpus == 1 and each.images_per_s]
    solo = [each for each in of_one if each.launch.arm == "solo"]
    solo = solo or [each for each in of_one if each.launch.arm == "full"]
    hooks = [each for each in of_one if each.launch.arm == "solo-hooks"]
    of_size = together[0].gpus_by_node if together else ()
    solo, lacks = single_gpus.of_size(solo, of_size)
    hooks, hooks_lack = single_gpus.of_size(hooks, of_size)
    if solo and solo[0].launch.arm == "full":
        lacks = "one GPU alone is the first of them"
    has_hooks = _repeats(hooks) >= LEAST_LAUNCHES
    why = _refusal(gpus, way, solo, together, strong=strong)
    if why:
        return Loss(gpus, settings, why=why)
    groups, named = [solo], [_alone("", "", solo)]
    if has_hooks:
        groups.append(hooks)
        named.append(_alone(HOOKS, hooks_lack or lacks, hooks))
    has = {
        "coordination": all("coordination" in _arms(each) for each in together),
        "compute": all(arm.compute_s is not None for each in together for arm in each.arms if arm.arm != "uncoupled"),
        "hooks": has_hooks,
    }
    base_lacks = hooks_lack if has_hooks else lacks
    groups.append(together)
    named.append([_together(gpus, each, has, base_lacks) for each in together])
    made = decompose(_blocks(groups, named))
    rows = []
    described = [[row[at] for row in group] for group in named for at in range(len(group[0]))]
    for at, (before, after) in enumerate(pairwise(described)):
        clock = _clock_ratio(before, after)
        power = POWER if clock is not None and abs(clock - 1.0) > _CLOCK else ""
        share = made.shares[at] if made.shares is not None else None
        note = "; ".join(filter(None, (after[0].note, power)))
        rows.append(LossRow(after[0].row, made.losses[at], clock, note, share))
    return Loss(gpus, settings, made.efficiency, tuple(rows))


def _refusal(gpus: int, way: Way, solo: Sequence[Launch], together: Sequence[Launch], *, strong: bool) -> str:
    if gpus == 1:
        return "one GPU alone is what the loss is measured against"
    if strong:
        return "with a fixed whole batch one GPU alone has a larger batch, and what that changes has no row of its own"
    if way == "separate":
        return "the launches were separate jobs, so that other nodes and other times are in their differences"
    for what, found in (("one GPU alone", solo), ("the arms uncoupled and full in one process", together)):
        if (repeats := _repeats(found)) < LEAST_LAUNCHES:
            return f"{counted(repeats, 'repeat')} with proven launches of {what}; {LEAST_LAUNCHES} are needed"
    return ""


def _repeats(launches: Sequence[Launch]) -> int:
    """In how many there is one: several GPUs that were alone in one repeat share what the repeat has in common."""
    return len({each.launch.repeat for each in launches})


def _arms(each: Launch) -> Mapping[str, ArmFigure]:
    return {arm.arm: arm for arm in each.arms}


def _alone(row: str, note: str, launches: Sequence[Launch]) -> list[list[_Level]]:
    """The level of each launch of one GPU alone."""
    logs = single_gpus.log_rates(launches)
    return [[_Level(row, log, each.sm_clock_mhz, note)] for each, log in zip(launches, logs, strict=True)]


def _together(gpus: int, each: Launch, has: Mapping[str, bool], base_lacks: str) -> list[_Level]:
    """The levels of a launch whose process alternated between its arms."""
    arms = _arms(each)
    uncoupled, full = arms["uncoupled"], arms["full"]
    slowest = math.log(uncoupled.slowest_samples_per_s)
    coupled = arms.get("coordination", full)
    if has["compute"] and coupled.jitter_s is not None:
        slowest -= math.log1p(coupled.jitter_s / uncoupled.slowest_step_s)
    clock = uncoupled.sm_clock_mhz
    note = "; ".join(filter(None, ("" if has["hooks"] else "with gradient hooks", base_lacks)))
    levels = [
        _Level(NODE, math.log(uncoupled.samples_per_s / gpus), clock, note),
        _Level(WAITING, slowest, clock),
    ]
    last = math.log(full.samples_per_s / gpus)
    if not has["coordination"]:
        return [*levels, _Level(EXPOSED, last, full.sm_clock_mhz, "with coordination")]
    coordination = arms["coordination"]
    after = math.log(coordination.samples_per_s / gpus)
    levels.append(_Level(COORDINATION, after, coordination.sm_clock_mhz))
    if not has["compute"]:
        return [*levels, _Level(EXPOSED, last, full.sm_clock_mhz, "with what overlap slows")]
    slowed_s = (full.compute_s or 0.0) - (coordination.compute_s or 0.0)
    slowed = after - math.log(max(1.0 + slowed_s / coordination.step_s, 0.01))
    return [*levels, _Level(OVERLAP, slowed, full.sm_clock_mhz), _Level(EXPOSED, last, full.sm_clock_mhz)]


def _blocks(groups: Sequence[Sequence[Launch]], named: Sequence[Sequence[Sequence[_Level]]]) -> list[Block]:
    """One block of rounds where at least three repeats have every group; else a block of repeats for each group."""
    by_repeat: list[dict[int, list[Sequence[_Level]]]] = []
    for group, levels in zip(groups, named, strict=True):
        found: dict[int, list[Sequence[_Level]]] = {}
        for each, row in zip(group, levels, strict=True):
            found.setdefault(each.launch.repeat, []).append(row)
        by_repeat.append(found)
    repeats = set(by_repeat[0]).intersection(*by_repeat[1:])
    if len(repeats) == max(len(found) for found in by_repeat) >= LEAST_LAUNCHES:
        return [[[value for found in by_repeat for value in _means(found[repeat])] for repeat in sorted(repeats)]]
    return [[_means(rows) for _, rows in sorted(found.items())] for found in by_repeat]


def _means(rows: Sequence[Sequence[_Level]]) -> list[float]:
    return [fmean(row[at].value for row in rows) for at in range(len(rows[0]))]


def _clock_ratio(before: Sequence[_Level], after: Sequence[_Level]) -> float | None:
    clocks = [[level.clock_mhz for level in levels] for levels in (before, after)]
    known = [[clock for clock in each if clock] for each in clocks]
    if any(len(some) < len(each) for some, each in zip(known, clocks, strict=True)):
        return None
    return fmean(known[1]) / fmean(known[0])
