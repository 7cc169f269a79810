"""GPUs alone: which of them are the base of a size, how they differ, and which were not measured. Pure.

Healthy GPUs differ by several per cent, so a size is compared with its own GPUs alone and with no others, and a repeat
that lacks one of them with what the others show of it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import TypeVar

from runner.model.study import LaunchFacts, Setting, SingleGpus

Place = tuple[int, int]  # number of the node in the study's order, number of the GPU there; both from 0

_Group = TypeVar("_Group")
_Cells = Mapping[tuple[Place, int], float]  # by GPU and repeat
_CLOSE, _MOST_TURNS = 1e-10, 1000  # of a logarithm: far below any noise


def launches_of_size(alone: Sequence[LaunchFacts], gpus_by_node: Sequence[int]) -> tuple[list[LaunchFacts], str]:
    """The proven launches of one GPU alone that a size is compared with: those of its own GPUs; all, where one of these
    has none, or it is unknown which they are. And a note where one has none.
    """
    own = {(node, gpu) for node, count in enumerate(gpus_by_node) for gpu in range(count)}
    known = {_place_of(each) for each in alone if each.images_per_s}
    if not own or not known or any(each.launch.node is None for each in alone):
        return list(alone), ""
    if missing := len(own - known):
        return list(alone), f"{missing} of its {len(own)} GPUs have no rate alone"
    return [each for each in alone if _place_of(each) in own], ""


def log_rates(alone: Sequence[LaunchFacts]) -> list[float]:
    """The log rate of each launch, of one arm and setting, such that the mean of a repeat is that of all GPUs,
    whichever of them it has.

    Where repeats lack GPUs, what each GPU differs from the others is taken out: by least squares, a rate being a part
    of its GPU and a part of its repeat. Nothing is taken out where no repeat has more than half of the GPUs (with few
    of them in turn, each repeat is a sample of its own), or where these parts cannot be separated.
    """
    logs = [math.log(each.images_per_s or 1.0) for each in alone]
    cells = _cells(alone)
    is_whole = len(cells) == len({gpu for gpu, _ in cells}) * len({repeat for _, repeat in cells})
    if is_whole or not _are_comparable(cells):
        return logs
    parts = _parts(cells)
    middle = fmean(parts.values())
    return [log - parts[_place_of(each)] + middle for each, log in zip(alone, logs, strict=True)]


def _cells(alone: Iterable[LaunchFacts]) -> _Cells:
    """The log rate of each GPU in each repeat."""
    rated = [each for each in alone if each.images_per_s]
    return _group_means(((_place_of(each), each.launch.repeat), math.log(each.images_per_s or 1.0)) for each in rated)


def _are_comparable(cells: _Cells) -> bool:
    """Whether what a GPU differs from others can be separated from what a repeat does: one has most of the GPUs, and
    from every GPU a way leads to every other over repeats that have both.
    """
    by_repeat: dict[int, set[Place]] = defaultdict(set)
    for gpu, repeat in cells:
        by_repeat[repeat].add(gpu)
    groups = sorted(by_repeat.values(), key=len)
    reached = groups.pop() if groups else set()
    if 2 * len(reached) <= len({gpu for gpu, _ in cells}):
        return False
    while near := [group for group in groups if group & reached]:
        reached = reached.union(*near)
        groups = [group for group in groups if not group & reached]
    return not groups


def _parts(cells: _Cells) -> dict[Place, float]:
    """Of each GPU in the logarithms: the least squares, by turns for GPUs and for repeats."""
    gpus: dict[Place, float] = dict.fromkeys((gpu for gpu, _ in cells), 0.0)
    for _ in range(_MOST_TURNS):
        repeats = _group_means((repeat, log - gpus[gpu]) for (gpu, repeat), log in cells.items())
        now = _group_means((gpu, log - repeats[repeat]) for (gpu, repeat), log in cells.items())
        change = max(abs(now[gpu] - gpus[gpu]) for gpu in gpus)
        gpus = now
        if change < _CLOSE:
            break
    return gpus


def _group_means(pairs: Iterable[tuple[_Group, float]]) -> dict[_Group, float]:
    by_group: dict[_Group, list[float]] = defaultdict(list)
    for group, value in pairs:
        by_group[group].append(value)
    return {group: fmean(values) for group, values in by_group.items()}


def _place_of(each: LaunchFacts) -> Place:
    return each.launch.node or 0, each.launch.device or 0


def single_gpus(launches: Iterable[LaunchFacts]) -> tuple[SingleGpus, ...]:
    """How the GPUs of a study differ alone, by arm and setting; empty where it is unknown which GPU a launch was on."""
    groups: dict[tuple[Setting, str], list[LaunchFacts]] = defaultdict(list)
    for each in launches:
        if each.launch.node is not None:
            groups[each.launch.settings, each.launch.arm].append(each)
    return tuple(_alone(group) for group in groups.values())


def _alone(group: Sequence[LaunchFacts]) -> SingleGpus:
    wanted = Counter(map(_place_of, group))
    rated = [each for each in group if each.state == "proven" and each.images_per_s]
    rates, cells = Counter(map(_place_of, rated)), _cells(rated)
    # A GPU that lacks a slow repeat would seem fast.
    logs = (
        _parts(cells)
        if _are_comparable(cells)
        else _group_means((_place_of(each), math.log(each.images_per_s or 1.0)) for each in rated)
    )
    lacking = {place: count - rates[place] for place, count in sorted(wanted.items())}
    slowest = min(logs, key=lambda place: logs[place], default=None)
    return SingleGpus(
        arm=group[0].launch.arm,
        settings=group[0].launch.settings,
        gpus=len(logs),
        wanted=len(wanted),
        launches=min(rates.values(), default=0),
        spread=stdev(logs.values()) if len(logs) > 1 else None,
        slowest=_name(slowest) if slowest is not None and len(logs) > 1 else "",
        slowest_by=1.0 - math.exp(logs[slowest] - fmean(logs.values())) if slowest is not None else None,
        missing=tuple(_name(place, lacks, wanted[place]) for place, lacks in lacking.items() if lacks),
    )


def _name(place: Place, lacks: int = 0, wanted: int = 0) -> str:
    some = f" ({lacks} of {wanted} launches)" if lacks < wanted else ""
    return f"GPU {place[1]} of node {place[0]}{some}"
