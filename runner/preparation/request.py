"""What a user requests of one job: how much, where, with which recipe or program, and which refusals to override."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.core import umask
from runner.core.errors import UsageError
from runner.model.request import Request
from runner.planning import environment

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory

DEFAULT_RECIPE = "horovod-pytorch"
HOSTS_SITE = "hosts"


@dataclass(frozen=True)
class JobOptions:
    """The options of one job.

    Attributes:
        site: a shipped site or a file; None for the user's default.
        recipe: a shipped recipe or a directory; None where ``program`` is run.
        program: the user's program and its arguments, started in ``request.directory``; empty for a recipe.
        runs: where the run directory is made.
        force: codes of checks that shall not refuse.
        snapshot: the program runs from a copy of the user's tracked files.
        copied: the run whose copy is copied again, instead of those files as they are now; None for none.
    """

    site: str | None
    recipe: str | None
    request: Request
    runs: Path
    program: tuple[str, ...] = ()
    force: tuple[str, ...] = ()
    snapshot: bool = False
    copied: RunDirectory | None = None


def make_options(
    *,
    site: str | None = None,
    recipe: str | None = None,
    runs: Path = Path("runs"),
    force: tuple[str, ...] = (),
    snapshot: bool = False,
    copied: RunDirectory | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    arguments: tuple[str, ...] = (),
    **values: Any,
) -> JobOptions:
    """The options of a job from separate values.

    Args:
        hosts: ``nodea:8,nodeb:8``: with no ``site``, these nodes are the site.
        hostfile: the same as a file.
        snapshot, copied: as of ``JobOptions``.
        arguments: where no recipe is named and the first is no option: a program; else arguments of the recipe's.
        values: fields of ``Request``.

    Raises:
        UsageError: a list of hosts that cannot be read.
    """
    from runner.recipes.loader import is_program

    room = _hosts(hosts, hostfile)
    values = {**_of_shell(), **values}
    if room and site is None:
        site = HOSTS_SITE
    if recipe is None and is_program(arguments):
        request = Request(**values, directory=str(Path.cwd()), hosts=room)
        return JobOptions(site, None, request, runs, arguments, force, snapshot, copied)
    request = Request(**values, arguments=arguments, hosts=room)
    name = DEFAULT_RECIPE if recipe is None else recipe
    return JobOptions(site, name, request, runs, force=force, snapshot=snapshot, copied=copied)


def _of_shell() -> dict[str, Any]:
    """What a job takes over from the shell that submits it."""
    placed = {name: os.environ[name] for name in environment.OF_USERS if os.environ.get(name)}
    home = ""
    with suppress(RuntimeError):  # a user id without one
        home = str(Path.home())
    return {"umask": umask.of_user(), "home": home, "caches": tuple(placed.items())}


def _hosts(text: str | None, file: str | None) -> tuple[tuple[str, int], ...]:
    from runner.planning.placement import parse_host_file, parse_hosts

    if text is not None and file is not None:
        raise UsageError("hosts are given twice", where="--hosts, --hostfile", fix="use one of them")
    if file is None:
        return () if text is None else parse_hosts(text)
    try:
        return parse_host_file(Path(file).read_text(errors="replace"), file)
    except OSError as error:
        raise UsageError(
            f"the host file cannot be read: {error.strerror}", where=file, fix="correct the path"
        ) from None
