"""Schedulers: a pure render from plan and step to a batch script, and thin edges to the scheduler's clients.

A scheduler is a module, or a folder with such an ``__init__``, that has FACTS, what is known of it, ``connect`` and
``render``; what its facts say that it can do, besides: ``render_launches``, ``allocation`` and ``salloc``,
``render_array`` and ``array_size``. It is here, or in another distribution that offers it by an entry point of the
group ``gpu_runner.schedulers``; no other file names it. ``local`` is this machine, with no scheduler at all.
"""

from __future__ import annotations

import os
import re
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from runner.core import paths, process
from runner.core.errors import NotAcceptedError, RefusedError, RunnerError, UnknownStateError, UsageError
from runner.core.invocation import PROGRAM
from runner.model.backends import SCHEDULERS
from runner.model.job import Allocation, JobState, SchedulerRecord
from runner.model.plan import Plan
from runner.model.site import Site
from runner.model.step import JobScript

if TYPE_CHECKING:
    from runner.model.job import ListedLaunch
    from runner.model.step import StepSpec


class Scheduler(Protocol):
    """The edges to a scheduler. Every call is bounded in time.

    One that can has ``estimate``, too, with the arguments of ``submit``: when such a job would start if it were
    submitted now, Unix time; None where that is not known within seconds.
    """

    @property
    def clients(self) -> Path | None:
        """Where its client programs lie; None for PATH."""

    def submit(self, run_directory: Path, script: str) -> str:
        """Submit ``script`` (a file name) from the run directory, once; returns the job id. Raises NotAcceptedError:
        refused, with the scheduler's message; UnknownStateError: it is unknown whether the job was accepted.
        """

    def find(self, run_directory: Path) -> str | None:
        """The id of the job that was submitted from this run directory; None if the scheduler does not know one. Raises
        UnknownStateError where the scheduler does not answer.
        """

    def state(self, job_id: str, run_directory: Path) -> JobState:
        """The state of the run's job now. Raises UnknownStateError where the scheduler does not answer."""

    def states(self, jobs: Mapping[Path, str]) -> dict[Path, JobState]:
        """The states of many jobs (run directory -> job id, empty where unknown), by a query or two for all of them.

        Raises UnknownStateError where the scheduler does not answer.
        """

    def cancel(self, job_id: str) -> None:
        """End the job; a job that has ended already is no error."""


class SchedulerModule(Protocol):
    """What every scheduler's module offers; from ``render_launches`` on only where its facts say so."""

    def connect(self, clients: Path | None) -> Scheduler:
        """The scheduler, through the client programs in ``clients`` (None: PATH)."""

    def render(self, plan: Plan, step: StepSpec) -> JobScript:
        """The plan's whole batch script: a function of plan and step alone. Raises UsageError: a value that the shell
        or the scheduler cannot take; says which.
        """

    def render_launches(self, plan: Plan, step: StepSpec, launches: Iterable[ListedLaunch]) -> JobScript:
        """The script of a job that runs a study's launches one after another."""

    def allocation(self, clients: Path | None, site: Site) -> Allocation | None:
        """The allocation of this shell; None where there is none. Raises RefusedError: it has ended, or has not begun;
        UnknownStateError: the scheduler does not answer.
        """

    def salloc(self, plan: Plan, step: StepSpec) -> str:
        """The command line for a shell that holds an allocation for the plan."""

    def beside(
        self, clients: Path | None, job_id: str, node: str, words: Sequence[str], *, plan: Plan | None, terminal: bool
    ) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """What runs ``words`` on a node of a running job (empty: its first), beside its own programs, and the whole
        environment of that; with ``terminal`` they get that of this shell. ``plan``: None of a job that is not ours.
        """

    def render_array(self, plan: Plan, step: StepSpec, tasks: int, at_once: int | None) -> JobScript:
        """The script of an array job, which is submitted from a directory with a link to a run directory for each of
        its tasks, named by its number from 1: the task runs the script there. Its job is known by that link.

        Args:
            plan: of any of the runs: nothing of it but how the job is requested is in the script.
            at_once: how many tasks may run at one time; None for any number.
        """

    def array_size(self, clients: Path | None) -> int:
        """How many tasks, numbered from 1, an array may have; 0 for no arrays. Raises as ``Scheduler.state``."""

    def record(self, clients: Path | None, job_id: str) -> SchedulerRecord | None:
        """What the scheduler knows of a job of this user; None where it knows none. Raises RefusedError: it is another
        user's; UnknownStateError: the scheduler does not answer.
        """

    def submit_script(self, clients: Path | None, script: str, arguments: Sequence[str]) -> str:
        """Submit a file as it is, from the working directory and with this shell's environment; returns the job id.
        Raises NotAcceptedError, UnknownStateError.
        """


def scheduler_module(name: str) -> SchedulerModule:
    """The module of that name. Raises UsageError where there is none."""
    return cast(SchedulerModule, SCHEDULERS.module(name))


def connect(name: str, clients: Path | None = None) -> Scheduler:
    """The scheduler of that name. Raises UsageError where there is none."""
    return scheduler_module(name).connect(clients)


def render(plan: Plan, step: StepSpec) -> JobScript:
    """See SchedulerModule."""
    return scheduler_module(plan.scheduler).render(plan, step)


def render_launches(plan: Plan, step: StepSpec, launches: Iterable[ListedLaunch]) -> JobScript:
    """The script of a study's one allocation.

    Args:
        plan: of a job as large as the largest launch, whose time limit is that of all of them together.

    Raises:
        RefusedError: this scheduler's jobs cannot have several launches.
        UsageError: a value that the shell or the scheduler cannot take; says which.
    """
    facts = SCHEDULERS[plan.scheduler]
    if not facts.launches:
        why = f": {facts.without_launches}" if facts.without_launches else ""
        raise RefusedError(
            f"in one job of {facts.title} the launches of a study cannot run one after another{why}",
            where="--same-nodes",
            fix="leave --same-nodes out: each launch is then a job of its own",
        )
    return scheduler_module(plan.scheduler).render_launches(plan, step, launches)


def check_options(render: Callable[[str, str], str], **sections: Mapping[str, str]) -> None:
    """Raises UsageError, whose ``where`` is the key, for an option of a site file that no directive can have."""
    for section, options in sections.items():
        for option, value in options.items():
            try:
                render(option, value)
            except UsageError as error:
                raise UsageError(error.what, where=f"{section}.{option}", fix=error.fix) from None


def beside_by_ssh(
    _clients: Path | None, _job_id: str, node: str, words: Sequence[str], *, plan: Plan | None, terminal: bool
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """``beside`` where the user's own ssh reaches the nodes of a job. csh takes no line break between quotes."""
    config = plan.hosts.config if plan is not None and plan.hosts is not None else ""
    coded = b64encode(os.fsencode(shlex.join(words))).decode()
    remote = f"exec bash -c 'eval \"exec $(base64 --decode <<<$0)\"' {coded}"
    return ("ssh", *paths.with_ssh_config(config), "-t" if terminal else "-T", "--", node, remote), os.environ


TIMEOUT_S = 60.0
_LISTING_S = 15.0  # of nodes
QUIET_S = 30.0  # between two queries of a scheduler that serves many users, while nothing of a run has changed


def quiet_s(name: str) -> float:
    """How long the scheduler of that name is left alone between two queries; 0 for processes of ours."""
    return QUIET_S if SCHEDULERS[name].nodes == "allocated" else 0.0


def call_client(
    scheduler: str,
    clients: Path | None,
    program: str,
    *options: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> process.Completed:
    """Run ``program`` from ``clients`` (None: PATH); any exit code is returned.

    Args:
        scheduler: its name, for messages.
        env: the whole environment; None is ours.

    Raises:
        NotAcceptedError: there is no such program.
        CommandTimeoutError: it did not answer within ``timeout_s``, or TIMEOUT_S.
    """
    path = str(clients / program) if clients else program
    try:
        return process.run((path, *options), timeout_s=timeout_s or TIMEOUT_S, cwd=cwd, env=env, check=False)
    except process.CommandNotFoundError as error:
        raise NotAcceptedError(
            f"{program} was not found: this machine has no {scheduler} client",
            where="PATH",
            fix=f"submit from a login node; or use `--site box` after `{PROGRAM} box up`",
        ) from error


def are_nodes_this_machine(name: str, clients: Path | None, env: Mapping[str, str] | None = None) -> bool:
    """Whether all nodes that a scheduler lists are this machine; False where it lists none, or does not answer."""
    listed = ""
    if lists := SCHEDULERS[name].lists_nodes:
        with suppress(RunnerError):
            listed = call_client(SCHEDULERS[name].title, clients, *lists, env=env, timeout_s=_LISTING_S).out
    return paths.are_this_machine(re.findall(r"^([\w.-]+)[ \t]*(?:\||$)", listed, re.MULTILINE))


def no_answer(scheduler: str, done: process.Completed) -> UnknownStateError:
    """The error for a scheduler that gives no answer, or none that can be understood."""
    return UnknownStateError(
        f"{scheduler} does not answer: {done.last_lines(2)}",
        where=" ".join(done.argv),
        fix="this does not affect the job; try again later",
    )
