"""``report``: a page, a picture, tables and JSON of a study or of runs."""

from __future__ import annotations

from pathlib import Path

import click

from runner.cli.bundling import KEY
from runner.cli.options import by_shell, say
from runner.core.errors import Exit, UsageError


@click.command()
@click.argument("subjects", nargs=-1, metavar="[STUDY | RUN...]", shell_complete=by_shell("runs and studies"))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory for the files: a new one, or that of an earlier report. [default: report-ID]",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="FILE",
    shell_complete=by_shell("files"),
    help="Write a bundle, too: the runs with all that their figures are made from, for `verify`.",
)
@KEY
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    subjects: tuple[str, ...], output: Path | None, bundle: Path | None, key: Path | None, as_json: bool
) -> int:
    """Report a STUDY or RUNs: a page for a browser, a picture for slides, tables (CSV) and JSON; the figures here as a
    table.

    Each is an id, a name, the beginning of one, a run's job id or a directory; by default the newest run.
    """
    from runner.cli.show import warn
    from runner.figures.report import writing
    from runner.study.directory import find_subjects
    from runner.study.readers import bundle_of, report_of

    if key is not None and bundle is None:
        raise UsageError("only a bundle is signed", fix="give --bundle FILE")
    found = find_subjects(subjects)
    if bundle is not None:
        made = bundle_of(found, bundle, key)
        say(f"bundle {made.file}, {made.size_bytes} bytes{', signed' if made.signed else ''}, sha256 {made.sha256}")
    report, name = report_of(found, warn)
    directory = output if output is not None else Path(f"report-{name}")
    complete = writing.write(report, directory, say)
    if as_json:
        from runner.cli import json_output

        return json_output.show(complete)
    from runner.cli.report_table import show_report

    show_report(complete, directory)
    return Exit.GOOD
