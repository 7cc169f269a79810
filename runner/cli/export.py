"""``export``: runs for other programs, or as a bundle with their proof; ``verify``: a bundle, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from runner.cli import json_output
from runner.cli.options import JSON, SIGN, answer, by_shell, path_option
from runner.cli.table import field_lines
from runner.core import paths
from runner.core.errors import Exit, NotProvenError, UsageError
from runner.core.text import counted, gpus_text, printable, rate, settings_text, span, with_span
from runner.figures.export import WRITERS
from runner.jobs.directory import Run
from runner.model.figure import in_words
from runner.model.output import BundledRun, BundledStudy, ExportedRuns, Format, MadeBundle, VerifiedBundle
from runner.model.study import LossRow
from runner.study.directory import StudyDirectory, find_subjects
from runner.study.gather import figures
from runner.study.readers import bundle_of, exported_of


class _Form(click.Choice[str]):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("mllog", "openmetrics"):
            fix = "--format json has every figure with its labels; gpu-runner docs report has a script that uses them"
            raise UsageError(f"there is no --format {value}", where="--format", fix=fix)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN|STUDY...", shell_complete=by_shell("runs and studies"))
@click.option("--format", "form", type=_Form(get_args(Format)), help="What is written.")
@path_option("-o", "--output", help="Where it is written. Default: standard output.")
@path_option("--bundle", help="Write a bundle instead: plans, scripts, records, results and hashes, for `verify`.")
@SIGN
@JSON
def command(
    runs: tuple[str, ...], form: Format | None, output: Path | None, bundle: Path | None, key: Path | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Export RUNs: for other programs (--format), or with all that their figures are made from (--bundle).

    Each RUN is an id, a name, the beginning of one, a job's id or a directory; a STUDY stands for its measured runs. A
    run that is named twice is exported once.
    Only a measured run has a figure, and only such a run can be bundled.
    """
    if (bundle is None) == (form is None):
        raise UsageError("one form is needed: --format or --bundle", fix="give --format csv, or --bundle FILE")
    if bundle is None and key is not None:
        raise UsageError("only a bundle is signed", fix="give --bundle FILE")
    if bundle is not None and output is not None:
        raise UsageError("a bundle has its own file", fix="leave out -o")
    subjects = find_subjects(runs)
    if bundle is not None:
        return _bundle(subjects, bundle, key, as_json=as_json)
    assert form is not None
    exported = exported_of(subjects)
    text = WRITERS[form](exported).encode("utf-8", "backslashreplace")
    if output is not None:
        paths.write_output(output, text)
    if as_json:
        return json_output.show(ExportedRuns("gpu-runner-export/1", exported))
    if output is None:
        click.echo(text, nl=False)
    return Exit.GOOD


def _bundle(subjects: Sequence[Run | StudyDirectory], file: Path, key: Path | None, *, as_json: bool) -> int:
    made = bundle_of(subjects, file, key)
    written = f"{made.file}, {made.size_bytes} bytes{', signed' if made.signed else ''}"
    fields = (("bundle", written), ("sha256", made.sha256), *_fields(made))
    return answer(made, field_lines(fields), as_json=as_json)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@path_option("--allowed-signers", help="It must be signed by one of these (a file as ssh-keygen -Y verify takes it).")
@JSON
def verify(bundle: Path, allowed_signers: Path | None, as_json: bool) -> int:
    """Verify BUNDLE, which `export --bundle` has made: compute every figure and verdict again from its records.

    An altered byte is refused (exit code 6). No cluster and no run directory is needed.
    """
    from runner.figures.bundle.verification import verify

    try:
        verified = verify(bundle, allowed_signers, figures)
    except NotProvenError as error:  # names and keys in it are those of whoever made the bundle
        raise NotProvenError(printable(error.what), where=printable(error.where), fix=error.fix) from None
    signature = _SIGNATURES[verified.signature].format(verified.signer)
    head = (("bundle", f"consistent: {verified.file}"), ("sha256", verified.sha256), ("signature", signature))
    return answer(verified, field_lines([*head, *_fields(verified)]), as_json=as_json)


_SIGNATURES = {
    "none": "none: it is consistent, which says nothing about who made it",
    "valid": "valid, by {}",
    "unknown signer": "of this bundle, by the key {}, whose owner is unknown without --allowed-signers",
    "not checked": "not checked: there is no ssh-keygen here",
}


def _fields(bundle: MadeBundle | VerifiedBundle) -> Iterator[tuple[str, str]]:
    if bundle.study is not None:
        yield from study_fields(bundle.study, bundle.runs[0].unit)
    for run in bundle.runs:
        yield from run_fields(run)


def study_fields(study: BundledStudy, unit: str) -> Iterator[tuple[str, str]]:
    """The table of a study in a bundle, as its runs give it."""
    proven = sum(bool(run) for run in study.runs.values())
    yield "study", f"{study.study}: {proven} of {counted(len(study.runs), 'launch')} proven"
    yield from (("gap", f"{each}; figures without it may be chosen ones") for each in study.gaps)
    yield from (("log", each) for each in study.log)
    for point in study.points:
        whole, of_one = point.images_per_s, point.efficiency_of_one
        figure = f"{with_span(whole.value, whole.low, whole.high, rate)} {unit}/s" if whole else "not proven"
        kind = f" ({point.scaling} scaling)" if point.scaling else ""
        efficiency = f", {with_span(of_one.value, of_one.low, of_one.high)} of one GPU{kind}" if of_one else ""
        which = filter(None, (gpus_text(point.gpus), settings_text(point.settings), point.arm))
        made_of = f"{', '.join(which)}, {point.proven} of {point.wanted}"
        doubts = f"; {in_words(point.doubts)}" if point.doubts else ""
        yield "", f"{made_of}: {figure}{efficiency}{f'; no efficiency: {point.why}' if point.why else ''}{doubts}"
    for loss in study.losses:
        if loss.rows:
            rows = ", ".join(
                f"{_named(row)} {with_span(row.loss.value, row.loss.low, row.loss.high)}" for row in loss.rows
            )
            which = filter(None, (gpus_text(loss.gpus), settings_text(loss.settings)))
            yield "", f"{', '.join(which)} lose: {rows}"


def _named(row: LossRow) -> str:
    return f"{row.name} ({row.note})" if row.note else row.name


def run_fields(run: BundledRun) -> Iterator[tuple[str, str]]:
    """A run of a bundle, as its records give it."""
    precision = "" if run.precision is None else f" (this run, 95 %: {span(*run.precision, rate)})"
    yield "run", run.run
    yield "", f"measured: {rate(run.images_per_s or 0.0)} {run.unit}/s{precision}"
    nodes = counted(run.nodes, "node")
    yield "", f"{run.recipe} on {gpus_text(run.gpus)}, {nodes} of {run.site}"
    yield from (("", doubt.words) for doubt in (run.figure.doubts if run.figure else ()))
    yield "", f"secrets were taken out of: {', '.join(run.redacted)}" if run.redacted else ""
