"""``env``: environments for jobs without a container: made, proven, listed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runner.errors import Exit, RefusedError, UsageError
from runner.model.runtimes import NATIVE

if TYPE_CHECKING:
    from runner.model.environment import Environment, Framework
    from runner.model.site import Site, Way

F = TypeVar("F", bound=Callable[..., Any])

_SITE = click.option(
    "--site", help="A shipped site, or a site file. [default: $RUNNER_SITE, your configuration's, or local]"
)
_SCRATCH = click.option("--scratch", help="Your scratch directory at the site. [default: your configuration's]")
_AT = click.option(
    "--at", type=click.Path(path_type=Path), help="Their directory. [default: SCRATCH/gpu-runner/environments]"
)
_FRAMEWORK = click.option("--framework", type=click.Choice(["pytorch", "tensorflow"]), help="[default: pytorch]")
_MODULES = click.option("--module", "modules", multiple=True, metavar="NAME", help="To load, for the site's own.")
_MPI = click.option(
    "--mpi", type=click.Choice(["auto", "none", "openmpi", "mpich"]), default="auto", show_default=True,
    help="MPI for Horovod: the one whose mpicxx is found, none, or that one and no other.",
)  # fmt: skip
_NCCL = click.option(
    "--nccl", default="auto", show_default=True, metavar="auto|none|DIR",
    help="NCCL for Horovod: the one that is found, none, or that of DIR, which holds include/nccl.h.",
)  # fmt: skip
_JSON = click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.group()
def command() -> None:
    """Environments for jobs that run without a container (--runtime native)."""


@command.command("create")
@click.argument("name")
@_options(_SITE, _FRAMEWORK, _SCRATCH, _AT, _MODULES, _MPI, _NCCL)
@click.option("--kind", type=click.Choice(["virtualenv", "conda", "modules"]), help="[default: the site's]")
@click.option("--requirement", "requirements", multiple=True, metavar="SPEC", help="Of pip, for the pinned framework.")
@click.option("--cuda-archs", help="CUDA architectures of Horovod's kernels. [default: the site's GPUs, or 80,90]")
@click.option("--force", multiple=True, metavar="CODE", help="Make it although CODE refuses: environment-in-home.")
@click.option("--dry-run", is_flag=True, help="Print the script and touch nothing.")
@_JSON
def create(
    name: str, site: str | None, scratch: str | None, at: Path | None, force: tuple[str, ...], dry_run: bool,
    as_json: bool, **asked: Any,
) -> int:  # fmt: skip
    """Make the environment NAME with a Horovod that is proven in it; at once if it is there already."""
    from runner.cli.progress import shown
    from runner.environments import directory
    from runner.environments.make import make, script_of
    from runner.environments.wanted import of_site

    here, mine = _site(site, scratch)
    _check_force(force)
    root = directory.named(name, at or directory.place(mine))
    directory.check_path(root)
    wanted = of_site(here, name, framework=_framework(asked.pop("framework")), **asked)
    home = directory.home_above(root)
    if home is not None and directory.IN_HOME not in force:
        raise RefusedError(
            f"[{directory.IN_HOME}] an environment has gigabytes and tens of thousands of files, and {home} is a home",
            where=str(root),
            fix=f"--scratch or --at DIR outside of it; or --force {directory.IN_HOME}",
        )
    if dry_run:
        click.echo(script_of(wanted, root), nl=False)
        return Exit.GOOD
    with shown(quiet=as_json) as progress:
        made = make(wanted, root, progress)
    if as_json:
        facts = {"root": str(made.root), "up_to_date": made.up_to_date, "seconds": made.seconds}
        click.echo(json.dumps(facts | _facts(made.environment)))
        return Exit.GOOD
    click.echo(f"{name}: {'up to date' if made.up_to_date else f'made and proven in {made.seconds:.0f} s'}")
    _describe(made.environment, made.root)
    by_name = name if at is None else str(root)
    click.echo(f"  next: python -m runner submit --gpus N --site {here.name} --env-name {by_name}")
    return Exit.GOOD


@command.command("check")
@click.argument("name", required=False)
@_options(_SITE, _FRAMEWORK, _SCRATCH, _MODULES, _MPI, _NCCL, _JSON)
def check(
    name: str | None, site: str | None, framework: str | None, scratch: str | None, modules: tuple[str, ...],
    mpi: str, nccl: str, as_json: bool,
) -> int:  # fmt: skip
    """Prove the Horovod of NAME (a name or directory), of the site's own way, or of a --module: two real processes
    form a world, reduce to the right sum and train in step. Exit 6 where they do not.
    """
    import msgspec

    from runner.environments import directory
    from runner.environments.make import prove

    here, mine = _site(site, scratch)
    env: dict[str, str] = {}
    if name is not None:
        if modules:
            raise UsageError("NAME has modules of its own", where="--module", fix="leave one of them out")
        found = directory.find(name, mine, here.name)
        setup, framework, env, mpi, nccl = found.setup, framework or found.framework, found.env, found.mpi, found.nccl
        what = found.name
    else:
        setup = _way(here).setup
        if modules:
            setup = msgspec.structs.replace(setup, modules=modules)
        what = ", ".join(modules) or f"{here.name}'s own"
    said: list[str] = []

    def hear(line: str) -> None:
        if line.startswith(("hello from ", "PROVEN")):
            said.append(line)
            if not as_json:
                click.echo(line)

    prove(setup, _framework(framework), hear, env=env, mpi=mpi, nccl=nccl)
    if as_json:
        click.echo(json.dumps({"environment": what, "proven": said}))
    else:
        click.echo(f"{what}: its Horovod is proven")
    return Exit.GOOD


@command.command("list")
@_options(_SITE, _SCRATCH, _AT, _JSON)
def list_environments(site: str | None, scratch: str | None, at: Path | None, as_json: bool) -> int:
    """List your environments at the site."""
    from runner.environments import directory

    _, mine = _site(site, scratch)
    found = list(directory.listed(at.absolute() if at else directory.place(mine)))
    if as_json:
        rows = [{"root": str(root), "whole": each is not None} | (_facts(each) if each else {}) for root, each in found]
        click.echo(json.dumps(rows))
        return Exit.GOOD
    for root, each in found:
        if each is None:
            click.echo(f"{root.name}: not finished, or has lost its Python ({root})")
        else:
            click.echo(f"{root.name}:")
            _describe(each, root)
    if not found:
        click.echo("there is none")
    return Exit.GOOD


def _site(name: str | None, scratch: str | None) -> tuple[Site, str]:
    """The site with the user's values in it, and the user's scratch directory there (empty where unknown)."""
    import os

    from runner.model.request import Request
    from runner.preparation.site import read_user_site

    chosen = name or os.environ.get("RUNNER_SITE") or None
    user_site = read_user_site(chosen, Request(gpus=1, scratch=scratch), default="local")
    return user_site.site, user_site.personal.scratch


def _way(site: Site) -> Way:
    from runner.model.site import Way

    return site.ways.get(NATIVE, Way())


def _framework(asked: str | None) -> Framework:
    return "tensorflow" if asked == "tensorflow" else "pytorch"


def _check_force(codes: tuple[str, ...]) -> None:
    from runner.environments.directory import IN_HOME

    for code in codes:
        if code != IN_HOME:
            raise UsageError(f"no check has the code {code!r}", where="--force", fix=f"codes: {IN_HOME}")


def _facts(environment: Environment) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(environment)
    return found


def _describe(environment: Environment, root: Path) -> None:
    about, horovod = environment.about, environment.about.horovod
    click.echo(
        f"  {environment.kind}, {about.framework} {about.framework_version}, Horovod {horovod.version}, "
        f"Python {about.python}; proven: {', '.join(horovod.proven)}"
    )
    click.echo(f"  {root}")
