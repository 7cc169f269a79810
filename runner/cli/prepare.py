"""What ``submit`` and ``run`` share: from names on the command line to a plan, its findings and its script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runner.checks.rules import Observed, check, refuses
from runner.errors import RefusedError
from runner.model.finding import Finding
from runner.model.plan import Plan, PlannedImage
from runner.model.request import Request
from runner.model.site import Site
from runner.planning.plan import image_reference, plan
from runner.recipes.loader import read_recipe
from runner.runtimes import Runtime, runtime
from runner.schedulers import Scheduler, connect, render
from runner.sites.loader import read_site


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


def prepare(site_name: str, recipe_name: str, request: Request, runs: Path) -> Prepared:
    """Plan, check and render; opens no image, reaches no scheduler and no network.

    Raises:
        UsageError, RefusedError: it cannot be planned.
    """
    site = read_site(site_name)
    found = read_recipe(recipe_name)
    image, problem, mend = _image(image_reference(found.recipe, site, request))
    planned = plan(found.recipe, site, request, image)
    chosen = runtime(planned.runtime)
    observed = Observed(
        image_problem=problem,
        image_mend=mend,
        missing_sources=tuple(mount.source for mount in planned.mounts if not _exists(mount.source)),
        run_directory_problem=_run_directory_problem(chosen, runs),
        site_runtimes=site.runtimes,
    )
    return Prepared(site, planned, check(planned, observed), render(planned, chosen.step(planned)), found.directory)


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


def _image(reference: str) -> tuple[PlannedImage, str, str]:
    """The pinned image, or what it would be called, with the problem and its mend."""
    from runner.images import store

    found = store.lookup(reference)
    if found is None:
        name = "".join(character if character.isalnum() or character in "._-" else "_" for character in reference)
        path = reference if reference.startswith(("/", "./")) else str(store.directory() / f"NOT-CONVERTED-{name}.sqsh")
        return (
            PlannedImage(reference=reference, digest="", path=path),
            f"no squashfs of {reference} is in the store ({store.directory()})",
            f"python -m runner convert {reference}",
        )
    return PlannedImage(reference=reference, digest=found.digest, path=str(found.path)), "", ""
