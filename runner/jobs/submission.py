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
from runner.core import files
from runner.core.checkout import commit_and_changes
from runner.core.errors import Exit, InfrastructureError, NotAcceptedError, UnknownStateError
from runner.core.invocation import PROGRAM
from runner.jobs import creation, snapshot_copy
from runner.jobs.directory import CODE, CODE_DIFF, COMMAND, JOB, PLAN, PROVENANCE, REQUEST, SCRIPT, Run
from runner.jobs.snapshot_copy import Snapshot
from runner.jobs.states import id_in_records
from runner.model.job import CodeRecord, CommandLine, Provenance, Source, Submitted
from runner.model.plan import Finding, Plan, record_of
from runner.model.request import RequestRecord
from runner.model.step import JobScript


@dataclass(frozen=True)
class Submission:
    """A job that is ready to be submitted.

    Attributes:
        root: where its run directory is made. library: the launcher. recipe: the recipe's directory; None for none.
        unconfirmed: keys of the site's facts that the job uses and are unconfirmed, for its provenance.
        command: the command line, for a reader; None where there was none. request: what it asked for.
        code: the user's code; None for a shipped recipe. code_diff: what differs from its commit, without secrets.
        snapshot: tracked files to copy into the run directory; None for none.
    """

    plan: Plan
    script: JobScript
    findings: tuple[Finding, ...]
    root: Path
    library: Path
    recipe: Path | None
    scheduler: Scheduler
    unconfirmed: tuple[str, ...] = ()
    command: CommandLine | None = None
    request: RequestRecord | None = None
    code: CodeRecord | None = None
    code_diff: str = ""
    snapshot: Snapshot | None = None


def submit(job: Submission, *, estimate: bool = False) -> Run:
    """Make the run directory and submit its script; ``estimate``: first ask the scheduler when such a job would start.

    The intent is on disk before the scheduler is called, so a submission that is cut off can be found again.

    Raises:
        UsageError, InfrastructureError: as ``make``.
        NotAcceptedError, UnknownStateError: from the scheduler; the run directory stays and records it. The latter
            also, with code INTERRUPTED, where Ctrl-C came before the scheduler's answer.
    """
    run, record = make(job)
    try:
        try:
            if estimate and (ask := getattr(job.scheduler, "estimate", None)) is not None:
                record = msgspec.structs.replace(record, estimated_s=ask(run.path, SCRIPT))
            job_id = job.scheduler.submit(run.path, SCRIPT)
        except UnknownStateError:  # the job's own records may tell
            if not (job_id := id_in_records(run)):
                raise
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


def make(job: Submission, *, allocation: str = "", place: str = "", at: Path | None = None) -> tuple[Run, Submitted]:
    """Make the run directory of a job that is not submitted yet, and the record of its submission.

    Args:
        allocation: of a launch in a study's one allocation: the directory of that allocation's own job.
        place: of a task of an array: the path by which the scheduler will know it.
        at: the run directory itself, for a script that is submitted by hand; None for one below ``root``.

    Raises:
        UsageError: the run directory cannot be made, or the recipe cannot be read.
        InfrastructureError: it cannot be filled; it is removed.
    """
    run = creation.create(job.root, f"{job.plan.job_name}-{job.plan.tasks}", time.time(), at)
    record = Submitted(
        scheduler=job.plan.started_by,
        job_id="",
        clients=str(job.scheduler.clients or ""),
        script_sha256=files.sha256(job.script.text.encode("utf-8", "surrogateescape")),
        submitted_s=time.time(),
        allocation=allocation,
        place=place,
        by_attempt=job.plan.attempt > 1,
    )
    documents = {
        PLAN: record_of(job.plan, job.findings),
        PROVENANCE: Provenance(
            runner=__version__,
            source=_source(),
            python=platform.python_version(),
            directory=str(Path.cwd()),
            host=platform.node(),
            scheduler=job.plan.scheduler,
            runtime=job.plan.runtime,
            findings=job.findings,
            unconfirmed=job.unconfirmed,
        ),
        COMMAND: job.command,
        REQUEST: job.request,
        CODE: job.code,
    }
    try:
        creation.copy_program(run, job.library, job.recipe)
        for name, document in documents.items():
            if document is not None:
                run.write(name, document)
        if job.code_diff:
            files.write_private(run.path / CODE_DIFF, job.code_diff)
        if job.snapshot is not None:
            snapshot_copy.copy(job.snapshot, run)
        creation.write_script(run.path, job.script)
        run.write(JOB, record)
    except OSError as error:
        creation.discard(run)
        raise InfrastructureError(
            f"the run directory cannot be filled: {error.strerror or error}",
            where=str(run.path),
            fix="free space there, or use --runs with another directory that every node sees; nothing was submitted",
        ) from None
    except BaseException:
        creation.discard(run)
        raise
    return run, record


def _source() -> Source | None:
    """None outside a checkout."""
    known = commit_and_changes()
    return Source(known[0], bool(known[1])) if known else None
