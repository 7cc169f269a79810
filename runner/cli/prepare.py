"""What ``submit`` and ``run`` share: from names on the command line to a plan, its findings and its script."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner.checks.rules import Observed, check, refuses
from runner.errors import RefusedError
from runner.model.finding import Finding
from runner.model.names import ImageForm
from runner.model.plan import Plan, PlannedImage
from runner.model.request import Request
from runner.model.site import Site
from runner.planning.personal import absent, account, filled
from runner.planning.plan import image_reference, plan
from runner.recipes.loader import read_recipe
from runner.runtimes import Runtime, runtime
from runner.schedulers import Scheduler, connect, render
from runner.sites.loader import read_site
from runner.sites.user import personal, read_config

DEFAULT_SITE = "box"


@dataclass(frozen=True)
class Prepared:
    """A job that is ready to go, or not (``refused``)."""

    site: Site
    plan: Plan
    findings: tuple[Finding, ...]
    script: str
    recipe_directory: Path

    @property
    def refused(self) -> bool:
        """Whether a check refuses it."""
        return refuses(self.findings)


def prepare(
    site_name: str | None, recipe_name: str, request: Request, runs: Path, *, force: tuple[str, ...] = ()
) -> Prepared:
    """Plan, check and render; opens no image, reaches no scheduler and no network.

    Args:
        site_name: None for the user's own default.
        force: codes of checks that shall not refuse.

    Raises:
        UsageError, RefusedError: it cannot be planned.
    """
    config = read_config()
    shipped = read_site(site_name if site_name is not None else config.site or DEFAULT_SITE)
    mine = personal(config, shipped.name, request)
    site = filled(shipped, mine)
    request = msgspec.structs.replace(request, account=account(shipped, mine))
    found = read_recipe(recipe_name)
    chosen = runtime(request.runtime or site.runtimes[0])
    image, problem, mend = _image(image_reference(found.recipe, site, request), chosen.IMAGE)
    planned = plan(found.recipe, site, request, image)
    observed = Observed(
        image_problem=problem,
        image_mend=mend,
        missing_sources=tuple(mount.source for mount in request.mounts if not _exists(mount.source)),
        run_directory=_names(runs),
        run_directory_problem=_run_directory_problem(chosen, runs),
        absent=absent(shipped, mine),
    )
    findings = check(planned, site, observed, force)
    return Prepared(site, planned, findings, render(planned, chosen.step(planned)), found.directory)


def _names(runs: Path) -> tuple[str, ...]:
    """The directory as it is called, and as links lead where that is another."""
    called = os.path.normpath(runs.absolute())
    try:
        return tuple(dict.fromkeys((called, str(runs.resolve()))))
    except (OSError, RuntimeError):  # said by _run_directory_problem
        return (called,)


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


def scheduler_for(site: Site) -> Scheduler:
    """The site's scheduler; a box's clients are its own wrappers.

    Raises:
        RefusedError: the box is not up.
    """
    if not site.box:
        return connect(site.scheduler)
    from runner import box

    running = box.find(site.box)
    if running is None:
        raise RefusedError(
            f"the box {site.box!r} is not up",
            where=f"site {site.name}",
            mend=f"python -m runner box up --name {site.box}",
        )
    return connect(site.scheduler, running.bin_dir)


def _image(reference: str, form: ImageForm) -> tuple[PlannedImage, str, str]:
    """The pinned image, or what it would be called, with the problem and its mend."""
    if form == "registry":
        return _registry_image(reference)
    if form == "sif":
        return _sif(reference)
    from runner.images import store

    found = store.lookup(reference)
    if found is None:
        path = reference if reference.startswith(("/", "./")) else _not_converted(reference, "sqsh")
        return (
            PlannedImage(reference=reference, digest="", path=path),
            f"no squashfs of {reference} is in the store ({store.directory()})",
            f"python -m runner convert {reference}",
        )
    return PlannedImage(reference=reference, digest=found.digest, path=str(found.path)), "", ""


def _not_converted(reference: str, suffix: str) -> str:
    """What stands in a script for an image that there is not yet."""
    from runner.images import store

    name = "".join(character if character.isalnum() or character in "._-" else "_" for character in reference)
    return str(store.directory() / f"NOT-CONVERTED-{name}.{suffix}")


def _registry_image(reference: str) -> tuple[PlannedImage, str, str]:
    """An image that the runtime itself fetches, or has fetched: it cannot be looked at from here."""
    from runner.images import reference as references

    image = PlannedImage(reference=reference, digest="", path="")
    if references.is_path(reference) or references.parse(reference).registry:
        return image, "", ""  # a file is refused by the runtime, which says why
    where = "this runtime takes images of a registry"
    mend = "push it to a registry that the site can reach, and name it in full: --image REGISTRY/NAME:TAG"
    return image, f"{reference} names no registry, and {where}", mend


def _sif(reference: str) -> tuple[PlannedImage, str, str]:
    """A SIF file: nothing but a file is one."""
    if reference.endswith(".sif"):
        path = str(Path(reference).expanduser().absolute())
        image = PlannedImage(reference=reference, digest="", path=path)
        return image, "" if _exists(path) else f"there is no {path}", "correct the path"
    image = PlannedImage(reference=reference, digest="", path=_not_converted(reference, "sif"))
    mend = f"`apptainer build FILE.sif docker-daemon://{reference}` where there is an engine, then --image FILE.sif"
    return image, f"this runtime takes a SIF file, and {reference} is none", mend
