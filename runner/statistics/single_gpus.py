"""GPUs alone: which of them are the base of a size, how they differ, and which were not measured. Pure.

Healthy GPUs differ by several per cent, so a size is compared with its own GPUs alone and with no others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from runner.model.study import LaunchFacts, SingleGpus

Place = tuple[int, int]  # number of the node in the study's order, number of the GPU there; both from 0


def places(tasks_per_node: Sequence[int]) -> frozenset[Place]:
    """Of the ranks of a launch on all its nodes."""
    return frozenset((node, gpu) for node, count in enumerate(tasks_per_node) for gpu in range(count))


def of_size(alone: Sequence[LaunchFacts], tasks_per_node: Sequence[int]) -> tuple[list[LaunchFacts], str]:
    """The launches of one GPU alone that a size is compared with: those of its own GPUs; all, where one of these has
    none, or it is unknown which they are. And a note where one has none.

    Args:
        alone: proven ones. tasks_per_node: ranks of that size; empty where unknown.
    """
    own, known = places(tasks_per_node), _by_place(alone)
    if not own or not known or any(each.launch.node is None for each in alone):
        return list(alone), ""
    if missing := len(own - known.keys()):
        return list(alone), f"{missing} of its {len(own)} GPUs have no rate alone"
    return [each for each in alone if place_of(each) in own], ""


def place_of(each: LaunchFacts) -> Place:
    return each.launch.node or 0, each.launch.device or 0


def single_gpus(launches: Iterable[LaunchFacts]) -> tuple[SingleGpus, ...]:
    """How the GPUs of a study differ alone, by arm and setting; empty where it is unknown which GPU a launch was on."""
    groups: dict[tuple[tuple[tuple[str, str], ...], str], list[LaunchFacts]] = defaultdict(list)
    for each in launches:
        if each.launch.node is not None:
            groups[each.launch.settings, each.launch.arm].append(each)
    return tuple(_alone(group) for group in groups.values())


def _alone(group: Sequence[LaunchFacts]) -> SingleGpus:
    wanted: dict[Place, int] = defaultdict(int)
    for each in group:
        wanted[place_of(each)] += 1
    rates = _by_place([each for each in group if each.state == "proven"])
    logs = {place: fmean(map(math.log, values)) for place, values in rates.items()}
    lacking = {place: count - len(rates.get(place, ())) for place, count in sorted(wanted.items())}
    missing = [_name(place, lacks, wanted[place]) for place, lacks in lacking.items() if lacks]
    slowest = min(logs, key=lambda place: logs[place], default=None)
    return SingleGpus(
        arm=group[0].launch.arm,
        settings=group[0].launch.settings,
        gpus=len(logs),
        wanted=len(wanted),
        spread=stdev(logs.values()) if len(logs) > 1 else None,
        slowest=_name(slowest) if slowest is not None and len(logs) > 1 else "",
        slowest_by=1.0 - math.exp(logs[slowest] - fmean(logs.values())) if slowest is not None else None,
        missing=tuple(missing),
    )


def _by_place(launches: Iterable[LaunchFacts]) -> Mapping[Place, list[float]]:
    found: dict[Place, list[float]] = defaultdict(list)
    for each in launches:
        if each.images_per_s:
            found[place_of(each)].append(each.images_per_s)
    return found


def _name(place: Place, lacks: int = 0, wanted: int = 0) -> str:
    some = f" ({lacks} of {wanted} launches)" if lacks < wanted else ""
    return f"GPU {place[1]} of node {place[0]}{some}"
