"""``clean``: stop and remove everything of gpu-runner's on this machine, but for images that jobs need."""

from __future__ import annotations

import sys
from functools import partial

import click

from runner.core.errors import Exit


@click.command(name="clean")
@click.option("--keep-cache", is_flag=True, help="Only stop: keep images, box roots, wheels and downloads.")
@click.option("--yes", is_flag=True, help="Do not ask. It asks only where standard input is a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(keep_cache: bool, yes: bool, as_json: bool) -> int:
    """Stop boxes and the private engine; remove what they and the other commands keep in the cache directory.

    An image that a queued or running job of yours needs, or may need, is kept.
    """
    from runner.core import paths
    from runner.setup.cleaning import clean

    if not (yes or keep_cache) and sys.stdin.isatty():
        click.confirm(f"stop boxes and the private engine, and empty {paths.cache_dir()}?", abort=True, err=True)
    cleaned = clean(partial(click.echo, err=as_json), keep_cache=keep_cache)
    if as_json:
        from runner.cli import json_output

        return json_output.show(cleaned)
    return Exit.GOOD
