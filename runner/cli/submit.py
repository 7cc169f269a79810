"""``submit``: submit a job, or print its script; ``run``: a step in the allocation of this shell."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from itertools import takewhile
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from runner.cli.job_options import JobCommand, command_line, given, job_options, request_of_call, typed
from runner.cli.options import answer, path_option, say, setting, show_findings, together
from runner.cli.progress import slow
from runner.cli.table import show, show_file
from runner.core.errors import Exit, RunnerError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import counted, settings_text, shape_text
from runner.model.backends import SCHEDULERS, run_runtime
from runner.model.step import LIBRARY

if TYPE_CHECKING:
    from runner.jobs.directory import Run
    from runner.jobs.logs import LogFile
    from runner.model.plan import Finding, Plan
    from runner.model.request import Request
    from runner.preparation.job import PreparedJob


waiting_options = together(
    click.option("--wait", is_flag=True, help="Wait for the job to finish, then print its verdict."),
    click.option("--follow", is_flag=True, help="Print the job's logs as they grow, then its verdict."),
    click.option("--cancel-on-interrupt", is_flag=True, help="With --wait or --follow: Ctrl-C also cancels the job."),
)


_SCRIPT = "runner.script"  # key of what click's contexts share: whether a batch script is submitted


class SubmitCommand(JobCommand):
    """``submit``, which takes a batch script in the place of GPUs and a program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from runner.cli.batch_script import is_batch_script

        own = args[: args.index("--")] if "--" in args else args
        # Values of options are not looked at where they need not be: they may lie where nothing answers.
        is_script = not any(word.startswith("--gpus") for word in own) and any(map(is_batch_script, own))
        gpus = next(each for each in self.params if each.name == "gpus")
        ctx.meta[_SCRIPT], gpus.required = is_script, not (is_script or "--check" in own)
        try:
            return super().parse_args(ctx, args)
        finally:
            gpus.required = True


@click.command(cls=SubmitCommand)
@job_options()
@waiting_options
@click.option(
    "--sweep", multiple=True, metavar="NAME=A,B,...", callback=setting,
    help="A run for each value, and for each combination of several, with {NAME} in the arguments replaced.",
)  # fmt: skip
@click.option("--at-once", type=click.IntRange(min=1), help="With --sweep: how many of its runs may run at one time.")
@click.option(
    "--until-done", is_flag=True, help="Slurm: through time limits and lost nodes, until the program is done."
)
@click.option("--attempts", type=click.IntRange(1, 100), help="With --until-done: at most so many. [default: 5]")
@click.option("--gpu-hours", type=click.FloatRange(0), help="With --until-done: of all attempts, by their time limits.")
@click.option("--check", is_flag=True, help="Only read a batch script: what is wrong with it, and our command for it.")
@path_option(
    "--write", metavar="DIR", help="Submit nothing: make DIR, in which the job's script can be submitted by hand."
)
def command(
    sweep: tuple[tuple[str, str], ...], at_once: int | None, until_done: bool, attempts: int | None,
    gpu_hours: float | None, **flags: Any,
) -> int:  # fmt: skip
    """Submit a job: one rank on each of its GPUs.

    Arguments after -- are a program to run in this directory. With --recipe, or if the first of them is an option, they
    are passed to the recipe's program. A batch script of yours is submitted as it is, and recorded.
    """
    context = click.get_current_context()
    if at_once is not None and not sweep:
        raise UsageError("--at-once is for the runs of a sweep", where="--at-once", fix="give --sweep NAME=A,B,...")
    if (attempts, gpu_hours) != (None, None) and not until_done:
        raise UsageError("they are of attempts at one job", where="--attempts, --gpu-hours", fix="give --until-done")
    if until_done and (sweep or flags["write"]):
        what = "neither a sweep nor --write has attempts"
        raise UsageError(what, where="--until-done", fix="leave it out, or submit each run so")
    from runner.cli.batch_script import is_batch_script, run_script

    first = next(iter(context.params["arguments"]), "")  # behind -- it is a program
    is_script = first in takewhile("--".__ne__, typed()) and is_batch_script(first)
    if is_script or context.meta[_SCRIPT]:
        if sweep or until_done:
            what = f"a batch script has no --{'sweep' if sweep else 'until-done'}"
            raise UsageError(what, where=what.split()[-1], fix="give --gpus, and its program after --")
        if not is_script:
            raise click.MissingParameter(param=next(each for each in context.command.params if each.name == "gpus"))
        return run_script(context.params["arguments"], given(context), typed(), **flags)
    if flags.pop("check"):
        fix = f"{PROGRAM} submit job.sbatch --check: a file that is there, with a line #SBATCH"
        raise UsageError("--check reads a batch script, and none is named", where="--check", fix=fix)
    if sweep:
        return _submit_sweep(request_of_call(), sweep, at_once, **flags)
    return submit(request_of_call(), attempts=(attempts or 5, gpu_hours) if until_done else None, **flags)


def _submit_sweep(
    request: Request, swept: Sequence[tuple[str, str]], at_once: int | None, *, dry_run: bool, wait: bool, follow: bool,
    cancel_on_interrupt: bool, as_json: bool, full: bool, write: Path | None,
) -> int:  # fmt: skip
    from runner.cli.study import listening
    from runner.cli.wait import show_runs, wait_for
    from runner.model.job import CommandLine
    from runner.preparation.job import prepare
    from runner.preparation.sweep import values_of
    from runner.study.sweep import prepare_sweep, start

    for name in [name for name, value in (("--follow", follow), ("--full", full), ("--write", write)) if value]:
        raise UsageError(f"a sweep has no {name}", where=name, fix=f"leave it out; `{PROGRAM} logs -f NAME.1`")
    noted: dict[str, None] = {}
    with slow("preparing the jobs"):
        made = prepare_sweep(
            request, values_of(swept), at_once, lambda each: prepare(each, say=noted.setdefault, keep=not dry_run)
        )
    for line in noted:
        say(line)
    first = next(iter(made.jobs.values()))
    if dry_run:
        for key, values in made.values.items():
            say(f"{made.name}.{key}: {settings_text(values.items())}")
        array = made.array_script(len(made.jobs))
        way = (
            "an array, whose script comes first, and then that of run 1" if array else "a job each; the script of run 1"
        )
        say(f"{counted(len(made.jobs), 'run')}: {way}")
        if array and not as_json:
            show_file(array.text.encode("utf-8", "surrogateescape"))
    code = _show_prepared(
        next(filter(lambda job: job.is_refused, made.jobs.values()), first),
        made.findings,
        dry_run=dry_run,
        full=False,
        as_json=as_json,
    )
    if dry_run or code != Exit.GOOD:
        return code
    with listening(quiet=as_json) as listener:
        sweep = start(made, CommandLine(("submit", *typed()), request.directory), listener)
    if wait:
        return wait_for(sweep.submitted, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)
    return show_runs(sweep.submitted, as_json=as_json)


def submit(
    request: Request, first: Run | None = None, *, dry_run: bool, wait: bool, follow: bool, cancel_on_interrupt: bool,
    as_json: bool, full: bool = False, write: Path | None = None, attempts: tuple[int, float | None] | None = None,
) -> int:  # fmt: skip
    """Submit what is asked for, and show it; returns the exit code.

    Args:
        first: the run that it repeats; None where it repeats none.
        attempts: at most so many, and GPU-hours of all of them (None: any); None for a job of its own.
    """
    from runner.preparation.job import start, write_directory

    if write is not None and (wait or follow or dry_run):
        what, fix = (
            "--write submits nothing, and there is nothing to wait for or to print",
            "leave --wait, --follow and --dry-run out",
        )
        raise UsageError(what, where="--write", fix=fix)
    if full and not dry_run:
        raise UsageError("--full prints what a dry run prints, and more", where="--full", fix="add --dry-run")
    if follow and as_json:
        fix = "use --wait --json, or logs -f RUN"
        raise UsageError("--follow prints logs, and --json facts", where="--json", fix=fix)
    prepared, code = prepare_and_show(request, first, dry_run=dry_run, full=full, as_json=as_json, attempts=attempts)
    if dry_run or code != Exit.GOOD:
        return code
    if write is not None:
        run = write_directory(prepared, write, command=command_line(prepared, first))
        return _show_written(run, prepared, as_json=as_json)
    with slow("submitting the job"):
        if attempts is None:
            run, job_id = start(prepared, command=command_line(prepared, first), estimate=True)
        else:
            from runner.study.chain import start as start_chain

            run, job_id = start_chain(prepared, command_line(prepared, first))
    if not as_json:
        show_start(run, prepared.plan, job_id)
    return attend(run, wait=wait, follow=follow, cancel_on_interrupt=cancel_on_interrupt, as_json=as_json)


def attend(run: Run, *, wait: bool, follow: bool, cancel_on_interrupt: bool, as_json: bool) -> int:
    """Follow the logs of a run that was submitted, or wait for it, or print its facts; returns the exit code."""
    if follow:
        from runner.cli.logs import follow_to_verdict
        from runner.jobs.logs import one_rank

        logs = one_rank(0, script=True)
        return follow_to_verdict(run, logs, prefixed=False, cancel_on_interrupt=cancel_on_interrupt)
    if wait:
        from runner.cli.wait import wait_for

        return wait_for([run], as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)
    if as_json:
        from runner.cli import json_output
        from runner.jobs.facts import run_facts

        return json_output.show(run_facts(run, None))
    return Exit.GOOD


@click.command(cls=JobCommand)
@job_options()
def run(**flags: Any) -> int:
    """Run GPUS ranks as a step in this shell's allocation (salloc, qsub -I); print rank 0's output and the verdict.

    Steps of any shape that fits can run one after another. Options and arguments are those of submit. Ctrl-C ends the
    step and keeps the allocation.
    """
    return run_step(request_of_call(step=True), **flags)


def run_step(request: Request, first: Run | None = None, *, dry_run: bool, as_json: bool, full: bool = False) -> int:
    """Run the step that is asked for, and show it; returns the exit code. ``first``: as in ``submit``."""
    from runner.cli.wait import wait_and_judge
    from runner.jobs.life import follow_step
    from runner.preparation.job import start

    prepared, code = prepare_and_show(request, first, dry_run=dry_run, full=full, as_json=as_json)
    if dry_run or code != Exit.GOOD:
        return code
    with slow("submitting the job"):
        run, job_id = start(prepared, command=command_line(prepared, first))
    interrupted = False
    if not as_json:
        show_start(run, prepared.plan, job_id)
        interrupted = follow_step(run, _print, say)
    verdict = wait_and_judge(run, timeout_s=None, as_json=as_json, cancel_on_interrupt=True)
    return Exit.INTERRUPTED if interrupted else verdict


def _print(log: LogFile, content: bytes, _changed: bool) -> None:
    stream = sys.stderr if log.path.suffix == ".err" else sys.stdout
    if stream.isatty():
        from runner.cli.logs import for_terminal

        content = for_terminal(content, redraws=True)
    stream.buffer.write(content)
    stream.buffer.flush()


def prepare_and_show(
    request: Request, first: Run | None, *, dry_run: bool, full: bool, as_json: bool,
    attempts: tuple[int, float | None] | None = None,
) -> tuple[PreparedJob, Exit]:  # fmt: skip
    """The job, shown as far as it is not submitted, and the exit code: that of a refusal, or GOOD.

    Shown are its findings, the unconfirmed facts that it uses, and for a dry run its script, with ``full`` the files
    that it reads, too. As JSON, all of it is one document, which a job that is to be submitted has not yet.
    """
    from runner.preparation.choices import NoRuntimeKnownError
    from runner.preparation.job import prepare

    try:
        with slow("preparing the job"):
            prepared = prepare(request, say=say, keep=not dry_run)
    except NoRuntimeKnownError as error:
        if dry_run or as_json or not _asks_a_node(error):
            raise
        prepared = prepare(request, say=say, keep=not dry_run)
    if attempts is not None:
        from runner.study.chain import first_attempt

        prepared = first_attempt(prepared, *attempts)
    if first is not None:
        from runner.cli.rerun import show_changes

        show_changes(first, prepared)
    return prepared, _show_prepared(prepared, prepared.findings, dry_run=dry_run, full=full, as_json=as_json)


def _show_prepared(
    prepared: PreparedJob, findings: tuple[Finding, ...], *, dry_run: bool, full: bool, as_json: bool
) -> Exit:
    code = Exit.REFUSED if prepared.is_refused else Exit.GOOD
    show_findings(findings)
    if prepared.unconfirmed:
        say(f"UNCONFIRMED facts of {prepared.plan.site} that this job uses: {', '.join(prepared.unconfirmed)}")
    script = prepared.script
    if as_json and (dry_run or prepared.is_refused):
        from runner.cli import json_output
        from runner.model.output import Preparation, shown_plan

        text, plan, files = (script.text, shown_plan(prepared.plan), script.files) if dry_run else (None, None, {})
        facts = Preparation(text, plan, findings, prepared.unconfirmed, files if full else {})
        json_output.show(facts, exit_code=code, error=json_output.of_findings(findings))
    elif dry_run:
        show_file(script.text.encode("utf-8", "surrogateescape"))
        for name, text in script.files.items() if full else ():
            show_file(f"\n# {'=' * 20} {LIBRARY}/{name}\n{text}".encode())
        recipe = "" if prepared.recipe_directory is None else ", recipe/"
        say(
            "dry run: nothing was submitted. Alone, this script does not run: it starts in a run directory that has "
            f"lib/ (the launcher, and what the script reads: --full prints that, too){recipe}, logs/, ranks/ and nccl/"
            "; submit makes one, and submit --write DIR one to submit by hand"
        )
    if prepared.is_refused and not dry_run:
        say("refused: nothing was submitted")
    return code


def _asks_a_node(error: RunnerError) -> bool:
    """Offer, in a terminal, to ask a GPU node for container runtimes; False where that is not wanted."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    say(error.what)
    if not click.confirm("ask a GPU node, by a task of at most two minutes?", default=True, err=True):
        return False
    from runner.preparation.site_check import keep_detected

    with slow("asking a GPU node"):
        path, detected = keep_detected()
    say(f"site: container runtimes there: {', '.join(detected.runtimes) or 'none'}; kept in {path}")
    return bool(detected.runtimes)


def _show_written(run: Run, prepared: PreparedJob, *, as_json: bool) -> int:
    """Print where a job was written, and how it is submitted by hand."""
    from runner.jobs.directory import SCRIPT
    from runner.preparation.job import scheduler_for

    program, *more = SCHEDULERS[prepared.plan.started_by].submit.split()
    clients = scheduler_for(prepared).clients
    called = " ".join((quote(str(clients / program) if clients else program), *more, SCRIPT))
    line = f"cd {quote(str(run.path))} && {called}"
    then = f"and then: {PROGRAM} wait {quote(str(run.path))}"
    facts = {"directory": str(run.path), "command": line}
    return answer(facts, [f"nothing was submitted; to submit it: {line}", then], as_json=as_json)


def show_start(run: Run, plan: Plan, job_id: str) -> None:
    """Print a started run: its job, its image or environment, its directory."""
    job = f"job {job_id}"
    if plan.existing_allocation is not None:  # its own id is that of a process of this machine
        job = f"a step of job {plan.existing_allocation.job_id}"
    starters = {each.name for each in plan.starters}
    shape = shape_text(plan.gpus, plan.nodes, plan.tasks, starters.pop() if len(starters) == 1 else "")
    show([f"{job}: {shape} ({plan.site}, {plan.runtime})"])
    if not run_runtime(plan.runtime).is_container:
        show([f"environment: {_environment(plan)}"])
    else:
        from runner.images.store import store
        from runner.images.store.stored_image import form_of

        # By now its name may mean another.
        at = store.confirmed_at(plan.image.reference, form=form_of(Path(plan.image.path)))
        confirmed = "" if at is None else f" (as of {datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M} UTC)"
        show([f"image {plan.image.pinned}{confirmed}"])
    show([f"run {run.run_id}: {run.path}"])
    _show_allotment(run)


def _show_allotment(run: Run) -> None:
    """What the scheduler says of a job that it has just accepted."""
    from runner.cli.allotment import allotment_lines
    from runner.jobs.facts import allotment
    from runner.jobs.states import scheduler_of

    plan, state = run.plan, None
    with suppress(RunnerError):
        scheduler, job_id = scheduler_of(run)
        state = scheduler.state(job_id, run.path)
    if plan is not None:
        show(allotment_lines(allotment(run, plan, state), plan.site))


def _environment(plan: Plan) -> str:
    if plan.python is not None:
        return f"{plan.python.prefix} (Python {plan.python.version}; compared on every node)"
    if plan.image.pinned:
        return plan.image.pinned
    if plan.load:
        return "the one that the site's setup, or --module, loads"
    if SCHEDULERS[plan.scheduler].nodes != "allocated":
        return "this shell's"
    return "each node's own python3; this shell has no environment that is used (--env-name DIR names one)"
