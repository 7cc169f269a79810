"""``images importer``: Pyxis's importer interface, so that every user's ``--container-image`` comes from the store.

Pyxis (0.21 and later, importer.c) runs ``IMPORTER get URI`` as the job's user and takes the first line of its
standard output for the path of a squashfs; it shows standard error where the exit code is not 0.
``IMPORTER release`` follows once or twice, and must always succeed.
"""

from __future__ import annotations

from pathlib import Path

import click

from runner.cli import json_output
from runner.cli.options import path_option, say
from runner.core.errors import Exit, RefusedError, RunnerError
from runner.core.invocation import PROGRAM
from runner.core.process import become, run
from runner.images.store import integrity
from runner.images.store import store as images

_IMPORT_S = 3600.0  # for an image of tens of gigabytes to come from a registry
Sources = tuple[Path, Path | None]  # the store, and the other importer


@click.group()
@path_option(
    "--store", metavar="DIR", file_okay=False, required=True,
    help="The image store. Not read from the environment, which is the job's.",
)  # fmt: skip
@path_option(
    "--otherwise", metavar="PROGRAM", exists=True, dir_okay=False,
    help="Importer for images that are not in the store, such as simple_importer.sh of Pyxis.",
)  # fmt: skip
@click.pass_context
def command(context: click.Context, store: Path, otherwise: Path | None) -> None:
    """Serve the store to Pyxis; see `gpu-runner docs security`."""
    context.obj = store.absolute(), otherwise.absolute() if otherwise else None


_JSON = click.option("--json", "as_json", is_flag=True, help="Print facts as JSON; Pyxis takes the path alone.")


@command.command("get")
@click.argument("image_uri")
@_JSON
@click.pass_obj
def get(sources: Sources, image_uri: str, as_json: bool) -> int:
    """Print the path of the squashfs of IMAGE_URI, an image as Enroot writes it."""
    store, otherwise = sources
    try:
        stored, whose = images.lookup_and_stranger(image_uri, store)
        why = integrity.problem(stored) if stored else "it is not there"
        if whose:
            why = f"{whose} put it there or named it so, and only root and the store's owner serve all users"
    except RunnerError as error:  # a sidecar that cannot be read, or a reference of a kind that only others know
        stored, why = None, error.what
    if stored is not None and not why:
        if as_json:
            return json_output.show({"path": str(stored.path), "by": ""})
        click.echo(stored.path)
        return Exit.GOOD
    if otherwise is None:
        fix = f"its owner converts it: {PROGRAM} convert --store {store} {image_uri.rpartition('://')[2]}"
        raise RefusedError(f"the store has no {image_uri} that could be used: {why}", where=str(store), fix=fix)
    say(f"not from the store {store}: {why}")
    if not as_json:
        become((str(otherwise), "get", image_uri))
    path = _output(otherwise, "get", image_uri).partition("\n")[0]
    return json_output.show({"path": path, "by": str(otherwise)})


@command.command("release")
@_JSON
@click.pass_obj
def release(sources: Sources, as_json: bool) -> int:
    """Release what the other importer made; images of the store stay."""
    _, otherwise = sources
    if as_json:
        if otherwise is not None:
            _output(otherwise, "release")
        return json_output.show({"by": str(otherwise or "")})
    if otherwise is not None:
        become((str(otherwise), "release"))
    return Exit.GOOD


def _output(program: Path, *arguments: str) -> str:
    """What the other importer prints; its messages go where ours go.

    Raises:
        CommandFailedError, CommandTimeoutError.
    """
    done = run((str(program), *arguments), timeout_s=_IMPORT_S)
    click.echo(done.err, err=True, nl=False)
    return done.out
