"""From a plan and its script to a job in the queue."""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner import __version__
from runner.backends.schedulers import Scheduler
from runner.core import files, paths, process
from runner.core.errors import Exit, InfrastructureError, NotAcceptedError, RunnerError, UnknownStateError
from runner.core.files import sha256
from runner.core.invocation import PROGRAM
from runner.jobs import directory, snapshot_copy
from runner.jobs.directory import CODE, CODE_DIFF, COMMAND, JOB, PLAN, PROVENANCE, REQUEST, SCRIPT, Run
from runner.jobs.snapshot_copy import Snapshot
from runner.jobs.states import id_in_records
from runner.model.job import CodeRecord, CommandLine, Provenance, Source, Submitted
from runner.model.plan import Finding, Plan, record_of
from runner.model.request import RequestRecord
from runner.model.step import JobScript


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
    script: JobScript,
    findings: tuple[Finding, ...],
    *,
    root: Path,
    library: Path,
    recipe: Path | None,
    scheduler: Scheduler,
    unconfirmed: tuple[str, ...] = (),
    origin: Origin | None = None,
) -> Run:
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
        run.write(JOB, msgspec.structs.replace(record, refused=error.what))
        raise
    except KeyboardInterrupt:
        raise UnknownStateError(
            "interrupted before the scheduler answered: it may have accepted the job",
            where=str(run.path),
            fix=f"`{PROGRAM} status {run.run_id}` shows whether it did, `{PROGRAM} cancel {run.run_id}` cancels it",
            code=Exit.INTERRUPTED,
        ) from None
    with suppress(OSError):  # the disk may be full by now: the id can be found again by the run's directory
        run.write(JOB, msgspec.structs.replace(record, job_id=job_id))
    return run


def make(
    plan: Plan,
    script: JobScript,
    findings: tuple[Finding, ...],
    *,
    root: Path,
    library: Path,
    recipe: Path | None,
    scheduler: Scheduler,
    unconfirmed: tuple[str, ...] = (),
    origin: Origin | None = None,
    allocation: str = "",
    at: Path | None = None,
) -> tuple[Run, Submitted]:
    """Make the run directory of a job that is not submitted yet, and the record of its submission.

    Args:
        allocation: of a launch in a study's one allocation: the directory of that allocation's own job.
        at: the run directory itself, for a script that is submitted by hand; None for one below ``root``.

    Raises:
        UsageError: the run directory cannot be made, or the recipe cannot be read.
        InfrastructureError: it cannot be filled; it is removed.
    """
    run = (
        directory.create(root, f"{plan.job_name}-{plan.tasks}", time.time()) if at is None else directory.create_at(at)
    )
    record = Submitted(
        scheduler=plan.started_by,
        job_id="",
        clients=str(scheduler.clients or ""),
        script_sha256=sha256(script.text.encode("utf-8", "surrogateescape")),
        submitted_s=time.time(),
        allocation=allocation,
    )
    try:
        directory.copy_program(run, library, recipe)
        run.write(PLAN, record_of(plan, findings))
        run.write(PROVENANCE, _provenance(plan, findings, unconfirmed))
        _write_origin(run, origin or Origin())
        directory.write_script(run.path, script)
        run.write(JOB, record)
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


def _write_origin(run: Run, origin: Origin) -> None:
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


def _submitted(run: Run, scheduler: Scheduler) -> str:
    """The job's id, from the scheduler or, where it does not answer, from the job's own records."""
    try:
        return scheduler.submit(run.path, SCRIPT)
    except UnknownStateError:
        job_id = id_in_records(run)
        if not job_id:
            raise
        return job_id


def _provenance(plan: Plan, findings: tuple[Finding, ...], unconfirmed: tuple[str, ...]) -> Provenance:
    return Provenance(
        runner=__version__,
        source=_source(),
        python=platform.python_version(),
        directory=str(Path.cwd()),
        host=platform.node(),
        scheduler=plan.scheduler,
        runtime=plan.runtime,
        findings=findings,
        unconfirmed=unconfirmed,
    )


def _source() -> Source | None:
    """None outside a checkout."""
    root = paths.source_root()
    if root is None or process.find("git") is None:
        return None
    try:
        head = process.run(("git", "-C", root, "rev-parse", "HEAD"), timeout_s=10, check=False)
        changes = process.run(("git", "-C", root, "status", "--porcelain"), timeout_s=10, check=False)
    except RunnerError:
        return None
    return Source(head.out.strip(), bool(changes.out.strip())) if head.code == 0 else None
