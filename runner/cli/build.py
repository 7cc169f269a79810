"""``build``: an image with a framework and a Horovod that is tested inside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from runner.checks.image_fit import horovod_architectures
from runner.cli.options import by_shell
from runner.core.errors import Exit, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import printable
from runner.model.image import Horovod


@click.command()
@click.argument("framework", type=click.Choice(["pytorch", "tensorflow"]))
@click.option(
    "--base",
    metavar="IMAGE",
    help="Base image. `auto`: the newest NGC image that the site's driver supports; `standin`: a small test base.",
)
@click.option(
    "--site", metavar="SITE", shell_complete=by_shell("sites"), help="Site whose driver --base auto must fit."
)
@click.option("--engine", metavar="URL", help="Container engine, such as unix:///var/run/docker.sock.")
@click.option("--platform", metavar="OS/ARCH", help="Such as linux/arm64; the engine must be able to run it.")
@click.option("--cxx-standard", default="auto", show_default=True, help="C++ standard to compile with, such as 20.")
@click.option(
    "--cuda-archs",
    default="auto",
    show_default=True,
    help="CUDA architectures of Horovod's kernels, such as 80,90. auto: those of the framework's.",
)
@click.option(
    "--nccl",
    default="auto",
    show_default=True,
    metavar="auto|none|DIR",
    help="NCCL for Horovod. auto: the base's, which a base with CUDA must have; DIR: its directory in the base.",
)
@click.option(
    "--with",
    "tool",
    type=click.Choice(["enroot", "ch-run", "apptainer", "ch-image"]),
    help="Build without a container engine, with this program, directly into the store.",
)
@click.option(
    "--definition",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write an Apptainer definition file of the same image (to FILE, or to standard output) instead of building.",
)
@click.option("--keras3", is_flag=True, help="TensorFlow: keep Keras 3, whose optimizers Horovod cannot synchronise.")
@click.option(
    "--wheels",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Packages that `env wheels DIR` collected: the base must be in the engine, and nothing uses a network.",
)
@click.option("--requirement", "named", multiple=True, metavar="NAME==V", help="A further package. Repeatable.")
@click.option(
    "--requirements",
    "listed",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Further packages, NAME==V, one a line.",
)
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(
    framework: str,
    base: str | None,
    site: str | None,
    engine: str | None,
    platform: str | None,
    cxx_standard: str,
    cuda_archs: str,
    nccl: str,
    tool: str | None,
    definition: str | None,
    keras3: bool,
    wheels: Path | None,
    named: tuple[str, ...],
    listed: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Build an image of FRAMEWORK with Horovod, tested by a two-process allreduce in the image."""
    from runner.images.building import bases, more_packages
    from runner.sites.loader import read_site

    if keras3 and framework != "tensorflow":
        raise UsageError("--keras3 is for tensorflow", where="--keras3", fix="leave it out")
    args = {"CXX_STANDARD": cxx_standard, "CUDA_ARCHS": cuda_archs, "NCCL": nccl}
    args |= {"LEGACY_KERAS": "0"} if keras3 else {}
    if base == "auto":
        if site is None:
            raise UsageError("--base auto needs to know for which site", where="--base", fix="name it with --site")
        chosen, why = bases.newest(framework, read_site(site).hardware.driver, site)
        click.echo(f"base: {chosen.reference}: {why}", err=True)
        base = chosen.reference
    elif site is not None:
        raise UsageError("--site is for --base auto", where="--site", fix="leave it out, or add --base auto")
    more = [more_packages.requirement(text, f"--requirement {text}") for text in named]
    for path in listed:
        more += more_packages.requirements_of_file(path.read_text("utf-8", errors="replace"), str(path))
    packages = more_packages.together(more)
    if packages and wheels is not None:
        fix = "leave --wheels out: what it collected is for Horovod alone"
        raise UsageError("further packages need the package index", where="--requirement", fix=fix)
    engines = {"--engine": engine, "--platform": platform, "--wheels": wheels, "--requirement": packages}
    engines = engines if tool or definition else {}
    conflicting = [name for name, value in (*engines.items(), ("--with", tool and definition)) if value]
    if conflicting:
        way = "--definition" if definition else f"--with {tool}"
        raise UsageError(f"{conflicting[0]} does not go with {way}", where=conflicting[0], fix="leave out one of them")
    if definition:
        return _definition(framework, base, args, definition, as_json=as_json)
    if tool:
        return _without_engine(framework, base, tool, args, as_json=as_json)
    return _by_engine(framework, base, engine, platform, args, wheels, packages, as_json=as_json)


def _by_engine(
    framework: str,
    base: str | None,
    engine: str | None,
    platform: str | None,
    args: dict[str, str],
    wheels: Path | None,
    more: tuple[str, ...],
    *,
    as_json: bool,
) -> int:
    from runner.cli.progress import display
    from runner.core.package_directory import opened
    from runner.images.building import more_packages
    from runner.images.building.build import build
    from runner.images.engine import connect

    packages = opened(wheels) if wheels is not None else None
    client = connect(engine)
    with display(quiet=as_json) as progress:
        built = build(framework, base, client, progress, platform=platform, args=args, packages=packages)
        if more:
            nccl = args["NCCL"]
            built = more_packages.add(built, framework, more, client, progress, nccl=nccl, platform=platform)
    if as_json:
        from runner.cli import json_output

        return json_output.show(built)
    what = "up to date" if built.up_to_date else f"built in {built.seconds:.0f} s"
    click.echo(f"{built.reference}: {what}")
    click.echo(f"  digest: {built.digest}   size: {built.size_bytes / 1e6:.0f} MB")
    click.echo(f"  base:   {built.base} ({built.base_digest})")
    _show_horovod(built.about)
    _show_packages(built.about)
    click.echo(f"  next:   {PROGRAM} convert {built.reference}")
    return Exit.GOOD


def _without_engine(framework: str, base: str | None, tool: str, args: dict[str, str], *, as_json: bool) -> int:
    from runner.cli.progress import display
    from runner.images.building import without_engine

    with display(quiet=as_json) as progress:
        built = without_engine.build(framework, base, tool, progress, args=args)
    if as_json:
        from runner.cli import json_output

        return json_output.show(built)
    what = "up to date" if built.up_to_date else f"built in {built.seconds:.0f} s"
    click.echo(f"{built.reference}: {what}")
    click.echo(f"  {built.path}\n  {built.size_bytes / 1e6:.0f} MB")
    click.echo(f"  base:   {built.base} ({built.base_digest})")
    _show_horovod(built.about)
    click.echo(f"  next:   {PROGRAM} submit --image {built.reference}")
    return Exit.GOOD


def _show_horovod(about: Mapping[str, Any]) -> None:

    from runner.model.image import facts_of

    facts = facts_of(about)
    if facts is not None:
        click.echo(f"  Horovod {horovod_summary(facts.horovod)}")


def _show_packages(about: Mapping[str, Any]) -> None:
    from runner.core.text import printable
    from runner.model.image import facts_of

    facts = facts_of(about)
    for each in facts.packages if facts is not None else ():
        click.echo(f"  package: {printable(f'{each.name} {each.version}, sha256 {each.sha256}')}")


def _definition(framework: str, base: str | None, args: dict[str, str], to: str, *, as_json: bool) -> int:
    from runner.images.building.without_engine import definition_file

    text = definition_file(framework, base, args)
    if to != "-":
        Path(to).write_text(text, "utf-8")
        click.echo(f"{to}: apptainer build --fakeroot IMAGE.sif {to}", err=True)
    if as_json:
        from runner.cli import json_output

        return json_output.show({"definition": text, "file": None if to == "-" else str(Path(to).absolute())})
    if to == "-":
        click.echo(text, nl=False)
    return Exit.GOOD


def horovod_summary(horovod: Horovod) -> str:
    """``0.28.1; operations: NCCL 2.25.1, MPI, Gloo; kernels: sm_80, sm_90, compute_90``.

    >>> summary(Horovod("0.28.1", operations=("Gloo",)))
    '0.28.1; operations: Gloo'
    """
    named = [f"NCCL {horovod.nccl}".strip() if each == "NCCL" else each for each in horovod.operations]
    parts = [horovod.version or "of unknown version", f"operations: {', '.join(named) or 'unknown'}"]
    if horovod.has_nccl:
        parts.append(f"kernels: {', '.join(horovod_architectures(horovod)) or 'unknown'}")
    return printable("; ".join(parts))
