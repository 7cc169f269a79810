"""What checks need to know of this machine: mounts, the run directory, the image's age, this shell's Python."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runner.backends.runtimes.common import mount_problem
from runner.checks import image_fit
from runner.checks.registry import Observed, Seen
from runner.core.paths import home
from runner.images.store import owners, sidecar
from runner.model.recipe import Recipe
from runner.model.request import Request
from runner.model.runtimes import RUNTIMES
from runner.model.schedulers import SCHEDULERS
from runner.model.site import Site
from runner.preparation import srun_plugin
from runner.preparation.choices import Choices
from runner.preparation.horovod_use import horovod_use
from runner.preparation.image import JobImage
from runner.preparation.site import UserSite
from runner.recipes.loader import LoadedRecipe
from runner.setup.machine import missing_modules, real_cluster
from runner.sites.user import workspaces

if TYPE_CHECKING:
    from runner.jobs.snapshot_copy import Snapshot


def observe(
    request: Request,
    user_site: UserSite,
    choices: Choices,
    loaded: LoadedRecipe,
    image: JobImage,
    snapshot: Snapshot | None = None,
) -> Observed:
    """Look at everything on this machine that the checks will judge."""
    site, facts, recipe = choices.site, RUNTIMES[choices.runtime], loaded.recipe
    on_this_machine = SCHEDULERS[site.scheduler].nodes == "this-machine"
    runs = _both_names(Path(request.runs))
    plugin_problem, plugin_fix = srun_plugin.problem(site, choices.runtime)
    lacks, fix = _environment_problem(recipe, image, runs_here=on_this_machine and not facts.is_container)
    return Observed(
        image_problem=image.problem,
        image_fix=image.fix,
        missing_sources=tuple(mount.source for mount in request.mounts if not _exists(mount.source)),
        run_directory=runs,
        run_directory_problem=_run_directory_problem(choices.runtime, Path(request.runs)),
        absent=user_site.missing,
        login_node=_login_node() if on_this_machine else "",
        environment_problem=lacks,
        environment_fix=fix,
        plugin_problem=plugin_problem,
        plugin_fix=plugin_fix,
        site_file=user_site.file,
        left_open=tuple(unknown.key for unknown in user_site.unknowns if unknown.needed),
        defaulted=tuple(unknown.key for unknown in user_site.unknowns if not unknown.needed),
        storage=_storage(site, image, runs, user_site.personal.scratch),
        home=str(home()),
        image_owner=_image_owner(image),
        caches=_caches(request),
        horovod_use=_horovod_use(request, loaded),
        links_left_out=_links_left_out(snapshot),
    )


def _storage(site: Site, image: JobImage, runs: tuple[str, ...], scratch: str) -> Seen:
    idle_s = None
    with suppress(OSError, ValueError):
        if image.environment is None and image.planned.path:
            status = Path(image.planned.path).stat()
            idle_s = time.time() - max(status.st_atime, status.st_mtime)
    return Seen(
        home=_both_names(home()),
        runs=runs,
        scratch=scratch,
        image_idle_s=idle_s,
        workspaces=workspaces() if site.scratch.workspaces else (),
    )


def _caches(request: Request) -> tuple[str, ...]:
    """The user's caches of models and data sets that exist: those that the shell names, and the usual ones."""
    named = [path for _, path in request.caches]
    above = dict(request.caches).get("XDG_CACHE_HOME") or f"{home()}/.cache"
    usual = [f"{above}/{name}" for name in ("huggingface", "torch")]
    return tuple(path for path in dict.fromkeys((*named, *usual)) if path != above and _exists(path))


def _horovod_use(request: Request, loaded: LoadedRecipe) -> str:
    directory = loaded.directory if request.starts_in is None else Path(request.starts_in)
    return horovod_use(loaded.recipe, directory, request.program or loaded.recipe.program, request.mounts)


def _links_left_out(snapshot: Snapshot | None) -> tuple[str, ...]:
    if snapshot is None:
        return ()
    from runner.jobs.snapshot_copy import left_out

    return left_out(snapshot)


def _image_owner(image: JobImage) -> str:
    if image.environment is not None or not image.planned.path or image.problem:
        return ""
    path = Path(image.planned.path)
    return owners.stranger(path, path.parent) or owners.stranger(sidecar.path_of(path), path.parent)


def _both_names(path: Path) -> tuple[str, ...]:
    """A path as the user wrote it, made absolute; and with its links resolved where that differs."""
    written = os.path.normpath(path.absolute())
    try:
        return tuple(dict.fromkeys((written, str(path.resolve()))))
    except (OSError, RuntimeError):  # a loop of links, or a name too long: reported where the path is used
        return (written,)


def _environment_problem(recipe: Recipe, image: JobImage, *, runs_here: bool) -> tuple[str, str]:
    """What the environment lacks for the recipe, and the fix; empty for a container, or where nothing is lacking."""
    if image.environment is not None and not image.environment.framework:
        return (
            missing_modules(recipe.needs, Path(image.environment.directory, "bin/python3"))
            if recipe.needs
            else ("", "")
        )
    if image.environment is not None:
        return image_fit.missing_packages(recipe, image.environment)
    if not runs_here:
        return "", ""
    lacks, fix = missing_modules(recipe.needs)
    if not lacks:
        return "", ""
    containers = (facts.install for facts in RUNTIMES.values() if facts.is_container and facts.without_scheduler)
    return lacks, f"{fix}; or a container: {next(containers)}"


def _login_node() -> str:
    """Why this machine looks like a cluster's login node; empty if it does not, or if this shell is in a job."""
    variables = (facts.job_variable for facts in SCHEDULERS.values() if facts.job_variable)
    return "" if any(os.environ.get(variable) for variable in variables) else real_cluster() or ""


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # too long, or no permission: a container cannot mount it either
        return False


def _run_directory_problem(runtime: str, runs: Path) -> str | None:
    """Why jobs could not run below ``runs`` with its links resolved: scheduler and runtime see the real path."""
    try:
        real = str(runs.resolve())
    except (OSError, RuntimeError) as error:
        return f"{runs} cannot be used: {error}"
    return f"a newline in a path cannot be mounted: {real!r}" if "\n" in real else mount_problem(runtime, real)
