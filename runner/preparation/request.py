"""What a user asks of one job: the request, and where, with which recipe and which exceptions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.model.request import Request

DEFAULT_RECIPE = "horovod-pytorch"
HOSTS_SITE = "hosts"


@dataclass(frozen=True)
class JobOptions:
    """What a command line asks for.

    Attributes:
        site: None for the user's own default.
        recipe: None where ``request.arguments`` are the program.
        force: codes of checks that shall not refuse.
    """

    site: str | None
    recipe: str | None
    request: Request
    runs: Path
    force: tuple[str, ...] = ()


def make_options(
    *,
    site: str | None,
    recipe: str | None,
    runs: Path,
    force: tuple[str, ...] = (),
    hosts: str | None = None,
    hostfile: str | None = None,
    **values: Any,
) -> JobOptions:
    """Words after ``--`` are the program where no recipe is named and the first of them is no option. A list of hosts
    is a site of its own where no site is named.

    Raises:
        UsageError: a list of hosts that cannot be taken.
    """
    from runner.recipes.program import names_a_program

    program = recipe is None and names_a_program(values["arguments"])
    listed = _hosts(hosts, hostfile)
    request = Request(**values, directory=str(Path.cwd()) if program else None, hosts=listed)
    if listed and site is None:
        site = HOSTS_SITE
    if recipe is None and not program:
        recipe = DEFAULT_RECIPE
    return JobOptions(site, recipe, request, runs, force)


def _hosts(words: str | None, file: str | None) -> tuple[tuple[str, int], ...]:
    from runner.planning.hosts import listed, of_file

    if words is not None and file is not None:
        raise UsageError("hosts are named twice", where="--hosts, --hostfile", fix="use one of them")
    if file is None:
        return () if words is None else listed(words)
    try:
        return of_file(Path(file).read_text(errors="replace"), file)
    except OSError as error:
        raise UsageError(f"the host file: {error.strerror}", where=file, fix="correct the path") from None
