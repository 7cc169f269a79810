"""How commands submit and show a sweep."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli import json_output
from runner.cli.options import answer, say, warn
from runner.cli.progress import slow
from runner.cli.status import result_of
from runner.cli.study import listening
from runner.cli.submit import show_findings
from runner.cli.table import width_of_terminal, wrapped_all
from runner.cli.wait import interrupted
from runner.core.columns import Column, lines_of
from runner.core.errors import Exit, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import counted, plain
from runner.jobs.directory import Run
from runner.model.output import (
    Preparation,
    Problem,
    SweepCancellation,
    SweepFacts,
    SweepPreparation,
    SweptFacts,
    shown_plan,
)
from runner.study import sweep as sweeps

if TYPE_CHECKING:
    from runner.model.job import CommandLine
    from runner.model.request import Request
    from runner.study.directory import SweepDirectory
    from runner.study.sweep import PreparedSweep


def submit(
    request: Request, texts: Sequence[tuple[str, str]], at_once: int | None, command: CommandLine, *, dry_run: bool,
    wait: bool, follow: bool, cancel_on_interrupt: bool, as_json: bool, full: bool, write: Path | None,
) -> int:  # fmt: skip
    """Submit a sweep, and show it; returns the exit code."""
    from runner.preparation.job import prepare
    from runner.preparation.sweep import values_of

    if follow or write is not None or full:
        what = f"a sweep has no {'--follow' if follow else '--full' if full else '--write'}"
        raise UsageError(what, where="--sweep", fix=f"leave it out; `{PROGRAM} logs -f NAME.1` follows its first run")
    with slow("preparing the jobs"):
        noted: dict[str, None] = {}
        made = sweeps.prepare_sweep(
            request, values_of(texts), at_once, lambda each: prepare(each, say=noted.setdefault, keep=not dry_run)
        )
    for line in noted:
        say(line)
    show_findings(made.findings)
    if dry_run or made.is_refused:
        return _show_prepared(made, dry_run=dry_run, as_json=as_json)
    with listening(quiet=as_json) as listener:
        sweep = sweeps.start(made, command, listener, lambda begun: None if as_json else _begun(begun))
    if wait:
        return wait_for(sweep, timeout_s=None, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)
    if as_json:
        return json_output.show(sweeps.facts(sweep))
    say(f"next: {PROGRAM} wait {sweep.name}; its first run: {PROGRAM} logs {sweep.name}.1")
    return Exit.GOOD


def _begun(sweep: SweepDirectory) -> None:
    click.echo(f"sweep {sweep.path.name}: {counted(len(sweep.sweep.runs), 'run')} ({sweep.path})")


def _show_prepared(made: PreparedSweep, *, dry_run: bool, as_json: bool) -> int:
    """Print what was prepared and is not submitted: the scripts are those that would be."""
    code = Exit.REFUSED if made.is_refused else Exit.GOOD
    first, array = made.jobs[0], made.array_script(len(made.jobs))
    scripts = [*([array.text] if array else []), first.script.text] if dry_run else []
    if as_json:
        plan = shown_plan(first.plan) if dry_run else None
        one = Preparation(scripts[-1] if scripts else None, plan, made.findings, first.unconfirmed)
        facts = SweepPreparation(made.name, made.runs, array.text if array and dry_run else None, one)
        return json_output.show(facts, exit_code=code, error=json_output.of_findings(made.findings))
    sys.stdout.buffer.write(
        f"\n# {'=' * 20} the script of its first run\n".join(scripts).encode("utf-8", "surrogateescape")
    )
    sys.stdout.buffer.flush()
    for run in made.runs:
        say(f"{made.name}.{run.key}: {_settings(run.values)}")
    way = "one array" if array else "a job each"
    say(
        f"dry run: {counted(len(made.runs), 'run')}, {way}; nothing was submitted"
        if dry_run
        else "refused: nothing was submitted"
    )
    return code


def show_now(sweep: SweepDirectory, *, as_json: bool) -> int:
    """Print a sweep as it stands, only to look at it."""
    return _show(sweeps.facts(sweep), as_json=as_json)


def _show(now: SweepFacts, code: Exit = Exit.GOOD, error: Problem | None = None, *, as_json: bool) -> int:
    return answer(now, map(plain, sweep_lines(now, width_of_terminal())), as_json=as_json, exit_code=code, error=error)


def waited(sweep: SweepDirectory, timeout_s: float | None) -> tuple[SweepFacts, Exit, Problem | None]:
    """Its facts once its runs have ended, the exit code, which is that of the first that is not good, and why."""
    now = sweeps.wait(sweep, warn, timeout_s=timeout_s)
    bad = sweeps.first_bad(now)
    if bad is None:
        return now, Exit.GOOD, None
    row, code = bad
    why = f": {row.reason}" if row.reason else ""
    what = f"{row.name} ({_settings(row.values.items())}): {row.outcome or row.state}{why}"
    fix = f"{PROGRAM} status {row.run or now.sweep}"
    return now, code, Problem(row.outcome or row.state, what, row.directory, fix)


def wait_for(sweep: SweepDirectory, *, timeout_s: float | None, as_json: bool, cancel_on_interrupt: bool) -> int:
    """Wait until the sweep's runs have ended, and print it; returns the exit code."""
    try:
        with slow("waiting for the runs of the sweep"):
            now, code, error = waited(sweep, timeout_s)
    except KeyboardInterrupt:
        name = sweep.path.name
        what, fix = (
            "Detached; its runs continue.",
            f"Reattach: `{PROGRAM} wait {name}`; cancel: `{PROGRAM} cancel {name}`",
        )
        if cancel_on_interrupt:
            what, fix = cancelled(sweep)[1], ""
        say(f"{what} {fix}")
        return interrupted(what, fix, as_json=as_json)
    return _show(now, code, error, as_json=as_json)


def cancelled(sweep: SweepDirectory) -> tuple[SweepCancellation, str]:
    """Cancel its jobs, and let nothing more be submitted; what is known of that, and a line about it."""
    facts, name = sweeps.cancel(sweep), sweep.path.name
    count = f"{counted(len(facts.jobs), 'run')} of it being cancelled" if facts.jobs else "no job of it is left"
    return facts, f"sweep {name}: {count}; `{PROGRAM} wait {name}` waits until all have ended"


def telling_run(sweep: SweepDirectory) -> Run:
    """The run whose logs tell most, which is named."""
    row = sweeps.telling_run(sweep)
    say(f"{row.name} ({_settings(row.values.items())}); others: {PROGRAM} logs {sweep.name}.N")
    return Run(Path(row.directory))


def sweep_lines(now: SweepFacts, width: int | None) -> list[str]:
    """The sweep as it stands."""
    columns: tuple[Column[SweptFacts], ...] = (
        Column("run", lambda row: row.name),
        Column("values", lambda row: _settings(row.values.items())),
        Column("job", values="job", leave=2),
        Column("state", values="state", leave=1),
        Column("result", lambda row: f"({row.reason})" if row.state == "not-submitted" else result_of(row)),
    )
    made = [*wrapped_all([_head(now)], width), *lines_of(columns, now.runs, width)]
    missing = now.counts.get("not-submitted", 0)
    note = f"{missing} of its {counted(len(now.runs), 'run')} never submitted; `{PROGRAM} cancel` ends the others"
    return made + wrapped_all([note] if missing else [], width)


def listed_lines(listed: Sequence[SweepFacts], width: int | None) -> Iterator[str]:
    """Sweeps in a list: a line each."""
    for each in listed:
        yield from wrapped_all([_head(each)], width)


def _head(now: SweepFacts) -> str:
    counts = ", ".join(f"{count} {what}" for what, count in now.counts.items())
    return f"sweep {now.sweep}: {counted(len(now.runs), 'run')}: {counts}"


def _settings(values: object) -> str:
    return " ".join(f"{name}={value}" for name, value in values)  # type: ignore[attr-defined]
