"""Where the throughput goes between one GPU alone and all of them together. Pure: from launches to rows.

The levels, each a rate per GPU of one launch: one GPU alone; the same with gradient hooks; all GPUs at once without
communication; the slowest of these, with what jitter adds; the same with coordination; with computing as slow as it is
while gradients travel; training as it is. The row between two neighbours is what that step takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from runner.core.text import counted
from runner.model.study import LaunchFacts as Launch
from runner.model.study import Loss, LossRow, Way
from runner.model.verdict import ArmFigure
from runner.statistics import single_gpus
from runner.statistics.comparison import LEAST_LAUNCHES
from runner.statistics.decomposition import Block, decompose

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
