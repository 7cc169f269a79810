"""``diff``: what differs between two runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from runner.cli.options import by_shell
from runner.core.errors import Exit

if TYPE_CHECKING:
    from runner.jobs.comparison import Difference

_WIDTH = 80


@click.command()
@click.argument("first", shell_complete=by_shell("runs"))
@click.argument("second", shell_complete=by_shell("runs"))
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(first: str, second: str, as_json: bool) -> int:
    """Show what differs between the runs FIRST and SECOND: request, plan, image, code, script, environment, versions
    and verdict. Each is an id, a name, the beginning of one, a job's id or a directory.
    """
    from runner.jobs.comparison import run_differences
    from runner.jobs.lookup import find

    one, two = find(first), find(second)
    differences = run_differences(one, two)
    if as_json:
        from runner.cli import json_output

        return json_output.show({"first": one.run_id, "second": two.run_id, "differences": differences})
    click.echo(f"A  {one.run_id}\nB  {two.run_id}")
    if not differences:
        click.echo("no difference in request, plan, image, code, script, environment, versions and verdict")
    show_differences(differences)
    return Exit.GOOD


def show_differences(differences: Iterable[Difference], *, err: bool = False) -> None:
    """Print differences under their areas: in one line where 80 columns are enough, else in three."""
    from runner.core.text import printable

    area = ""
    for difference in differences:
        if difference.area != area:
            area = difference.area
            click.echo(area, err=err)
        first, second = printable(difference.first), printable(difference.second)
        line = f"  {difference.key}: {first} -> {second}"
        if len(line) <= _WIDTH:
            click.echo(line, err=err)
        else:
            click.echo(f"  {difference.key}:\n    A  {first}\n    B  {second}", err=err)
