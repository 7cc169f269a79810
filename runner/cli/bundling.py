"""The option of ``export`` and ``report`` that signs a bundle."""

from __future__ import annotations

from pathlib import Path

import click

from runner.cli.options import by_shell

KEY = click.option(
    "--sign",
    "key",
    type=click.Path(path_type=Path),
    metavar="KEY",
    shell_complete=by_shell("files"),
    help="Sign the bundle with this ssh key of yours.",
)
