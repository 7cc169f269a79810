"""``env``: create, check and list environments for jobs without a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from runner.cli.options import JSON, answer, path_option, say, site_option, together
from runner.cli.progress import display
from runner.cli.table import horovod_summary, show
from runner.core.invocation import PROGRAM
from runner.environments.collect import collect
from runner.environments.make import make, prove
from runner.model.image import Environment
from runner.preparation import environment
from runner.preparation.environment import choose_proof, prepare_environment, prepare_packages

_SITE = site_option(
    "A shipped site, or a site file. [default: $RUNNER_SITE, the one in your configuration, the box if it is up, "
    "the Slurm or PBS that answers, or local]"
)
_SCRATCH = click.option(
    "--scratch", help="Your scratch directory at the site. [default: the one in your configuration]"
)
_AT = path_option(
    "--at", metavar=None, help="Directory of your environments. [default: SCRATCH/gpu-runner/environments]"
)
_FRAMEWORK = click.option("--framework", type=click.Choice(["pytorch", "tensorflow"]), help="[default: pytorch]")
_MODULES = click.option(
    "--module", "modules", multiple=True, metavar="NAME",
    help="Environment module to load after the site's; instead of them where another version of their first is named.",
)  # fmt: skip
_MPI = click.option(
    "--mpi", type=click.Choice(["auto", "none", "openmpi", "mpich"]), default="auto", show_default=True,
    help="MPI for Horovod. auto: the one whose mpicxx is in PATH.",
)  # fmt: skip
_NCCL = click.option(
    "--nccl", default="auto", show_default=True, metavar="auto|none|DIR",
    help="NCCL for Horovod. auto: the one that is installed; DIR: its directory, with include/nccl.h.",
)  # fmt: skip
_KIND = click.option("--kind", type=click.Choice(["virtualenv", "conda", "modules"]), help="[default: the site's]")
_REQUIREMENTS = click.option(
    "--requirement", "requirements", multiple=True, metavar="SPEC",
    help="Requirement for pip, instead of the pinned framework.",
)  # fmt: skip


@click.group()
def command() -> None:
    """Environments for jobs that run without a container (--runtime native)."""


@command.command("create")
@click.argument("name")
@together(_SITE, _FRAMEWORK, _SCRATCH, _AT, _MODULES, _MPI, _NCCL, _KIND, _REQUIREMENTS)
@click.option(
    "--cuda-archs",
    help="CUDA architectures of Horovod's kernels, such as 80,90. [default: the site's GPUs, or the framework's]",
)  # fmt: skip
@path_option(
    "--conda-installer",
    help="Installer of Miniforge or Miniconda: conda is installed by it, on scratch, if there is none.",
)  # fmt: skip
@click.option(
    "--channel", "channels", multiple=True, metavar="URL|NAME",
    help="Channel of conda to take Python from, instead of those of its configuration.",
)  # fmt: skip
@path_option(
    "--wheels", metavar="DIR", help="Packages that `env wheels DIR` collected: nothing is fetched from a network."
)
@click.option("--force", multiple=True, metavar="CODE", help="Create it even if CODE refuses: environment-in-home.")
@click.option("--dry-run", is_flag=True, help="Print the script and touch nothing.")
@JSON
def create(name: str, at: Path | None, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Create the environment NAME with a tested Horovod. Returns at once if it is up to date."""
    prepared = prepare_environment(name, at=at, say=say, keep=not dry_run, **options)
    if dry_run:
        script = {"root": str(prepared.root), "script": prepared.script}
        return answer(script, prepared.script, as_json=as_json)
    with display(quiet=as_json) as progress:
        made = make(prepared.spec, prepared.root, progress, given=prepared.given)
    by_name = name if at is None else str(prepared.root)

    def lines() -> Iterator[str]:
        yield f"{name}: {'up to date' if made.up_to_date else f'made and proven in {made.seconds:.0f} s'}"
        yield from _description(made.environment, made.root)
        yield f"  next: {PROGRAM} submit --gpus N --site {prepared.site} --env-name {by_name}"

    facts = {"root": str(made.root), "up_to_date": made.up_to_date, "seconds": made.seconds}
    return answer(facts | msgspec.to_builtins(made.environment), lines(), as_json=as_json)


@command.command("wheels")
@click.argument("where", metavar="DIR", type=click.Path(path_type=Path))
@together(_SITE, _FRAMEWORK, _MODULES, _KIND, _REQUIREMENTS)
@click.option("--python", metavar="PROGRAM", help="Python of the environment. [default: that of the site's modules]")
@click.option("--image", is_flag=True, help="For `build --wheels`: what Horovod needs in any base, no framework.")
@click.option("--platform", metavar="OS/ARCH", help="With --image: such as linux/arm64. [default: this machine's]")
@JSON
def wheels(where: Path, as_json: bool, **options: Any) -> int:
    """Collect packages in DIR, for machines without a network.

    They are all that `env create --wheels DIR` needs, with their hashes. Collect with the Python that the environment
    will have, on a machine with the same processor.
    """
    spec = prepare_packages(**options, say=say)
    with display(quiet=as_json) as progress:
        manifest = collect(spec, where.absolute(), progress)
    lines = [
        f"{where}: {len(manifest.files)} packages, {manifest.size_bytes / 1e6:.0f} MB, each with its hash",
        f"  for {manifest.purpose}",
        f"  next: copy it, then: {PROGRAM} {'build' if options['image'] else 'env create NAME'} --wheels DIR",
    ]
    facts = {"directory": str(where.absolute()), "size_bytes": manifest.size_bytes, "purpose": manifest.purpose}
    return answer(facts | {"files": [file.name for file in manifest.files]}, lines, as_json=as_json)


@command.command("check")
@click.argument("name", required=False)
@together(_SITE, _FRAMEWORK, _SCRATCH, _MODULES, _MPI, _NCCL, JSON)
def check(name: str | None, as_json: bool, **options: Any) -> int:
    """Test the Horovod of an environment.

    It is NAME (a name or directory), the site's, or that of a --module. Two processes must form a world, reduce to the
    right sum and train in step; exits with 6 if they do not.
    """
    proof = choose_proof(name, **options, say=say)
    proven: list[str] = []
    operations: list[str] = []

    def show_line(line: str) -> None:
        if line.startswith("OPERATIONS: "):
            operations[:] = line.removeprefix("OPERATIONS: ").split(", ")
        elif line.startswith(("hello from ", "PROVEN")):
            proven.append(line)
            if not as_json:
                show([line])

    prove(proof.setup, proof.framework, show_line, env=proof.env, mpi=proof.mpi, nccl=proof.nccl)
    line = f"{proof.title}: its Horovod is proven; operations: {', '.join(operations)}"
    return answer({"environment": proof.title, "proven": proven, "operations": operations}, [line], as_json=as_json)


@command.command("list")
@together(_SITE, _SCRATCH, _AT, JSON)
def list_environments(site: str | None, scratch: str | None, at: Path | None, as_json: bool) -> int:
    """List your environments at the site."""
    environments = environment.list_environments(site=site, scratch=scratch, at=at, say=say)
    rows = [{"root": str(root), "whole": each is not None, "environment": each} for root, each in environments]

    def lines() -> Iterator[str]:
        for root, each in environments:
            unfinished = (f"{root.name}: not finished, or its Python is missing ({root})",)
            yield from unfinished if each is None else (f"{root.name}:", *_description(each, root))

    return answer(rows, lines() if rows else ["no environments"], as_json=as_json)


def _description(environment: Environment, root: Path) -> tuple[str, ...]:
    about, horovod = environment.about, environment.about.horovod
    python = f"{about.framework} {about.framework_version}, Python {about.python}"
    proven = f"  {environment.kind}, {python}; proven: {', '.join(horovod.proven)}"
    return proven, f"  Horovod {horovod_summary(horovod)}", f"  {root}"
