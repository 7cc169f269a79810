"""The expectation: a range, from inputs that each have a range, and what each input does to it. Pure.

The range is that of all inputs at their worse end at once to all at their better end. So it holds the truth if every
input's range does, and no run is called too slow because a guess was tight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from runner.core import strict_yaml
from runner.core.text import counted
from runner.expectation.network import Curve, Network, expected_maximum
from runner.model.expectation import Bound, ExpectedPoint, Input, Range, Sensitivity

_SLICES = 128  # of the backward pass
_MOST_BUCKETS = 1024  # of a step: more are put together, so that no input makes the answer take long
_FIRST_BUCKET = float(1 << 20)  # bytes, of DistributedDataParallel
_EXPOSED = 0.1  # of a step: more is bound by communication
_CHANGE = 0.2  # of an input, for the sensitivities
_NEGLIGIBLE = 5e-5
_MOST_SHARE = 0.95  # of a step before its backward pass
_LEAST_PAIRS, _LEAST_HELD = 4, 0.9  # published pairs, and the share of them, in which a range held that may alarm


class Parameter(Range, frozen=True, forbid_unknown_fields=True):
    """As ``Input``, without the name."""

    unit: str
    source: str


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU model, by a regular expression in its name, with what connects GPUs of a node, and the bus bandwidth of an
    allreduce inside it, GB/s.

    Attributes:
        inside_pairs, between_pairs: in how many the range held, of how many published pairs that nothing was fitted to:
            on one node, and on several.
    """

    pattern: str
    link: Literal["nvlink", "pcie"]
    bus_gb_s: Range
    source: str
    inside_pairs: tuple[int, int] = (0, 0)
    between_pairs: tuple[int, int] = (0, 0)


class Gradients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's gradients: ``ready`` holds (share of the backward pass, share of the bytes that is ready then), both
    rising to 1.
    """

    parameters: int
    ready: tuple[tuple[float, float], ...]


class Rate(Range, frozen=True, forbid_unknown_fields=True):
    """What one GPU is known to reach, images per second. ``precision``: as recipes call it."""

    pattern: str
    model: str
    precision: str
    source: str


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    parameters: dict[str, Parameter]
    gpus: tuple[Gpu, ...]
    models: dict[str, Gradients]
    rates: tuple[Rate, ...]

    def gpu(self, name: str) -> Gpu | None:
        """The GPU that a site's file calls so."""
        return next((each for each in self.gpus if re.search(each.pattern, name)), None)

    def no_alarm(self, gpu: str, nodes: int) -> str:
        """Why a figure of several such GPUs below the range is no alarm on so many nodes; empty where it is one."""
        known = self.gpu(gpu)
        held, pairs = (known.between_pairs if nodes > 1 else known.inside_pairs) if known else (0, 0)
        if pairs >= _LEAST_PAIRS and held >= _LEAST_HELD * pairs:
            return ""
        return (
            f"no alarm: on {'several nodes' if nodes > 1 else 'one node'} of such GPUs the range held for {held} of "
            f"{counted(pairs, 'published pair')}, and {_LEAST_HELD:.0%} of {_LEAST_PAIRS} or more would be needed"
        )

    def rate(self, gpu: str, model: str, precision: str) -> Rate | None:
        """The rate of one GPU."""
        of_model = (each for each in self.rates if each.model == model and precision == each.precision)
        return next((each for each in of_model if re.search(each.pattern, gpu)), None)


@cache
def load() -> Parameters:
    """The parameters as they are shipped."""
    return strict_yaml.load(Path(__file__).resolve().with_name("parameters.yaml"), Parameters)


@dataclass(frozen=True)
class Placement:
    """Ranks of one job: on so many nodes, ``per_node`` the most of a node."""

    gpus: int
    nodes: int
    per_node: int


@dataclass(frozen=True)
class Machine:
    """GPUs of a node of a site, and its adapters to other nodes; None where their number is unknown."""

    gpus: int
    adapters: int | None

    def adapters_used(self, per_node: int) -> float:
        """Share of a node's adapters that so many ranks use: one each, or their GPUs' share where that is unknown."""
        if self.adapters:
            return min(per_node, self.adapters) / self.adapters
        return min(1.0, per_node / max(1, self.gpus))


@dataclass(frozen=True)
class Workload:
    """What each rank trains, and how its gradients are reduced.

    Attributes:
        batch: samples of a rank in a step. ready: as in ``Gradients``.
        way: ``horovod``: what became ready in a cycle is negotiated, and reduced together; ``ddp``: buckets of a size.
        by_mpi: how Horovod coordinates. overlap: False where communication begins only after all computing.
    """

    batch: int
    ready: tuple[tuple[float, float], ...]
    way: Literal["horovod", "ddp"]
    by_mpi: bool = False
    overlap: bool = True


Values = Mapping[str, float]  # of the inputs, by their names


@dataclass(frozen=True)
class Step:
    """Seconds of one step of N ranks: with waiting; of all allreduces; of those after all computing; and of waiting for
    the slowest.
    """

    total_s: float
    allreduce_s: float = 0.0
    exposed_s: float = 0.0
    waiting_s: float = 0.0


def step(
    workload: Workload, values: Values, allreduce_s: Callable[[float], float], ranks: int, coordination_s: float = 0.0
) -> Step:
    """A step of two ranks or more.

    Args:
        allreduce_s: seconds of an allreduce of so many bytes. coordination_s: of Horovod's ranks, once a cycle.
    """
    alone_s = workload.batch / values["one-gpu-images-per-s"]
    end = carried = 0.0
    for ready_s, size in _buckets(workload, values, coordination_s, allreduce_s(0.0)):
        taken = allreduce_s(size)
        end = max(end, ready_s if workload.overlap else alone_s) + taken
        carried += taken
    exposed = max(0.0, end - alone_s)
    waiting = (alone_s + exposed) * values["spread"] * expected_maximum(ranks)
    return Step(alone_s + exposed + waiting, carried, exposed, waiting)


def _buckets(
    workload: Workload, values: Values, coordination_s: float, latency_s: float
) -> Iterator[tuple[float, float]]:
    """(when it can start, bytes) of each bucket, in order.

    A cycle of Horovod lasts as long as its coordination and the latency of its allreduce, at least: it has one buffer.
    The cycles end with the backward pass, so that no chance decides for how long the last gradient waits.
    """
    alone_s, total = workload.batch / values["one-gpu-images-per-s"], values["gradient-mb"] * 1e6
    begin = alone_s * min(_MOST_SHARE, values["forward-share"])
    backward = alone_s - begin
    ready = [(0.0, 0.0), *workload.ready]
    most = max(values["bucket-mb" if workload.way == "ddp" else "fusion-mb"] * 1e6, total / _MOST_BUCKETS)
    if workload.way == "ddp":
        ends, when_ready = [min(_FIRST_BUCKET, total)], [(share, time) for time, share in ready]
        while ends[-1] < total:
            ends.append(min(total, ends[-1] + most))
        for start, end in pairwise([0.0, *ends]):
            yield begin + backward * _interpolated(when_ready, end / total if total else 1.0), end - start
        return
    cycle_s = values["cycle-ms"] * 1e-3
    period = max(cycle_s, coordination_s + latency_s, backward / _SLICES)
    before = 0.0
    for cycles_left in reversed(range(max(1, math.ceil(backward / period)))):
        after = max(0.0, 1.0 - cycles_left * period / backward) if cycles_left else 1.0
        left = (_interpolated(ready, after) - _interpolated(ready, before)) * total
        while left > 0:
            size = min(left, most)
            yield begin + backward * after + cycle_s + coordination_s, size
            left -= size
        before = after


def _interpolated(points: Sequence[tuple[float, float]], at: float) -> float:
    for (x, y), (next_x, next_y) in pairwise(points):
        if at <= next_x:
            return next_y if next_x == x else y + (next_y - y) * (at - x) / (next_x - x)
    return points[-1][1]


@dataclass(frozen=True)
class Evaluated:
    """A point where each input has one value."""

    step: Step
    images_per_s: float
    efficiency: float
    bound: Bound


def point(
    placement: Placement, machine: Machine, workload: Workload, inputs: Sequence[Input], curve: Curve | None = None
) -> ExpectedPoint:
    """The expectation for one number of GPUs. Inputs that ``names`` does not list for this job are passed over."""
    values = {each.name: each.value for each in inputs}
    used = [each for each in inputs if each.name in names(placement, workload, curve, values)]

    def at(changed: Values) -> Evaluated:
        return evaluate(placement, machine, workload, values | dict(changed), curve)

    middle = at({})
    ends = [(each, at({each.name: each.low}), at({each.name: each.high})) for each in used]

    def spanned(of: Callable[[Evaluated], float]) -> Range:
        """From all inputs at the end that is worse for this figure to all at the better one."""
        worse = {each.name: each.low if of(low) <= of(high) else each.high for each, low, high in ends}
        better = {each.name: each.high if of(low) <= of(high) else each.low for each, low, high in ends}
        every = [middle, at(worse), at(better), *(end for _, low, high in ends for end in (low, high))]
        return Range(min(map(of, every)), of(middle), max(map(of, every)))

    def change(each: Input, factor: float) -> float:
        return at({each.name: each.value * factor}).images_per_s / middle.images_per_s - 1

    changes = [Sensitivity(each.name, change(each, 1 - _CHANGE), change(each, 1 + _CHANGE)) for each in used]
    sizes = {each.name: max(abs(each.less), abs(each.more)) for each in changes}
    return ExpectedPoint(
        gpus=placement.gpus,
        nodes=placement.nodes,
        ranks_per_node=placement.per_node,
        images_per_s=spanned(lambda each: each.images_per_s),
        efficiency=spanned(lambda each: each.efficiency),
        step_s=middle.step.total_s,
        allreduce_s=middle.step.allreduce_s,
        exposed_s=middle.step.exposed_s,
        waiting_s=middle.step.waiting_s,
        bound=middle.bound,
        measured_allreduce=_is_measured(curve, placement),
        sensitivities=tuple(
            each for each in sorted(changes, key=lambda each: -sizes[each.name]) if sizes[each.name] > _NEGLIGIBLE
        ),
    )


def names(placement: Placement, workload: Workload, curve: Curve | None, given: Values) -> tuple[str, ...]:
    """The inputs that decide this point."""
    several, is_horovod = placement.gpus > 1, workload.way == "horovod"
    is_calculated = several and not _is_measured(curve, placement)
    has_coordination = curve is not None and curve.with_coordination
    cases = {
        ("one-gpu-images-per-s",): True,
        ("input-images-per-s",): "input-images-per-s" in given,
        ("gradient-mb", "forward-share", "spread", "inside-share"): several,
        ("between-share",): placement.nodes > 1,
        ("cycle-ms", "fusion-mb"): several and is_horovod,
        ("coordination-us",): several and is_horovod and not has_coordination,
        ("bucket-mb",): several and not is_horovod,
        ("curve-spread",): several and curve is not None,
        ("start-us", "hop-inside-us", "tree-share", "inside-gb-s"): is_calculated,
        ("hop-between-us", "between-gb-s"): is_calculated and placement.nodes > 1,
    }
    return tuple(name for those, are_used in cases.items() if are_used for name in those)


def _is_measured(curve: Curve | None, placement: Placement) -> bool:
    return curve is not None and curve.ranks == placement.gpus and curve.nodes in (None, placement.nodes)


def evaluate(
    placement: Placement, machine: Machine, workload: Workload, values: Values, curve: Curve | None
) -> Evaluated:
    """The step that these values give. ``point`` says what their ranges do to it."""
    rate, ranks = values["one-gpu-images-per-s"], placement.gpus
    made = Step(workload.batch / rate)
    if ranks > 1:
        coordination_s = 0.0
        if workload.way == "horovod" and not (curve is not None and curve.with_coordination):
            # A tree with MPI, and a ring with Gloo.
            messages = float((ranks - 1).bit_length() if workload.by_mpi else ranks)
            coordination_s = values["coordination-us"] * 1e-6 * messages
        made = step(workload, values, _allreduce(placement, machine, values, curve), ranks, coordination_s)
        between = values.get("between-share", 1.0) if placement.nodes > 1 else 1.0
        made = replace(made, total_s=made.total_s / (values.get("inside-share", 1.0) * between))
    images_per_s = ranks * workload.batch / made.total_s
    bound: Bound = "communication" if made.exposed_s > _EXPOSED * made.total_s else "compute"
    ceiling = values.get("input-images-per-s")
    if ceiling is not None and images_per_s > placement.nodes * ceiling:
        images_per_s, bound = placement.nodes * ceiling, "input"
    return Evaluated(made, images_per_s, images_per_s / (ranks * rate), bound)


def _network(placement: Placement, machine: Machine, values: Values) -> Network:
    return Network(
        ranks=placement.gpus,
        nodes=placement.nodes,
        per_node=placement.per_node,
        inside_b_s=values["inside-gb-s"] * 1e9,
        between_b_s=values.get("between-gb-s", 1.0) * 1e9 * machine.adapters_used(placement.per_node),
        hop_inside_s=values["hop-inside-us"] * 1e-6,
        hop_between_s=values.get("hop-between-us", 1.0) * 1e-6,
        start_s=values["start-us"] * 1e-6,
        tree_share=values["tree-share"],
    )


def _allreduce(placement: Placement, machine: Machine, values: Values, curve: Curve | None) -> Callable[[float], float]:
    """Seconds of an allreduce of so many bytes: as measured, or calculated; where it was measured on other ranks, with
    the bandwidth that was measured there, and the latency by the same factor.
    """
    if curve is None:
        return _network(placement, machine, values).allreduce_s
    spread = values["curve-spread"]
    if _is_measured(curve, placement):
        return lambda size: spread * curve.allreduce_s(max(size, 1.0))
    network = _network(placement, machine, values)
    nodes = curve.nodes or -(-curve.ranks // max(1, machine.gpus))
    there = Placement(curve.ranks, nodes, -(-curve.ranks // nodes))
    latency, bandwidth = curve.line
    calculated = _network(there, machine, values).allreduce_s(0.0)
    factor = min(5.0, max(0.2, latency / calculated)) if latency > 0 else 1.0
    if nodes == 1:
        network = replace(network, inside_b_s=bandwidth)
    elif network.nodes > 1:
        used = machine.adapters_used(network.per_node) / machine.adapters_used(there.per_node)
        network = replace(network, between_b_s=bandwidth * used)
    slower = replace(
        network,
        start_s=network.start_s * factor,
        hop_inside_s=network.hop_inside_s * factor,
        hop_between_s=network.hop_between_s * factor,
    )
    return lambda size: spread * slower.allreduce_s(size)
