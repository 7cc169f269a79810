"""Whether ranks reduced their gradients over all of them. Pure.

Equal parameters show it not: one rank's gradients, or its parameters, may have been sent to all; and what ranks gather
that hold parts is equal whatever it was. So the gradients of one step are compared: each rank adds up its own gradients
in a few buckets, by their place in the whole; and in the same buckets what its optimizer got. Sums are linear: what was
reduced is in proportion to the sum of the ranks' own gradients, and what was not is in proportion to one rank's.

Where a rank keeps a part of the gradients, that holds for the sums over all ranks: what was not reduced is the ranks'
own parts.
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
        looks: of each rank the buckets ``own`` and ``reduced``, and ``own_part`` where ranks keep parts; ``step``:
            that they are of.
    """
    if not looks or not all(each.get("reduced") for each in looks) or len({each.get("step") for each in looks}) > 1:
        return None
    if not looks[0].get("own_part"):
        return _error_of_whole([each["own"] for each in looks], [each["reduced"] for each in looks])
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


def _error_of_whole(owns: Sequence[Sequence[float]], reduced: Sequence[Sequence[float]]) -> float | None:
    """The same where every rank has the whole gradients. O(N) for N ranks."""
    summed = [math.fsum(values) for values in zip(*owns)]
    apart = min(_misfit(own, summed) for own in owns)
    if not apart > _PRECISION:
        return None
    errors = [_misfit(each, summed) / apart for each in reduced]
    for rank, error in enumerate(errors):
        senders = owns if rank == 0 else (owns[0], owns[rank])
        if error > _SAME and min(_misfit(reduced[rank], own) for own in senders) <= _SAME * apart:
            return max(error, 1.0)
    return max(errors) if max(errors) <= _SAME else None


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
