"""Which runs have which image, and which of them still need it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from runner.errors import RunnerError
from runner.jobs import directory
from runner.jobs.directory import RunDirectory
from runner.jobs.submission import scheduler_of
from runner.model.job import ExitMarker, JobState, Submitted
from runner.model.plan import Plan
from runner.model.verdict import Verdict


class Use(msgspec.Struct, frozen=True):
    """A run of this user and its image.

    Attributes:
        run: its id. image: path of the squashfs. began_s: Unix time of its submission.
        state: ``ended``, ``refused``, ``pending``, ``running``, or ``unknown``.
    """

    run: str
    image: str
    began_s: float
    state: str

    def of(self, path: Path) -> bool:
        """Whether it is this image, by whatever way the path leads there."""
        return self.image != "" and Path(self.image).resolve() == path.resolve()

    @property
    def needed(self) -> bool:
        """Whether the image must stay: what is not known to have ended may still begin."""
        return self.state not in ("ended", "refused")


def uses() -> tuple[Use, ...]:
    """Every known run of this user, the newest first. Asks the scheduler about those that have left no end.

    A scheduler that does not answer is asked once, not once a run.
    """
    found: list[Use] = []
    silent: set[tuple[str, str]] = set()
    for run in directory.known():
        plan, record = run.read("plan.json", Plan), run.read("job.json", Submitted)
        if plan is None:
            continue  # its submission was cut off before anybody was asked
        where = (record.scheduler, record.clients) if record else ("", "")
        state = "refused" if record and record.refused else _state(run, silent, where)
        found.append(Use(run.run_id, plan.image.path, record.submitted_s if record else 0.0, state))
    return tuple(found)


def _state(run: RunDirectory, silent: set[tuple[str, str]], where: tuple[str, str]) -> str:
    if _has_ended(run):
        return "ended"
    if where in silent:
        return "unknown"
    try:
        scheduler, job_id = scheduler_of(run)
        return scheduler.state(job_id, run.path).phase
    except RunnerError:
        silent.add(where)
        return "unknown"


def _has_ended(run: RunDirectory) -> bool:
    ends = (("ended.json", JobState), ("exit.json", ExitMarker))
    verdict = run.read("verdict.json", Verdict)
    return any(run.read(name, kind) is not None for name, kind in ends) or (
        verdict is not None and verdict.outcome != "unknown"
    )
