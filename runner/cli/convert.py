"""``convert``: an image of an engine into a squashfs that every node can use."""

from __future__ import annotations

import json
from pathlib import Path

import click

from runner.errors import Exit


@click.command()
@click.argument("image")
@click.option(
    "--store",
    "store_dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where images are kept (default: RUNNER_STORE, else the cache directory); all nodes must see it.",
)
@click.option("--engine", metavar="URL", help="Container engine, such as unix:///var/run/docker.sock.")
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(image: str, store_dir: Path | None, engine: str | None, as_json: bool) -> int:
    """Convert IMAGE into a squashfs for Enroot, Pyxis and Charliecloud, verified and kept by its digest."""
    import msgspec

    from runner.cli.progress import shown
    from runner.images.convert import convert
    from runner.images.engine import connect

    with shown(quiet=as_json) as progress:
        done = convert(image, connect(engine), progress, store_dir=store_dir.absolute() if store_dir else None)
    if as_json:
        facts = msgspec.to_builtins(done.image, enc_hook=str)
        click.echo(json.dumps({**facts, "made": done.made, "seconds": done.seconds}, indent=1))
        return Exit.GOOD
    what = f"converted in {done.seconds:.0f} s" if done.made else "up to date"
    click.echo(f"{done.image.reference}: {what}")
    click.echo(f"  {done.image.path}")
    click.echo(f"  {done.image.size_bytes / 1e6:.0f} MB, {done.image.entries} entries, of {done.image.digest}")
    for name in done.image.omitted:
        click.echo(f"  note: {name} holds a newline, which /etc/environment cannot say; it is left out", err=True)
    return Exit.GOOD
