"""Schedulers: a pure render from plan and step to a batch script, and thin edges to the scheduler's clients.

``local`` is this machine, with no scheduler at all.

A new scheduler is a folder with two modules, ``client`` with ``connect`` and ``script`` with ``render``, and its row
in ``runner.model.schedulers``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, cast

from runner.core.errors import RefusedError
from runner.model.job import JobState, ListedLaunch
from runner.model.plan import Plan
from runner.model.schedulers import SCHEDULERS, SchedulerName
from runner.model.step import StepSpec


class Scheduler(Protocol):
    """The edges to a scheduler. Every call is bounded in time."""

    @property
    def clients(self) -> Path | None:
        """Where its client programs lie; None for PATH."""

    def submit(self, run_directory: Path, script: str) -> str:
        """Submit ``script`` (a file name) from the run directory, once; returns the job id.

        Raises:
            NotAcceptedError: refused, with the scheduler's message.
            UnknownStateError: it is unknown whether the job was accepted.
        """

    def find(self, run_directory: Path) -> str | None:
        """The id of the job that was submitted from this run directory; None if the scheduler does not know one."""

    def state(self, job_id: str, run_directory: Path) -> JobState:
        """The state of the run's job now. Raises UnknownStateError where the scheduler does not answer."""

    def states(self, jobs: Mapping[Path, str]) -> dict[Path, JobState]:
        """The states of many jobs (run directory -> job id, empty where unknown), by a query or two for all of them.

        Raises UnknownStateError where the scheduler does not answer.
        """

    def cancel(self, job_id: str) -> None:
        """End the job; a job that has ended already is no error."""


class _Client(Protocol):
    def connect(self, clients: Path | None) -> Scheduler: ...


class _Script(Protocol):
    def render(self, plan: Plan, step: StepSpec) -> str: ...


def connect(name: SchedulerName, clients: Path | None = None) -> Scheduler:
    """The scheduler of that name, through the client programs in ``clients`` (None: PATH)."""
    return cast(_Client, _module(name, "client")).connect(clients)


def render(plan: Plan, step: StepSpec) -> str:
    """The plan's whole batch script: a function of plan and step alone.

    Raises:
        UsageError: a value that the shell or the scheduler cannot take; says which.
    """
    return cast(_Script, _module(plan.scheduler, "script")).render(plan, step)


def has_launches(name: SchedulerName) -> bool:
    """Whether the launches of a study can run one after another in one job of this scheduler."""
    return SCHEDULERS[name].one_allocation


def render_launches(plan: Plan, step: StepSpec, launches: Iterable[ListedLaunch]) -> str:
    """The script of a study's one allocation.

    Args:
        plan: of a job as large as the largest launch, whose time limit is that of all of them together.

    Raises:
        RefusedError: this scheduler's jobs cannot have several launches.
        UsageError: a value that the shell or the scheduler cannot take; says which.
    """
    if not has_launches(plan.scheduler):
        raise RefusedError(
            "in one job of PBS the launches of a study cannot run one after another: its mpiexec has no steps of "
            "a size of their own",
            where="--same-nodes",
            fix="leave --same-nodes out: each launch is then a job of its own",
        )
    if plan.scheduler == "slurm":
        from runner.backends.schedulers.slurm import launches as in_slurm

        return in_slurm.render(plan, step, launches)
    from runner.backends.schedulers.launches import on_this_machine

    return on_this_machine(plan, step, launches)


def _module(name: SchedulerName, part: str) -> object:
    return importlib.import_module(f"runner.backends.schedulers.{SCHEDULERS[name].folder}.{part}")
