"""Ask for a job's end, and leave word of who asked: many schedulers keep no account of it."""

from __future__ import annotations

import getpass
import os
import platform
import time
from contextlib import suppress

from runner.jobs.directory import RunDirectory
from runner.model.job import Cancelled
from runner.schedulers import Scheduler


def cancel(run: RunDirectory, scheduler: Scheduler, job_id: str) -> None:
    """Cancel the run's job; one that has ended already is no error.

    Raises:
        UnknownStateError: the scheduler did not answer, or refused.
    """
    with suppress(OSError):  # before, as the end may come at once; a full disk keeps nobody from cancelling
        run.write("cancelled.json", Cancelled(_user(), platform.node(), time.time()))
    scheduler.cancel(job_id)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return f"uid {os.getuid()}"
