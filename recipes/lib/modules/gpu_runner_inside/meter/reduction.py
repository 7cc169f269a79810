"""Whether ranks that hold parts of one training reduced their gradients over all of them. Pure.

What such ranks gather is equal on all of them even if nothing was reduced, so the gradients of one step are compared:
each rank adds up its own gradients in a few buckets, by their place in the whole; and in the same buckets the part of
them that it keeps, before and after the reduction. Sums are linear: over all ranks, what was reduced is in proportion
to the sum of the ranks' own whole gradients, and what was not is the ranks' own parts.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, Sequence

BUCKETS = 256
LARGEST = 0.05  # error of gradients that were reduced (runner/jobs/verdict.py)
_PRECISION = 1e-4  # relative; of sums of gradients that are alike
_SAME = LARGEST  # of how far apart the two possibilities are


def error_of(looks: Sequence[Mapping[str, Any]]) -> float | None:
    """How far what the ranks reduced is from the mean of their own gradients: 0 equal, 1 and more unrelated.

    None where the looks cannot tell: a rank saw none, or the gradients were changed in between in another way than by
    a common factor.

    Args:
        looks: of each rank, either ``whole``, a checksum of whole reduced gradients, or the buckets ``own``,
            ``own_part`` and ``reduced``.
    """
    if all(each.get("whole") for each in looks) and looks:
        return 0.0 if len({each["whole"] for each in looks}) == 1 else 1.0
    if not looks or not all(each.get("reduced") for each in looks):
        return None
    own, part, reduced = (
        [math.fsum(values) for values in zip(*(each[name] for each in looks))]
        for name in ("own", "own_part", "reduced")
    )
    apart, to_mean, to_part = _misfit(part, own), _misfit(reduced, own), _misfit(reduced, part)
    if not apart > _PRECISION or not math.isfinite(to_mean + to_part):
        return None
    if to_mean <= _SAME * apart:
        return to_mean / apart
    return max(to_mean / apart, 1.0) if to_part <= _SAME * apart else None


def _misfit(values: Sequence[float], others: Sequence[float]) -> float:
    """How far values are from being in proportion to the others, relative; infinite where nothing can be said."""
    length = math.sqrt(math.fsum(each * each for each in values))
    square = math.fsum(each * each for each in others)
    if not 0.0 < length < math.inf or not 0.0 < square < math.inf:
        return math.inf
    factor = math.fsum(one * other for one, other in zip(values, others)) / square
    if factor <= 0.0:
        return 1.0
    return math.sqrt(math.fsum((one - factor * other) ** 2 for one, other in zip(values, others))) / length
