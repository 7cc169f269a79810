"""From a plan and its script to a job in the queue."""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from runner import __version__
from runner.backends.schedulers import Scheduler, connect
from runner.core import file_system, files, paths, process
from runner.core.errors import Exit, InfrastructureError, NotAcceptedError, RunnerError, UnknownStateError
from runner.core.files import sha256
from runner.core.invocation import PROGRAM
from runner.jobs import directory, snapshot_copy
from runner.jobs.directory import CODE, CODE_DIFF, COMMAND, REQUEST, SCRIPT, RunDirectory
from runner.jobs.in_allocation import InAllocation
from runner.jobs.snapshot_copy import Snapshot
from runner.model.job import ExitMarker, Submitted
from runner.model.origin import CodeRecord, CommandLine
from runner.model.plan import Finding, Plan, record_of
from runner.model.records import StartRecord
from runner.model.request import RequestRecord


@dataclass(frozen=True)
class Origin:
    """Where a run comes from.

    Attributes:
        command: the command line, for a reader; None where there was none. request: what it asked for.
        code: the user's code; None for a shipped recipe. code_diff: what differs from its commit, without secrets.
        snapshot: tracked files to copy into the run directory; None for none.
    """

    command: CommandLine | None = None
    code: CodeRecord | None = None
    code_diff: str = ""
    snapshot: Snapshot | None = None
    request: RequestRecord | None = None


def submit(
    plan: Plan,
    script: str,
    findings: tuple[Finding, ...],
    *,
    root: Path,
    library: Path,
    recipe: Path | None,
    scheduler: Scheduler,
    unconfirmed: tuple[str, ...] = (),
    origin: Origin | None = None,
) -> RunDirectory:
    """Make the run directory and submit its script.

    The intent is on disk before the scheduler is called, so a submission that is cut off can be found again.

    Args:
        unconfirmed: keys of the site's facts that the job uses and are unconfirmed, for its provenance.

    Raises:
        UsageError: the run directory cannot be made, or the recipe cannot be read.
        InfrastructureError: the run directory cannot be filled; it is removed.
        NotAcceptedError, UnknownStateError: from the scheduler; the run directory stays and records it. The latter
            also, with code INTERRUPTED, where Ctrl-C came before the scheduler's answer.
    """
    run, record = make(
        plan,
        script,
        findings,
        root=root,
        library=library,
        recipe=recipe,
        scheduler=scheduler,
        unconfirmed=unconfirmed,
        origin=origin,
    )
    try:
        job_id = _submitted(run, scheduler)
    except NotAcceptedError as error:
        run.write("job.json", msgspec.structs.replace(record, refused=error.what))
        raise
    except KeyboardInterrupt:
        raise UnknownStateError(
            "interrupted before the scheduler answered: it may have accepted the job",
            where=str(run.path),
            fix=f"`{PROGRAM} status {run.run_id}` shows whether it did, `{PROGRAM} cancel {run.run_id}` cancels it",
            code=Exit.INTERRUPTED,
        ) from None
    with suppress(OSError):  # the disk may be full by now: the id can be found again by the run's directory
        run.write("job.json", msgspec.structs.replace(record, job_id=job_id))
    return run


def make(
    plan: Plan,
    script: str,
    findings: tuple[Finding, ...],
    *,
    root: Path,
    library: Path,
    recipe: Path | None,
    scheduler: Scheduler,
    unconfirmed: tuple[str, ...] = (),
    origin: Origin | None = None,
    allocation: str = "",
) -> tuple[RunDirectory, Submitted]:
    """Make the run directory of a job that is not submitted yet, and the record of its submission.

    Args:
        allocation: of a launch in a study's one allocation: the directory of that allocation's own job.

    Raises:
        UsageError: the run directory cannot be made, or the recipe cannot be read.
        InfrastructureError: it cannot be filled; it is removed.
    """
    run = directory.create(root, f"{plan.job_name}-{plan.tasks}", time.time())
    record = Submitted(
        scheduler=plan.started_by,
        job_id="",
        clients=str(scheduler.clients or ""),
        script_sha256=sha256(script.encode("utf-8", "surrogateescape")),
        submitted_s=time.time(),
        allocation=allocation,
    )
    try:
        directory.copy_program(run, library, recipe)
        run.write("plan.json", record_of(plan, findings))
        run.write("provenance.json", _provenance(plan, findings, unconfirmed))
        _write_origin(run, origin or Origin())
        files.write_private(run.path / SCRIPT, script)
        run.write("job.json", record)
    except OSError as error:
        directory.discard(run)
        raise InfrastructureError(
            f"the run directory cannot be filled: {error.strerror or error}",
            where=str(run.path),
            fix="free space there, or use --runs with another directory that every node sees; nothing was submitted",
        ) from None
    except BaseException:
        directory.discard(run)
        raise
    return run, record


def _write_origin(run: RunDirectory, origin: Origin) -> None:
    if origin.command is not None:
        run.write(COMMAND, origin.command)
    if origin.request is not None:
        run.write(REQUEST, origin.request)
    if origin.code is not None:
        run.write(CODE, origin.code)
    if origin.code_diff:
        files.write_private(run.path / CODE_DIFF, origin.code_diff)
    if origin.snapshot is not None:
        snapshot_copy.copy(origin.snapshot, run)


def _submitted(run: RunDirectory, scheduler: Scheduler) -> str:
    """The job's id, from the scheduler or, where it does not answer, from the job's own records."""
    try:
        return scheduler.submit(run.path, SCRIPT)
    except UnknownStateError:
        job_id = _id_in_records(run)
        if not job_id:
            raise
        return job_id


def scheduler_of(run: RunDirectory) -> tuple[Scheduler, str]:
    """The scheduler and the id of a run's job.

    If the submission was cut off before the id was written, it comes from the job's own records, or from the queue.

    Raises:
        NotAcceptedError: the scheduler did not accept the job.
        UnknownStateError: it is unknown whether it did; or its client programs are named by a run directory from
            elsewhere, and another user may have put them there.
    """
    record = run.read("job.json", Submitted)
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
    job_id = ("" if record.allocation else _id_in_records(run)) or scheduler.find(run.path)
    if not job_id:
        raise UnknownStateError(
            "this run's submission was cut off, and it is unknown whether the scheduler accepted it",
            where=str(run.path),
            fix="look for its directory in `squeue --format='%i %Z'`; submit a new run only if no job has it",
        )
    with suppress(OSError):
        run.write("job.json", msgspec.structs.replace(record, job_id=job_id))
    return scheduler, job_id


def connected(run: RunDirectory, record: Submitted) -> Scheduler:
    """The scheduler of a run's job. Raises UnknownStateError as ``scheduler_of``."""
    scheduler = connect(record.scheduler, _clients_of(run, record))
    return InAllocation(scheduler, Path(record.allocation), run) if record.allocation else scheduler


def _clients_of(run: RunDirectory, record: Submitted) -> Path | None:
    """Where the client programs of the run's scheduler are; None for PATH.

    A run directory of another user, or a copy of one, may name any programs: of a run that this user did not submit
    only those are run that no other user can change.
    """
    if not record.clients:
        return None
    clients = Path(record.clients)
    if directory.is_linked(run) or file_system.is_closed_to_others(clients):
        return clients
    raise UnknownStateError(
        f"you did not submit this run, and another user may change the scheduler's programs that it names: {clients}",
        where=str(run.path / "job.json"),
        fix="ask who submitted it; `show`, `logs` and `diff` show what it has left",
    )


def _id_in_records(run: RunDirectory) -> str:
    """The job's id from its own records; empty if there are none."""
    marker = run.read("exit.json", ExitMarker)
    if marker is not None:
        return marker.job
    for path in sorted(run.ranks.glob("*.start.json")):
        start = run.read(f"ranks/{path.name}", StartRecord)
        if start is not None and start.job_id:
            return start.job_id
    return ""


def _provenance(plan: Plan, findings: tuple[Finding, ...], unconfirmed: tuple[str, ...]) -> dict[str, Any]:
    """What a later reader needs to know about the origin of this run, besides its command line and its code. No
    environment: it may hold secrets, and the plan has its result.
    """
    return {
        "runner": __version__,
        "source": _source(),
        "python": platform.python_version(),
        "directory": str(Path.cwd()),
        "host": platform.node(),
        "scheduler": plan.scheduler,
        "runtime": plan.runtime,
        "findings": [msgspec.to_builtins(finding) for finding in findings],
        "unconfirmed": list(unconfirmed),
    }


def _source() -> dict[str, Any] | None:
    """Commit of the checkout, and whether it had changes; None outside a checkout."""
    root = paths.source_root()
    if root is None or process.find("git") is None:
        return None
    try:
        head = process.run(("git", "-C", root, "rev-parse", "HEAD"), timeout_s=10, check=False)
        changes = process.run(("git", "-C", root, "status", "--porcelain"), timeout_s=10, check=False)
    except RunnerError:
        return None
    return {"commit": head.out.strip(), "dirty": bool(changes.out.strip())} if head.code == 0 else None
