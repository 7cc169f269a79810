"""The states of many runs' jobs: each scheduler is queried once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from runner.backends.schedulers import connect
from runner.core.errors import RunnerError
from runner.jobs.directory import RunDirectory
from runner.jobs.in_allocation import InAllocation
from runner.model.job import JobState, Submitted


def query(runs: Iterable[tuple[RunDirectory, Submitted]]) -> tuple[dict[Path, JobState], tuple[RunnerError, ...]]:
    """The states by run directory; and the errors of schedulers that gave no answer, whose runs are
    left out.
    """
    by_scheduler: dict[tuple[str, str], dict[Path, str]] = {}
    launches: dict[tuple[str, str, str], dict[Path, str]] = {}
    for run, record in runs:
        if record.allocation:
            key = (record.scheduler, record.clients, record.allocation)
            launches.setdefault(key, {})[run.path] = record.job_id
        else:
            by_scheduler.setdefault((record.scheduler, record.clients), {})[run.path] = record.job_id
    states: dict[Path, JobState] = {}
    errors: list[RunnerError] = []
    for (scheduler, clients), jobs in by_scheduler.items():
        try:
            states |= connect(scheduler, Path(clients) if clients else None).states(jobs)
        except RunnerError as error:
            errors.append(error)
    for (scheduler, clients, allocation), jobs in launches.items():
        try:
            asked = connect(scheduler, Path(clients) if clients else None)
            states |= InAllocation(asked, Path(allocation), RunDirectory(next(iter(jobs)))).states(jobs)
        except RunnerError as error:
            errors.append(error)
    return states, tuple(errors)
