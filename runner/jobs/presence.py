"""Which records of a run are there, and whether one that is missing could still change the verdict.

A network file system shows a new file late (NFS: up to ``acdirmax``, 60 s), so its absence is believed only after a
while. What a directory's listing shows proves that what was written into it before is there, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runner.core import file_system
from runner.jobs.run import EXIT, RESULT, Run
from runner.model.job import JobState
from runner.model.plan import RESULTS, Plan

# How long a record that is not there is waited for: not at all; until a listing that was made anew shows that it is
# not there; as long as a file system may hide it.
Patience = Literal["none", "short", "full"]

_NCCL_LOGS = f"{RESULTS}/nccl/"


@dataclass(frozen=True)
class Presence:
    """What is there, by one listing of each directory.

    Attributes:
        marker: the batch script's exit marker.
        result: the program's result.
        starts, exits, reports: ranks with that record.
    """

    marker: bool
    result: bool
    starts: frozenset[int]
    exits: frozenset[int]
    reports: frozenset[int]


def presence(run: Run) -> Presence:
    """What is there now: two listings, whatever the number of ranks.

    Raises:
        OSError: the run directory cannot be listed.
    """
    # The records come before the marker: once that is seen, they are.
    above = file_system.names_in(run.path)
    ranks = run.records.listing()
    return Presence(
        marker=EXIT in above,
        result=RESULT in above,
        starts=frozenset(ranks.get("start", ())),
        exits=frozenset(ranks.get("exit", ())),
        reports=frozenset(ranks.get("report", ())),
    )


def patience(run: Run, there: Presence, state: JobState, plan: Plan) -> Patience:
    """How long to wait for what is not there and could change the verdict on a job that has ended so.

    A report and a node's record are written before their rank's exit record, into the same directory, and the result
    before the marker: where the later one is listed, the absence of the earlier one is no delay.
    """
    from runner.diagnosis.catalogue import find  # of no use while a job runs

    explained = find("scheduler state", state.name, state.reason)
    if explained is not None and explained.outcome not in ("failed", "cancelled"):
        return "none"  # whatever the ranks left
    if explained is not None and state.phase == "ended" and not (state.nodes or there.starts or there.marker):
        return "none"  # it never had a node
    if explained is None and not there.marker:
        return "full"
    ranks = range(plan.tasks)
    if not (there.starts.issuperset(ranks) and there.exits.issuperset(ranks)):
        return "short" if _never_began(run, there, plan) else "full"
    return "short" if _lacks_nccl_logs(run, there, plan) else "none"


def refresh(run: Run) -> bool:
    """Make this machine list the run's records anew: a change of its own makes the client of a network file system
    drop what it keeps of a directory (NFS by the change attribute, sshfs always). False where nothing can be written.
    """
    return all(file_system.touch_directory(folder) for folder in (run.path, run.ranks, run.path / "nccl"))


def _never_began(run: Run, there: Presence, plan: Plan) -> bool:
    """Whether the job's step ended without any rank, and the container runtime says why: none can have left more."""
    if there.starts or there.exits or not there.marker:
        return False
    from runner.jobs.collect import container_faults  # of no use while a job runs

    return any(container_faults(run, plan, there.starts))


def _lacks_nccl_logs(run: Run, there: Presence, plan: Plan) -> bool:
    """Whether ranks of which a figure is claimed should have left logs of NCCL, and have not all."""
    claims = plan.result == "throughput" or (plan.result == "if-left" and there.result)
    if not claims or plan.device != "cuda" or plan.tasks == 1:
        return False
    if not dict(plan.env).get("NCCL_DEBUG_FILE", "").startswith(_NCCL_LOGS):
        return False
    logs = (name for name in file_system.names_in(run.path / "nccl") if name.endswith(".log"))
    return sum(1 for _ in logs) < plan.tasks
