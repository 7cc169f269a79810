"""``wait`` and ``cancel``; how commands wait for a run and print its verdict."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.options import JSON, RUNS_OR_STUDIES, answer, say, warn
from runner.cli.progress import job_display
from runner.cli.table import in_colour, show, width_of_terminal
from runner.core.errors import Exit, RunnerError
from runner.core.invocation import PROGRAM
from runner.core.text import plain, rate, span
from runner.model.figure import is_of_value
from runner.study.of_run import studies_of

if TYPE_CHECKING:
    from runner.jobs.directory import Run
    from runner.jobs.states import Together
    from runner.model.output import Cancellation, RunFacts
    from runner.model.study import StudyCancellation, StudyFacts
    from runner.model.verdict import Verdict
    from runner.study.directory import Subject


@click.command()
@RUNS_OR_STUDIES
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), help="Maximum time to wait, in seconds; then exit with 9."
)
@click.option("--cancel-on-interrupt", is_flag=True, help="Ctrl-C also cancels the job.")
@JSON
def command(runs: tuple[str, ...], timeout_s: float | None, cancel_on_interrupt: bool, as_json: bool) -> int:
    """Wait for RUN to finish, then print its verdict; or for all jobs of STUDY, then print its figures.

    An id or name, or its beginning; a job id; a directory; @2 for the newest run but one; by default the newest. Of
    several, the exit code is the first that is not 0.
    """
    from runner.study.directory import find_subjects

    subjects, lacks = find_subjects(runs), _missing(runs)
    if as_json and lacks:
        return _document_of(subjects, timeout_s, lacks)
    code = wait_for(subjects, timeout_s=timeout_s, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)
    return code or (Exit.NOT_ACCEPTED if lacks else Exit.GOOD)


def _missing(names: Iterable[str]) -> str:
    """Which runs of sweeps that are named were not submitted, or are gone, which is warned of; empty for none."""
    from runner.study.directory import find_sweep

    sentences = [sweep.missing for name in names if (sweep := find_sweep(name)) is not None and sweep.missing]
    for sentence in sentences:
        warn(sentence)
    return "; ".join(sentences)


def wait_for(
    subjects: Sequence[Subject], *, timeout_s: float | None = None, as_json: bool, cancel_on_interrupt: bool
) -> int:
    """Wait for runs and studies, and print their verdicts, of several that are not good, and their list."""
    from runner.jobs.directory import Run
    from runner.jobs.states import Together

    if as_json and (len(subjects) > 1 or any(each.chain for each in subjects)):
        return _document_of(subjects, timeout_s)
    codes: dict[Path, int] = {}  # of a chain that of its last attempt
    together = Together(each for each in subjects if isinstance(each, Run)) if len(subjects) > 1 else None
    runs: list[Run] = []
    for each, left_s in _in_turn(subjects, timeout_s):
        code = _wait(each, together, timeout_s=left_s, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)
        if code == Exit.INTERRUPTED:
            for other in subjects[subjects.index(each) + 1 :] if cancel_on_interrupt and each in subjects else ():
                say(_cancelled(other)[1])
            return Exit.INTERRUPTED
        if not (isinstance(each, Run) and each.is_needless):
            codes[each.chain or each.path] = code
            runs += [each] if isinstance(each, Run) else []
    if len(runs) > 1 or (len(subjects) > 1 and runs):
        show_runs(runs, as_json=False)
    return next(filter(None, codes.values()), Exit.GOOD)


def show_runs(runs: Iterable[Run], *, as_json: bool) -> int:
    """Print these runs as a list."""
    from runner.cli import json_output
    from runner.cli.status import run_lines
    from runner.jobs.facts import list_these
    from runner.model.output import RunList

    rows, errors = list_these(runs)
    if as_json:
        return json_output.show(RunList(rows, more=False, refused=0))
    show(run_lines(rows, datetime.now(timezone.utc), width_of_terminal()))
    for error in errors:
        warn(error.what)
    return Exit.GOOD


def _wait(
    subject: Subject, together: Together | None, *, timeout_s: float | None, as_json: bool, cancel_on_interrupt: bool
) -> int:
    from runner.jobs.directory import Run

    if isinstance(subject, Run):
        return wait_and_judge(
            subject, timeout_s=timeout_s, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt, together=together
        )
    from runner.cli.study import wait_for

    return wait_for(subject, timeout_s=timeout_s, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)


def _in_turn(subjects: Iterable[Subject], timeout_s: float | None) -> Iterator[tuple[Subject, float | None]]:
    """Each with the seconds that are left for it, and the attempts that follow it in a chain."""
    from runner.jobs.directory import Run
    from runner.study.directory import next_attempt

    until = time.monotonic() + (timeout_s or 0.0)
    waited: set[Path] = set()
    for subject in subjects:
        each: Subject | None = subject
        while each is not None and each.path not in waited and not (isinstance(each, Run) and each.is_needless):
            waited.add(each.path)
            yield each, None if timeout_s is None else max(0.0, until - time.monotonic())
            each = next_attempt(each)


def _document_of(subjects: Sequence[Subject], timeout_s: float | None, lacks: str = "") -> int:
    """Wait for several, and print their facts as one document; its error is that of the first that is not good, a
    chain being as its last attempt; else what their sweeps lack.
    """
    from runner.cli import json_output
    from runner.cli.study import problem
    from runner.jobs.directory import Run
    from runner.jobs.facts import run_facts
    from runner.jobs.life import finish
    from runner.jobs.states import Together
    from runner.model.output import Problem, WaitedFor
    from runner.study.gather import wait

    runs: list[RunFacts] = []
    studies: list[StudyFacts] = []
    ends: dict[Path, tuple[int, Problem | None]] = {}
    together = Together(each for each in subjects if isinstance(each, Run))
    for each, left_s in _in_turn(subjects, timeout_s):
        if isinstance(each, Run):
            verdict = finish(each, lambda _progress: None, warn, timeout_s=left_s, together=together)
            if each.is_needless:
                continue
            runs.append(run_facts(each, verdict))
            code, error = verdict.exit_code, json_output.of_verdict(verdict)
        else:
            studies.append(now := wait(each, warn, timeout_s=left_s))
            code, error = Exit.NOT_PROVEN, problem(now)
        ends[each.chain or each.path] = code, error
    none = (int(Exit.NOT_ACCEPTED), Problem("not-accepted", lacks)) if lacks else (int(Exit.GOOD), None)
    exit_code, first = next((end for end in ends.values() if end[1] is not None), none)
    return json_output.show(WaitedFor(tuple(runs), tuple(studies)), exit_code=exit_code, error=first)


@click.command()
@RUNS_OR_STUDIES
@JSON
def cancel(runs: tuple[str, ...], as_json: bool) -> int:
    """Cancel the job of RUN, or all jobs of STUDY (an id or name, or its beginning; a job id; a directory; @2 for the
    newest run but one; by default the newest).
    """
    from runner.jobs.directory import Run
    from runner.study.directory import find_subjects, find_sweep

    made: list[tuple[Cancellation | StudyCancellation, str]] = []
    errors: list[RunnerError] = []
    subjects, sweeps = find_subjects(runs), [sweep for sweep in map(find_sweep, runs) if sweep is not None]
    for sweep in sweeps:
        sweep.stop()
    if sweeps:  # with what was submitted meanwhile
        subjects = find_subjects(runs)
    for each in subjects:
        try:
            made.append(_cancelled(each))
        except RunnerError as error:  # of one; the others are cancelled all the same
            errors += [] if isinstance(each, Run) and each.is_needless else [error]
    for what in dict.fromkeys(other.what for other in errors[1:]):
        warn(what)
    if errors and not as_json:
        show(line for _, line in made)
    if errors:
        raise errors[0]
    facts: Any = made[0][0]
    if len(subjects) > 1:
        from runner.model.output import Cancellation, Cancellations

        runs_of = tuple(each for each, _ in made if isinstance(each, Cancellation))
        facts = Cancellations(runs_of, tuple(each for each, _ in made if not isinstance(each, Cancellation)))
    return answer(facts, [line for _, line in made], as_json=as_json)


def _cancelled(subject: Subject) -> tuple[Cancellation | StudyCancellation, str]:
    """Cancel it; what is known of that, and a line about it."""
    from runner.jobs.directory import Run
    from runner.jobs.lookup import kept_outcome
    from runner.jobs.states import cancel_run
    from runner.model.output import Cancellation

    if not isinstance(subject, Run):
        from runner.cli.study import cancelled

        return cancelled(subject)
    job_id, had_ended = cancel_run(subject)
    wait, outcome = f"`{PROGRAM} wait {subject.run_id}`", kept_outcome(subject)
    line = f"job {job_id} is being cancelled; {wait} waits until it has ended"
    if had_ended:
        verdict = f": {outcome}" if outcome not in ("", "ended", "unknown") else f"; {wait} prints its verdict"
        is_known = outcome not in ("", "unknown") or subject.marker or subject.ended
        end = "has already ended" if is_known else "has ended, or its scheduler does not know it as this run's"
        line = f"job {job_id} {end}{verdict}"
    return Cancellation(subject.run_id, str(subject.path), job_id, had_ended), line


def wait_and_judge(
    run: Run, *, timeout_s: float | None, as_json: bool, cancel_on_interrupt: bool = False,
    together: Together | None = None,
) -> int:  # fmt: skip
    """Wait for the run's end and print its verdict; returns the exit code. Of several that are waited for
    ``together``, one that is good is not printed.

    Ctrl-C ends the waiting, and leaves the job alone unless ``cancel_on_interrupt``.
    """
    from runner.jobs.life import WaitInterrupted, finish

    shows_good = together is None
    try:
        with job_display(run, quiet=as_json, named=not shows_good or run.chain is not None) as on_progress:
            verdict = finish(
                run, on_progress, warn, timeout_s=timeout_s, cancel_on_interrupt=cancel_on_interrupt, together=together
            )
    except WaitInterrupted as stopped:
        if stopped.cancelled:
            say(what := f"interrupted: job {stopped.job_id} is being cancelled")
            return interrupted(what, f"`{PROGRAM} wait {run.run_id}` waits until it has ended", as_json=as_json)
        what = f"Detached; job {stopped.job_id} continues."
        fix = f"Reattach: `{PROGRAM} wait {run.run_id}`; cancel it: `{PROGRAM} cancel {run.run_id}`"
        say(f"{what} {fix}")
        return interrupted(what, fix, as_json=as_json)
    if run.is_needless:  # it has left the queue
        return Exit.GOOD
    if as_json:
        from runner.cli import json_output
        from runner.jobs.facts import run_facts

        error = json_output.of_verdict(verdict)
        return json_output.show(run_facts(run, verdict, studies_of(run)), exit_code=verdict.exit_code, error=error)
    if not shows_good and verdict.exit_code:
        show([f"run {run.run_id}"])
    if shows_good or verdict.exit_code:
        show_verdict(run, verdict)
    return verdict.exit_code


def interrupted(what: str, fix: str, *, as_json: bool) -> int:
    """Print the document of a command that Ctrl-C has ended, where one is wanted; returns the exit code."""
    if as_json:
        from runner.cli import json_output

        error = json_output.of_error(RunnerError(what, fix=fix, code=Exit.INTERRUPTED))
        json_output.show(None, exit_code=Exit.INTERRUPTED, error=error)
    return Exit.INTERRUPTED


def show_verdict(run: Run, verdict: Verdict) -> None:
    """Print a verdict, for people."""
    first, *others = _lines(run, verdict)
    bad = "yellow" if verdict.outcome in ("cancelled", "unknown") else "red"
    click.echo(in_colour(plain(first), "green" if verdict.exit_code == Exit.GOOD else bad))
    show(others)


def _lines(run: Run, verdict: Verdict) -> Iterator[str]:
    good, figure = verdict.outcome in ("measured", "ran"), run.figure_by(verdict, None, studies_of(run))
    doubts = figure.doubts if figure else ()
    of_run = [each.words for each in doubts if each.code != "demonstration" and not is_of_value(each)]
    label = f" ({verdict.demonstration})" if verdict.demonstration else ""
    yield f"verdict: {', '.join((verdict.outcome, *of_run))}{label}"
    for reason in verdict.reasons:
        yield f"  ! {reason}"
    if verdict.fix:
        yield f"  fix ({verdict.who}): {verdict.fix}"
    for fact in verdict.proven if good else ():
        yield f"  = {fact}"
    if verdict.forced and figure is None:
        yield f"  forced: {', '.join(verdict.forced)}"
    if figure is not None and figure.window_s is not None:
        label = f"   [{figure.demonstration}]" if figure.demonstration else ""
        of_value = ["steady"] if figure.steady else []
        of_value += [each.words for each in doubts if is_of_value(each)]
        throughput = f"{rate(figure.value)} {figure.unit}/s over {figure.window_s:.2f} s"
        yield f"  throughput: {', '.join((throughput, *of_value))}{label}"
        if figure.interval is not None:
            yield f"  precision of this run: {span(*figure.interval, rate)} {figure.unit}/s (95 %)"
        if verdict.gpu_energy_j_per_sample is not None:
            yield f"  energy: {verdict.gpu_energy_j_per_sample:.3g} J/{figure.unit[:-1]} (GPU only)"
        for arm in verdict.arms:
            speed = f"{rate(arm.samples_per_s)} {figure.unit}/s over {arm.window_s:.2f} s"
            yield f"  arm {arm.arm}: {speed}, slowest rank {rate(arm.slowest_samples_per_s)}"
    for sentence in verdict.remarks:
        yield f"  note: {sentence}"
    if verdict.log:
        yield f"  log: {verdict.log}"
    yield f"  run directory: {run.path}"
