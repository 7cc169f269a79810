"""``convert``: an image into a squashfs or SIF that every node can use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from runner.cli.options import ENGINE, JSON, answer, on_command_line, path_option, say
from runner.cli.progress import display
from runner.core.errors import RefusedError, UsageError
from runner.core.hide import hidden

if TYPE_CHECKING:
    from runner.images.conversion.engine_source import Method
    from runner.images.conversion.publishing import Conversion
    from runner.images.conversion.squashfs import SourceKind


@click.command()
@click.argument("image")
@path_option(
    "--store", metavar="DIR", file_okay=False,
    help="Image store; every node must see it. [default: $RUNNER_STORE, else in the cache directory]",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(["sqsh", "sif"]), default="sqsh", show_default=True,
    help="sif: for Apptainer and Singularity; they pull it, or build it from an engine's image.",
)  # fmt: skip
@click.option(
    "--zstd-level", type=click.IntRange(1, 22), default=3, show_default=True,
    help="A higher level makes a smaller file, more slowly.",
)  # fmt: skip
@click.option(
    "--block-size", type=click.Choice(["128K", "256K", "512K", "1M"]), default="1M", show_default=True,
    help="Larger blocks make a smaller file, but reading a small file then reads more.",
)  # fmt: skip
@click.option("--processors", type=click.IntRange(1), help="Number to use at once. [default: all]")
@click.option(
    "--way", type=click.Choice(["auto", "layers", "stream"]), default="auto", show_default=True,
    help="Read the engine's layers by mounting them (needs root), or its export as a stream; from scratch, both give"
    " the same file.",
)  # fmt: skip
@click.option(
    "--assemble/--from-scratch", default=True, show_default=True,
    help="Copy what the store has of an image with the same lower layers, and pack the rest; the same root in other"
    " bytes. Where that cannot be done, with a line that says why, and with --from-scratch, all is packed.",
)  # fmt: skip
@click.option(
    "--from", "source", type=click.Choice(["auto", "engine", "registry"]), default="auto", show_default=True,
    help="Source of a plain reference. auto: an engine if one answers, else the registry.",
)  # fmt: skip
@click.option("--platform", metavar="OS/ARCH", help="Such as linux/arm64. [default: this machine]")
@ENGINE
@JSON
def command(
    image: str, store: Path | None, form: str, zstd_level: int, block_size: str, processors: int | None, way: Method,
    assemble: bool, source: SourceKind, platform: str | None, engine: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Convert IMAGE into a squashfs for Enroot, Pyxis and Charliecloud; verify it and store it by its digest.

    \b
    IMAGE is NAME[:TAG][@DIGEST]          in an engine, or in a registry (--from)
             dockerd://NAME:TAG           in an engine
             docker://REGISTRY#NAME:TAG   in a registry, also docker://REGISTRY/NAME:TAG; needs no engine
             docker-archive:FILE[:NAME]   a file from docker save
             oci:DIR[:TAG], oci-archive:FILE[:TAG]
    """
    from runner.images.conversion import squashfs
    from runner.images.packing.mksquashfs import Packing

    store = store.absolute() if store else None
    if form == "sif":
        done = _sif(image, store, engine, source, quiet=as_json)
    else:
        packing = Packing(level=zstd_level, block=block_size, processors=processors)
        with display(quiet=as_json) as progress:
            options = squashfs.Options(source, platform, engine, way, packing, store, assemble)
            done = squashfs.convert(image, options, progress)
    stored = done.image
    lines = [
        f"{stored.reference}: {f'converted in {done.seconds:.0f} s' if done.made else 'up to date'}",
        *([f"  the name has moved: it meant {done.moved_from} before"] if done.moved_from else []),
        f"  {stored.path}",
        f"  {stored.size_bytes / 1e6:.0f} MB, {stored.entries} entries, from {stored.origin or stored.digest}",
    ]
    for name in () if as_json else stored.omitted:
        say(f"  note: {name} contains a newline, which /etc/environment cannot hold; it is left out")
    facts = {"made": done.made, "seconds": done.seconds, "moved_from": done.moved_from}
    return answer(msgspec.to_builtins(stored, enc_hook=str) | facts, lines, as_json=as_json)


# Without meaning for a SIF, which Apptainer packs.
_SQUASHFS_ONLY = frozenset(("zstd_level", "block_size", "processors", "way", "assemble", "platform"))


def _sif(image: str, store: Path | None, engine: str | None, source: SourceKind, *, quiet: bool) -> Conversion:
    from runner.images.conversion import sif
    from runner.images.conversion.squashfs import no_registry, parse_name
    from runner.images.engine import connected
    from runner.images.reference import names_registry, parse

    context = click.get_current_context()
    typed = on_command_line(context) & _SQUASHFS_ONLY
    for option in (each for each in context.command.params if each.name in typed):
        where, fix = "/".join([*option.opts, *option.secondary_opts]), "leave it out: Apptainer packs a SIF"
        raise UsageError("this option is only for a squashfs", where=where, fix=fix)
    name = parse_name(image, source)
    if name.kind not in ("engine", "registry", "any"):
        fix = "load it into an engine first; without one: apptainer build FILE.sif docker-archive:FILE"
        raise UsageError("a SIF is built from an engine's image, or a registry's", where=image, fix=fix)
    with display(quiet=quiet) as progress:
        if name.kind != "registry":
            try:
                url, client = connected(engine)
            except RefusedError as error:
                if name.kind == "engine":
                    raise
                progress.line(f"{error.what}: taking {hidden(image)} from its registry")
            else:
                return sif.convert(name.text, client, url, progress, store_dir=store)
        if not names_registry(name.text):
            raise no_registry(name.text)
        return sif.pull(parse(name.text), progress, store_dir=store)
