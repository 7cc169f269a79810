"""Cancel a run's job, and record who did: many schedulers do not."""

from __future__ import annotations

import getpass
import os
import platform
import time
from contextlib import suppress

from runner.backends.schedulers import Scheduler
from runner.core.errors import RefusedError
from runner.images.store import owners
from runner.jobs.run import Run
from runner.jobs.states import scheduler_of
from runner.model.job import Cancelled


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
