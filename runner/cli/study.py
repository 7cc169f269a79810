"""How commands show a study: while it is carried out, and as it stands."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.options import answer, say, warn
from runner.cli.progress import LiveLine, describe, slow
from runner.cli.table import width_of_terminal, wrapped_all
from runner.cli.wait import interrupted
from runner.core.columns import GAP, Column, lines_of
from runner.core.errors import Exit, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import age, counted, first_of, gpus_text, percent, plain, settings_text
from runner.figures.tables import loss_columns, losses_of, point_columns
from runner.jobs.directory import Run
from runner.model.figure import OWN_OF_A_POINT, shared_doubts
from runner.model.output import Problem
from runner.model.study import (
    ListedStudy,
    Loss,
    PointFacts,
    SingleGpus,
    StudyCancellation,
    StudyFacts,
    WayCost,
)
from runner.statistics.launches import CHANGES, MOST_LAUNCHES

if TYPE_CHECKING:
    from runner.jobs.watch import JobProgress
    from runner.study.directory import StudyDirectory
    from runner.study.separate import Listener

_MOST_REASONS = 8


@contextmanager
def listening(*, quiet: bool) -> Iterator[Listener]:
    """Show what happens to a study's launches on standard error; ``quiet`` shows warnings alone."""
    from runner.study.separate import Listener

    def nothing(*_: object) -> None:
        """Nothing is shown."""

    if quiet:
        yield Listener(nothing, nothing, warn)
    elif sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        line = LiveLine("starting")

        def update(progress: JobProgress, tasks: int) -> None:
            line.text = describe(progress, tasks)

        def tell(text: str) -> None:
            console.print(plain(text, keep="\n"), markup=False, highlight=False)

        with console.status(line):
            yield Listener(tell, update, lambda text: tell(f"warning: {text}"))
    else:
        yield Listener(say, nothing, warn)


def show_facts(facts: StudyFacts, *, as_json: bool, reading: bool = False) -> int:
    """Print a study as it stands; returns the exit code.

    Args:
        reading: it was only looked at, so that the exit code is good whatever it says.
    """
    error = None if reading else problem(facts)
    code = Exit.GOOD if error is None else Exit.NOT_PROVEN
    lines = map(plain, facts_lines(facts, width_of_terminal()))
    return answer(facts, lines, as_json=as_json, exit_code=code, error=error)


def problem(facts: StudyFacts) -> Problem | None:
    """Why a study is not good; None where all is proven, or still under way."""
    if facts.state != "incomplete":
        return None
    missing = [each for each in facts.launches if each.state != "proven"]
    if not missing:
        return Problem("not-proven", facts.gaps[0], facts.directory, facts.next_step)
    first = next((each for each in missing if each.why), missing[0])
    of_all = f"{len(missing)} of {counted(len(facts.launches), 'launch')}"
    what = f"{of_all} not proven; {first.launch.key}: {first.why or 'missing'}"
    return Problem("not-proven", what, first.directory, facts.next_step)


def detached(study: StudyDirectory, *, as_json: bool) -> int:
    """Say what goes on after Ctrl-C; returns the exit code."""
    name = study.path.name
    what = "Detached; jobs that were submitted continue."
    fix = f"Go on: `{PROGRAM} scale --resume {name} --wait`; cancel them: `{PROGRAM} cancel {name}`"
    say(f"{what} {fix}")
    return interrupted(what, fix, as_json=as_json)


def wait_for(study: StudyDirectory, *, timeout_s: float | None, as_json: bool, cancel_on_interrupt: bool) -> int:
    """Wait until the study's jobs are over, and print it; returns the exit code."""
    from runner.study.gather import wait

    try:
        with slow("waiting for the jobs of the study"):
            facts = wait(study, warn, timeout_s=timeout_s)
    except KeyboardInterrupt:
        if cancel_on_interrupt:
            say(cancelled(study)[1])
        return detached(study, as_json=as_json)
    return show_facts(facts, as_json=as_json)


def cancelled(study: StudyDirectory) -> tuple[StudyCancellation, str]:
    """Cancel all jobs of the study, and let nothing more be started; what is known of that, and a line about it."""
    from runner.study import run

    jobs, name = run.cancel(study), study.path.name
    count = f"{len(jobs)} job{'s are' if len(jobs) > 1 else ' is'} being cancelled" if jobs else "no job of it is left"
    line = f"study {name}: {count}; `{PROGRAM} scale --resume {name}` goes on with it"
    return StudyCancellation(name, str(study.path), jobs), line


def telling_run(study: StudyDirectory) -> Run:
    """The run whose logs tell most: of the last launch that is not proven, else of the last one.

    Raises:
        UsageError: no launch has a run.
    """
    from runner.study.gather import facts

    begun = [each for each in facts(study).launches if each.run]
    if not begun:
        fix = f"`{PROGRAM} scale --resume {study.path.name}` starts them"
        raise UsageError("no launch of this study has begun", where=str(study.path), fix=fix)
    behind, running = ([each for each in begun if each.state == state] for state in ("not-proven", "running"))
    shown = (behind or running or begun)[-1]
    say(f"launch {shown.launch.key}, run {shown.run}; others: {PROGRAM} logs RUN")
    return Run(Path(shown.directory))


def cost_lines(costs: Sequence[WayCost], chosen: WayCost, launches: int, wide: int | None) -> list[str]:
    """What each way is expected to cost, and which is taken."""
    if not launches:
        return ["every launch is proven, in the queue, or has had all its attempts (--attempts N): nothing to start"]
    columns: tuple[Column[WayCost], ...] = (
        Column("way", lambda each: f"{each.way}{' *' if each == chosen and len(costs) > 1 else ''}"),
        Column("jobs", values="jobs", right=True, leave=1),
        Column("GPU-hours", lambda each: _figure(each.gpu_hours), right=True),
        Column("at most", lambda each: _figure(each.most_gpu_hours), right=True, leave=2),
        Column("time", lambda each: age(each.wall_s), right=True),
    )
    head = f"{counted(launches, 'launch')}; expected, with start and warm-up, without waiting in the queue:"
    notes = [f"{each.way}: {note}" for each in costs for note in each.notes]
    return [*wrapped_all([head], wide), *lines_of(columns, costs, wide), *wrapped_all(notes, wide, GAP)]


def facts_lines(facts: StudyFacts, wide: int | None) -> list[str]:
    """The study as it stands."""
    proven = sum(each.state == "proven" for each in facts.launches)
    head = f"study {facts.study}: {facts.state}, {proven} of {counted(len(facts.launches), 'launch')} proven"
    label = [f"[{facts.demonstration}]"] if facts.demonstration else []
    unit = next((each.unit for each in facts.launches if each.images_per_s is not None), "images")
    return [
        *wrapped_all([head, *label], wide), *point_lines(facts.points, unit, wide), *loss_lines(facts.losses, wide),
        *wrapped_all(_notes(facts), wide, GAP),
    ]  # fmt: skip


def study_lines(studies: Sequence[ListedStudy], now: datetime, wide: int | None) -> list[str]:
    """The list of studies."""
    columns: tuple[Column[ListedStudy], ...] = (
        Column("study", values="study"),
        Column("state", values="state"),
        Column("proven", lambda each: f"{each.proven}/{each.launches}{' (gap)' * bool(each.gaps)}", right=True),
        Column("GPUs", lambda each: ",".join(map(str, each.gpus)), leave=1),
        Column("site", values="site", leave=3),
        Column("recipe", values="recipe", leave=4),
        Column("age", lambda each: age((now - each.created).total_seconds()), right=True, leave=2),
    )
    return lines_of(columns, studies, wide)


def point_lines(points: Sequence[PointFacts], unit: str, wide: int | None) -> list[str]:
    """A study's points; their arm only where it differs."""
    of_one_arm = len({point.arm for point in points}) < 2
    columns = [each for each in point_columns(unit) if each.head != "arm" or not of_one_arm]
    return lines_of(columns, points, wide)


def loss_lines(losses: Sequence[Loss], wide: int | None) -> list[str]:
    """Where the loss goes: rows that add up with the efficiency."""
    known = [loss for loss in losses if loss.rows]
    return ["", "where the loss goes", *lines_of(loss_columns(), losses_of(known), wide)] if known else []


def _notes(facts: StudyFacts) -> Iterator[str]:
    points, behind = facts.points, [each for each in facts.launches if each.state != "proven"]
    for each in [each for each in behind if each.state == "not-proven" or each.why][:_MOST_REASONS]:
        attempts = f" after {each.attempts} attempts" if each.attempts > 1 else ""
        why, run = f": {each.why}" if each.why else "", f" ({each.run})" if each.run else ""
        yield f"{each.launch.key}: {each.state.replace('-', ' ')}{attempts}{why}{run}"
    if len(behind) > _MOST_REASONS:
        yield f"{counted(len(behind), 'launch')} are not proven; all of them: --json"
    if again := sum(each.attempts > 1 for each in facts.launches if each.state == "proven"):
        yield f"of several runs the first proven one counts: {counted(again, 'launch')}"
    yield from (_alone(each, is_claim=not facts.demonstration) for each in facts.single_gpus)
    if any(each.images_per_s is not None and each.images_per_s.low is None for each in points):
        yield "one launch makes no claim: it has no interval"
    doubts = shared_doubts((each.figure for each in facts.launches), without=OWN_OF_A_POINT)
    yield from (f"doubt: {each.words}" for each in (*doubts, *facts.doubts_of_points) if each.code != "demonstration")
    if worst := max((each for each in points if each.spread), key=lambda each: each.spread or 0.0, default=None):
        needed = worst.launches_needed
        counts = (f"{percent(change, 0)}: {needed.get(f'{change:g}', f'over {MOST_LAUNCHES}')}" for change in CHANGES)
        yield (
            f"standard deviation between launches: up to {percent(worst.spread or 0.0)}; "
            f"launches that a claim needs, each side: {', '.join(counts)}"
        )
    single = [each for each in points if each.gpus == 1]
    if len(single) < len(points) and not any(each.images_per_s for each in single):
        missing = (
            "no launch of one GPU is proven"
            if single
            else "one GPU alone is not measured (--gpus 1,... or --arms solo)"
        )
        yield f"no efficiency: {missing}"
    yield from dict.fromkeys(f"efficiency: {each.scaling} scaling" for each in points if each.scaling)
    yield from dict.fromkeys(f"no efficiency: {each.why}" for each in points if each.why)
    yield from (f"{gpus_text(each.gpus)}: no attribution of the loss: {each.why}" for each in facts.losses if each.why)
    yield from (f"not comparable: {each}" for each in facts.differences)
    yield from (f"gap: {each}; figures without it may be chosen ones" for each in facts.gaps)
    if facts.way == "separate":
        yield (
            "separate jobs: no attribution of the loss, and no A/B verdict but on launches that ran in turns on the "
            "same nodes and GPUs"
        )
    if facts.state != "complete":
        yield f"next: {PROGRAM} wait {facts.study}" if facts.state == "running" else f"next: {facts.next_step}"


def _alone(gpus: SingleGpus, *, is_claim: bool) -> str:
    """Of a demonstration none is named as slow."""
    which = ", ".join(filter(None, (gpus.arm, settings_text(gpus.settings))))
    spread = "" if gpus.spread is None else f", standard deviation between them {percent(gpus.spread)}"
    slowest = ""
    if gpus.slowest and is_claim:
        slowest = f", slowest {gpus.slowest}: {percent(gpus.slowest_by or 0.0)} below the mean"
        slowest = slowest if gpus.launches >= 2 else "; one launch of each names none as slow"
    lacks = f"; not proven: {first_of(gpus.missing, _MOST_REASONS)}" if gpus.missing else ""
    return f"{which}: {gpus.gpus} of {gpus.wanted} GPUs, each alone{spread}{slowest}{lacks}"


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
