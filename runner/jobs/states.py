"""The jobs of runs, by their schedulers: their states, and their cancelling.

Of runs that are launches in a study's one allocation the job is the allocation's, and the state is their own. The
script of the allocation (``render_launches`` of its scheduler) leaves in each run's directory whether it has begun and
how it ended; what it could not leave because the allocation was lost, the scheduler tells of the allocation.
"""

from __future__ import annotations

import getpass
import math
import os
import platform
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner.backends.schedulers import Scheduler, connect, quiet_s
from runner.core import files, ownership, paths
from runner.core.errors import NotAcceptedError, RefusedError, RunnerError, UnknownStateError
from runner.images.store import owners
from runner.jobs.directory import Run, is_linked, plain_job_id
from runner.model.backends import SCHEDULERS
from runner.model.job import Cancelled, ExitMarker, JobState, SchedulerRecord, Submitted
from runner.model.records import ExitRecord

# Names that the allocation's script knows: in a run directory, and in its own.
BEGUN, OVER, CANCELLED = "begun", "over", "cancelled.json"
STOPPED = "stopped"
_WAITS = "waits for its turn in the allocation"
_TOGETHER_S = 5.0
_ENDED_EARLY = "the allocation ended before this launch began"


@dataclass(frozen=True)
class Left:
    """What a launch has left in its run directory.

    Attributes:
        marker: what its script left at its end; None for nothing (yet).
        begun: it was started.
        by_itself: it ended while nothing was ending the whole allocation, its own end was asked for, or it was over
            before: its script ended well, and so did every rank. (Slurm gives srun 0 where a node is set down, too.)
    """

    marker: ExitMarker | None
    begun: bool
    by_itself: bool


def has_begun(run: Run) -> bool:
    """Whether the allocation's script has started the launch: one that has not has used and measured nothing."""
    return (run.path / BEGUN).exists()


def never_began(run: Run, record: Submitted, state: JobState | None) -> bool:
    """Whether the allocation of a launch is over and never started it: then it is as if it had not been tried.

    Args:
        state: of the launch; None where it is unknown.
    """
    if not record.allocation:
        return False
    if not files.is_local(run.path):
        files.touch_directory(run.path)  # what another machine has written there becomes visible
    if has_begun(run) or run.has_marker or run.names_in("ranks") or run.had_begun:
        return False
    if run.status_in(record.allocation) is not None:
        return False
    return (state is not None and state.phase == "ended") or (run.path / "verdict.json").exists()


def launch_state(left: Left, allocation: JobState) -> JobState:
    """The state of a launch. Pure.

    Args:
        left: what it left.
        allocation: the state of the allocation's job.
    """
    marker = left.marker
    if marker is not None and (left.by_itself or not left.begun or allocation.name == "COMPLETED"):
        return _of_marker(marker, allocation)
    if allocation.phase == "unknown" and marker is not None:
        return _of_marker(marker, allocation)
    if allocation.phase in ("pending", "unknown"):
        return allocation
    if not left.begun:
        is_over = allocation.phase == "ended"
        return JobState("ended", "CANCELLED", _ENDED_EARLY) if is_over else JobState("pending", "PENDING", _WAITS)
    if allocation.phase == "running":
        return msgspec.structs.replace(allocation, name="RUNNING", reason="", exit_code=None)
    # What ended the allocation ended the launch, whatever its script could still leave.
    name = "CANCELLED" if allocation.name == "COMPLETED" else allocation.name
    return msgspec.structs.replace(allocation, name=name, exit_code=marker.exit if marker else None)


def _of_marker(marker: ExitMarker, allocation: JobState) -> JobState:
    name = marker.why or ("FAILED" if marker.exit else "COMPLETED")
    return msgspec.structs.replace(allocation, phase="ended", name=name, reason="", exit_code=marker.exit)


class Elsewhere:
    """The scheduler of a run whose job it knows by another place than the run directory."""

    _started = ""  # by what instead of a submission

    def __init__(self, scheduler: Scheduler, place: Path) -> None:
        self.clients = scheduler.clients
        self._scheduler, self._place = scheduler, place

    def submit(self, run_directory: Path, script: str) -> str:
        """Never."""
        raise NotAcceptedError(f"{script} {self._started}", where=str(run_directory))

    def find(self, run_directory: Path) -> str | None:  # noqa: ARG002
        """As of any scheduler."""
        return self._scheduler.find(self._place)

    def state(self, job_id: str, run_directory: Path) -> JobState:  # noqa: ARG002
        """As of any scheduler."""
        return self._scheduler.state(job_id, self._place)

    def states(self, jobs: Mapping[Path, str]) -> dict[Path, JobState]:
        """One after another: several may have one place."""
        return {run: self.state(job_id, run) for run, job_id in jobs.items()}

    def cancel(self, job_id: str) -> None:
        """As of any scheduler."""
        self._scheduler.cancel(job_id)


class InAllocation(Elsewhere):
    """Of such runs: that of the allocation's job, asked through its directory."""

    _started = "is started by the allocation"

    def __init__(self, scheduler: Scheduler, allocation: Path, run: Run) -> None:
        super().__init__(scheduler, allocation)
        self._run = run

    def find(self, run_directory: Path) -> str | None:  # noqa: ARG002
        """The id of the allocation's job, as recorded, or as the scheduler knows it by its directory; None where that
        knows none. Raises NotAcceptedError: the scheduler did not accept it.
        """
        own = Run(self._place)
        record, marker = own.submitted, own.marker
        if record is not None and record.refused:
            raise NotAcceptedError(record.refused, where=str(own.path), fix="fix the cause above; `scale --resume`")
        if record is not None and record.job_id:
            return record.job_id
        return marker.job if marker is not None else self._scheduler.find(own.path)

    def state(self, job_id: str, run_directory: Path) -> JobState:
        """The state of the launch. Raises UnknownStateError where the scheduler does not answer and matters."""
        left = left_by(run_directory)
        if left.marker is not None and left.by_itself:  # whatever becomes of the allocation
            return launch_state(left, JobState("running"))
        return launch_state(left_by(run_directory), self._scheduler.state(job_id, self._place))

    def states(self, jobs: Mapping[Path, str]) -> dict[Path, JobState]:
        """The states of several such runs of this allocation, by one query."""
        job_id = next(filter(None, jobs.values()), "") or self.find(self._place) or ""
        known = self._scheduler.states({self._place: job_id})[self._place]
        return {run: launch_state(left_by(run), known) for run in jobs}

    def cancel(self, job_id: str) -> None:  # noqa: ARG002
        """Ask the allocation's script to end this launch, and no other. Raises UnknownStateError: it cannot be asked,
        because nothing can be written there.
        """
        request = self._run.path / CANCELLED
        if request.exists():  # ``cancel`` writes it with who asks
            return
        try:
            files.write_private(request, "{}\n")
        except OSError as error:
            raise UnknownStateError(
                f"the launch cannot be cancelled: {error.strerror}",
                where=str(request),
                fix="free space there, or cancel the whole study",
            ) from None


class InArray(Elsewhere):
    """Of a run that is a task of an array, known by the task's place there."""

    _started = "is started by the array"

    def __init__(self, scheduler: Scheduler, run: Run, place: Path) -> None:
        super().__init__(scheduler, place)
        self._run = run

    def state(self, job_id: str, run_directory: Path) -> JobState:
        """As of any scheduler."""
        return _of_task(self._run, super().state(job_id, run_directory))


class Together:
    """Runs that are waited for together: while they wait and run, a scheduler is asked for all of them at once, and at
    most every 5 s. Only of one that has ended it is asked alone, once, as that tells more.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = tuple(runs)
        self._asked_s = -math.inf
        self._states: dict[Path, JobState] = {}

    def state(self, run: Run, scheduler: Scheduler, job_id: str) -> JobState:
        """The state of one of them. Raises UnknownStateError: its scheduler does not answer."""
        known = self._states.get(run.path)
        if (known is None or known.phase != "ended") and time.monotonic() - self._asked_s >= _TOGETHER_S:
            asked = [(each, record) for each in self._runs if not each.ended and (record := each.submitted) is not None]
            self._states, self._asked_s = query(asked)[0], time.monotonic()
            known = self._states.get(run.path)
        if known is not None and known.phase in ("pending", "running"):
            return known
        return scheduler.state(job_id, run.path)


def _of_task(run: Run, state: JobState) -> JobState:
    """Of a task that was cancelled while it waited, Slurm keeps nothing (22.05): we know that we cancelled it."""
    has_begun = run.has_marker or bool(run.names_in("ranks"))
    return JobState("ended", "CANCELLED") if state.phase == "unknown" and run.cancelled and not has_begun else state


def left_by(path: Path) -> Left:
    """What the launch with this run directory has left. Reads every rank's record where its script ended well."""
    run = Run(path)
    marker = run.marker
    by_itself = (path / OVER).exists() or (path / CANCELLED).exists()
    if not by_itself and marker is not None and not (marker.exit or marker.why) and (plan := run.plan) is not None:
        ends = (run.records.record(rank, "exit", ExitRecord) for rank in range(plan.tasks))
        by_itself = all(record is not None and record.status == 0 for record in ends)
    return Left(marker, has_begun(run), by_itself)


_Service = tuple[str, str, str, SchedulerRecord | None]
Answers = dict[_Service, tuple[float, dict[Path, JobState]]]


def query(
    runs: Iterable[tuple[Run, Submitted]], answers: Answers | None = None
) -> tuple[dict[Path, JobState], tuple[RunnerError, ...]]:
    """The states by run directory; and the errors of schedulers that gave no answer, whose runs are left out.

    Args:
        answers: what schedulers said and when, from one call to the next: none is asked again within its ``quiet_s``.
    """
    answers = {} if answers is None else answers
    groups: dict[_Service, dict[Path, str]] = {}
    tasks: dict[Path, Run] = {}  # of arrays, by their places
    errors: list[RunnerError] = []
    for run, record in runs:
        try:
            key = (record.scheduler, str(clients_of(run, record) or ""), record.allocation, record.record)
        except UnknownStateError as error:
            errors.append(error)
            continue
        place = Path(record.place) if record.place else run.path
        tasks |= {place: run} if record.place else {}
        groups.setdefault(key, {})[place] = record.job_id
    states: dict[Path, JobState] = {}
    for key, jobs in groups.items():
        name, clients, allocation, of_script = key
        asked_s, known = answers.get(key, (0.0, {}))
        if jobs.keys() <= known.keys() and time.monotonic() - asked_s < quiet_s(name):
            states |= known
            continue
        try:
            scheduler = connect(name, Path(clients) if clients else None)
            if allocation:
                scheduler = InAllocation(scheduler, Path(allocation), Run(next(iter(jobs))))
            elif of_script is not None:
                scheduler = _of_script(scheduler, name, of_script)
            answers[key] = time.monotonic(), scheduler.states(jobs)
            states |= answers[key][1]
        except RunnerError as error:
            errors.append(error)
    for place in tasks.keys() & states.keys():
        states[tasks[place].path] = _of_task(tasks[place], states.pop(place))
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
    is_own = not (record.allocation or record.place)  # else its records name another job, or another id
    job_id = (id_in_records(run) if is_own else "") or scheduler.find(run.path)
    if not job_id:
        raise UnknownStateError(
            "this run's submission was cut off, and it is unknown whether the scheduler accepted it",
            where=str(run.path),
            fix="look for its directory in `squeue --format='%i %Z'`; submit a new run only if no job has it",
        )
    with suppress(OSError):
        run.keep("job.json", msgspec.structs.replace(record, job_id=job_id))
    return scheduler, job_id


def clients_of(run: Run, record: Submitted) -> Path | None:
    """The directory of the scheduler's programs that a run names; None where it names none.

    A run directory of another user, or a copy of one, may name any: of a run that this user did not submit, or that is
    not his any more, only those are run that are root's alone, or of a box of this user's.

    Raises:
        UnknownStateError: the run directory names others.
    """
    clients = Path(record.clients) if record.clients else None
    if clients is None:
        return None
    # The box of a run may have been in a scratch, which is emptied.
    if is_linked(run) and run.owner == os.geteuid() and not ownership.may_be_strangers(clients):
        return clients
    closed = ownership.closed_to_others(clients)
    if closed is not None and (paths.cache_dir() / "boxes").resolve() not in closed.parents:
        closed = ownership.closed_to_others(closed, own=False)
    if closed is not None:
        return closed
    raise UnknownStateError(
        f"you did not submit this run, and the scheduler's programs that it names are not root's alone: {clients}",
        where=str(run.path / "job.json"),
        fix="ask who submitted it; `show`, `logs` and `diff` show what it has left",
    )


def connected(run: Run, record: Submitted) -> Scheduler:
    """The scheduler of a run's job. Raises UnknownStateError: as ``clients_of``."""
    scheduler = connect(record.scheduler, clients_of(run, record))
    if record.place:
        return InArray(scheduler, run, Path(record.place))
    if record.record is not None:
        return _of_script(scheduler, record.scheduler, record.record)
    return InAllocation(scheduler, Path(record.allocation), run) if record.allocation else scheduler


def _of_script(scheduler: Scheduler, name: str, record: SchedulerRecord) -> Scheduler:
    from runner.jobs.scripts import OfScript  # of no use for a run of ours

    # One that keeps no record has no such jobs, and would read what they left in that directory, whosever it is.
    return OfScript(scheduler, Path(record.directory)) if SCHEDULERS[name].records else scheduler


def id_in_records(run: Run) -> str:
    """The job's id from its own records; empty if there are none."""
    marker = run.marker
    if marker is not None:
        return plain_job_id(marker.job or "")
    return next(filter(None, (plain_job_id(start.job_id or "") for start in run.records.starts.values())), "")


def cancel_run(run: Run) -> tuple[str, bool]:
    """Cancel the run's job unless it has ended.

    Returns:
        The job's id, and whether it had already ended, or is unknown.

    Raises:
        RefusedError: the run directory is another user's.
        NotAcceptedError, UnknownStateError: as ``scheduler_of``, or the scheduler did not answer.
    """
    ensure_own(run)
    scheduler, job_id = scheduler_of(run)
    # A job of that id from another directory belongs to another run: its state is unknown here, and it is left alone.
    if scheduler.state(job_id, run.path).phase in ("ended", "unknown"):
        return job_id, True
    cancel(run, scheduler, job_id)
    return job_id, False


def cancel(run: Run, scheduler: Scheduler, job_id: str) -> None:
    """Cancel the run's job; no error if it has already ended. Raises RefusedError: the run directory is another user's.
    UnknownStateError: the scheduler did not answer, or refused, or knows no such job of a directory that this user did
    not submit: its records may name any.
    """
    ensure_own(run)
    if not is_linked(run):
        if (record := run.submitted) is not None:
            # By the directory where it lies, whatever place or allocation its records name.
            scheduler = connect(record.scheduler, clients_of(run, record))
        if scheduler.state(job_id, run.path).phase == "unknown":
            what = f"job {job_id} is not known to be this run's, and is left alone"
            raise UnknownStateError(what, where=str(run.path))
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = f"uid {os.getuid()}"
    with suppress(OSError):  # written before, as the end may come at once; a full disk must not prevent it
        run.write(CANCELLED, Cancelled(user, platform.node(), time.time()))
    scheduler.cancel(job_id)


def ensure_own(run: Run) -> None:
    """Another user could have written any job's id into theirs, or put it in the place of this one. For root, too,
    whose signals reach every process. Raises RefusedError.
    """
    if (owner := run.owner) != os.geteuid():
        raise RefusedError(
            f"this run directory belongs to {owners.user(owner)}, and only its owner acts on its job",
            where=str(run.path),
            fix=f"do it as {owners.user(owner)}, or cancel the job itself with the scheduler's own command",
        )
    if whose := run.exchangeable_by:
        fix = f"cancel the job itself with the scheduler's own command; {ownership.way_out(run.path, whose)}"
        raise RefusedError(f"this directory is {whose}: another could be put there", where=str(run.path), fix=fix)
