"""A job from its request to a script that is ready, and on to a run: the stages, in their order.

No stage changes the result of an earlier one.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runner.backends.runtimes import common, runtime
from runner.backends.schedulers import Scheduler, connect, render, scheduler_module
from runner.checks.registry import check, refuses, unconfirmed
from runner.core import paths
from runner.core.errors import RefusedError
from runner.core.text import first_of
from runner.model.backends import SCHEDULERS
from runner.model.job import Allocation
from runner.model.plan import Finding, Plan
from runner.model.request import Request
from runner.model.site import Site
from runner.model.step import JobScript
from runner.planning.plan import plan
from runner.planning.shell_text import nothing
from runner.preparation.choices import choose, with_job_ids
from runner.preparation.observation import clients, observe
from runner.preparation.options import words_of
from runner.preparation.program_source import scripts
from runner.preparation.request import check_answers, complete, record_of, refuse_missing_script
from runner.preparation.site import Say, read_user_site, silent
from runner.recipes.loader import library, recipe_or_program

if TYPE_CHECKING:
    from runner.jobs.directory import Run
    from runner.jobs.snapshot_copy import Snapshot
    from runner.jobs.submission import Submission
    from runner.model.job import CodeRecord, CommandLine


_SETTINGS = ("SLURM_HINT", "NCCL_", "UCX_", "FI_", "OMPI_MCA_")  # of a site or a user, for a program's ranks


@dataclass(frozen=True)
class PreparedJob:
    """A planned, checked and rendered job.

    Attributes:
        request: as it was made, without what this shell adds to it.
        recipe_directory: what is copied into the run directory; None for a program without a recipe.
        code_directory: where the user's code is, the program's or the recipe's; None for a shipped recipe.
        site_file: the site as a command takes it: its file or its name.
        snapshot: the tracked files that are copied, and run from there; None where the program runs where it is.
    """

    request: Request
    site: Site
    plan: Plan
    findings: tuple[Finding, ...]
    script: JobScript
    recipe_directory: Path | None
    code_directory: Path | None = None
    snapshot: Snapshot | None = None
    site_file: str = ""

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """Keys of the site's facts that shape this job and are unconfirmed."""
        return unconfirmed(self.plan, self.site)

    @property
    def is_refused(self) -> bool:
        """Whether a check refuses it: it must not be started."""
        return refuses(self.findings)


def prepare(asked: Request, *, say: Say = silent, keep: bool = True) -> PreparedJob:
    """Plan, check and render; opens no image, reaches no network, and a scheduler only for an existing allocation or
    where the request names no site.

    Args:
        say: takes a line about a site that the request does not name.
        keep: such a site, detected for the first time, may be kept in the state directory.

    Raises UsageError, RefusedError: it cannot be planned, or there is no allocation.
    """
    request = complete(asked)
    check_answers(request)
    request, snapshot = _with_snapshot(request)
    user_site = read_user_site(request.site, request, for_job=True, say=say, keep=keep)
    for note in user_site.notes:
        say(note)
    request = user_site.request
    loaded = recipe_or_program(request.recipe, request.program)
    request, asked = (with_job_ids(each, user_site.site) for each in (request, asked))
    choices, image = choose(user_site, request, loaded.recipe)
    if image.note:
        say(image.note)
    allocation = _existing_allocation(choices.site) if request.step else None
    # A step of Slurm's has a clean environment. salloc sets other variables of Slurm by itself.
    swept = [name for name in sorted(os.environ) if name.startswith(_SETTINGS)] if allocation is not None else []
    if swept and SCHEDULERS[choices.site.scheduler].has_srun:
        say(f"not taken from this shell: {first_of(swept, 4)}; --env NAME gives one to the ranks")
    is_shipped = loaded.directory is not None and paths.share("recipes") in loaded.directory.parents
    start = loaded.directory or Path(request.directory)
    planned = plan(
        loaded.recipe,
        choices.site,
        choices.request,
        image.planned,
        image.environment,
        allocation=allocation,
        python=image.python,
        read=nothing if is_shipped else scripts(start, request.mounts),
    )
    if request.step and allocation is None:
        raise _missing_allocation(planned, choices.site)
    chosen = {"nodelist", "exclude"} & dict(request.scheduler_options).keys()
    if allocation is not None and chosen and len(allocation.nodes) > planned.nodes:
        what = "a step takes the first nodes of the allocation that fit, and the allocation has more than it needs"
        raise RefusedError(
            what, where=f"--{min(chosen)}", fix="leave it out, or get an allocation of these nodes alone"
        )
    observed = observe(request, user_site, choices, loaded, image, snapshot, allocation)
    findings = check(planned, choices.site, observed, request.force)
    planned = msgspec.structs.replace(planned, owners=observed.owners)
    script = render(planned, common.staged_step(planned, runtime(planned.runtime)))
    return PreparedJob(
        asked,
        choices.site,
        planned,
        findings,
        script,
        loaded.directory,
        None if is_shipped else loaded.directory or Path(request.directory),
        snapshot,
        user_site.file,
    )


def _existing_allocation(site: Site) -> Allocation | None:
    """The allocation of this shell; None where there is none."""
    facts = SCHEDULERS[site.scheduler]
    if not facts.steps:
        what = f"no job of {facts.title} can be a step of an existing allocation, as jobs of Slurm can"
        raise RefusedError(what, where=f"site {site.name}", fix="use `submit`")
    return scheduler_module(site.scheduler).allocation(clients(site), site)


def _missing_allocation(planned: Plan, site: Site) -> RefusedError:
    """The error where this shell has none; its fix requests one in the shape of the job."""
    directory = clients(site)
    path = f"{shlex.quote(str(directory))}/" if directory is not None else ""
    command = scheduler_module(planned.scheduler).salloc(planned, runtime(planned.runtime).step(planned))
    return RefusedError(
        f"this shell has no allocation: {SCHEDULERS[planned.scheduler].job_variable} is not set",
        where="this shell",
        fix=f"{path}{command}\n"
        "         then run the same command in its shell; or use `submit`, which requests its own allocation",
    )


def _with_snapshot(request: Request) -> tuple[Request, Snapshot | None]:
    """The request with the place in the copy where the program starts; what is copied, None for nothing."""
    if not request.snapshot:
        return request, None
    from runner.jobs.directory import Run
    from runner.preparation.snapshot import copy_again, snapshot_of

    if request.copied is not None and request.program:
        snapshot = copy_again(Run(Path(request.copied)), request.program)
    else:
        snapshot = snapshot_of(request)
    return msgspec.structs.replace(request, copied_start=snapshot.start), snapshot


def code_of(prepared: PreparedJob) -> tuple[CodeRecord | None, str]:
    """The record of the code that a job will run, and what differs from its commit; None for a shipped recipe."""
    from runner.jobs import code_record

    keep_diff = not prepared.request.no_diff
    if prepared.code_directory is None:
        return None, ""
    if prepared.snapshot is not None and prepared.snapshot.first is not None:
        return code_record.recorded(prepared.snapshot.first, with_diff=keep_diff)
    return code_record.code_record(prepared.request.program, prepared.code_directory, with_diff=keep_diff)


def start(
    prepared: PreparedJob, runs: Path | None = None, *, command: CommandLine | None = None, estimate: bool = False
) -> tuple[Run, str]:
    """Submit a prepared job that no check refuses; returns the run and its job's id.

    Args:
        estimate: ask the scheduler, once, when it would start.
        runs: where its run directory is made; None for the request's.
        command: the command line that requested it, for a reader; None for Python.

    Raises UsageError, NotAcceptedError, UnknownStateError: see runner.jobs.submission.
    """
    # a dry run has no use for what starts and watches jobs
    from runner.jobs.states import scheduler_of
    from runner.jobs.submission import submit

    runs = Path(prepared.request.runs) if runs is None else runs
    run = submit(_submission(prepared, runs, command), estimate=estimate)
    return run, scheduler_of(run)[1]


def command_of(prepared: PreparedJob) -> CommandLine:
    """The ``submit`` that asks for a job which no command line has asked for, for a reader."""
    from runner.model.job import CommandLine

    request = prepared.request
    site = "" if request.site else prepared.site_file
    return CommandLine(("submit", *words_of(request)), request.directory, site)


def as_launch(prepared: PreparedJob, plan: Plan) -> PreparedJob:
    """The job as a launch in a study's one allocation, which ``plan`` is for: its script is rendered anew. Raises
    UsageError: a value that the shell cannot take; says which.
    """
    return replace(prepared, plan=plan, script=render(plan, common.staged_step(plan, runtime(plan.runtime))))


def make_launch(
    prepared: PreparedJob, runs: Path, allocation: str = "", place: str = "", *, command: CommandLine | None = None
) -> Run:
    """Make the run directory of a launch, which an allocation's or an array's script will start.

    Args:
        allocation: the directory of the allocation's own job. place: of the array's task.

    Raises UsageError, InfrastructureError: see runner.jobs.submission.make.
    """
    from runner.jobs.submission import make

    return make(_submission(prepared, runs, command), allocation=allocation, place=place)[0]


def write_directory(prepared: PreparedJob, directory: Path, *, command: CommandLine | None = None) -> Run:
    """Make a run directory from which the job's script can be submitted with nothing of ours installed. Raises
    UsageError, InfrastructureError: see runner.jobs.submission.make.
    """
    from runner.jobs.submission import make

    return make(_submission(prepared, directory.parent, command), at=directory)[0]


def scheduler_for(prepared: PreparedJob) -> Scheduler:
    """The scheduler that starts the job."""
    return connect(prepared.plan.started_by, clients(prepared.site))


def _submission(prepared: PreparedJob, runs: Path, command: CommandLine | None) -> Submission:
    """The job with its directory below ``runs``. Raises UsageError where the program's script is not there."""
    from runner.jobs.submission import Submission

    plan, request = prepared.plan, prepared.request
    if prepared.snapshot is None and request.program and prepared.code_directory is not None:
        runs_here = SCHEDULERS[plan.scheduler].nodes == "this-machine"
        refuse_missing_script(request.program, prepared.code_directory, plan.mounts, runs, runs_here=runs_here)
    code, code_diff = code_of(prepared)
    return Submission(
        plan,
        prepared.script,
        prepared.findings,
        root=runs,
        library=library(),
        recipe=prepared.recipe_directory,
        scheduler=scheduler_for(prepared),
        unconfirmed=prepared.unconfirmed,
        command=command,
        request=record_of(request, prepared.site_file),
        code=code,
        code_diff=code_diff,
        snapshot=prepared.snapshot,
    )
