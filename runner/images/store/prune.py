"""Which stored images to remove: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Candidate:
    """A stored image as pruning sees it.

    Attributes:
        age_s: seconds since it was made; less than 0 where a clock was wrong. idle_s: since a run last began with it.
        used: a known run used it. needed: a run that has not ended, or whose state is unknown, uses it.
    """

    path: Path
    size_bytes: int
    age_s: float
    idle_s: float
    used: bool
    needed: bool


@dataclass(frozen=True)
class Limits:
    """Which images the user wants removed; all limits that are given must hold.

    Attributes:
        older_than_s: only images made longer ago. unused: only images that no known run has used.
        max_bytes: the longest idle are removed until the rest has at most this size; None: all that the others allow.
    """

    older_than_s: float | None = None
    unused: bool = False
    max_bytes: int | None = None


def to_remove(images: Sequence[Candidate], limits: Limits) -> tuple[Candidate, ...]:
    """The images to remove, the longest idle first; never one that is needed."""
    allowed = [
        image
        for image in images
        if not image.needed
        and (limits.older_than_s is None or image.age_s > limits.older_than_s)
        and not (limits.unused and image.used)
    ]
    allowed.sort(key=lambda image: (-image.idle_s, image.path))
    if limits.max_bytes is None:
        return tuple(allowed)
    total = sum(image.size_bytes for image in images)
    removed: list[Candidate] = []
    for image in allowed:
        if total <= limits.max_bytes:
            break
        removed.append(image)
        total -= image.size_bytes
    return tuple(removed)
