"""What the request leaves open: the site's shape, runtime, image or environment. Reaches no engine, no registry.

An image is pinned where it can be: by the store, the file system, and what a site's runtime reports of its own images.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import msgspec

from runner.backends.runtimes import image_problem
from runner.core import ownership, paths, process
from runner.core.errors import RefusedError, UsageError
from runner.core.invocation import PROGRAM
from runner.images import reference as references
from runner.images.store import integrity, store
from runner.images.store.stored_image import SUFFIXES, Form, StoredImage
from runner.model.backends import NATIVE, RUNTIMES, SCHEDULERS
from runner.model.image import Environment, ImageFacts, Setup, facts_of
from runner.model.plan import RESULTS, WORKSPACE, PlannedImage, PlannedPython
from runner.model.request import ImageForm, Recipe, Request
from runner.model.site import RuntimeAtSite, Site
from runner.planning import placement
from runner.preparation.site import UserSite
from runner.sites.loader import kept_path
from runner.sites.user import NO_ACCOUNT

NO_IMAGE = PlannedImage(reference="", digest="", path="")
FindProgram = Callable[[str], Path | None]
_CONVERT = {"squashfs": f"{PROGRAM} convert", "sif": f"{PROGRAM} convert --format sif"}


@dataclass(frozen=True)
class Choices:
    """What a job will use.

    Attributes:
        site: with the user's values, and in the shape of the hosts or the queue that were requested.
        request: with its account, with the queue of its type of GPU, and with its runtime where the site has no
            scheduler to choose it.
        runtime: name of the container runtime, or ``native``.
        environment: name or directory of the environment that the ranks run in; empty for none.
    """

    site: Site
    request: Request
    runtime: str
    environment: str


@dataclass(frozen=True)
class JobImage:
    """What the ranks run in.

    Attributes:
        planned: the image as the plan names it; an environment in the place of one.
        problem: why it cannot be used; empty if it can. fix: what makes it usable.
        environment: None for an image, and for what a site's setup alone provides.
        python: that each node must have; None where nothing is to be compared.
        note: a line for the user about the environment of this shell; empty for none.
        owner: the user who put it or its name into the store, where that is neither its owner, root nor this user.
    """

    planned: PlannedImage = NO_IMAGE
    problem: str = ""
    fix: str = ""
    environment: Environment | None = None
    python: PlannedPython | None = None
    note: str = ""
    owner: str = ""


# In a dependency: what is no id of a job (7, 7_3, 7_*, 7[].server).
_NAMED = re.compile(r"(?<=:)(?!\d+(_\d+|_\*)?(\[\d*\])?(\.[\w.-]+)?([:,?+]|\Z))[^:,?+]+", re.ASCII)


def with_job_ids(request: Request, site: Site) -> Request:
    """The request with job ids in the place of runs, and of sweeps, that its dependency names.

    Raises:
        UsageError: there is no such run, the site's scheduler does not know its job, or it has ended otherwise than it
            must: a job that Slurm has forgotten is no obstacle to it; or the last job of a chain is not queued yet.
        NotAcceptedError, UnknownStateError: as ``scheduler_of``.
    """
    options = dict(request.scheduler_options)
    if not _NAMED.search(options.get("dependency", "")):
        return request
    from runner.jobs.directory import Run
    from runner.jobs.lookup import find, runs_of_sweep
    from runner.jobs.states import scheduler_of

    def job_ids(match: re.Match[str]) -> str:
        runs = runs_of_sweep(match[0])
        if runs and (plan := runs[0].plan) is not None and plan.attempt:
            if not runs[0].chain_end:
                what = f'"{match[0]}" is a chain, and which attempt will be its last is not known yet'
                fix = f"`{PROGRAM} wait {match[0]} && {PROGRAM} submit ...`, or name one of its attempts"
                raise UsageError(what, where="--dependency", fix=fix)
            runs = [max(runs, key=lambda run: int(run.path.parent.name))]
        return ":".join(job_id(run, match) for run in runs or [find(match[0])])

    def job_id(run: Run, match: re.Match[str]) -> str:
        known, plan, record, ended = scheduler_of(run)[1], run.needed_plan(), run.submitted, run.ended
        if (plan.site, plan.started_by) != (site.name, site.scheduler) or (record is not None and record.allocation):
            what = f"{run.run_id} has no job of its own at {site.name}: it is a run of {plan.site}"
            raise UsageError(what, where="--dependency", fix="name a run there, or a job by its id")
        kind = re.split("[,?]", match.string[: match.start()])[-1].partition(":")[0]
        must_end_well = {"afterok": True, "afternotok": False}.get(kind)
        if ended is not None and must_end_well not in (None, ended.name == "COMPLETED"):
            what = f"the job of {run.run_id} has ended ({ended.name}): {kind} cannot be met"
            raise UsageError(what, where="--dependency", fix="leave it out, or name another run")
        return known

    options["dependency"] = _NAMED.sub(job_ids, options["dependency"])
    return msgspec.structs.replace(request, scheduler_options=tuple(options.items()))


def choose(user_site: UserSite, request: Request, recipe: Recipe) -> tuple[Choices, JobImage]:
    """Settle what the request leaves open, and find the image in the form that the job's runtime takes. Raises
    UsageError: options that contradict each other or the site, or the reference is none; RefusedError: no runtime of
    the site is on this machine, and the job would run here; no such environment.
    """
    choices = choose_all(user_site, request, process.find)
    form = RUNTIMES[choices.runtime].image
    if form == "none" and choices.environment:
        from runner.environments.directory import check_setup, find

        if not request.env_name:
            check_setup(Setup(), ((choices.environment,),))  # the site names it

        return choices, _in_environment(find(choices.environment, user_site.personal.scratch, choices.site.name))
    if form == "none":
        return choices, _environment_of_shell(choices)
    image = pin(image_reference(recipe, choices.site, choices.request), form, choices.runtime)
    if form == "registry" and not image.problem:
        local = references.is_local(image.planned.reference)
        problem, fix = image_problem(choices.runtime, image.planned.reference, _mount_points(choices), local=local)
        image = JobImage(image.planned, problem, fix)
    if image.problem and request.image is None and NATIVE in choices.site.runtimes:
        image = replace(image, fix=f"{image.fix}; or name another (--image), or run in none: --runtime {NATIVE}")
    return choices, image


def choose_all(user_site: UserSite, request: Request, find_program: FindProgram) -> Choices:
    """Settle what the request leaves open. Raises as ``choose``.

    Args:
        find_program: where a program of this machine is; None where it is not in PATH.
    """
    site, request = placement.with_queue(placement.with_hosts(user_site.site, request.hosts), request)
    nodes = SCHEDULERS[site.scheduler].nodes
    if nodes != "allocated" and request.account not in (None, NO_ACCOUNT):
        what = "there is no scheduler that charges an account"
        raise UsageError(what, where=f"--account {request.account}", fix=f"leave it out, or --account {NO_ACCOUNT}")
    name = request.runtime if request.env_name is None else _runtime_of_environment(request)
    if nodes == "this-machine":
        name = _runtime_of_this_machine(site, name, find_program)
    elif nodes == "listed" and name is None:
        name = without_scheduler(site.runtimes, site.device, lambda _program: True)
    runtime = name or site.runtimes[0]
    if request.image is not None and not RUNTIMES[runtime].is_container:
        containers = [each for each in site.runtimes if RUNTIMES[each].is_container]
        if name is not None or not containers:
            raise _without_container(user_site, name, containers)
        name = runtime = containers[0]
    request = msgspec.structs.replace(request, account=user_site.account, runtime=name)
    environment = request.env_name or site.ways.get(NATIVE, RuntimeAtSite()).environment
    return Choices(site, request, runtime, environment)


class NoRuntimeKnownError(UsageError):
    """An image is requested, and the file that was detected for this cluster has no container runtime."""


def _without_container(user_site: UserSite, name: str | None, containers: list[str]) -> UsageError:
    site = user_site.site
    named = f"--runtime {' or '.join(containers)}" if containers else "name the site's: --runtime NAME"
    fix = f"{named}; or leave out --image"
    if name is not None:
        return UsageError(f"--image needs a container runtime, and {name} is none", where="--image", fix=fix)
    source = f" ({site.sources['runtimes']})" if "runtimes" in site.sources else ""
    what = f"--image needs a container runtime; none is known at {site.name}{source}"
    if user_site.file != str(kept_path(site.name)) or "not asked" not in source:
        return UsageError(what, where="--image", fix=fix)
    fix = f"`{PROGRAM} site detect --on-node --keep` asks a GPU node which there are; {fix}"
    return NoRuntimeKnownError(what, where="--image", fix=fix)


def without_scheduler(names: Iterable[str], device: str, installed: Callable[[str], bool]) -> str | None:
    """The first runtime that works without a scheduler, is installed and can use the device; None if none is.

    Args:
        installed: whether a program is in PATH.
    """
    for name in names:
        facts = RUNTIMES[name]
        if facts.without_scheduler and installed(facts.program) and (facts.brings_driver or device == "cpu"):
            return name
    return None


def _runtime_of_environment(request: Request) -> str:
    if request.runtime not in (None, NATIVE):
        what = f"{request.runtime} runs images, not environments"
        raise UsageError(what, where="--env-name", fix="leave out --runtime")
    if request.image is not None:
        what = "a job runs either in an environment or in an image"
        raise UsageError(what, where="--image", fix="leave out one of them")
    return NATIVE


def _runtime_of_this_machine(site: Site, requested: str | None, find_program: FindProgram) -> str:
    """The runtime that was requested, or the first of the site's that is installed here."""
    if requested is not None:
        facts = RUNTIMES[requested]
        if facts.without_scheduler and find_program(facts.program) is None:
            raise RefusedError(f"{facts.program} is not installed on this machine", where="PATH", fix=facts.install)
        return requested
    chosen = without_scheduler(site.runtimes, site.device, lambda program: find_program(program) is not None)
    if chosen is None:
        rows = ((name, RUNTIMES[name]) for name in site.runtimes)
        known = [f"{name}: {facts.install}" for name, facts in rows if facts.without_scheduler]
        what = f"none of {', '.join(site.runtimes)} is installed on this machine"
        fix = f"install one ({'; '.join(known)})" if known else "use runtimes that work without a scheduler"
        raise RefusedError(what, where="PATH", fix=fix)
    return chosen


def _in_environment(environment: Environment) -> JobImage:
    return JobImage(as_image(environment), environment=environment, python=_python(environment))


def _environment_of_shell(choices: Choices) -> JobImage:
    """The one that is active in this shell, if the job's nodes would not have it otherwise and the site brings none."""
    way = choices.site.ways.get(choices.runtime, RuntimeAtSite())
    nodes = SCHEDULERS[choices.site.scheduler].nodes
    if nodes == "this-machine" and not choices.request.modules:  # it has what this shell has
        return JobImage()
    from runner.environments import directory

    if way.load or way.setup != Setup():
        active = directory.active_in_shell()
        note = (
            f"environment: {active} is active in this shell and NOT used: the site {choices.site.name} has a setup of "
            f"its own (ways.native); --env-name {shlex.quote(active)} uses it"
        )
        return JobImage(note=note if active else "")
    environment, note = directory.environment_of_shell()
    if environment is None:
        return JobImage(note=note)
    if nodes == "listed":  # they get the variables of this shell
        return JobImage(python=_python(environment))
    return _in_environment(environment)


def _python(environment: Environment) -> PlannedPython | None:
    return PlannedPython(environment.directory, environment.python) if environment.python else None


def _mount_points(choices: Choices) -> tuple[str, ...]:
    """The directories that must be in the image of a runtime that makes none."""
    request = choices.request
    if choices.site.ways.get(choices.runtime, RuntimeAtSite()).visible:
        return tuple(mount.target for mount in request.mounts if mount.source != mount.target)
    own = () if request.mounted_directory is None else (WORKSPACE,)
    return (RESULTS, *own, *(mount.target for mount in request.mounts))


def image_reference(recipe: Recipe, site: Site, request: Request) -> str:
    """The image reference a job will use: the user's, or the recipe's with the site's tag, or its usual one."""
    if request.image is not None:
        return request.image
    tag = site.image_tags.get(recipe.image) or references.default_tag(recipe.image)
    return f"{recipe.image}:{tag}" if tag else recipe.image


def pin(reference: str, form: ImageForm, runtime: str = "") -> JobImage:
    """The pinned image, or the name that it would have, the problem and its fix.

    Args:
        form: that the runtime takes, not ``none``.
        runtime: for an image of a registry: some keep images that were built on the spot.
    """
    if form == "registry":
        return _registry_image(reference, built_here=bool(runtime) and RUNTIMES[runtime].builds_images)
    assert form != "none"
    return _stored(reference, form)


def _stored(reference: str, form: Form) -> JobImage:
    """An image file: in the store by its name, anywhere by its path."""
    is_path = references.is_path(reference)
    if is_path:
        path = str(paths.expanded(reference))
    else:  # that a script has for an image that is not in the store yet
        name = "".join(character if character.isalnum() or character in "._-" else "_" for character in reference)
        path = str(store.directory() / f"NOT-CONVERTED-{name}{SUFFIXES[form]}")
    unpinned = PlannedImage(reference=reference, digest="", path=path)
    if is_path and path.endswith(SUFFIXES["sif"]) != (form == "sif"):
        kind, suffix = ("SIF file", ".sif") if form == "sif" else ("squashfs", ".sqsh")
        problem = f"this runtime takes a {kind}, and {reference} is not one"
        return JobImage(unpinned, problem, f"use a file that ends in {suffix}")
    try:
        stored, owner = store.lookup_and_stranger(reference, form=form)
    except OSError as error:  # a name that is too long, or no permission
        return JobImage(unpinned, f"{path} cannot be read: {error.strerror}", "correct the path")
    if stored is None and is_path:
        fix = f"correct the path, or make the file: {_CONVERT[form]} IMAGE"
        return JobImage(unpinned, f"{path} does not exist", fix)
    if stored is None:
        problem = f"the store ({store.directory()}) has no {'SIF' if form == 'sif' else 'squashfs'} of {reference}"
        pulled = form != "sif" or references.names_registry(reference)
        where = "" if pulled else " on a machine with a container engine, or --image FILE.sif"
        fix = _whole_digest(reference) or f"`{_CONVERT[form]} {reference}`{where}"
        return JobImage(unpinned, problem, fix)
    about = facts_of(stored.about)
    planned = PlannedImage(
        reference=reference,
        digest=stored.origin or stored.digest,
        path=str(stored.path),
        size_bytes=stored.size_bytes,
        sha256=stored.sha256,
        about=about,
        mpi=mpi_of(about),
    )
    if why := integrity.problem(stored):
        again = f"; `{_CONVERT[form]} {shlex.quote(stored.reference)}` makes it again" if stored.sha256 else ""
        fix = f"`{PROGRAM} images verify {stored.path}` checks every byte{again}"
        return JobImage(planned, f"the image {stored.path} is damaged: {why}", fix)
    is_stores = stored.digest or stored.sha256 or stored.key  # a store has rules of its own
    is_safe = is_stores or owner or ownership.is_kept_in(stored.path)
    whose = ownership.beside_its_owner(stored.path) if is_path and not is_safe else ""
    problem = f"the image {path} is {whose}: what is there runs as you" if whose else ""
    fix = f"name one in a directory of your own; {ownership.way_out(stored.path, whose)}" if whose else ""
    return JobImage(planned, problem, fix, owner=owner)


def _whole_digest(text: str) -> str:
    """The fix for the beginning of a digest, as ``images list`` shows it; empty for any other text."""
    if not re.fullmatch(r"(sha256:)?[0-9a-f]{6,63}", text):
        return ""
    begin = f"sha256:{text.removeprefix('sha256:')}"
    known = [each for each in store.everything(store.directory()) if isinstance(each, StoredImage)]
    whole = dict.fromkeys(each.digest for each in known if each.digest.startswith(begin))
    return f"give the whole digest: --image {' or '.join(whole)}" if whole else ""


def as_image(environment: Environment) -> PlannedImage:
    """An environment in the place of an image: it has the same facts."""
    about = environment.about if environment.framework else None
    return PlannedImage(environment.name, "", environment.directory, mpi=mpi_of(about), about=about)


def mpi_of(about: ImageFacts | None) -> Literal["openmpi", "mpich", "none", ""]:
    """The MPI that Horovod in the image was built with; empty where unknown."""
    if about is None or not about.horovod.controllers:
        return ""
    if not about.horovod.has_mpi:
        return "none"
    return cast(Literal["openmpi", "mpich"], about.mpi.flavour) if about.mpi.flavour in ("openmpi", "mpich") else ""


def _registry_image(reference: str, *, built_here: bool) -> JobImage:
    """An image that the runtime itself fetches: it cannot be looked at from here.

    Args:
        built_here: the runtime has the images that it built, which it calls ``localhost/NAME``.
    """
    image = PlannedImage(reference=reference, digest="", path="")
    # A file is refused by the runtime, which says why.
    if references.is_path(reference) or references.names_registry(reference):
        return JobImage(image)
    if built_here and references.is_local(reference):
        return JobImage(image)
    fix = "push it to a registry that the site can reach, and give its full name: --image REGISTRY/NAME:TAG"
    fix += "; or build it there, and --image localhost/NAME:TAG" if built_here else ""
    return JobImage(image, f"{reference} names no registry, but this runtime takes images of a registry", fix)
