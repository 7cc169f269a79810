"""``wait`` and ``cancel``; how commands wait for a run and print its verdict."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.options import RUN_OR_STUDY
from runner.cli.progress import job_display
from runner.core.errors import Exit, RunnerError
from runner.core.invocation import PROGRAM
from runner.core.text import counted, printable
from runner.model.backends import SCHEDULERS, run_runtime
from runner.model.figure import figure_of, is_of_value
from runner.model.step import LIBRARY

if TYPE_CHECKING:
    from runner.jobs.directory import Run
    from runner.model.plan import Finding, Plan, PlannedImage
    from runner.model.verdict import Verdict
    from runner.preparation.job import PreparedJob


def show_prepared(prepared: PreparedJob, *, with_script: bool, as_json: bool, full: bool = False) -> Exit:
    """Print a prepared job's findings, the unconfirmed facts that it uses, and for a dry run its script; returns
    whether it may be submitted. As JSON, all of it is one document, which a job that is to be submitted has not yet.

    Args:
        full: with the script, the files that it reads.
    """
    show_findings(prepared.findings)
    if prepared.unconfirmed:
        site = prepared.plan.site
        click.echo(f"UNCONFIRMED facts of {site} that this job uses: {', '.join(prepared.unconfirmed)}", err=True)
    if as_json and (with_script or prepared.is_refused):
        from runner.cli import json_output
        from runner.model.output import Preparation, shown_plan

        code = Exit.REFUSED if prepared.is_refused else Exit.GOOD
        script, plan = (prepared.script, shown_plan(prepared.plan)) if with_script else (None, None)
        text, files = (script.text, script.files if full else {}) if script else (None, {})
        facts = Preparation(text, plan, prepared.findings, prepared.unconfirmed, files)
        json_output.show(facts, exit_code=code, error=json_output.of_findings(prepared.findings))
    elif with_script:
        sys.stdout.buffer.write(prepared.script.text.encode("utf-8", "surrogateescape"))
        for name, text in prepared.script.files.items() if full else ():
            sys.stdout.buffer.write(f"\n# {'=' * 20} {LIBRARY}/{name}\n{text}".encode())
        sys.stdout.buffer.flush()
        click.echo(_beside(prepared), err=True)
    if prepared.is_refused and not with_script:
        click.echo("refused: nothing was submitted", err=True)
    return Exit.REFUSED if prepared.is_refused else Exit.GOOD


def show_findings(findings: Iterable[Finding]) -> None:
    """Print what the checks have to say."""
    for finding in findings:
        label = "forced" if finding.forced else "refused" if finding.severity == "refuse" else "warning"
        what, fix = printable(finding.what), printable(finding.fix)  # they quote what an image says of itself
        click.echo(f"{label} [{finding.code}]: {what}\n  fix ({finding.who}): {fix}", err=True)
        if label == "refused":
            click.echo(f"  override: --force {finding.code}", err=True)


def _beside(prepared: PreparedJob) -> str:
    """What the printed script needs and does not bring along."""
    read = "lib/ (the launcher, and what the script reads: --full prints that, too)"
    copied = read if prepared.recipe_directory is None else f"{read}, recipe/"
    return (
        "dry run: nothing was submitted. Alone, this script does not run: it starts in a run directory that has "
        f"{copied}, logs/, ranks/ and nccl/; submit makes one, and submit --write DIR one to submit by hand"
    )


def show_written(run: Run, prepared: PreparedJob, *, as_json: bool) -> None:
    """Print where a job was written, and how it is submitted by hand."""
    from shlex import quote

    from runner.jobs.directory import SCRIPT
    from runner.preparation.job import scheduler_for

    program = SCHEDULERS[prepared.plan.started_by].submit
    clients = scheduler_for(prepared).clients
    line = f"cd {quote(str(run.path))} && {quote(str(clients / program) if clients else program)} {SCRIPT}"
    if as_json:
        from runner.cli import json_output
        from runner.cli.results import WrittenJob

        json_output.show(WrittenJob(str(run.path), line))
        return
    click.echo(f"nothing was submitted; to submit it: {line}")
    click.echo(f"and then: {PROGRAM} wait {quote(str(run.path))}")


def show_start(run: Run, plan: Plan, job_id: str) -> None:
    """Print a started run: its job, its image or environment, its directory."""
    nodes = counted(plan.nodes, "node")
    job = f"job {job_id}"
    if plan.existing_allocation is not None:  # its own id is that of a process of this machine
        job = f"a step of job {plan.existing_allocation.job_id}"
    click.echo(f"{job}: {counted(plan.tasks, 'rank')} on {nodes} ({plan.site}, {plan.runtime})")
    pinned = plan.image.pinned
    if not run_runtime(plan.runtime).is_container:
        click.echo(f"environment: {_environment(plan)}")
    else:
        click.echo(f"image {pinned}{_as_of(plan.image)}")
    click.echo(f"run {run.run_id}: {run.path}")


def _environment(plan: Plan) -> str:
    if plan.python is not None:
        return f"{plan.python.prefix} (Python {plan.python.version}; compared on every node)"
    if plan.image.pinned:
        return plan.image.pinned
    if plan.load:
        return "the one that the site's setup loads"
    if SCHEDULERS[plan.scheduler].nodes != "allocated":
        return "this shell's"
    return "each node's own python3; this shell has no environment that is used (--env-name DIR names one)"


def _as_of(image: PlannedImage) -> str:
    """When the name was last confirmed to mean this image; by now it may mean another."""
    from runner.images.store import store
    from runner.images.store.stored_image import form_of

    confirmed_at = store.confirmed_at(image.reference, form=form_of(Path(image.path)))
    if confirmed_at is None:
        return ""
    return f" (as of {datetime.fromtimestamp(confirmed_at, timezone.utc):%Y-%m-%d %H:%M} UTC)"


def wait_and_judge(run: Run, *, timeout_s: float | None, as_json: bool, cancel_on_interrupt: bool = False) -> int:
    """Wait for the run's end and print its verdict; returns the exit code.

    Ctrl-C ends the waiting, and leaves the job alone unless ``cancel_on_interrupt``.
    """
    from runner.jobs.life import WaitInterrupted, finish

    try:
        with job_display(run.tasks, quiet=as_json) as on_progress:
            verdict = finish(run, on_progress, warn, timeout_s=timeout_s, cancel_on_interrupt=cancel_on_interrupt)
    except WaitInterrupted as stopped:
        if stopped.cancelled:
            what = f"interrupted: job {stopped.job_id} is being cancelled"
            fix = f"`{PROGRAM} wait {run.run_id}` waits until it has ended"
            click.echo(what, err=True)
        else:
            what = f"Detached; job {stopped.job_id} continues."
            again, end = f"`{PROGRAM} wait {run.run_id}`", f"`{PROGRAM} cancel {run.run_id}`"
            fix = f"Reattach: {again}; cancel it: {end}"
            click.echo(f"{what} {fix}", err=True)
        if as_json:
            from runner.cli import json_output

            interrupted = json_output.of_error(RunnerError(what, fix=fix, code=Exit.INTERRUPTED))
            json_output.show(None, exit_code=Exit.INTERRUPTED, error=interrupted)
        return Exit.INTERRUPTED
    if as_json:
        from runner.cli import json_output
        from runner.jobs.facts import run_facts

        error = json_output.of_verdict(verdict)
        return json_output.show(run_facts(run, verdict), exit_code=verdict.exit_code, error=error)
    show_verdict(run, verdict)
    return verdict.exit_code


def warn(text: str) -> None:
    """Print a warning."""
    click.echo(f"warning: {text}", err=True)


def show_verdict(run: Run, verdict: Verdict) -> None:
    """Print a verdict, for people."""
    good, figure = verdict.outcome in ("measured", "ran"), figure_of(verdict)
    doubts = figure.doubts if figure else ()
    of_run = [each.words for each in doubts if each.code != "demonstration" and not is_of_value(each)]
    label = f" ({verdict.demonstration})" if verdict.demonstration else ""
    click.echo(f"verdict: {', '.join((verdict.outcome, *map(printable, of_run)))}{label}")
    for reason in verdict.reasons:
        click.echo(f"  ! {printable(reason)}")
    if verdict.fix:
        click.echo(f"  fix ({verdict.who}): {verdict.fix}")
    for fact in verdict.proven if good else ():
        click.echo(f"  = {printable(fact)}")
    if verdict.forced and figure is None:
        click.echo(f"  forced: {', '.join(verdict.forced)}")
    if figure is not None and figure.window_s is not None:
        label = f"   [{figure.demonstration}]" if figure.demonstration else ""
        of_value = ["steady"] if figure.steady else []
        of_value += [each.words for each in doubts if is_of_value(each)]
        throughput = f"{figure.value:.1f} {figure.unit}/s over {figure.window_s:.2f} s"
        click.echo(f"  throughput: {', '.join((throughput, *of_value))}{label}")
        if figure.interval is not None:
            low, high = figure.interval
            click.echo(f"  precision of this run: {low:.1f} to {high:.1f} {figure.unit}/s (95 %)")
        if verdict.gpu_energy_j_per_sample is not None:
            click.echo(f"  energy: {verdict.gpu_energy_j_per_sample:.3g} J/{figure.unit[:-1]} (GPU only)")
        for arm in verdict.arms:
            click.echo(
                f"  arm {arm.arm}: {arm.samples_per_s:.1f} {figure.unit}/s over {arm.window_s:.2f} s, "
                f"slowest rank {arm.slowest_samples_per_s:.1f}"
            )
    for sentence in verdict.remarks:
        click.echo(f"  note: {printable(sentence)}")
    if verdict.log:
        click.echo(f"  log: {printable(verdict.log)}")
    click.echo(f"  run directory: {run.path}")


@click.command()
@RUN_OR_STUDY
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), help="Maximum time to wait, in seconds; then exit with 9."
)
@click.option("--cancel-on-interrupt", is_flag=True, help="Ctrl-C also cancels the job.")
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def command(run: str | None, timeout_s: float | None, cancel_on_interrupt: bool, as_json: bool) -> int:
    """Wait for RUN to finish, then print its verdict; or for all jobs of STUDY, then print its figures.

    An id or name, or its beginning; a job id; a directory; or the newest run.
    """

    from runner.jobs.directory import Run
    from runner.study.directory import find_subject

    subject = find_subject(run)
    if not isinstance(subject, Run):
        from runner.cli.study import wait_for

        return wait_for(subject, timeout_s=timeout_s, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)
    return wait_and_judge(subject, timeout_s=timeout_s, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)


@click.command()
@RUN_OR_STUDY
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
def cancel(run: str | None, as_json: bool) -> int:
    """Cancel the job of RUN, or all jobs of STUDY (an id or name, or its beginning; a job id; a directory; or the
    newest run).
    """
    from runner.jobs.directory import Run
    from runner.jobs.lookup import kept_outcome
    from runner.jobs.states import cancel_run
    from runner.study.directory import find_subject

    directory = find_subject(run)
    if not isinstance(directory, Run):
        from runner.cli.study import cancel

        return cancel(directory, as_json=as_json)
    job_id, had_ended = cancel_run(directory)
    if as_json:
        from runner.cli import json_output
        from runner.model.output import Cancellation

        return json_output.show(Cancellation(directory.run_id, str(directory.path), job_id, had_ended))
    wait = f"`{PROGRAM} wait {directory.run_id}`"
    if had_ended:
        outcome = kept_outcome(directory)
        verdict = f": {outcome}" if outcome not in ("", "ended") else f"; {wait} prints its verdict"
        click.echo(f"job {job_id} has already ended{verdict}")
    else:
        click.echo(f"job {job_id} is being cancelled; {wait} waits until it has ended")
    return Exit.GOOD
