"""``importer``: Pyxis's importer interface, so that every user's ``--container-image`` comes from the store.

Pyxis (0.21 and later, importer.c) runs ``IMPORTER get URI`` as the job's user and takes the first line of its
standard output for the path of a squashfs; it shows standard error where the exit code is not 0.
``IMPORTER release`` follows once or twice, and must always succeed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, NoReturn

import click

from runner.core.errors import Exit
from runner.core.invocation import PROGRAM

_IMPORT_S = 3600.0  # for an image of tens of gigabytes to come from a registry


class _Sources(NamedTuple):
    """Where images come from: the store, and the other importer."""

    store: Path
    otherwise: Path | None


@click.group()
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="The image store. Not read from the environment, which is the job's.",
)
@click.option(
    "--otherwise",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="PROGRAM",
    help="Importer for images that are not in the store, such as simple_importer.sh of Pyxis.",
)
@click.pass_context
def command(context: click.Context, store: Path, otherwise: Path | None) -> None:
    """Serve the store to Pyxis as its importer; see docs/importer.md."""
    context.obj = _Sources(store.absolute(), otherwise.absolute() if otherwise else None)


_JSON = click.option("--json", "as_json", is_flag=True, help="Print facts as JSON; Pyxis takes the path alone.")


@command.command("get")
@click.argument("image_uri")
@_JSON
@click.pass_obj
def get(sources: _Sources, image_uri: str, as_json: bool) -> int:
    """Print the path of the squashfs of IMAGE_URI, an image as Enroot writes it."""
    from runner.core.errors import RefusedError, RunnerError
    from runner.images.store import integrity, store

    try:
        found = store.lookup(image_uri, sources.store)
        why = integrity.problem(found) if found else "it is not there"
        if found and (whose := store.stranger(found)):
            why = f"{whose} put it there, and only root and the store's owner serve all users"
    except RunnerError as error:  # a sidecar that cannot be read, or a reference of a kind that only others know
        found, why = None, error.what
    if found is not None and not why:
        return _served(str(found.path), None) if as_json else _path(found.path)
    if sources.otherwise is not None:
        click.echo(f"not from the store {sources.store}: {why}", err=True)
        if as_json:
            return _served(_output(sources.otherwise, "get", image_uri).partition("\n")[0], sources.otherwise)
        _become(sources.otherwise, "get", image_uri)
    raise RefusedError(
        f"the store has no {image_uri} that could be used: {why}",
        where=str(sources.store),
        fix=f"{PROGRAM} convert --store {sources.store} {image_uri.rpartition('://')[2]}",
    )


@command.command("release")
@_JSON
@click.pass_obj
def release(sources: _Sources, as_json: bool) -> int:
    """Release what the other importer made; images of the store stay."""
    if as_json:
        from runner.cli import json_output

        if sources.otherwise is not None:
            _output(sources.otherwise, "release")
        return json_output.show({"by": str(sources.otherwise or "")})
    if sources.otherwise is not None:
        _become(sources.otherwise, "release")
    return Exit.GOOD


def _path(path: Path) -> int:
    click.echo(path)
    return Exit.GOOD


def _served(path: str, by: Path | None) -> int:
    from runner.cli import json_output

    return json_output.show({"path": path, "by": str(by or "")})


def _output(program: Path, *arguments: str) -> str:
    """What the other importer prints; its messages go where ours go.

    Raises:
        CommandFailedError, CommandTimeoutError.
    """
    from runner.core.process import run

    done = run((str(program), *arguments), timeout_s=_IMPORT_S)
    click.echo(done.err, err=True, nl=False)
    return done.out


def _become(program: Path, *arguments: str) -> NoReturn:
    from runner.core.process import become

    become((str(program), *arguments))
