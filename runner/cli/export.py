"""``export``: measured runs for other programs, or as a bundle with their proof."""

from __future__ import annotations

from pathlib import Path

import click

from runner.cli.options import by_shell
from runner.errors import Exit


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=by_shell("runs"))
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    shell_complete=by_shell("files"),
    help="Write a bundle: plans, scripts, records, results and hashes, for `verify`.",
)
@click.option(
    "--sign",
    "key",
    type=click.Path(path_type=Path),
    metavar="KEY",
    shell_complete=by_shell("files"),
    help="Sign it with this ssh key of yours.",
)
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(runs: tuple[str, ...], bundle: Path, key: Path | None, as_json: bool) -> int:
    """Export RUNs that are measured. Each is an id, a name, the beginning of one, a job's id or a directory."""
    from runner.bundle.making import make
    from runner.jobs.lookup import find

    made = make([find(run) for run in runs], bundle, key)
    if as_json:
        from runner.cli import json_output

        return json_output.show(made)
    from runner.cli.fields import show_fields
    from runner.cli.verify import run_fields

    show_fields([("bundle", f"{made.file}, {made.size_bytes} bytes{', signed' if made.signed else ''}")])
    show_fields([("sha256", made.sha256)])
    for run in made.runs:
        show_fields(run_fields(run))
    return Exit.GOOD
