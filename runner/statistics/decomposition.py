"""A loss between several levels of one rate, divided into one part for each step between them. Pure.

With m_i the mean log rate per GPU of level i, c_i = m_(i+1) - m_i and l their sum, the efficiency is E = exp(l), and
the loss of step i is -c_i (E - 1) / l: efficiency and losses add up to 1 exactly (log-mean weights: Ang (2004), Energy
Policy 32). A loss below 0 is a gain and is shown as one. Intervals are of 95 %, by the delta method; shares of the
logarithm by Fieller (1954), JRSS B 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.model.study import Estimate
from runner.statistics.launches import ratio, satterthwaite
from runner.statistics.student_t import t_quantile

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
