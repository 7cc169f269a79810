"""What a scheduler knows of a job."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.model.schedulers import SchedulerName

Phase = Literal["pending", "running", "ended", "unknown"]


class JobState(msgspec.Struct, frozen=True):
    """One answer of a scheduler about one job.

    Attributes:
        phase: what it means for waiting; ``unknown`` where the scheduler does not know the job (any more).
        name: the state's name as the scheduler gives it (``COMPLETED``, ``NODE_FAIL``); empty where unknown.
        reason: the scheduler's reason (why it pends, why it failed).
        nodes: the node list in the scheduler's notation.
        exit_code: of the batch script, where the scheduler says.
        allocated: what the job got, in the scheduler's notation (``cpu=8,gres/gpu:a100=4``); empty where unknown.
    """

    phase: Phase
    name: str = ""
    reason: str = ""
    nodes: str = ""
    exit_code: int | None = None
    allocated: str = ""


class Submitted(msgspec.Struct, frozen=True):
    """The record of a submission (``job.json``): enough to find the job again from any process.

    Attributes:
        job_id: empty until the scheduler has answered.
        refused: the scheduler's message where it did not accept the job.
        clients: directory of the scheduler's client programs; empty for PATH.
        script_sha256: of ``job.sh``, as submitted.
        submitted_s: Unix time.
        allocation: of a launch in a study's one allocation: the directory of that allocation's own job, whose job this
            is; empty for a job of its own.
    """

    scheduler: SchedulerName
    job_id: str
    clients: str
    script_sha256: str
    submitted_s: float
    refused: str = ""
    allocation: str = ""


class Cancelled(msgspec.Struct, frozen=True):
    """Who cancelled the job through this program (``cancelled.json``).

    Attributes:
        user: login name; host: where.
        time_s: Unix time.
    """

    user: str
    host: str
    time_s: float


class ExitMarker(msgspec.Struct, frozen=True):
    """What the batch script leaves when it ends (``exit.json``).

    Attributes:
        exit: the step's exit code; end_s: Unix time.
        why: what ended it (``TIMEOUT``, ``CANCELLED``, ``FAILED``), where only the script knows.
    """

    job: str
    exit: int
    end_s: float
    why: str = ""
