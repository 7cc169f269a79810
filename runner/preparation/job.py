"""What ``submit`` and ``run`` share: from what a command line asks for to a plan, its findings, its script, its run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner import process
from runner.checks import environment_fit
from runner.checks.rules import Observed, check
from runner.environments.directory import find
from runner.errors import RefusedError, UsageError
from runner.jobs.directory import RunDirectory
from runner.model.environment import Environment
from runner.model.finding import Finding
from runner.model.plan import Plan
from runner.model.recipe import Recipe
from runner.model.request import Request
from runner.model.site import Site, Way
from runner.planning import existing_allocation, hosts
from runner.planning.personal import absent, account, completed, filled
from runner.planning.plan import image_reference, plan
from runner.preparation.image import as_image, pinned
from runner.preparation.observation import home, involved, names, refuse_silent, seen
from runner.preparation.request import JobOptions
from runner.recipes.loader import library, read_recipe
from runner.recipes.program import recipe_of
from runner.runtimes import Runtime, runtime, staging
from runner.runtimes.schedulerless import ALONE, choose
from runner.schedulers import connect, render
from runner.sites.loader import files_of, read_site
from runner.sites.unknowns import left_open
from runner.sites.user import personal, read_config

DEFAULT_SITE = "box"


@dataclass(frozen=True)
class Prepared:
    """A job that is ready to go, or not: its findings say so. ``recipe_directory``: None for a program of one's own."""

    site: Site
    plan: Plan
    findings: tuple[Finding, ...]
    script: str
    recipe_directory: Path | None


def prepare(options: JobOptions, *, in_allocation: bool = False) -> Prepared:
    """Plan, check and render; opens no image, reaches no network, and a scheduler only for an allocation that is held.

    Args:
        in_allocation: as a step of the allocation that this shell holds.

    Raises:
        UsageError, RefusedError: it cannot be planned.
    """
    refuse_silent(
        involved(options.runs, (mount.source for mount in options.request.mounts), options.request.image or "")
    )
    config = read_config()
    name = options.site if options.site is not None else config.site or DEFAULT_SITE
    shipped = read_site(name)
    recipe, directory, request = _what(options)
    mine = completed(personal(config, shipped.name, request), shipped)
    site = hosts.shaped(filled(shipped, mine), request.hosts)
    request = msgspec.structs.replace(request, account=account(shipped, mine))
    if request.env_name is not None:
        request = msgspec.structs.replace(request, runtime=_native(request))
    if site.scheduler == "local":
        request = msgspec.structs.replace(request, runtime=_runtime_here(site, request.runtime))
    elif site.scheduler == "hosts" and request.runtime is None:
        request = msgspec.structs.replace(request, runtime=choose(site.runtimes, site.device, lambda _program: True))
    chosen = runtime(request.runtime or site.runtimes[0])
    environment = _made(site, request, mine.scratch) if chosen.IMAGE == "none" else None
    image, problem, fix = pinned(image_reference(recipe, site, request), chosen.IMAGE)
    planned = plan(recipe, site, request, as_image(environment) if environment else image, environment)
    if planned.hosts is not None:
        planned = _needing(planned, recipe)
    if in_allocation:
        planned = _as_step(planned, site, chosen)
    native = chosen.IMAGE == "none" and site.scheduler == "local"
    if environment is not None:
        lacks, provides = environment_fit.lacking(recipe, environment)
    else:
        lacks, provides = _environment(recipe) if native else ("", "")
    runs = names(options.runs)
    observed = Observed(
        image_problem=problem,
        image_fix=fix,
        missing_sources=tuple(mount.source for mount in request.mounts if not _exists(mount.source)),
        run_directory=runs,
        run_directory_problem=_run_directory_problem(chosen, options.runs),
        absent=absent(shipped, mine),
        login_node=_login_node() if site.scheduler == "local" else "",
        environment_problem=lacks,
        environment_fix=provides,
        left_open=tuple(entry.key for entry in left_open(files_of(name))),
        storage=seen(site, image, runs, mine.scratch),
        home=str(home()),
    )
    findings = check(planned, site, observed, options.force)
    planned = msgspec.structs.replace(planned, forced=tuple(found.code for found in findings if found.forced))
    return Prepared(site, planned, findings, render(planned, staging.step(planned, chosen)), directory)


def start(prepared: Prepared, runs: Path) -> tuple[RunDirectory, str]:
    """Submit it; returns the run and its job's id.

    Raises:
        UsageError, NotAcceptedError, UnknownStateError: see runner.jobs.submission.
    """
    from runner.jobs.submission import scheduler_of, submit

    run = submit(
        prepared.plan,
        prepared.script,
        prepared.findings,
        root=runs,
        library=library(),
        recipe=prepared.recipe_directory,
        scheduler=connect(prepared.plan.started_by, clients(prepared.site)),
    )
    return run, scheduler_of(run)[1]


def _what(options: JobOptions) -> tuple[Recipe, Path | None, Request]:
    """The recipe with its directory, and the request; a program of the user's own makes its own recipe."""
    if options.recipe is None:
        words = options.request.arguments
        return recipe_of(words), None, msgspec.structs.replace(options.request, arguments=())
    found = read_recipe(options.recipe)
    return found.recipe, found.directory, options.request


def _runtime_here(site: Site, wanted: str | None) -> str:
    """The runtime that is wanted, or the first of the site's that is on this machine.

    Raises:
        RefusedError: it is not there, or none is.
    """
    if wanted is not None:
        facts = ALONE.get(wanted)
        if facts and process.find(facts.program) is None:
            raise RefusedError(f"{facts.program} is not on this machine", where="PATH", fix=facts.install)
        return wanted
    chosen = choose(site.runtimes, site.device, lambda program: process.find(program) is not None)
    if chosen is None:
        known = [f"{name}: {ALONE[name].install}" for name in site.runtimes if name in ALONE]
        raise RefusedError(
            f"none of {', '.join(site.runtimes)} is on this machine",
            where="PATH",
            fix=f"install one ({'; '.join(known)})" if known else "name runtimes that serve without a scheduler",
        )
    return chosen


def _needing(planned: Plan, recipe: Recipe) -> Plan:
    """The plan with what its hosts will be asked for: no scheduler answers for them."""
    assert planned.hosts is not None
    alone = ALONE.get(planned.runtime)
    asked = msgspec.structs.replace(
        planned.hosts,
        programs=(alone.program if alone else planned.runtime,),
        modules=recipe.needs if planned.runtime == "native" and not planned.load else (),
    )
    return msgspec.structs.replace(planned, hosts=asked)


def _native(request: Request) -> str:
    """The runtime of an environment.

    Raises:
        UsageError: a container is wanted, too.
    """
    if request.runtime not in (None, "native"):
        what = f"{request.runtime} runs images, no environments"
        raise UsageError(what, where="--env-name", fix="leave --runtime out")
    if request.image is not None:
        raise UsageError("a job runs in an environment or in an image", where="--image", fix="leave one of them out")
    return "native"


def _made(site: Site, request: Request, scratch: str) -> Environment | None:
    """The environment that is asked for, or that the site's way has; None where its setup is all there is.

    Raises:
        RefusedError: it is not there.
    """
    name = request.env_name or site.ways.get("native", Way()).environment
    return find(name, scratch, site.name) if name else None


def _login_node() -> str:
    """Why this machine looks like a cluster's login node; empty if it does not, or is a node of a job of ours."""
    from runner.setup.cluster import real_cluster

    return "" if os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID") else real_cluster() or ""


def _environment(recipe: Recipe) -> tuple[str, str]:
    """What this shell's environment lacks for the recipe without a container, and what provides it."""
    from runner.setup.modules import lacking

    lacks, fix = lacking(recipe.needs)
    return lacks, f"{fix}; or a container: {ALONE['charliecloud'].install}" if lacks else ""


def _as_step(planned: Plan, site: Site, chosen: Runtime) -> Plan:
    """The plan as a step of the allocation that this shell holds.

    Raises:
        RefusedError: none is held, or it does not fit.
    """
    if site.scheduler != "slurm":
        raise RefusedError(
            f"a step in a held allocation is a thing of Slurm, and the site has {site.scheduler}",
            where=f"site {site.name}",
            fix="use `submit`",
        )
    from runner.schedulers.slurm.allocation import allocation
    from runner.schedulers.slurm.script import salloc

    found = allocation(clients(site))
    if found is None:
        raise RefusedError(
            "no allocation is held: SLURM_JOB_ID is not set",
            where="this shell",
            fix=f"{salloc(planned, chosen.step(planned))}\n"
            "         and in its shell the same again; or `submit`, which asks for its own",
        )
    return existing_allocation.in_allocation(planned, found)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # too long, or behind a door that is closed: no container gets at it either
        return False


def _run_directory_problem(chosen: Runtime, runs: Path) -> str | None:
    """Why jobs could not run below ``runs``, as links lead: scheduler and runtime see the real path."""
    try:
        real = str(runs.resolve())
    except (OSError, RuntimeError) as error:
        return f"{runs} cannot be used: {error}"
    return f"a newline in a path cannot be mounted: {real!r}" if "\n" in real else chosen.mount_problem(real)


def clients(site: Site) -> Path | None:
    """Where the site's client programs lie; None for PATH.

    Raises:
        RefusedError: they are a box's, and it is not up.
    """
    if not site.box:
        return None
    from runner import box

    running = box.find(site.box)
    if running is None:
        raise RefusedError(
            f"the box {site.box!r} is not up",
            where=f"site {site.name}",
            fix=f"python -m runner box up --name {site.box}",
        )
    return running.bin_dir
