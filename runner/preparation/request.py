"""Requests are made here: from options, from a run that is repeated, and from what a run directory keeps."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from runner.core import files
from runner.core.errors import UsageError
from runner.images import reference as references
from runner.model.backends import NATIVE, run_runtime
from runner.model.plan import Plan
from runner.model.request import Request, RequestRecord
from runner.planning.environment import OF_USERS
from runner.planning.placement import parse_host_file, parse_hosts
from runner.preparation.options import DEFAULT_RECIPE, FIELDS, default_of
from runner.recipes import loader
from runner.recipes.loader import LoadedRecipe

HOSTS_SITE = "hosts"


def make_request(values: Mapping[str, Any], directory: Path | None = None, *, step: bool = False) -> Request:
    """A request from values of its fields, as options give them.

    Args:
        values: with ``gpus``; ``arguments`` are a program where no recipe is named and the first is no option, else
            arguments of the recipe's. A variable whose value is True has that of the shell.
        directory: that relative paths mean, and that the program starts in; by default the working directory.

    Raises:
        UsageError: a value is wrong, or a list of hosts cannot be read.
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
        raise UsageError(f"an option has a wrong type: {error}", fix="docs/python.md shows the forms") from None
    return _with_absolute_paths(request, below)


def _with_absolute_paths(request: Request, below: Path) -> Request:
    """The request with paths that mean the same everywhere; names of sites, recipes, images and environments stay."""

    def absolute(text: str) -> str:
        with suppress(RuntimeError):  # no such user: reported where the path is used
            return str(below / Path(text).expanduser())
        return text

    mounts = (msgspec.structs.replace(each, source=absolute(each.source)) for each in request.mounts)
    paths = {"runs": absolute(request.runs), "mounts": tuple(mounts)}
    if request.hostfile is not None:
        paths["hostfile"] = absolute(request.hostfile)
    if request.site is not None and ("/" in request.site or request.site.endswith((".yaml", ".yml"))):
        paths["site"] = str(below / request.site)
    if request.recipe is not None and _is_directory(request.recipe, below):
        paths["recipe"] = str(below / request.recipe)
    if request.image is not None and references.is_path(request.image):
        paths["image"] = absolute(request.image)
    if request.env_name is not None and "/" in request.env_name:
        paths["env_name"] = str(below / request.env_name)
    return msgspec.structs.replace(request, **paths)


def _is_directory(recipe: str, below: Path) -> bool:
    """Whether it names a directory, as ``runner.recipes.loader.read_recipe`` says."""
    if "/" in recipe or recipe in (".", ".."):
        return True
    return recipe not in loader.names() and (below / recipe / loader.FILE).is_file()


def complete(request: Request) -> Request:
    """The request with what the shell that submits it adds: its umask, home and caches, variables, hosts of the file.

    Raises:
        UsageError: a variable is not set there, or the list of hosts cannot be read.
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
            hosts = parse_host_file(Path(request.hostfile).read_text(errors="replace"), request.hostfile)
        except OSError as error:
            what = f"the host file cannot be read: {error.strerror}"
            raise UsageError(what, where=request.hostfile, fix="correct the path") from None
    by_default = os.environ.get("RUNNER_SITE") or (HOSTS_SITE if hosts else None)
    return msgspec.structs.replace(
        request,
        site=by_default if request.site is None else request.site,
        hosts=hosts,
        env=tuple((name, of_shell.get(name, value)) for name, value in request.env),
        umask=files.user_umask(),
        home=home,
        caches=tuple(placed.items()),
    )


def recipe_of(request: Request) -> LoadedRecipe:
    """The recipe of a request, or the recipe that runs its program.

    Raises:
        UsageError: as ``runner.recipes.loader.read_recipe``.
    """
    name = request.recipe if request.recipe is not None or request.program else DEFAULT_RECIPE
    return loader.recipe_or_program(name, request.program)


def check_directory(request: Request, what: str) -> None:
    """Refuse a request whose directory is gone.

    Raises:
        UsageError: it is.
    """
    try:
        Path(request.directory).stat()
    except (OSError, ValueError) as error:  # of a damaged record
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"the directory where {what} was submitted cannot be used: {why}",
            where=request.directory,
            fix="submit from another directory; `show` prints the command line",
        ) from None


def repeated(
    record: RequestRecord, changes: Mapping[str, Any], *, without: Collection[str] = (), image: str = ""
) -> Request:
    """The request that repeats one.

    Args:
        changes: fields that the user gives, as ``make_request`` takes them; ``arguments`` replace the recorded ones.
            Relative paths among them mean the directory of the first one.
        without: fields that are left out.
        image: that ran, for where no other one or an environment is requested; the same site is kept likewise.

    Raises:
        UsageError: the arguments are options, and the recorded request has a program of its own.
    """
    first = record.request
    values = {
        name: getattr(first, name)
        for name in ("gpus", *FIELDS)
        if name not in without and (name == "gpus" or getattr(first, name) != default_of(name))
    }
    if "env" in values:
        values["env"] = tuple((name, True if name in first.env_of_shell else value) for name, value in first.env)
    old, new = first.program or first.arguments, tuple(changes.get("arguments", ()))
    if first.program and "recipe" not in changes and new and new[0].startswith("-"):
        raise UsageError(
            f"{new[0]} is no program",
            where="the arguments after --",
            fix=f"give the whole program again, as `-- {old[0]} ...`; without it the recorded one is run",
        )
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
