"""``clean``: stop and remove everything of gpu-runner's on this machine, and nothing else."""

from __future__ import annotations

import click


@click.command(name="clean")
@click.option("--keep-cache", is_flag=True, help="Only stop: keep images, box roots, wheels and downloads.")
def command(keep_cache: bool) -> None:
    """Stop boxes and the private engine; remove what they and the other commands keep in the cache directory."""
    from runner.setup.cleaning import clean

    clean(click.echo, keep_cache=keep_cache)
