"""What is looked at on this machine before a job is checked; a file system that does not answer is refused first."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runner.backends.runtimes.common import mount_problem
from runner.checks import image_fit
from runner.checks.registry import Observed, Seen
from runner.core import process
from runner.core.errors import RefusedError, RunnerError, UsageError
from runner.core.paths import home
from runner.images.store import owners, store, stored_image
from runner.model.backends import RUNTIMES, SCHEDULERS, runtime_programs
from runner.model.plan import WORKSPACE
from runner.model.request import Mount, Recipe, Request
from runner.model.site import Site
from runner.preparation.choices import Choices, JobImage
from runner.preparation.horovod_use import horovod_use, is_source
from runner.preparation.site import UserSite, clients
from runner.recipes.loader import LoadedRecipe
from runner.setup.machine import missing_modules, real_cluster
from runner.sites.user import workspaces

if TYPE_CHECKING:
    from runner.jobs.snapshot_copy import Snapshot


PATIENCE_S = 5.0


def check_answers(request: Request) -> None:
    """Check that the file systems of a job's files answer.

    Raises:
        RefusedError: one does not.
    """
    image = request.image or ""
    image_file = (image,) if image.startswith(("/", ".", "~")) else ()
    mounts = (mount.source for mount in request.mounts)
    program = (word for word in request.program if is_source(word))
    refuse_silent((request.runs, home(), store.directory(), *mounts, *image_file, *program))


def refuse_silent(paths: Iterable[str | Path], patience_s: float = PATIENCE_S) -> None:
    """Look at all paths at once and return when each has answered, even if only that nothing is there.

    A path on a dead server may never answer: the thread that waits for it ends with this process.

    Raises:
        RefusedError: one has not answered within ``patience_s`` seconds in all.
    """
    events = {str(path): threading.Event() for path in paths}
    for path, answered in events.items():
        threading.Thread(target=_look, args=(path, answered), daemon=True).start()
    deadline = time.monotonic() + patience_s
    for path, answered in events.items():
        if not answered.wait(max(0.0, deadline - time.monotonic())):
            raise RefusedError(
                f"the file system of {path} has not answered for {patience_s:g} s",
                where=path,
                fix="wait until it does (`df`), or use another directory; nothing was submitted",
            )


def refuse_missing_script(
    program: Sequence[str], directory: Path, mounts: Iterable[Mount], runs: Path, *, runs_here: bool
) -> None:
    """Refuse ``python trian.py`` where no such file can be in the job, before the job waits in a queue.

    Only where that is certain: Python's own argument, relative, below the directory that the program starts in, which
    is on the file system of the run directory (that every rank sees) and has nothing else mounted over it.

    Raises:
        UsageError: the script is not there.
    """
    script = _script(program)
    if script is None or ".." in Path(script).parts:
        return
    over = [mount for mount in mounts if f"{mount.target}/".startswith(f"{WORKSPACE}/")]
    if any(mount.target != WORKSPACE or Path(mount.source) != directory for mount in over):
        return
    try:
        if not runs_here and directory.stat().st_dev != _nearest(runs).stat().st_dev:
            return
        (directory / script).lstat()
    except FileNotFoundError:
        fix = "correct its name, or call submit in the script's directory"
        raise UsageError(f"there is no file {script} in this directory", where=str(directory), fix=fix) from None
    except (OSError, ValueError):
        return


def _script(program: Sequence[str]) -> str | None:
    """The file that Python is given; None where there is none, or it is absolute or no ``.py``."""
    words = iter(program)
    if not re.fullmatch(r"python[\d.]*", next(words, "").rpartition("/")[2], re.ASCII):
        return None
    for word in words:
        if word in ("-W", "-X"):
            next(words, "")
        elif not word.startswith("-"):
            return word if word.endswith(".py") and not word.startswith("/") else None
        elif word.startswith(("-m", "-c")) or word == "-":
            return None
    return None


def _nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def _look(path: str, answered: threading.Event) -> None:
    with suppress(OSError, ValueError):
        Path(path).stat()
    answered.set()


_TIMEOUT_S = 15.0  # of a program that reads two files


def problem_of_srun_plugin(site: Site, runtime: str) -> tuple[str, str]:
    """Why jobs could not be started by the runtime's plugin, and the fix; empty if they can, or if no srun is here."""
    option = RUNTIMES[runtime].srun_option
    if not option or not SCHEDULERS[site.scheduler].has_srun:
        return "", ""
    try:
        where = clients(site)
        done = process.run((where / "srun" if where else "srun", "--help"), timeout_s=_TIMEOUT_S, check=False)
    except RunnerError:  # no srun here, no box, or no answer: submission reports it
        return "", ""
    if _has(done.out, option):
        return "", ""
    here = [
        name for name, program in runtime_programs().items() if process.find(program, str(where) if where else None)
    ]
    return judged(runtime, done, others(site, runtime, done.out, here))


def others(site: Site, runtime: str, help_text: str, here: list[str]) -> str:
    """The fix: the runtimes that could be used instead.

    Args:
        here: those whose program is on this machine.
    """
    plugins = [name for name, facts in RUNTIMES.items() if facts.srun_option and _has(help_text, facts.srun_option)]
    found = [name for name in dict.fromkeys((*plugins, *here)) if name != runtime]
    of_site = [name for name in site.runtimes if name != runtime and name not in found]
    named = [f"found here: {', '.join(found)}"] if found else []
    named += [f"of the site: {', '.join(of_site)}"] if of_site else []
    return f"--runtime with another ({'; '.join(named)})" if named else ""


def judged(runtime: str, answer: process.Completed, instead: str) -> tuple[str, str]:
    """The problem and its fix, of what ``srun --help`` answered.

    Args:
        instead: what to do besides asking the administrator; may be empty.
    """
    facts = RUNTIMES[runtime]
    ask = f"ask the administrator for {facts.plugin or f'the plugin of {facts.title}'} in plugstack.conf"
    if _has(answer.out, facts.srun_option):
        return "", ""
    if answer.code != 0:
        lines = [line for line in answer.err.splitlines() if ": spank: " in line] or answer.err.splitlines()[-1:]
        said = lines[0].removeprefix("srun: error: ") if lines else f"exit code {answer.code}"
        what = f"srun does not start here, the cluster's plugin configuration (plugstack.conf) is broken: {said}"
        return what, "show this line to the administrator: no job can be submitted from here until it is corrected"
    what = f"srun has no --{facts.srun_option}: the plugin of {facts.title} is not loaded on this cluster"
    return what, f"{instead}, or {ask}" if instead else ask


def _has(help_text: str, option: str) -> bool:
    return re.search(rf"^\s+--{re.escape(option)}\b", help_text, re.MULTILINE) is not None


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
    plugin_problem, plugin_fix = problem_of_srun_plugin(site, choices.runtime)
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
    return owners.stranger(path, path.parent) or owners.stranger(stored_image.sidecar_path(path), path.parent)


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
