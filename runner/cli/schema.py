"""``schema``: the JSON Schema of what ``--json`` prints."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Print the JSON Schema of what every command prints with --json."""
    import json

    from runner.cli.results import json_schema

    click.echo(json.dumps(json_schema(), indent=1))
