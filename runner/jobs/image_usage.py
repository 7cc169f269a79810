"""Which runs use which stored image, and which images no run needs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner.images.store import integrity, owners, store
from runner.images.store.store import Candidate, Limits, to_remove
from runner.images.store.stored_image import BrokenSidecar, StoredImage, age_s, sidecar_path
from runner.jobs import directory
from runner.jobs.directory import Run
from runner.jobs.states import query
from runner.model.job import Submitted


class ImageUse(msgspec.Struct, frozen=True):
    """A run of this user and its image.

    Attributes:
        run: its id. image: path of the squashfs. began_s: Unix time of its submission, seconds.
        state: ``ended``, ``refused``, ``pending``, ``running``, or ``unknown``.
        clients: directory of its scheduler's client programs; empty for PATH.
    """

    run: str
    image: str
    began_s: float
    state: str
    clients: str = ""

    def of(self, path: Path) -> bool:
        """Whether it is this image, links resolved."""
        return self.image != "" and os.path.realpath(self.image) == os.path.realpath(path)

    @property
    def needed(self) -> bool:
        """Whether the image must stay: a run that is not known to have ended may still start."""
        return self.state not in ("ended", "refused")


@dataclass(frozen=True)
class ListedImage:
    """A stored image, or what cannot be read as one.

    Attributes:
        problem: why it is not whole; empty if it is. age_s: seconds since it was made.
        runs: ids of the runs that used it, the newest first.
    """

    image: StoredImage | BrokenSidecar
    problem: str = ""
    age_s: float = 0.0
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pruned:
    """What pruning removed (or would), and the images that stay because a run needs them or may."""

    removed: tuple[Candidate, ...]
    needed: tuple[Path, ...]


def image_uses() -> tuple[ImageUse, ...]:
    """Every known run of this user, the newest first. Each scheduler is queried once, for all runs of it without a
    record of their end.
    """
    runs = [(run, plan, run.submitted) for run in directory.linked() if (plan := run.plan) is not None]
    states: dict[Path, str] = {}
    not_ended: list[tuple[Run, Submitted]] = []
    for run, _plan, record in runs:
        verdict = run.listed_verdict
        if record is not None and record.refused:
            states[run.path] = "refused"
        elif run.ended or run.marker or (verdict is not None and verdict.outcome != "unknown"):
            states[run.path] = "ended"
        elif record is not None:
            not_ended.append((run, record))
    known, _ = query(not_ended)  # a scheduler that does not answer leaves its jobs' states unknown
    states |= {path: state.phase for path, state in known.items()}
    return tuple(
        ImageUse(
            run.run_id,
            plan.image.path,
            record.submitted_s if record else 0.0,
            states.get(run.path, "unknown"),
            record.clients if record else "",
        )
        for run, plan, record in runs
    )


def list_images(store_dir: Path) -> tuple[ListedImage, ...]:
    """Every image of a store with the runs that used it."""
    uses = image_uses()
    return tuple(
        ListedImage(image)
        if isinstance(image, BrokenSidecar)
        else ListedImage(
            image, integrity.problem(image), age_s(image), tuple(use.run for use in uses if use.of(image.path))
        )
        for image in store.everything(store_dir)
    )


def prune_images(store_dir: Path, limits: Limits, *, dry_run: bool) -> Pruned:
    """Remove the images that the limits let go, and what killed conversions left; of this user alone, as what others
    use is not known. Raises RefusedError: a stranger could exchange the whole store.
    """
    uses, candidates = image_uses(), []
    with owners.opened(store_dir) as at:
        for image in store.everything(at) if at else ():
            described = [each for each in (image.path, sidecar_path(image.path)) if os.path.lexists(each)]
            if not isinstance(image, StoredImage) or not all(map(owners.is_own, described)):
                continue
            path, age = store_dir / image.path.name, age_s(image)
            own = [use for use in uses if use.of(path)]
            idle_s = min([age, *(time.time() - use.began_s for use in own)])
            needed = any(use.needed for use in own)
            candidates.append(Candidate(path, image.size_bytes, age, idle_s=idle_s, used=bool(own), needed=needed))
        removed = to_remove(candidates, limits)
        if at and not dry_run:
            for candidate in removed:
                store.remove(at / candidate.path.name)
            store.sweep(None, at)
    return Pruned(removed, tuple(candidate.path for candidate in candidates if candidate.needed))
