"""How long a step takes: computing, the allreduces that it hides, and the slowest rank. Pure.

Gradients become ready during the backward pass, and are reduced in buckets, one after another: bucket k starts when its
gradients are ready and the bucket before has ended. The step ends with its computing or with its last bucket. Its ranks
wait for the slowest of them: step x (1 + spread x expected maximum of N normal values).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from runner.expectation.network import expected_maximum

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
