"""Whether two run directories are of one launch: a launch counts once, also where its directory was copied."""

from __future__ import annotations

from collections.abc import Iterable

from runner.jobs.run import Run
from runner.model.records import StartRecord

Identity = tuple[str | None, str | None, float]
FIX = "leave out the copy: a launch counts once"


def identity_of(start: StartRecord | None) -> Identity | None:
    """What no two launches share: job, job step and instant of the first rank's start; None where that is unknown."""
    return None if start is None or start.time_s is None else (start.job_id, start.token, start.time_s)


def first_rank_of(run: Run) -> StartRecord | None:
    """The start record of a run's first rank."""
    return run.records.start(0)


def copy_among(runs: Iterable[tuple[str, Identity | None]]) -> tuple[str, str] | None:
    """The first two, by name, that are one launch; None where each is a launch of its own. Pure."""
    seen: dict[Identity, str] = {}
    for name, identity in runs:
        if identity is not None and (first := seen.setdefault(identity, name)) != name:
            return first, name
    return None
