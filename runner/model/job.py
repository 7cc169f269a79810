"""An existing allocation, as its scheduler describes it; and what the script of a study's allocation runs."""

from __future__ import annotations

from typing import Literal

import msgspec


class AllocatedNode(msgspec.Struct, frozen=True):
    """What the allocation has of one node: schedulable CPUs, and GPUs."""

    name: str
    cpus: int
    gpus: int


class Allocation(msgspec.Struct, frozen=True):
    """One existing allocation.

    Attributes:
        nodes: in the scheduler's order.
        in_step: this process runs in one of its steps, which already uses the resources.
    """

    job_id: str
    nodes: tuple[AllocatedNode, ...]
    in_step: bool = False


class ListedLaunch(msgspec.Struct, frozen=True):
    """A launch in the script of a study's allocation.

    Attributes:
        directory: of its run, absolute.
        needs_s: it is begun only where so many seconds are left.
        first_node, nodes: which of the allocation's nodes it has.
        with_next: the next one in the list, which is on other nodes, runs at the same time.
    """

    directory: str
    needs_s: int
    first_node: int = 0
    nodes: int = 1
    with_next: bool = False


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

    scheduler: str
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
