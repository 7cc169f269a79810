"""``export``: runs for other programs, or as a bundle with their proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from runner.cli.bundling import KEY
from runner.cli.options import by_shell
from runner.core.errors import Exit, InfrastructureError, UsageError
from runner.model.exported import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.jobs.directory import RunDirectory
    from runner.study.directory import StudyDirectory


class _Form(click.Choice[str]):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("mllog", "openmetrics"):
            fix = "--format json has every figure with its labels; docs/export.md shows how a script passes them on"
            raise UsageError(f"there is no --format {value}", where="--format", fix=fix)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN|STUDY...", shell_complete=by_shell("runs and studies"))
@click.option("--format", "form", type=_Form(get_args(Format)), help="What is written.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    shell_complete=by_shell("files"),
    help="Where it is written. Default: standard output.",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="FILE",
    shell_complete=by_shell("files"),
    help="Write a bundle instead: plans, scripts, records, results and hashes, for `verify`.",
)
@KEY
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(
    runs: tuple[str, ...],
    form: Format | None,
    output: Path | None,
    bundle: Path | None,
    key: Path | None,
    as_json: bool,
) -> int:
    """Export RUNs: for other programs (--format), or with all that their figures are made from (--bundle).

    Each RUN is an id, a name, the beginning of one, a job's id or a directory; a STUDY stands for its measured runs. A
    run that is named twice is exported once.
    Only a measured run has a figure, and only such a run can be bundled.
    """
    from runner.study.readers import runs_of
    from runner.study.subject import find_subject

    if (bundle is None) == (form is None):
        raise UsageError("one form is needed: --format or --bundle", fix="give --format csv, or --bundle FILE")
    if bundle is None and key is not None:
        raise UsageError("only a bundle is signed", fix="give --bundle FILE")
    if bundle is not None and output is not None:
        raise UsageError("a bundle has its own file", fix="leave out -o")
    subjects = [find_subject(name) for name in runs]
    if bundle is not None:
        return _bundle(subjects, bundle, key, as_json=as_json)
    assert form is not None
    named = {run.path.resolve(): run for subject in subjects for run in runs_of(subject)}
    return _write(list(named.values()), form, output, as_json=as_json)


def _write(directories: Sequence[RunDirectory], form: Format, output: Path | None, *, as_json: bool) -> int:
    from runner.figures.export import WRITERS, exported_run
    from runner.model.exported import ExportedRuns

    exported = [exported_run(run) for run in directories]
    text = WRITERS[form](exported)
    if output is not None:
        from runner.core import files

        try:
            files.write(output, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise InfrastructureError(f"cannot be written: {error.strerror}", where=str(output)) from None
    if as_json:
        from runner.cli import json_output

        return json_output.show(ExportedRuns("gpu-runner-export/1", tuple(exported)))
    if output is None:
        click.echo(text.encode("utf-8", "backslashreplace"), nl=False)
    return Exit.GOOD


def _bundle(subjects: Sequence[RunDirectory | StudyDirectory], file: Path, key: Path | None, *, as_json: bool) -> int:
    from runner.study.readers import bundle_of

    made = bundle_of(subjects, file, key)
    if as_json:
        from runner.cli import json_output

        return json_output.show(made)
    from runner.cli.table import show_fields
    from runner.cli.verify import run_fields, study_fields

    show_fields([("bundle", f"{made.file}, {made.size_bytes} bytes{', signed' if made.signed else ''}")])
    show_fields([("sha256", made.sha256)])
    if made.study is not None:
        show_fields(study_fields(made.study, made.runs[0].unit))
    for run in made.runs:
        show_fields(run_fields(run))
    return Exit.GOOD
