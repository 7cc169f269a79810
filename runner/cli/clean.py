"""``clean``: stop and remove everything of gpu-runner's on this machine, and nothing else."""

from __future__ import annotations

from functools import partial

import click

from runner.core.errors import Exit


@click.command(name="clean")
@click.option("--keep-cache", is_flag=True, help="Only stop: keep images, box roots, wheels and downloads.")
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(keep_cache: bool, as_json: bool) -> int:
    """Stop boxes and the private engine; remove what they and the other commands keep in the cache directory."""
    from runner.setup.cleaning import clean

    cleaned = clean(partial(click.echo, err=as_json), keep_cache=keep_cache)
    if as_json:
        from runner.cli import json_output

        return json_output.show(cleaned)
    return Exit.GOOD
