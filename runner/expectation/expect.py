"""The expectation: a range, from inputs that each have a range, and what each input does to it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from runner.core import strict_yaml
from runner.expectation.network import Curve, Network, expected_maximum
from runner.model.expectation import Bound, ExpectedPoint, Input, Range, Sensitivity

SLICES = 128  # of the backward pass
_MOST_BUCKETS = 1024  # of a step: more are put together, so that no input makes the answer take long
FIRST_BUCKET = 1 << 20  # bytes, of DistributedDataParallel
_EXPOSED = 0.1  # of a step: more is bound by communication


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced.

    Attributes:
        way: ``horovod``: what became ready in a cycle is negotiated, and reduced together; ``ddp``: buckets of a size.
        cycle_s: of Horovod. coordination_s: of all ranks, once a cycle. bucket_b: the most bytes of one allreduce.
    """

    way: Literal["horovod", "ddp"]
    cycle_s: float
    coordination_s: float
    bucket_b: float


@dataclass(frozen=True)
class Training:
    """What one GPU computes in a step.

    Attributes:
        step_s: alone, seconds. forward_share: of it, before the first gradient.
        gradient_b: bytes that are reduced. ready: as in ``Gradients``.
    """

    step_s: float
    forward_share: float
    gradient_b: float
    ready: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Step:
    """One step of N ranks, seconds.

    Attributes:
        total_s: with waiting. allreduce_s: sum over buckets. exposed_s: after all computing.
        waiting_s: for the slowest.
    """

    total_s: float
    allreduce_s: float
    exposed_s: float
    waiting_s: float

    @property
    def is_bound_by_communication(self) -> bool:
        """Whether more than a tenth of the step is communication that no computing hides."""
        return self.exposed_s > _EXPOSED * self.total_s


def step(
    training: Training,
    reduction: Reduction,
    allreduce_s: Callable[[float], float],
    ranks: int,
    spread: float,
    *,
    overlap: bool = True,
) -> Step:
    """A step of so many ranks.

    Args:
        allreduce_s: seconds of an allreduce of so many bytes. spread: standard deviation of the ranks' step times.
        overlap: False where communication begins only after all computing.
    """
    if ranks < 2:
        return Step(training.step_s, 0.0, 0.0, 0.0)
    end = carried = 0.0
    for ready_s, size in _buckets(training, reduction, allreduce_s(0.0)):
        taken = allreduce_s(size)
        end = max(end, ready_s if overlap else training.step_s) + taken
        carried += taken
    exposed = max(0.0, end - training.step_s)
    waiting = (training.step_s + exposed) * spread * expected_maximum(ranks)
    return Step(training.step_s + exposed + waiting, carried, exposed, waiting)


def _buckets(training: Training, reduction: Reduction, latency_s: float) -> list[tuple[float, float]]:
    """(when it can start, bytes) of each bucket, in order."""
    reduction = replace(reduction, bucket_b=max(reduction.bucket_b, training.gradient_b / _MOST_BUCKETS))
    if reduction.way == "ddp":
        return _by_size(training, reduction.bucket_b)
    return _by_cycle(training, reduction, latency_s)


def _by_size(training: Training, most: float) -> list[tuple[float, float]]:
    begin, backward = _phases(training)
    ends, total = [min(float(FIRST_BUCKET), training.gradient_b)], training.gradient_b
    while ends[-1] < total:
        ends.append(min(total, ends[-1] + most))
    starts = [0.0, *ends[:-1]]
    return [
        (begin + backward * _when_ready(training.ready, end / total if total else 1.0), end - start)
        for start, end in zip(starts, ends, strict=True)
    ]


def _by_cycle(training: Training, reduction: Reduction, latency_s: float) -> list[tuple[float, float]]:
    """A cycle lasts as long as its coordination and the latency of its allreduce, at least: it has one buffer.

    The cycles end with the backward pass, so that no chance decides for how long the last gradient waits.
    """
    begin, backward = _phases(training)
    period = max(reduction.cycle_s, reduction.coordination_s + latency_s, backward / SLICES)
    cycles = max(1, math.ceil(backward / period))
    delay = reduction.cycle_s + reduction.coordination_s
    buckets: list[tuple[float, float]] = []
    before = 0.0
    for place in range(cycles):
        after = 1.0 if place == cycles - 1 else max(0.0, 1.0 - (cycles - 1 - place) * period / backward)
        share = _share_ready(training.ready, after) - _share_ready(training.ready, before)
        left = share * training.gradient_b
        while left > 0:
            size = min(left, reduction.bucket_b)
            buckets.append((begin + backward * after + delay, size))
            left -= size
        before = after
    return buckets


def _phases(training: Training) -> tuple[float, float]:
    """(when the backward pass begins, how long it takes)."""
    begin = training.step_s * training.forward_share
    return begin, training.step_s - begin


def _share_ready(ready: Sequence[tuple[float, float]], time: float) -> float:
    return _interpolated([(0.0, 0.0), *ready], time)


def _when_ready(ready: Sequence[tuple[float, float]], share: float) -> float:
    return _interpolated([(0.0, 0.0), *((after, before) for before, after in ready)], share)


def _interpolated(points: Sequence[tuple[float, float]], at: float) -> float:
    for (x, y), (next_x, next_y) in pairwise(points):
        if at <= next_x:
            return next_y if next_x == x else y + (next_y - y) * (at - x) / (next_x - x)
    return points[-1][1]


_FILE = Path(__file__).parent / "parameters.yaml"


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As ``Input``, without the name."""

    unit: str
    low: float
    value: float
    high: float
    source: str


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU model.

    Attributes:
        pattern: regular expression in the GPU's name.
        link: what connects the GPUs of a node. bus_gb_s: bus bandwidth of an allreduce inside it, GB/s.
    """

    pattern: str
    link: Literal["nvlink", "pcie"]
    bus_gb_s: Range
    source: str


class Gradients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's gradients.

    Attributes:
        parameters: their number.
        ready: (share of the backward pass, share of the bytes that is ready then), both rising to 1.
    """

    parameters: int
    ready: tuple[tuple[float, float], ...]


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one GPU is known to reach, images per second. ``precision``: the beginning of the recipe's word for it."""

    pattern: str
    model: str
    precision: str
    low: float
    value: float
    high: float
    source: str


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    parameters: dict[str, Parameter]
    gpus: tuple[Gpu, ...]
    models: dict[str, Gradients]
    rates: tuple[Rate, ...]

    def gpu(self, name: str) -> Gpu | None:
        """The GPU that a site's file calls so; None where nothing is known of it."""
        return next((each for each in self.gpus if re.search(each.pattern, name)), None)

    def rate(self, gpu: str, model: str, precision: str) -> Rate | None:
        """The rate of one GPU; None where none is known."""
        return next(
            (
                each
                for each in self.rates
                if re.search(each.pattern, gpu) and each.model == model and precision.startswith(each.precision)
            ),
            None,
        )


@cache
def load() -> Parameters:
    """The parameters as they are shipped."""
    return strict_yaml.load(_FILE, Parameters)


CHANGE = 0.2  # of an input, for the sensitivities
_NEGLIGIBLE = 5e-5
_MOST_SHARE = 0.95  # of a step before its backward pass


@dataclass(frozen=True)
class Placement:
    """Ranks of one job: on so many nodes, ``per_node`` the most of a node."""

    gpus: int
    nodes: int
    per_node: int


@dataclass(frozen=True)
class Machine:
    """Of one site.

    Attributes:
        gpus: of a node. adapters: of a node, between nodes; None where their number is unknown.
    """

    gpus: int
    adapters: int | None


@dataclass(frozen=True)
class Workload:
    """What each rank trains.

    Attributes:
        batch: samples of a rank in a step. ready: as in ``Gradients``.
        way, by_mpi: how gradients are reduced, and whether Horovod coordinates by MPI.
    """

    batch: int
    ready: tuple[tuple[float, float], ...]
    way: Literal["horovod", "ddp"]
    by_mpi: bool = False
    overlap: bool = True


@dataclass(frozen=True)
class _Evaluated:
    step: Step
    images_per_s: float
    efficiency: float
    bound: Bound


Values = Mapping[str, float]


def point(
    placement: Placement, machine: Machine, workload: Workload, inputs: Sequence[Input], curve: Curve | None = None
) -> ExpectedPoint:
    """The expectation for one number of GPUs.

    Args:
        inputs: those that ``names`` lists for this job, and others, which are passed over.
    """
    values = {each.name: each.value for each in inputs}

    def at(**changed: float) -> _Evaluated:
        return _evaluate(placement, machine, workload, values | changed, curve)

    middle = at()
    used = [each for each in inputs if each.name in names(placement, workload, curve, values)]
    sensitivities = sorted(
        (
            Sensitivity(
                each.name,
                at(**{each.name: each.value * (1 - CHANGE)}).images_per_s / middle.images_per_s - 1,
                at(**{each.name: each.value * (1 + CHANGE)}).images_per_s / middle.images_per_s - 1,
            )
            for each in used
        ),
        key=lambda each: -max(abs(each.less), abs(each.more)),
    )
    alone = [(each, at(**{each.name: each.low}), at(**{each.name: each.high})) for each in used]
    return ExpectedPoint(
        gpus=placement.gpus,
        nodes=placement.nodes,
        ranks_per_node=placement.per_node,
        images_per_s=_range(middle, alone, lambda each: each.images_per_s, at),
        efficiency=_range(middle, alone, lambda each: each.efficiency, at),
        step_s=middle.step.total_s,
        allreduce_s=middle.step.allreduce_s,
        exposed_s=middle.step.exposed_s,
        waiting_s=middle.step.waiting_s,
        bound=middle.bound,
        measured_allreduce=_is_measured(curve, placement),
        sensitivities=tuple(each for each in sensitivities if max(abs(each.less), abs(each.more)) > _NEGLIGIBLE),
    )


def names(placement: Placement, workload: Workload, curve: Curve | None, given: Values) -> tuple[str, ...]:
    """The inputs that decide this point."""
    found = ["one-gpu-images-per-s"]
    if "input-images-per-s" in given:
        found.append("input-images-per-s")
    if placement.gpus < 2:
        return tuple(found)
    found += ["gradient-mb", "forward-share", "spread"]
    if workload.way == "horovod":
        found += ["cycle-ms", "fusion-mb"]
        if not (curve is not None and curve.with_coordination):
            found.append("coordination-us")
    else:
        found.append("bucket-mb")
    if curve is not None:
        found.append("curve-spread")
    if not _is_measured(curve, placement):
        found += ["start-us", "hop-inside-us", "tree-share", "inside-gb-s"]
        if placement.nodes > 1:
            found += ["hop-between-us", "between-gb-s"]
    return tuple(found)


def _is_measured(curve: Curve | None, placement: Placement) -> bool:
    return curve is not None and curve.ranks == placement.gpus and curve.nodes in (None, placement.nodes)


def _range(
    middle: _Evaluated,
    alone: Sequence[tuple[Input, _Evaluated, _Evaluated]],
    of: Callable[[_Evaluated], float],
    at: Callable[..., _Evaluated],
) -> Range:
    """From all inputs at the end that is worse for this figure to all at the better one."""
    worse = {each.name: each.low if of(low) <= of(high) else each.high for each, low, high in alone}
    better = {each.name: each.high if of(low) <= of(high) else each.low for each, low, high in alone}
    all_of_it = [of(middle), of(at(**worse)), of(at(**better))]
    all_of_it += [of(end) for _, low, high in alone for end in (low, high)]
    return Range(min(all_of_it), of(middle), max(all_of_it))


def _evaluate(
    placement: Placement, machine: Machine, workload: Workload, values: Values, curve: Curve | None
) -> _Evaluated:
    rate, ranks = values["one-gpu-images-per-s"], placement.gpus
    if ranks < 2:
        made = Step(workload.batch / rate, 0.0, 0.0, 0.0)
    else:
        made = _several(placement, machine, workload, values, curve)
    images_per_s = ranks * workload.batch / made.total_s
    bound: Bound = "communication" if made.is_bound_by_communication else "compute"
    ceiling = values.get("input-images-per-s")
    if ceiling is not None and images_per_s > placement.nodes * ceiling:
        images_per_s, bound = placement.nodes * ceiling, "input"
    return _Evaluated(made, images_per_s, images_per_s / (ranks * rate), bound)


def _several(placement: Placement, machine: Machine, workload: Workload, values: Values, curve: Curve | None) -> Step:
    training = Training(
        step_s=workload.batch / values["one-gpu-images-per-s"],
        forward_share=min(_MOST_SHARE, values["forward-share"]),
        gradient_b=values["gradient-mb"] * 1e6,
        ready=workload.ready,
    )
    coordination = 0.0
    if workload.way == "horovod" and not (curve is not None and curve.with_coordination):
        coordination = values["coordination-us"] * 1e-6 * _doublings(placement.gpus, workload)
    reduction = Reduction(
        way=workload.way,
        cycle_s=values["cycle-ms"] * 1e-3 if workload.way == "horovod" else 0.0,
        coordination_s=coordination,
        bucket_b=values["fusion-mb" if workload.way == "horovod" else "bucket-mb"] * 1e6,
    )
    takes = _allreduce(placement, machine, values, curve)
    return step(training, reduction, takes, placement.gpus, values["spread"], overlap=workload.overlap)


def _doublings(ranks: int, workload: Workload) -> float:
    """Coordination is a ring with Gloo, and a tree with MPI."""
    return float((ranks - 1).bit_length()) if workload.by_mpi else float(ranks)


def _allreduce(placement: Placement, machine: Machine, values: Values, curve: Curve | None) -> Callable[[float], float]:
    """Seconds of an allreduce of so many bytes: as measured, or calculated, with what was measured elsewhere."""
    if placement.gpus < 2:
        return lambda _size: 0.0
    if curve is not None and _is_measured(curve, placement):
        factor = values["curve-spread"]
        return lambda size: factor * curve.allreduce_s(max(size, 1.0))
    network = _network(placement, machine, values)
    if curve is None:
        return network.allreduce_s
    return _extrapolated(network, machine, values, curve)


def _network(placement: Placement, machine: Machine, values: Values) -> Network:
    return Network(
        ranks=placement.gpus,
        nodes=placement.nodes,
        per_node=placement.per_node,
        inside_b_s=values["inside-gb-s"] * 1e9,
        between_b_s=values.get("between-gb-s", 1.0) * 1e9 * _adapters_used(placement.per_node, machine),
        hop_inside_s=values["hop-inside-us"] * 1e-6,
        hop_between_s=values.get("hop-between-us", 1.0) * 1e-6,
        start_s=values["start-us"] * 1e-6,
        tree_share=values["tree-share"],
    )


def _adapters_used(per_node: int, machine: Machine) -> float:
    """Share of a node's adapters that so many ranks use: one each, or their GPUs' share where that is unknown."""
    if machine.adapters:
        return min(per_node, machine.adapters) / machine.adapters
    return min(1.0, per_node / max(1, machine.gpus))


def _extrapolated(network: Network, machine: Machine, values: Values, curve: Curve) -> Callable[[float], float]:
    """The calculated network with the bandwidth of the measured one, and its latency by the same factor."""
    nodes = curve.nodes or -(-curve.ranks // max(1, machine.gpus))
    there = Placement(curve.ranks, nodes, -(-curve.ranks // nodes))
    latency, bandwidth = curve.line
    calculated = _network(there, machine, values)
    factor = min(5.0, max(0.2, latency / calculated.latency_s())) if latency > 0 else 1.0
    spread = values["curve-spread"]
    if nodes == 1:
        measured = replace(network, inside_b_s=bandwidth)
    elif network.nodes > 1:
        used = _adapters_used(network.per_node, machine) / _adapters_used(there.per_node, machine)
        measured = replace(network, between_b_s=bandwidth * used)
    else:
        measured = network
    slower = replace(
        measured,
        start_s=measured.start_s * factor,
        hop_inside_s=measured.hop_inside_s * factor,
        hop_between_s=measured.hop_between_s * factor,
    )
    return lambda size: spread * slower.allreduce_s(size)
