"""A job from its options to a script that is ready, and on to a run: the stages, in their order.

    prepare()                                     start()
      1  file systems   that they answer            11  code       its commit and changes
      2  snapshot       which files to copy         12  clients    where the scheduler's are
      3  site           with the user's values      13  submit     a run directory, and the job
      4  recipe         or the user's program
      5  choices        runtime, environment
      6  image          pinned, or the environment
      7  allocation     for a step of one
      8  plan           pure; final
      9  findings       observation, then checks
     10  script         a function of the plan

No stage changes the result of an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runner.backends.runtimes import runtime, staging
from runner.backends.schedulers import Scheduler, connect, render
from runner.checks.registry import check, refuses
from runner.checks.unconfirmed import unconfirmed
from runner.core import paths, process
from runner.model.plan import Finding, Plan
from runner.model.schedulers import SCHEDULERS
from runner.model.script import JobScript
from runner.model.site import Site
from runner.planning.plan import plan
from runner.preparation.allocation import existing_allocation, missing_allocation
from runner.preparation.choices import choose_all
from runner.preparation.clients import clients
from runner.preparation.file_systems import check_answers, refuse_missing_script
from runner.preparation.image import find_image
from runner.preparation.observation import observe
from runner.preparation.request import JobOptions
from runner.preparation.site import read_user_site
from runner.preparation.site_choice import Say, silent
from runner.recipes.loader import library, recipe_or_program

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory
    from runner.jobs.snapshot_copy import Snapshot
    from runner.jobs.submission import Origin
    from runner.model.origin import CodeRecord, CommandLine


@dataclass(frozen=True)
class PreparedJob:
    """A planned, checked and rendered job.

    Attributes:
        recipe_directory: what is copied into the run directory; None for a program without a recipe.
        program: the user's program and its arguments; empty for a recipe.
        code_directory: where the user's code is, the program's or the recipe's; None for a shipped recipe.
        site_file: the site as a command takes it: its file or its name.
        snapshot: the tracked files that are copied, and run from there; None where the program runs where it is.
    """

    site: Site
    plan: Plan
    findings: tuple[Finding, ...]
    script: JobScript
    recipe_directory: Path | None
    program: tuple[str, ...] = ()
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


def prepare(options: JobOptions, *, in_allocation: bool = False, say: Say = silent, keep: bool = True) -> PreparedJob:
    """Plan, check and render; opens no image, reaches no network, and a scheduler only for an existing allocation or
    where the request names no site.

    Args:
        in_allocation: as a step of the allocation of this shell.
        say: takes a line about a site that the request does not name.
        keep: such a site, detected for the first time, may be kept in the state directory.

    Raises:
        UsageError, RefusedError: it cannot be planned, or there is no allocation.
    """
    check_answers(options)
    options, snapshot = _with_snapshot(options)
    user_site = read_user_site(options.site, options.request, for_job=True, say=say, keep=keep)
    loaded = recipe_or_program(options.recipe, options.program)
    choices = choose_all(user_site, options.request, process.find)
    image = find_image(loaded.recipe, choices, user_site.personal.scratch)
    if image.note:
        say(image.note)
    allocation = existing_allocation(choices.site) if in_allocation else None
    planned = plan(
        loaded.recipe,
        choices.site,
        choices.request,
        image.planned,
        image.environment,
        allocation=allocation,
        python=image.python,
    )
    if in_allocation and allocation is None:
        raise missing_allocation(planned, choices.site)
    observed = observe(options, user_site, choices, loaded, image, snapshot)
    findings = check(planned, choices.site, observed, options.force)
    script = render(planned, staging.step(planned, runtime(planned.runtime)))
    return PreparedJob(
        choices.site,
        planned,
        findings,
        script,
        loaded.directory,
        options.program,
        _code_directory(options, loaded.directory),
        snapshot,
        user_site.file,
    )


def _with_snapshot(options: JobOptions) -> tuple[JobOptions, Snapshot | None]:
    """The options with the place in the copy where the program starts; what is copied, None for nothing."""
    if not options.snapshot:
        return options, None
    from runner.preparation.snapshot import copy_again, snapshot_of

    copied = options.copied if options.program else None
    snapshot = snapshot_of(options) if copied is None else copy_again(copied, options.program)
    request = msgspec.structs.replace(options.request, copied_start=snapshot.start)
    return replace(options, request=request), snapshot


def _code_directory(options: JobOptions, recipe_directory: Path | None) -> Path | None:
    if recipe_directory is None:
        return Path(options.request.directory or ".")
    return None if paths.share("recipes") in recipe_directory.parents else recipe_directory


def code_of(prepared: PreparedJob, *, keep_diff: bool = True) -> tuple[CodeRecord | None, str]:
    """The record of the code that a job will run, and what differs from its commit; None for a shipped recipe.

    Args:
        keep_diff: that difference is kept.
    """
    from runner.jobs import code_record

    if prepared.code_directory is None:
        return None, ""
    if prepared.snapshot is not None and prepared.snapshot.first is not None:
        return code_record.recorded(prepared.snapshot.first, with_diff=keep_diff)
    return code_record.code_record(prepared.program, prepared.code_directory, with_diff=keep_diff)


def start(
    prepared: PreparedJob, runs: Path, *, command: CommandLine | None = None, keep_diff: bool = True
) -> tuple[RunDirectory, str]:
    """Submit a prepared job that no check refuses; returns the run and its job's id.

    Args:
        command: the command line that requested it; None for Python.
        keep_diff: what differs from the commit of the user's code is kept in the run directory.

    Raises:
        UsageError, NotAcceptedError, UnknownStateError: see runner.jobs.submission.
    """
    # a dry run has no use for what starts and watches jobs
    from runner.jobs.states import scheduler_of
    from runner.jobs.submission import submit

    _check_script(prepared, runs)
    run = submit(
        prepared.plan,
        prepared.script,
        prepared.findings,
        root=runs,
        library=library(),
        recipe=prepared.recipe_directory,
        scheduler=scheduler_for(prepared),
        unconfirmed=prepared.unconfirmed,
        origin=_origin(prepared, command, keep_diff=keep_diff),
    )
    return run, scheduler_of(run)[1]


def as_launch(prepared: PreparedJob, plan: Plan) -> PreparedJob:
    """The job as a launch in a study's one allocation, which ``plan`` is for: its script is rendered anew.

    Raises:
        UsageError: a value that the shell cannot take; says which.
    """
    return replace(prepared, plan=plan, script=render(plan, staging.step(plan, runtime(plan.runtime))))


def make_launch(
    prepared: PreparedJob,
    runs: Path,
    allocation: Path,
    *,
    command: CommandLine | None = None,
    keep_diff: bool = True,
) -> RunDirectory:
    """Make the run directory of a launch, which the allocation's script will start.

    Args:
        allocation: the directory of the allocation's own job.

    Raises:
        UsageError, InfrastructureError: see runner.jobs.submission.make.
    """
    return _made(prepared, runs, command=command, keep_diff=keep_diff, allocation=str(allocation))


def write_directory(
    prepared: PreparedJob, directory: Path, *, command: CommandLine | None = None, keep_diff: bool = True
) -> RunDirectory:
    """Make a run directory from which the job's script can be submitted with nothing of ours installed.

    Raises:
        UsageError, InfrastructureError: see runner.jobs.submission.make.
    """
    return _made(prepared, directory.parent, command=command, keep_diff=keep_diff, at=directory)


def _made(
    prepared: PreparedJob, runs: Path, *, command: CommandLine | None, keep_diff: bool, allocation: str = "",
    at: Path | None = None,
) -> RunDirectory:  # fmt: skip
    from runner.jobs.submission import make

    _check_script(prepared, runs)
    return make(
        prepared.plan,
        prepared.script,
        prepared.findings,
        root=runs,
        library=library(),
        recipe=prepared.recipe_directory,
        scheduler=scheduler_for(prepared),
        unconfirmed=prepared.unconfirmed,
        origin=_origin(prepared, command, keep_diff=keep_diff),
        allocation=allocation,
        at=at,
    )[0]


def _check_script(prepared: PreparedJob, runs: Path) -> None:
    if prepared.snapshot is None and prepared.program and prepared.code_directory is not None:
        runs_here = SCHEDULERS[prepared.plan.scheduler].nodes == "this-machine"
        mounts = prepared.plan.mounts
        refuse_missing_script(prepared.program, prepared.code_directory, mounts, runs, runs_here=runs_here)


def scheduler_for(prepared: PreparedJob) -> Scheduler:
    """The scheduler that starts the job."""
    return connect(prepared.plan.started_by, clients(prepared.site))


def _origin(prepared: PreparedJob, command: CommandLine | None, *, keep_diff: bool) -> Origin:
    from runner.jobs.submission import Origin

    return Origin(command, *code_of(prepared, keep_diff=keep_diff), snapshot=prepared.snapshot)
