"""The jobs of runs: the scheduler and id of one; the states of many, for which each scheduler is queried once."""

from __future__ import annotations

import getpass
import os
import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from runner.backends.schedulers import Scheduler, connect
from runner.core import files
from runner.core.errors import NotAcceptedError, RefusedError, RunnerError, UnknownStateError
from runner.images.store import owners
from runner.jobs.directory import is_linked
from runner.jobs.in_allocation import InAllocation
from runner.jobs.run import Run
from runner.model.job import Cancelled, JobState, Submitted


def query(runs: Iterable[tuple[Run, Submitted]]) -> tuple[dict[Path, JobState], tuple[RunnerError, ...]]:
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
            states |= InAllocation(asked, Path(allocation), Run(next(iter(jobs)))).states(jobs)
        except RunnerError as error:
            errors.append(error)
    return states, tuple(errors)


def scheduler_of(run: Run) -> tuple[Scheduler, str]:
    """The scheduler and the id of a run's job.

    If the submission was cut off before the id was written, it comes from the job's own records, or from the queue.

    Raises:
        NotAcceptedError: the scheduler did not accept the job.
        UnknownStateError: it is unknown whether it did; or its client programs are named by a run directory from
            elsewhere, and another user may have put them there.
    """
    record = run.submitted
    if record is None:
        raise UnknownStateError(
            "this run's submission was cut off before it reached the scheduler: there is no job",
            where=str(run.path),
            fix="submit again",
        )
    if record.refused:
        raise NotAcceptedError(
            record.refused, where=str(run.path), fix="never submitted; fix the cause above and submit again"
        )
    scheduler = connected(run, record)
    if record.job_id:
        return scheduler, record.job_id
    job_id = ("" if record.allocation else id_in_records(run)) or scheduler.find(run.path)
    if not job_id:
        raise UnknownStateError(
            "this run's submission was cut off, and it is unknown whether the scheduler accepted it",
            where=str(run.path),
            fix="look for its directory in `squeue --format='%i %Z'`; submit a new run only if no job has it",
        )
    with suppress(OSError):
        run.write("job.json", msgspec.structs.replace(record, job_id=job_id))
    return scheduler, job_id


def connected(run: Run, record: Submitted) -> Scheduler:
    """The scheduler of a run's job. Raises UnknownStateError as ``scheduler_of``."""
    scheduler = connect(record.scheduler, _clients_of(run, record))
    return InAllocation(scheduler, Path(record.allocation), run) if record.allocation else scheduler


def _clients_of(run: Run, record: Submitted) -> Path | None:
    """Where the client programs of the run's scheduler are; None for PATH.

    A run directory of another user, or a copy of one, may name any programs: of a run that this user did not submit
    only those are run that no other user can change.
    """
    if not record.clients:
        return None
    clients = Path(record.clients)
    if is_linked(run) or files.is_closed_to_others(clients):
        return clients
    raise UnknownStateError(
        f"you did not submit this run, and another user may change the scheduler's programs that it names: {clients}",
        where=str(run.path / "job.json"),
        fix="ask who submitted it; `show`, `logs` and `diff` show what it has left",
    )


def id_in_records(run: Run) -> str:
    """The job's id from its own records; empty if there are none."""
    marker = run.marker
    if marker is not None:
        return marker.job
    return next((start.job_id for start in run.records.starts.values() if start.job_id), "")


def cancel_run(run: Run) -> tuple[str, bool]:
    """Cancel the run's job unless it has ended.

    Returns:
        The job's id, and whether it had already ended.

    Raises:
        RefusedError: the run directory is another user's.
        NotAcceptedError, UnknownStateError: as ``scheduler_of``, or the scheduler did not answer.
    """
    _ensure_own(run)
    scheduler, job_id = scheduler_of(run)
    # A job of that id from another directory belongs to another run: its state is unknown here, and it is left alone.
    if scheduler.state(job_id, run.path).phase in ("ended", "unknown"):
        return job_id, True
    cancel(run, scheduler, job_id)
    return job_id, False


def cancel(run: Run, scheduler: Scheduler, job_id: str) -> None:
    """Cancel the run's job; no error if it has already ended.

    Raises:
        RefusedError: the run directory is another user's. UnknownStateError: the scheduler did not answer, or refused.
    """
    _ensure_own(run)
    with suppress(OSError):  # written before, as the end may come at once; a full disk must not prevent it
        run.write("cancelled.json", Cancelled(_user(), platform.node(), time.time()))
    scheduler.cancel(job_id)


def _ensure_own(run: Run) -> None:
    """Another user could have written any job's id into theirs. For root, too, whose signals reach every process."""
    owner = run.path.stat().st_uid
    if owner != os.geteuid():
        raise RefusedError(
            f"this run directory belongs to {owners.user(owner)}, and only its owner cancels its job",
            where=str(run.path),
            fix=f"cancel it as {owners.user(owner)}, or the job itself with the scheduler's own command",
        )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return f"uid {os.getuid()}"
