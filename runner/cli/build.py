"""``build``: an image with a framework and a Horovod that is tested inside it."""

from __future__ import annotations

from pathlib import Path

import click

from runner.cli.options import ENGINE, JSON, answer, by_shell, path_option, say
from runner.cli.progress import display
from runner.cli.table import horovod_summary
from runner.core import files, paths
from runner.core.errors import UsageError
from runner.core.invocation import PROGRAM
from runner.core.package_directory import opened
from runner.core.text import printable
from runner.model.image import facts_of


@click.command()
@click.argument("framework", type=click.Choice(["pytorch", "tensorflow"]))
@click.option(
    "--base", metavar="IMAGE",
    help="Base image. `auto`: the newest NGC image that the site's driver supports; `standin`: a small test base.",
)  # fmt: skip
@click.option(
    "--site", metavar="SITE", shell_complete=by_shell("sites"), help="Site whose driver --base auto must fit."
)
@ENGINE
@click.option("--platform", metavar="OS/ARCH", help="Such as linux/arm64; the engine must be able to run it.")
@click.option("--cxx-standard", default="auto", show_default=True, help="C++ standard to compile with, such as 20.")
@click.option(
    "--cuda-archs", default="auto", show_default=True,
    help="CUDA architectures of Horovod's kernels, such as 80,90. auto: those of the framework's.",
)  # fmt: skip
@click.option(
    "--nccl", default="auto", show_default=True, metavar="auto|none|DIR",
    help="NCCL for Horovod. auto: the base's, which a base with CUDA must have; DIR: its directory in the base.",
)  # fmt: skip
@click.option(
    "--with", "tool", type=click.Choice(["enroot", "ch-run", "apptainer", "ch-image"]),
    help="Build without a container engine, with this program, directly into the store.",
)  # fmt: skip
@click.option(
    "--definition", is_flag=False, flag_value="-", metavar="[FILE]",
    help="Write an Apptainer definition file of the same image (to FILE, or to standard output) instead of building.",
)  # fmt: skip
@click.option("--keras3", is_flag=True, help="TensorFlow: keep Keras 3, whose optimizers Horovod cannot synchronise.")
@path_option(
    "--wheels", metavar="DIR",
    help="Packages that `env wheels DIR` collected: the base must be in the engine, and nothing uses a network.",
)  # fmt: skip
@click.option("--requirement", "named", multiple=True, metavar="NAME==V", help="A further package. Repeatable.")
@path_option(
    "--requirements", "listed", multiple=True, exists=True, dir_okay=False,
    help="Further packages, NAME==V, one a line.",
)  # fmt: skip
@JSON
def command(
    framework: str, base: str | None, site: str | None, engine: str | None, platform: str | None, cxx_standard: str,
    cuda_archs: str, nccl: str, tool: str | None, definition: str | None, keras3: bool, wheels: Path | None,
    named: tuple[str, ...], listed: tuple[Path, ...], as_json: bool,
) -> int:  # fmt: skip
    """Build an image of FRAMEWORK with Horovod, tested by a two-process allreduce in the image."""
    from runner.images.building import build, more_packages, without_engine
    from runner.images.engine import connect

    if keras3 and framework != "tensorflow":
        raise UsageError("--keras3 is for tensorflow", where="--keras3", fix="leave it out")
    args = {"CXX_STANDARD": cxx_standard, "CUDA_ARCHS": cuda_archs, "NCCL": nccl}
    args |= {"LEGACY_KERAS": "0"} if keras3 else {}
    base = _base(framework, base, site)
    more = [more_packages.requirement(text, f"--requirement {text}") for text in named]
    for path in listed:
        more += more_packages.requirements_of_file(files.read_named(path).decode("utf-8", "replace"), str(path))
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
        return _definition(without_engine.definition_file(framework, base, args), definition, as_json=as_json)
    built: build.BuiltImage | without_engine.Built
    if tool:
        with display(quiet=as_json) as progress:
            built = without_engine.build(framework, base, tool, progress, args=args)
        what, then = [f"  {built.path}", f"  {built.size_bytes / 1e6:.0f} MB"], "submit --image"
    else:
        collected, client = opened(wheels) if wheels is not None else None, connect(engine)
        with display(quiet=as_json) as progress:
            built = build.build(framework, base, client, progress, platform=platform, args=args, packages=collected)
            if packages:
                built = more_packages.add(built, framework, packages, client, progress, nccl=nccl, platform=platform)
        what, then = [f"  digest: {built.digest}   size: {built.size_bytes / 1e6:.0f} MB"], "convert"
    facts = facts_of(built.about)
    lines = [
        f"{built.reference}: {'up to date' if built.up_to_date else f'built in {built.seconds:.0f} s'}",
        *what,
        f"  base:   {built.base} ({built.base_digest})",
        *([f"  Horovod {horovod_summary(facts.horovod)}"] if facts else []),
    ]
    for each in facts.packages if facts and not tool else ():
        lines.append(f"  package: {printable(f'{each.name} {each.version}, sha256 {each.sha256}')}")
    return answer(built, [*lines, f"  next:   {PROGRAM} {then} {built.reference}"], as_json=as_json)


def _base(framework: str, base: str | None, site: str | None) -> str | None:
    from runner.images.building import bases
    from runner.sites.loader import read_site

    if base != "auto":
        if site is not None:
            raise UsageError("--site is for --base auto", where="--site", fix="leave it out, or add --base auto")
        return base
    if site is None:
        raise UsageError("--base auto needs to know for which site", where="--base", fix="name it with --site")
    chosen, why = bases.newest(framework, read_site(site).hardware.driver, site)
    say(f"base: {chosen.reference}: {why}")
    return chosen.reference


def _definition(text: str, to: str, *, as_json: bool) -> int:
    if to != "-":
        paths.write_output(Path(to), text.encode())
        say(f"{to}: apptainer build --fakeroot IMAGE.sif {to}")
    facts = {"definition": text, "file": None if to == "-" else str(Path(to).absolute())}
    return answer(facts, text if to == "-" else [], as_json=as_json)
