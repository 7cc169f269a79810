"""How commands show a study: while it is carried out, and as it stands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.options import say
from runner.cli.show import warn
from runner.cli.waiting import LiveLine, describe
from runner.core.errors import Exit, RunnerError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import counted

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory
    from runner.jobs.watch import JobProgress
    from runner.model.output import Problem
    from runner.model.study import StudyFacts
    from runner.study.directory import StudyDirectory
    from runner.study.separate import Listener


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
            console.print(text, markup=False, highlight=False)

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
    if as_json:
        from runner.cli import json_output

        return json_output.show(facts, exit_code=code, error=error)
    from runner.cli.study_table import facts_lines
    from runner.cli.table import show, width_of_terminal

    show(facts_lines(facts, width_of_terminal()))
    return code


def problem(facts: StudyFacts) -> Problem | None:
    """Why a study is not good; None where all is proven, or still under way."""
    from runner.model.output import Problem

    if facts.state != "incomplete":
        return None
    missing = [each for each in facts.launches if each.state != "proven"]
    first = next((each for each in missing if each.why), missing[0])
    of_all = f"{len(missing)} of {counted(len(facts.launches), 'launch')}"
    what = f"{of_all} not proven; {first.launch.key}: {first.why or 'missing'}"
    return Problem("not-proven", what, first.directory, f"{PROGRAM} scale --resume {facts.study}")


def interrupted(study: StudyDirectory, *, as_json: bool) -> int:
    """Say what goes on after Ctrl-C; returns the exit code."""
    name = study.path.name
    what = "Detached; jobs that were submitted continue."
    fix = f"Go on: `{PROGRAM} scale --resume {name} --wait`; cancel them: `{PROGRAM} cancel {name}`"
    click.echo(f"{what} {fix}", err=True)
    if as_json:
        from runner.cli import json_output

        error = json_output.of_error(RunnerError(what, fix=fix, code=Exit.INTERRUPTED))
        json_output.show(None, exit_code=Exit.INTERRUPTED, error=error)
    return Exit.INTERRUPTED


def wait_for(study: StudyDirectory, *, timeout_s: float | None, as_json: bool, cancel_on_interrupt: bool) -> int:
    """Wait until the study's jobs are over, and print it; returns the exit code."""
    from runner.cli.waiting import slow
    from runner.study.gather import wait

    try:
        with slow("waiting for the jobs of the study"):
            facts = wait(study, warn, timeout_s=timeout_s)
    except KeyboardInterrupt:
        if cancel_on_interrupt:
            cancel(study, as_json=False)
        return interrupted(study, as_json=as_json)
    return show_facts(facts, as_json=as_json)


def cancel(study: StudyDirectory, *, as_json: bool) -> int:
    """Cancel all jobs of the study, and let nothing more be started; returns the exit code."""
    from runner.study import run

    jobs = run.cancel(study)
    name = study.path.name
    if as_json:
        from runner.cli import json_output
        from runner.model.study import StudyCancellation

        return json_output.show(StudyCancellation(name, str(study.path), jobs))
    count = (
        "no job of it is left" if not jobs else f"{len(jobs)} job{'s are' if len(jobs) > 1 else ' is'} being cancelled"
    )
    click.echo(f"study {name}: {count}; `{PROGRAM} scale --resume {name}` goes on with it")
    return Exit.GOOD


def telling_run(study: StudyDirectory) -> RunDirectory:
    """The run whose logs tell most: of the last launch that is not proven, else of the last one.

    Raises:
        UsageError: no launch has a run.
    """
    from runner.jobs.directory import RunDirectory
    from runner.study.gather import facts

    begun = [each for each in facts(study).launches if each.run]
    if not begun:
        raise UsageError(
            "no launch of this study has begun",
            where=str(study.path),
            fix=f"`{PROGRAM} scale --resume {study.path.name}` starts them",
        )
    behind = [each for each in begun if each.state == "not-proven"]
    running = [each for each in begun if each.state == "running"]
    shown = (behind or running or begun)[-1]
    say(f"launch {shown.launch.key}, run {shown.run}; others: {PROGRAM} logs RUN")
    return RunDirectory(Path(shown.directory))
