"""``compare``: proven figures against each other, or against references."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import click

from runner.cli import json_output
from runner.cli.json_output import of_findings
from runner.cli.options import JSON, by_shell, show_findings
from runner.cli.table import NARROWEST, show, width_of_terminal, wrapped_all
from runner.core import paths
from runner.core.columns import GAP
from runner.core.errors import Exit, UsageError
from runner.figures.compare import text
from runner.figures.compare.compare import compare_sides, compare_with_references, exit_of
from runner.figures.compare.references import default_file
from runner.model.expectation import Compared
from runner.model.output import Problem
from runner.study.readers import side


def _share(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """``2%`` or ``0.02``, above 0 and below 1."""
    try:
        share = float(value.removesuffix("%").strip()) / (100.0 if value.endswith("%") else 1.0)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no share such as 2% or 0.02") from None
    if not 0.0 < share < 1.0:
        raise click.BadParameter(f"{value!r} does not lie between 0 and 1; write 2% or 0.02")
    return share


def _number(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no number")
    return value


@click.command()
@click.argument("first", metavar="A", shell_complete=by_shell("runs and studies"))
@click.argument("second", metavar="[B]", required=False, shell_complete=by_shell("runs and studies"))
@click.option("--margin", default="2%", callback=_share, help="Smaller changes count as equivalent. Default: 2%.")
@click.option(
    "--fail-below", type=click.FloatRange(min=0.0, min_open=True, max=10.0), callback=_number, metavar="RATIO",
    help="Exit with 7 if B is proven to be below RATIO x A, with 9 if that is unknown.",
)  # fmt: skip
@click.option(
    "--reference", is_flag=False, flag_value="", metavar="[FILE]", shell_complete=by_shell("files"),
    help="Hold A against its reference in FILE (default: references.yaml beside your configuration).",
)  # fmt: skip
@click.option(
    "--force", multiple=True, metavar="CODE", shell_complete=by_shell("compare codes"),
    help="Compare although this check refuses.",
)  # fmt: skip
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML, too.")
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Write Markdown, too.")
@JSON
def command(
    first: str, second: str | None, margin: float, fail_below: float | None, reference: str | None,
    force: tuple[str, ...], junit: Path | None, markdown: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Compare the measured figures of A and B, or A with its reference.

    A and B are each a run (an id, a name, the beginning of one, a job's id or a directory), launches of one job with
    commas between them, a study, or points of one (STUDY:NAME=VALUE). A verdict needs 3 launches of each side or more,
    alternating, on the same nodes and GPUs.
    """
    if (second is None) == (reference is None):
        raise UsageError("one thing to compare A with is needed: B, or --reference", fix="give B or --reference")
    if second is None:
        if fail_below is not None or force:
            raise UsageError("--fail-below and --force need B", fix="the reference's own limits hold")
        compared = compare_with_references(side(first), margin, Path(reference) if reference else default_file())
    else:
        sides = side(first), side(second)
        compared = compare_sides(*sides, margin, fail_below=fail_below, force=force)
    code = exit_of(compared)
    _write_files(compared, junit, markdown)
    if as_json:
        return json_output.show(compared, exit_code=code, error=_problem(compared, code))
    _show(compared)
    return code


def _write_files(compared: Compared, junit: Path | None, markdown: Path | None) -> None:
    for path, form in ((junit, text.junit), (markdown, text.markdown)):
        if path is not None:
            paths.write_output(path, form(compared).encode("utf-8", "replace"))


def _problem(compared: Compared, code: Exit) -> Problem | None:
    if code == Exit.GOOD:
        return None
    if code == Exit.REFUSED:
        return of_findings(compared.findings)
    kind = "failure" if code == Exit.BELOW_REFERENCE else "error"
    row = next(row for row in text.cases(compared) if row.result == kind)
    return Problem(code.name.lower().replace("_", "-"), f"{row.name}: {row.lines[-1]}", who="user")


def _show(compared: Compared) -> None:
    show_findings(compared.findings, override=bool(compared.second))
    for point in compared.points:
        show([text.point_name(point)])
        _lines(text.point_lines(point, compared))
    for each in compared.references:
        _lines(text.reference_lines(each))
    _lines(compared.missing)
    if compared.differences:
        _lines([f"differs: {', '.join(compared.differences)}"])
    if compared.demonstration:
        _lines([compared.demonstration])


def _lines(lines: Iterable[str]) -> None:
    """In a terminal no wider than it is; in a pipe each in one line."""
    show(wrapped_all(lines, width_of_terminal(at_least=NARROWEST), GAP))
