"""What is looked at on this machine before a job is checked."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runner.backends.runtimes import answer_of
from runner.backends.runtimes.common import mount_problem
from runner.backends.schedulers import are_nodes_this_machine
from runner.checks.image_fit import missing_packages
from runner.checks.registry import Observed, Workspace
from runner.core import files, ownership, paths, process
from runner.core.errors import RefusedError, RunnerError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.paths import home
from runner.core.text import nearest
from runner.environments.directory import check_setup
from runner.model.backends import RUNTIMES, SCHEDULERS, runtime_programs
from runner.model.image import Activate
from runner.model.job import Allocation
from runner.model.request import Mount, Recipe, Request
from runner.model.site import RuntimeAtSite, Site
from runner.planning.environment import carried_caches
from runner.preparation.choices import Choices, JobImage
from runner.preparation.program_check import lacking, program_problem
from runner.preparation.site import UserSite
from runner.recipes.loader import LoadedRecipe

if TYPE_CHECKING:
    from runner.jobs.snapshot_copy import Snapshot

_SRUN_S = 15.0  # for a program that reads two files
_WORKSPACES_S = 10.0
# Top directories that images have, too, and the mount points in them.
_OF_IMAGES = re.compile(r"/(bin|boot|dev|etc|lib|lib64|opt|proc|run|sbin|sys|tmp|usr|var|workspace|results)/")
_UNITS_S = {"day": 86400, "hour": 3600, "minute": 60}


def observe(
    request: Request,
    user_site: UserSite,
    choices: Choices,
    loaded: LoadedRecipe,
    image: JobImage,
    snapshot: Snapshot | None = None,
    allocation: Allocation | None = None,
) -> Observed:
    """Look at everything on this machine that the checks will judge."""
    site, facts, recipe = choices.site, RUNTIMES[choices.runtime], loaded.recipe
    on_this_machine = SCHEDULERS[site.scheduler].nodes == "this-machine"
    runs, runs_problem = _run_directory(choices.runtime, Path(request.runs))
    plugin_problem, plugin_fix = _srun_plugin(site, choices.runtime)
    runs_here = on_this_machine and not facts.is_container
    way = site.ways.get(choices.runtime, RuntimeAtSite())
    setup, its = way.setup, image.environment
    if its is not None:  # which the user has named, or was itself looked at when it was chosen
        setup = msgspec.structs.replace(its.setup, conda=its.setup.conda if its.inputs else "", activate=Activate())
    variables = [f"{name}={value or ''}" for name, value in (site.env | way.env).items()]
    of_shell = carried_caches(dict(request.caches), choices.runtime, (*way.mounts, *request.mounts))
    caches = [f"{name}={value}" for name, value in of_shell.items() if name not in dict(request.env)]
    for each in map(Path, of_shell.values()):
        is_missing = not os.path.lexists(each) and ownership.may_be_strangers(each)
        if is_missing and not ownership.is_first_come(each, new=True):  # which is refused below
            with suppress(OSError):  # else another user could, while the job waits
                files.make_closed(each)
    of_setup = check_setup(setup, (*way.load, *site.mpi.load, variables, caches, (site.ssh.config, way.library_path)))
    lacks, fix = _environment_problem(recipe, image, runs_here=runs_here)
    loads = loads_setup(site, choices.runtime, request, image)
    from_shell = not facts.is_container and not loads
    if not lacks and from_shell and request.starts_in is not None:
        lacks, fix = lacking(request.program, Path(request.starts_in), image, dict(request.env), runs_here=runs_here)
    unstarted, start_fix = program_problem(request, image, is_container=facts.is_container, loads=loads)
    starts_in = loaded.directory if request.starts_in is None else Path(request.starts_in)
    used = [
        Path(os.path.realpath(request.runs)),
        Path(image.planned.path),
        *(Path(mount.source) for mount in request.mounts),
        *_places_of_program(request, files.is_on_own_disk),
        *((Path(its.directory, "bin/python3"),) if its is not None and its.directory else ()),
        *of_setup,
        *(Path(each) for name, value in request.env if name in paths.CODE for each in paths.within(value or "")),
    ]
    is_here = allocation is not None and paths.are_this_machine(each.name for each in allocation.nodes)
    original = starts_in if snapshot is None else snapshot.top / snapshot.start
    is_users = request.starts_in is not None
    is_shells = from_shell and its is None and SCHEDULERS[site.scheduler].nodes != "allocated"
    given = {**(os.environ if is_shells else {}), **site.env, **way.env, **recipe.env, **dict(request.env)}
    of_modules = _module_directories(request.mounted_directory, given.get("PYTHONPATH") or "")
    directory_problem, directory_fix = _directory_problem(original, request.program, of_modules, is_users=is_users)
    own_home = os.path.normpath(home().absolute())
    application = user_site.personal.application or site.applications.get("default", "")
    links_left_out: tuple[str, ...] = ()
    if snapshot is not None:
        from runner.jobs.snapshot_copy import left_out

        links_left_out = left_out(snapshot)
    return Observed(
        image_problem=image.problem,
        image_fix=image.fix,
        missing_sources=tuple(mount.source for mount in request.mounts if not _exists(mount.source)),
        run_directory=runs,
        run_directory_problem=runs_problem,
        absent=user_site.missing,
        unlisted=unlisted(site, (user_site.personal.field, application)),
        login_node=_login_node() if on_this_machine else "",
        environment_problem=lacks,
        environment_fix=fix,
        program_problem=unstarted,
        program_fix=start_fix,
        directory_problem=directory_problem,
        directory_fix=directory_fix,
        owners=_owners(request, of_modules),
        own_disk="" if is_here else _own_disk(site, used),
        modules=() if on_this_machine or facts.is_container else _modules_of_shell(),
        plugin_problem=plugin_problem,
        plugin_fix=plugin_fix,
        site_file=user_site.file,
        left_open=tuple(unknown.key for unknown in user_site.unknowns if unknown.needed),
        home=tuple(dict.fromkeys((own_home, os.path.realpath(own_home)))),
        scratch=user_site.personal.scratch,
        image_idle_s=_idle_s(image),
        workspaces=workspaces() if site.scratch.workspaces else (),
        image_owner=image.owner,
        caches=_caches(request),
        horovod_use=horovod_use(recipe, starts_in, request.program or recipe.program, request.mounts),
        links_left_out=links_left_out,
        files_left_out=snapshot.others if snapshot is not None else (),
        budget_left=_budget_left(Path(request.runs)),
        named_paths=named_paths(request.program),
        unused_environment=_unused_environment(request) if facts.is_container else "",
    )


def _own_disk(site: Site, used: Iterable[Path]) -> str:
    """The first of the places that a job uses which ``is_on_own_disk``; empty where its nodes are this machine (a box's
    are), are asked themselves (those that the user lists), or no client of the scheduler is here.
    """
    lists = () if site.box else SCHEDULERS[site.scheduler].lists_nodes
    client = process.find(lists[0]) if lists else None
    if client is None or (client.parent / "in-box").exists():
        return ""
    place = next((str(each) for each in used if each.is_absolute() and files.is_on_own_disk(each)), "")
    return "" if not place or _box_of_this_shell() or are_nodes_this_machine(site.scheduler, None) else place


def _owners(request: Request, of_modules: Iterable[Path]) -> tuple[tuple[str, int], ...]:
    """As ``Plan.owners``: whoever has such a name when the job starts must be the same user, or this one where none
    has it yet; so must those above it whose names all may take. Where all may write already, the user forces it.
    """

    def is_remade(place: Path) -> bool:
        above = Path(os.path.realpath(place)).parents
        return any(map(ownership.is_open, above)) and not ownership.is_open(place)

    places = [*filter(is_remade, chain(map(_directory_of, _places_of_program(request, is_remade)), of_modules))]
    above = {each for place in places for each in Path(os.path.realpath(place)).parents}
    taken = sorted(each for each in above if ownership.is_open(each.parent) and not ownership.is_open(each))
    remade = dict.fromkeys(chain(places, taken))
    if remade and request.mounted_directory is not None:
        remade[Path(request.mounted_directory)] = None  # of which the launcher asks then
    owners = dict[str, int]()
    for each in remade:
        owners[str(each)] = -1
        with suppress(OSError):
            owners[str(each)] = ownership.owner_of(ownership.status_of(each))
    return tuple(owners.items())


def _directory_of(place: Path) -> Path:
    return place if place.is_dir() else place.parent


def _module_directories(start: str | None, value: str) -> list[Path]:
    """Where a program's Python looks for modules by such a PYTHONPATH. ``start``: that relative parts mean, or None for
    a copy, which has what they mean.
    """
    parts = paths.split_list("PYTHONPATH", value) if value else ()
    places = [Path(start or "/", each) for each in parts if start or each.startswith("/")]
    # Path.is_file raises where a directory above is closed.
    return [each.parent if os.path.isfile(each) else each for each in places]  # noqa: PTH113


def _places_of_program(request: Request, where: Callable[[Path], bool]) -> Iterator[Path]:
    """Where the program starts, and what it names that lies there; of one that starts in a copy, which has what is
    relative, the latter alone.
    """
    start = request.mounted_directory
    if request.program:
        yield from () if start is None else (Path(start),)
        at = Path("/dev/null" if start is None else start)  # which has nothing below it
        yield from paths.named_code(request.program, at, where)


def _directory_problem(
    start: Path | None, program: Sequence[str], of_modules: Iterable[Path], *, is_users: bool
) -> tuple[str, str]:
    """Why others' files could run from where a program starts, what it names lies that is code, or its modules are, and
    the fix. Of a recipe's place its loader asks who could exchange it. ``start``: None for nowhere.
    """

    @cache
    def problem(place: Path, *, what: str, asks_owner: bool) -> tuple[str, str]:
        what = what.format(place)
        if any(found := ownership.of_others(place, what)):
            return found
        if asks_owner and (whose := ownership.beside_its_owner(place)):
            what = f"{what}, which is {whose}: while the job waits, another user could exchange it"
            return what, f"use a directory of your own; {ownership.way_out(place, whose)}"
        return "", ""

    start = start or Path("/dev/null")  # which has nothing below it
    of_program = partial(problem, what="the program starts in {}, or lies there", asks_owner=is_users)
    named = paths.named_code(program, start, lambda each: any(of_program(_directory_of(each))))
    of_path = (problem(each, what="PYTHONPATH names {}, or a file there", asks_owner=True) for each in of_modules)
    return next(filter(any, chain(map(of_program, chain((start,), map(_directory_of, named))), of_path)), ("", ""))


def named_paths(program: Sequence[str]) -> tuple[str, ...]:
    """Absolute paths in a command that exist here, as words or behind ``=``, without those that images have too."""
    values = [word.partition("=")[2] if word.startswith("-") and "=" in word else word for word in program]
    own = [value for value in values if re.match(r"/[^/]", value) and not _OF_IMAGES.match(f"{value}/")]
    return tuple(dict.fromkeys(os.path.normpath(value) for value in own if _exists(value)))


def _unused_environment(request: Request) -> str:
    """The virtual or conda environment that this shell is in, where the user chose neither it nor an image."""
    if not request.program or request.image or request.runtime:
        return ""
    conda = os.environ.get("CONDA_PREFIX", "") if os.environ.get("CONDA_DEFAULT_ENV") != "base" else ""
    directory = os.environ.get("VIRTUAL_ENV") or conda
    return "" if not directory or Path(directory) == Path(sys.prefix) else directory


def _budget_left(runs: Path) -> float | None:
    """See ``left_of_budget``; without a budget no run is read."""
    if not os.environ.get("RUNNER_BUDGET"):
        return None
    from runner.jobs.cost import left_of_budget

    return left_of_budget(runs)


def loads_setup(site: Site, runtime: str, request: Request, image: JobImage) -> bool:
    """Whether modules or the site make a job's environment, so that its PATH is not what this shell has."""
    way = site.ways.get(runtime, RuntimeAtSite())
    setup = image.environment.setup if image.environment is not None else way.setup
    return bool(way.load or setup.modules or setup.purge or request.modules or (setup.conda and not image.environment))


def _modules_of_shell() -> tuple[str, ...]:
    """Modules that are loaded in this shell (Lmod and Environment Modules both keep this list)."""
    return tuple(filter(None, os.environ.get("LOADEDMODULES", "").split(":")))


def unlisted(site: Site, values: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Of the values those that stand nowhere in the site's own list, each with the nearest there; none without one."""
    is_path = "/" in site.published  # of a site's file that is not trusted yet, perhaps
    done = answer_of(site.published, cwd=Path("/")) if site.published and not is_path else None
    words = set(re.findall(r"[\w.+-]+", done.out)) if done is not None else ()
    return tuple((value, nearest(value, words)) for value in values if words and value and value not in words)


def _box_of_this_shell() -> str:
    from runner import box  # what makes one is long to import, and few sites need it

    return box.inside()


def clients(site: Site) -> Path | None:
    """The directory of the client programs of the site's scheduler; None for PATH. Raises RefusedError: the site is a
    box that is not up.
    """
    if not site.box or _box_of_this_shell() == site.box:
        return None
    from runner import box

    running = box.find(site.box)
    if running is None:
        what = f"the box {site.box!r} is not up"
        raise RefusedError(what, where=f"site {site.name}", fix=f"{PROGRAM} box up --name {site.box}")
    return running.bin_dir


def _srun_plugin(site: Site, runtime: str) -> tuple[str, str]:
    """Why jobs could not be started by the runtime's plugin, and the fix; empty if they can, or if no srun is here.

    ``srun --help`` shows the options that plugins add, and asks no controller.
    """
    if not RUNTIMES[runtime].srun_option or not SCHEDULERS[site.scheduler].has_srun:
        return "", ""
    try:
        where = clients(site)
        done = process.run((where / "srun" if where else "srun", "--help"), timeout_s=_SRUN_S, check=False)
    except RunnerError:  # no srun here, no box, or no answer: submission reports it
        return "", ""
    if _has_option(done.out, runtime):
        return "", ""
    here = [
        name for name, program in runtime_programs().items() if process.find(program, str(where) if where else None)
    ]
    return srun_plugin_problem(site, runtime, done, here)


def srun_plugin_problem(
    site: Site, runtime: str, answer: process.Completed, installed: Sequence[str]
) -> tuple[str, str]:
    """The problem and its fix, from the answer of ``srun --help``.

    Args:
        installed: runtimes whose program is on this machine.
    """
    facts = RUNTIMES[runtime]
    # Without a configuration no job is submitted from this machine either; submission reports it.
    if _has_option(answer.out, runtime) or "Could not establish a configuration source" in answer.err:
        return "", ""
    if answer.code != 0:
        lines = [line for line in answer.err.splitlines() if ": spank: " in line] or answer.err.splitlines()[-1:]
        reported = lines[0].removeprefix("srun: error: ") if lines else f"exit code {answer.code}"
        what = f"srun does not start here, the cluster's plugin configuration (plugstack.conf) is broken: {reported}"
        return what, "show this line to the administrator: no job can be submitted from here until it is corrected"
    plugins = [name for name in RUNTIMES if _has_option(answer.out, name)]
    here = [name for name in dict.fromkeys((*plugins, *installed)) if name != runtime]
    of_site = [name for name in site.runtimes if name != runtime and name not in here]
    named = [f"found here: {', '.join(here)}"] if here else []
    named += [f"of the site: {', '.join(of_site)}"] if of_site else []
    fix = f"--runtime with another ({'; '.join(named)}), or " if named else ""
    fix += f"ask the administrator for {facts.plugin or f'the plugin of {facts.title}'} in plugstack.conf"
    return f"srun has no --{facts.srun_option}: the plugin of {facts.title} is not loaded on this cluster", fix


def _has_option(help_text: str, runtime: str) -> bool:
    option = RUNTIMES[runtime].srun_option
    return bool(option) and re.search(rf"^\s+--{re.escape(option)}\b", help_text, re.MULTILINE) is not None


def _run_directory(runtime: str, runs: Path) -> tuple[tuple[str, ...], str | None]:
    """Where runs are made, as the user wrote it and with its links resolved, as scheduler and runtime see it; and why
    jobs could not run there.
    """
    written = os.path.normpath(runs.absolute())
    try:
        real = str(runs.resolve())
    except (OSError, RuntimeError) as error:  # a loop of links, or a name too long
        return (written,), f"{runs} cannot be used: {error}"
    problem = f"runs cannot lie below a path with a newline: {real!r}" if "\n" in real else mount_problem(runtime, real)
    above = next(each for each in (Path(real), *Path(real).parents) if os.path.lexists(each))
    if above.is_dir() and ownership.exchangeable_by(Path(real), new=True):
        from runner.jobs.creation import check_place

        if not os.path.lexists(real) and not os.access(above, os.W_OK | os.X_OK, effective_ids=True):
            what = f"the run directory cannot be made there: you may not write to {above}"
            raise UsageError(what, where=real, fix="name a directory of your own: --runs DIR")
        check_place(Path(real), new=True)  # as it will be when the job is submitted
    return tuple(dict.fromkeys((written, real))), problem


def _environment_problem(recipe: Recipe, image: JobImage, *, runs_here: bool) -> tuple[str, str]:
    """What the environment lacks for the recipe, and the fix; empty for a container, or where nothing is lacking."""
    environment = image.environment
    if environment is not None and environment.framework:
        return missing_packages(recipe, environment)
    if (environment is None and not runs_here) or (environment is not None and not recipe.needs):
        return "", ""
    from runner.setup.machine import missing_modules

    if environment is not None:
        return missing_modules(recipe.needs, Path(environment.directory, "bin/python3"))
    lacks, fix = missing_modules(recipe.needs)
    containers = (facts.install for facts in RUNTIMES.values() if facts.is_container and facts.without_scheduler)
    return (lacks, f"{fix}; or a container: {next(containers)}") if lacks else ("", "")


def _login_node() -> str:
    """Why this machine looks like a cluster's login node; empty if it does not, or if this shell is in a job."""
    from runner.setup.machine import real_cluster

    variables = (facts.job_variable for facts in SCHEDULERS.values() if facts.job_variable)
    return "" if any(os.environ.get(variable) for variable in variables) else real_cluster() or ""


def _idle_s(image: JobImage) -> float | None:
    """Seconds since the image's file was last read or written."""
    with suppress(OSError, ValueError):
        if image.environment is None and image.planned.path:
            status = Path(image.planned.path).stat()
            return time.time() - max(status.st_atime, status.st_mtime)
    return None


def horovod_use(recipe: Recipe, directory: Path | None, program: tuple[str, ...], mounts: tuple[Mount, ...]) -> str:
    """Where the program is seen to use Horovod: ``train.py, line 3,``; empty where it is not.

    Args:
        directory: where the program starts: of the user's program, or of the recipe; None where there is none.
    """
    if recipe.framework == "horovod" or "horovod" in recipe.needs:
        return f"the recipe {recipe.name}"
    if directory is None:
        return ""
    from runner.preparation.program_source import sources

    return next((f"{file.name}, line {line}," for file, line in sources(program, directory, mounts) if line), "")


def _exists(path: str) -> bool:
    with suppress(OSError):  # too long, or no permission: a container cannot mount it either
        return Path(path).exists()
    return False


def _caches(request: Request) -> tuple[str, ...]:
    """The user's caches of models and data sets that exist: those that the shell names, and the usual ones."""
    named = dict(request.caches)
    above = named.get("XDG_CACHE_HOME") or f"{home()}/.cache"
    paths = dict.fromkeys((*named.values(), *(f"{above}/{name}" for name in ("huggingface", "torch"))))
    return tuple(path for path in paths if path != above and _exists(path))


def workspaces() -> tuple[Workspace, ...]:
    """The user's workspaces from ``ws_list``: an ``id:`` line for each, then indented ``name : value`` lines.

    None where the tool is missing or does not answer in time, as a check must not hang.
    """
    try:
        listed = process.run(("ws_list",), timeout_s=_WORKSPACES_S).out
    except RunnerError:
        return ()
    known = []
    for part in re.split(r"^id:", listed, flags=re.MULTILINE)[1:]:
        name, *lines = part.splitlines()
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        directory = fields.get("workspace directory", "")
        left = re.findall(r"(\d+)\s*(day|hour|minute)s?", fields.get("remaining time", ""))
        if directory and left:
            left_s = float(sum(int(count) * _UNITS_S[unit] for count, unit in left))
            known.append(Workspace(name.strip(), directory, left_s))
    return tuple(known)
