"""A program beside those of a running job: on a node of it, in their container and with their environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from runner.backends.schedulers import scheduler_module
from runner.backends.schedulers.script_parts import SHELL
from runner.core import ownership
from runner.core.errors import RefusedError, UsageError
from runner.core.invocation import PROGRAM
from runner.jobs.directory import Run, is_linked
from runner.jobs.states import clients_of, ensure_own, scheduler_of
from runner.model.backends import SCHEDULERS
from runner.model.plan import Plan
from runner.model.records import ExitRecord

_NODE = re.compile(r"[A-Za-z0-9][\w.:@-]*\Z", re.ASCII)  # what becomes a word of ssh's configuration


@dataclass(frozen=True)
class Place:
    """Where something can be run beside a rank.

    Attributes:
        own: two variables, NAME=VALUE, that the job's processes there have and no others.
    """

    scheduler: str
    clients: Path | None
    job_id: str
    node: str
    own: tuple[str, str]
    plan: Plan | None

    def entering(self, program: Sequence[str]) -> tuple[str, ...]:
        """What runs the program, on that node, in the container and with the environment of the job."""
        return ("/bin/bash", "-p", "-c", (SHELL / "beside.sh").read_text(), "beside", *self.own, *program)

    def step(self, words: Sequence[str], *, terminal: bool) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """What runs these words on that node, as they are, and its whole environment."""
        module = scheduler_module(self.scheduler)
        return module.beside(self.clients, self.job_id, self.node, words, plan=self.plan, terminal=terminal)


def beside(
    run: Run, program: Sequence[str], *, rank: int = 0, terminal: bool
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """What runs ``program`` beside a rank, and its whole environment. Raises as ``place_beside``."""
    place = place_beside(run, rank)
    return place.step(place.entering(program), terminal=terminal)


def place_beside(run: Run, rank: int = 0) -> Place:
    """The place beside a rank. Of a job that is not ours the rank is not known: beside what runs on its first node.

    Raises:
        UsageError: the run does not run, or has no such rank.
        RefusedError: its scheduler cannot, or it is another user's.
        NotAcceptedError, UnknownStateError: as ``scheduler_of``, or the scheduler does not answer.
    """
    ensure_own(run)
    scheduler, job_id = scheduler_of(run)
    state, record, plan = scheduler.state(job_id, run.path), run.records.start(rank), run.plan
    is_over = state.phase == "ended" or run.records.record(rank, "exit", ExitRecord) is not None
    if is_over or state.phase != "running" or (plan is not None and record is None):
        if 0 < (run.tasks or rank + 1) <= rank:
            raise UsageError(f"{run.run_id} has ranks 0 to {run.tasks - 1}", where=f"--rank {rank}", fix="name another")
        what = "it has ended" if state.phase == "ended" else f"rank {rank} has {'ended' if is_over else 'not started'}"
        raise UsageError(f"nothing can be run beside {run.run_id}: {what}", fix=f"`{PROGRAM} status {run.run_id}`")
    submitted = run.submitted
    assert submitted is not None, "it has a scheduler"
    name, clients = submitted.scheduler, clients_of(run, submitted)
    if plan is not None and plan.existing_allocation is not None:
        name, job_id = plan.scheduler, plan.existing_allocation.job_id
    elif submitted.allocation:
        job_id = scheduler_of(Run(Path(submitted.allocation)))[1]
    facts = SCHEDULERS[name]
    if not facts.beside:
        raise RefusedError(f"{facts.title} starts nothing beside a job", where=run.run_id, fix="use ssh, if it may")
    hosts = plan.hosts if plan is not None else None
    if plan is not None and hosts is not None and hosts.config and not is_linked(run):  # which may run any program
        if (closed := ownership.closed_to_others(Path(hosts.config), own=False)) is None:
            what = "you did not submit this run, and another user may change the configuration of ssh that it names"
            raise RefusedError(what, where=hosts.config, fix="use ssh itself")
        plan = replace(plan, hosts=replace(hosts, config=str(closed)))
    own = (f"{facts.job_variable}={job_id}",) * 2
    if record is not None:
        own = (f"RUNNER_TOKEN={record.token}", f"RUNNER_RANK={rank}")
    node = "" if record is None else record.node_name or record.host
    if record is not None and not _NODE.match(node):
        raise RefusedError(f"its rank {rank} recorded no node's name", where=run.run_id, fix="use ssh itself")
    return Place(name, clients, job_id, node, own, plan)
