"""Requests are made here: from options, from a run that is repeated, and from what a run directory keeps."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runner.core import files, ownership, paths
from runner.core.errors import RefusedError, UsageError
from runner.images import reference as references
from runner.images.store import store
from runner.model.backends import NATIVE, run_runtime
from runner.model.plan import WORKSPACE, Plan
from runner.model.request import Mount, Request, RequestRecord
from runner.planning.environment import OF_USERS
from runner.planning.launchers import run_by_python
from runner.planning.placement import parse_host_file, parse_hosts
from runner.planning.starters import is_python
from runner.preparation.options import DEFAULT_RECIPE, FIELDS, OPTIONS, default_of
from runner.recipes import loader
from runner.sites.loader import site_file

if TYPE_CHECKING:
    from runner.jobs.directory import Run

HOSTS_SITE = "hosts"


def make_request(values: Mapping[str, Any], directory: Path | None = None, *, step: bool = False) -> Request:
    """A request from values of its fields, as options give them.

    Args:
        values: with ``gpus``; ``arguments`` are a program where no recipe is named and the first is no option, else
            arguments of the recipe's. A variable whose value is True has that of the shell.
        directory: that relative paths mean, and that the program starts in; by default the working directory.

    Raises UsageError: a value is wrong, or a list of hosts cannot be read.
    """
    below = Path.cwd() if directory is None else directory
    fields = dict(values)
    words = tuple(fields.pop("arguments", ()))
    is_program = fields.get("recipe") is None and loader.is_program(words)
    variables = fields.pop("env", ())
    fields["env"] = tuple((name, "" if value is True else value) for name, value in variables)
    fields["env_of_shell"] = tuple(name for name, value in variables if value is True)
    if isinstance(fields.get("hosts"), str):
        fields["hosts"] = parse_hosts(fields["hosts"])
    if fields.get("hosts") and fields.get("hostfile"):
        raise UsageError("hosts are given twice", where="--hosts, --hostfile", fix="use one of them")
    request = Request(
        **fields,
        program=words if is_program else (),
        arguments=() if is_program else words,
        directory=str(below),
        step=step,
    )
    try:
        msgspec.convert(msgspec.to_builtins(request), Request)
    except msgspec.ValidationError as error:
        raise UsageError(f"an option has a wrong type: {error}", fix="gpu-runner docs python shows the forms") from None
    return _with_absolute_paths(request, below)


def _with_absolute_paths(request: Request, below: Path) -> Request:
    """The request with paths that mean the same everywhere; names of sites, recipes, images and environments stay.
    Raises UsageError: one has a NUL, as only a damaged record, or Python, can have it.
    """
    names = (request.runs, request.site, request.recipe, request.image, request.env_name, request.hostfile)
    for name in (*names, *(each.source for each in request.mounts)):
        if name and "\0" in name:
            raise UsageError("no path has a NUL character", where=repr(name), fix="give another path")

    def absolute(text: str) -> str:
        with suppress(RuntimeError):  # no such user: reported where the path is used
            return str(below / Path(text).expanduser())
        return text

    mounts = (msgspec.structs.replace(each, source=absolute(each.source)) for each in request.mounts)
    places = {"runs": absolute(request.runs), "mounts": tuple(mounts)}
    if request.hostfile is not None:
        places["hostfile"] = absolute(request.hostfile)
    if request.site is not None and paths.is_site_file(request.site):
        places["site"] = str(site_file(request.site, below))
    if request.recipe is not None and (recipe := loader.directory_of(request.recipe, below)) is not None:
        places["recipe"] = str(recipe)
    if request.image is not None and references.is_path(request.image):
        places["image"] = absolute(request.image)
    if request.env_name is not None and "/" in request.env_name:
        places["env_name"] = str(below / request.env_name)
    return msgspec.structs.replace(request, **places)


def complete(request: Request) -> Request:
    """The request with the default recipe and what the shell that submits adds: umask, home, caches, variables, hosts.
    Raises UsageError: a variable is not set there, or the list of hosts cannot be read.
    """
    placed = {name: os.environ[name] for name in OF_USERS if os.environ.get(name)}
    home = ""
    with suppress(RuntimeError):  # a user id without one
        home = str(Path.home())
    for name in request.env_of_shell:
        if name not in os.environ:
            raise UsageError(f"{name!r} is not set in this shell", where="--env", fix="use NAME=VALUE, or set it")
    of_shell = {name: os.environ[name] for name in request.env_of_shell}
    hosts = request.hosts
    if request.hostfile is not None:
        try:
            hosts = parse_host_file(
                files.read_named(Path(request.hostfile)).decode("utf-8", "replace"), request.hostfile
            )
        except OSError as error:
            what = f"the host file cannot be read: {error.strerror}"
            raise UsageError(what, where=request.hostfile, fix="correct the path") from None
    by_default = paths.site_of_shell() or (HOSTS_SITE if hosts else None)
    return msgspec.structs.replace(
        request,
        recipe=_recipe_name(request),
        site=by_default if request.site is None else request.site,
        hosts=hosts,
        env=tuple((name, of_shell.get(name, value)) for name, value in request.env),
        umask=files.user_umask(),
        trust=os.environ.get("RUNNER_TRUST", ""),
        home=home,
        caches=tuple(placed.items()),
    )


def recipe_of(request: Request) -> loader.LoadedRecipe:
    """The recipe of a request, or the recipe that runs its program. Raises UsageError where it cannot be read."""
    return loader.recipe_or_program(_recipe_name(request), request.program)


def _recipe_name(request: Request) -> str | None:
    return request.recipe if request.recipe is not None or request.program else DEFAULT_RECIPE


def check_answers(request: Request) -> None:
    """Check that the file systems of a job's files answer, so that no stage hangs on a dead one. Raises RefusedError:
    one does not.
    """
    image = request.image or ""
    image_file = (image,) if image.startswith(("/", ".", "~")) else ()
    mounts = (mount.source for mount in request.mounts)
    program = (word for word in request.program if word.endswith((".py", ".sh")) and not word.startswith("-"))
    paths.refuse_silent((request.runs, paths.home(), paths.cache_dir(), *mounts, *image_file, *program))
    paths.refuse_silent((store.directory(),))  # which looks whose the cache directory is


def refuse_missing_script(
    program: Sequence[str], directory: Path, mounts: Iterable[Mount], runs: Path, *, runs_here: bool
) -> None:
    """Refuse ``python trian.py`` where no such file can be in the job, before the job waits in a queue.

    Only where that is certain: Python's own argument, relative, below the directory that the program starts in, which
    is on the file system of the run directory (that every rank sees) and has nothing else mounted over it. Raises
    UsageError: the script is not there.
    """
    script = _script(program)
    if script is None or ".." in Path(script).parts:
        return
    over = [mount for mount in mounts if f"{mount.target}/".startswith(f"{WORKSPACE}/")]
    if any(mount.target != WORKSPACE or Path(mount.source) != directory for mount in over):
        return
    runs = runs.absolute()
    try:
        above = next(place for place in (runs, *runs.parents) if os.path.lexists(place))
        if runs_here or directory.stat().st_dev == above.stat().st_dev:
            (directory / script).lstat()
    except FileNotFoundError:
        fix = "correct its name, or call submit in the script's directory"
        raise UsageError(f"there is no file {script} in this directory", where=str(directory), fix=fix) from None
    except (OSError, ValueError):
        return


def _script(program: Sequence[str]) -> str | None:
    """The file that Python is given; None where there is none, or it is absolute or no ``.py``."""
    called, end = run_by_python(program) if program and is_python(program[0]) else ((), 0)
    script = program[end - 1] if len(called) == 1 else ""
    return script if script.endswith(".py") and not script.startswith("/") else None


def record_of(request: Request, site: str) -> RequestRecord:
    """What is kept of a request; ``site``: that is used."""
    named = tuple(_named(request, site))
    whose = ((path, ownership.exchangeable_by(path, new=True, used=True)) for path in named)
    there = tuple(map(str, filter(os.path.lexists, named)))
    return RequestRecord(request, site, tuple(f"{path}: {of}" for path, of in whose if of), there)


_HOME = re.compile(r"(?<![\w/.])~(?=/)")
_PATTERN = re.compile(r"([^*?\[{$]+)/[^*?\[{$]*[*?\[{$]")  # of a shell, and the directory before it


def _named(request: Request, site: str) -> Iterator[Path]:
    """What it runs and mounts, and where."""
    yield (directory := Path(request.directory))
    if paths.is_site_file(site):
        yield Path(site)
    yield from map(Path, (*(each.source for each in request.mounts), *filter(None, [request.hostfile])))
    if request.recipe is not None and (recipe := loader.directory_of(request.recipe, directory)) is not None:
        yield recipe
    pairs = [value for _, value in (*request.env, *request.options) if value]
    named = [*request.program, *request.arguments, *pairs, *request.modules]
    named += filter(None, [request.image, request.env_name, request.site])
    words = [os.path.expandvars(_HOME.sub("$HOME", word)) for word in named]
    modules = [f"{word.partition('.')[0]}{end}" for word in words for end in ("", ".py")]  # python3 -m package.module
    words += [part for word in words for part in (*re.split(r"[=:,\s]", word), *paths.within(word))] + modules
    parts = [directory / word for word in words if word not in ("", ".py") and not word.startswith("-")]
    parts += [Path(found[1]) for found in map(_PATTERN.match, map(str, parts)) if found]
    yield from filter(os.path.lexists, dict.fromkeys(parts))


def _of_whom(recorded: str) -> tuple[str, str]:
    """A path of ``of_others`` and its user, whatever words a version has for it; empty where that may be anybody."""
    path, *whose = re.split(
        r": (?=user |everybody's |its group|your login|below /|behind /|not )", recorded, maxsplit=1
    )
    return path, ownership.user_of("".join(whose))


def check_directory(record: RequestRecord, what: str) -> None:
    """Refuse a request whose directory is gone. Raises UsageError: it is; RefusedError: since it was recorded, it or
    something else that is named there became another user's.
    """
    request = record.request
    try:
        Path(request.directory).stat()
    except (OSError, ValueError) as error:  # of a damaged record
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"the directory where {what} was submitted cannot be used: {why}",
            where=request.directory,
            fix="submit from another directory; `show` prints the command line",
        ) from None
    were = {_of_whom(each) for each in record.of_others}
    named = dict.fromkeys((*_named(request, record.site), *map(Path, record.there)))
    there = {Path(request.directory), *filter(os.path.lexists, named)}
    for path in named:
        whose = ownership.exchangeable_by(path, new=path not in there, used=True)
        if not whose and str(path) in record.there and ownership.may_be_strangers(path):
            whose = "not there any more, where others may put theirs"
        if whose and _of_whom(f"{path}: {whose}") not in were:
            became = f"this is {whose}, since {what} was submitted: it would run as you, or be mounted"
            fix = f"submit anew, with what you mean; {ownership.way_out(path, whose)}"
            raise RefusedError(became, where=str(path), fix=fix)


def check_foreign(request: Request, changes: Mapping[str, Any], first: Run, *, own: bool = False) -> None:
    """Refuse a site's file and an environment of another user's request: to prepare a job runs programs that they name,
    before anything is submitted; and a host file or recipe that is not the user's whose run it is: it could be one that
    this user alone may read; and, for a program that is not of a stranger's request, all that could name files or
    programs. ``own``: this user's may be named. Raises RefusedError: he has named them nowhere.
    """
    for name in ("site", "env_name"):
        value = getattr(request, name) or ""
        if name not in changes and paths.is_site_file(value):
            place = Path(request.directory, value)
            whose = ownership.exchangeable_by(place, used=True)  # what is not there may come and go
            trusting = f"if you trust its owner; {ownership.way_out(place, whose)}"
            if not whose and not own and place.stat().st_uid == os.geteuid():
                whose, trusting = "yours, and may be a copy of that user's", "once you have read it"
            if whose:
                option = f"--{name.replace('_', '-')}"
                what = f"this is {whose}, and names what would run as you"
                raise RefusedError(what, where=f"{option} {place}", fix=f"{option} {place}, {trusting}")
    for name in ("hostfile", "recipe"):
        value = getattr(request, name) or ""
        if name not in changes and "/" in value:
            place = Path(request.directory, value)
            is_own = name == "hostfile" and not own and place.exists() and place.stat().st_uid == os.geteuid()
            if is_own or not first.may_name(place):
                what = "this is not of the user whose request names it, or the request may be a copy of that user's"
                raise RefusedError(what, where=f"--{name} {place}", fix=f"--{name} {place}, if you mean it")
    is_its_recipe = "recipe" not in changes and "/" in (request.recipe or "")
    is_of_request = is_its_recipe or (request.program and not changes.get("arguments"))  # which that user chose, too
    if own or is_of_request or ownership.is_trusted(owner := first.owner):
        return
    way_out = ownership.way_out(first.path, f"user {owner}'s")
    if request.program:
        what = "this run is another user's, and a program of yours would start in that user's directory"
        fix = f"submit it from one of yours; {way_out}"
        raise RefusedError(what, where=str(first.path), fix=fix)
    if recorded := list(_naming(request, changes)):
        what = "this run is another user's, and its options could bring files or programs of that user to yours"
        named = " ".join(f"--{option} {value}" if option else f"-- {value}" for option, value in recorded)
        without = " ".join(dict.fromkeys(f"--without {option or 'arguments'}" for option, _ in recorded))
        fix = f"give these again, as you mean them, or {without}; {way_out}"
        raise RefusedError(what, where=f"{first.path}: {named}", fix=fix)


# Fields that could name files or programs, or directories of a site's; options of the scheduler but for the declared;
# and what stands in its texts, where it is a path.
_NAMING = (
    "env", "mounts", "modules", "options", "image", "scratch", "project", "scheduler_options", "hosts", "snapshot",
)  # fmt: skip
_LABELS = ("account", "field")
_DECLARED = {name for name, option in OPTIONS.items() if option.of_scheduler}


def _naming(request: Request, changes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each such option of a request, and its name or value, that the changes do not give; arguments with no option."""
    for field in (*_NAMING, *(each for each in _LABELS if "/" in (getattr(request, each) or ""))):
        name, option = FIELDS[field]
        key, recorded = option.kind.key, getattr(request, field)
        if key is None:
            text = ",".join(map(str, recorded)) if isinstance(recorded, tuple) else recorded
            values = [str(text)] if recorded and field not in changes else []
        else:
            given = {key(each) for each in changes.get(field, ())}
            values = [str(key(each)) for each in recorded if key(each) not in given]
        if field == "scheduler_options":
            values = [each for each in values if each.replace("-", "_") not in _DECLARED]
        yield from ((name.replace("_", "-"), value) for value in values)
    if request.arguments and not changes.get("arguments"):
        yield "", "..."


def repeated(
    record: RequestRecord, changes: Mapping[str, Any], *, without: Collection[str] = (), image: str = ""
) -> Request:
    """The request that repeats one.

    Args:
        changes: fields that the user gives, as ``make_request`` takes them; ``arguments`` replace the recorded ones.
            Relative paths among them mean the directory of the first one.
        without: fields, and options of the scheduler, that are left out; ``arguments``: those of a recipe.
        image: that ran, for where no other one or an environment is requested; the same site is kept likewise.

    Raises UsageError: the arguments are options, and the recorded request has a program of its own.
    """
    first = record.request
    values = {
        name: getattr(first, name)
        for name in ("gpus", *FIELDS)
        if name not in without and (name == "gpus" or getattr(first, name) != default_of(name))
    }
    if "scheduler_options" in values:
        values["scheduler_options"] = tuple(
            (name, value) for name, value in first.scheduler_options if name.replace("-", "_") not in without
        )
    if "env" in values:
        values["env"] = tuple((name, True if name in first.env_of_shell else value) for name, value in first.env)
    program = () if "recipe" in changes else first.program
    old = program or (() if "arguments" in without else first.program or first.arguments)
    new = tuple(changes.get("arguments", ()))
    if program and new and new[0].startswith("-"):
        what = f"{new[0]} is no program"
        fix = f"give the whole program again, as `-- {old[0]} ...`; without it the recorded one is run"
        raise UsageError(what, where="the arguments after --", fix=fix)
    values["arguments"] = new or old
    for name, value in changes.items():
        key = FIELDS[name][1].kind.key if name in FIELDS else None
        if key is not None:
            values[name] = _replaced(values.get(name, ()), value, key)
        elif name != "arguments":
            values[name] = value
    if record.site and not {"site", "hosts", "hostfile"} & values.keys():
        values["site"] = record.site
    no_image = "env_name" in values or values.get("runtime") == NATIVE
    if image and "image" not in changes and "image" not in without and not no_image:
        values["image"] = image
    return make_request(values, Path(first.directory), step=first.step)


def _replaced(recorded: Sequence[Any], changes: Sequence[Any], key: Any) -> tuple[Any, ...]:
    """What is given several times: a later one replaces an earlier one of the same key."""
    replaced = [key(each) for each in changes]
    return (*(each for each in recorded if key(each) not in replaced), *changes)


def image_of(plan: Plan) -> str:
    """The image that ran, as an option names it: by its digest, or the file; empty for none."""
    if not run_runtime(plan.runtime).is_container:
        return ""
    return plan.image.path if references.is_path(plan.image.reference) else plan.image.pinned
