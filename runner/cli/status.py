"""``status``: the list of runs, or the state of one."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NoReturn, get_args

import click

from runner.cli.options import JSON, RUN_OR_STUDY, age_s, by_shell, say, warn
from runner.cli.progress import describe, job_display
from runner.cli.table import show, width_of_terminal
from runner.core.columns import GAP, Column, for_terminal
from runner.core.errors import Exit
from runner.core.invocation import PROGRAM
from runner.core.text import age, gpus_text, plain, rate, settings_text
from runner.model.figure import in_short
from runner.model.output import ListedRun, State
from runner.model.verdict import Outcome, Verdict
from runner.study.of_run import studies_of

if TYPE_CHECKING:
    from runner.jobs.directory import Run
    from runner.jobs.facts import Listing, Selection
    from runner.jobs.life import Standing
    from runner.jobs.states import Answers
    from runner.model.study import ListedStudy

_STATES = tuple(dict.fromkeys((*get_args(State), *get_args(Outcome))))
_LAST, _LAST_STUDIES = 20, 5
_NOT_THERE = re.compile("NodeNotAvail|DOWN")  # in Slurm's reasons for which a job waits
_WATCH_EVERY_S = 5.0  # schedulers are asked less often


@click.command()
@RUN_OR_STUDY
@click.option("--name", default="", help="List: only runs of this name, or of one that begins so.")
@click.option("--site", default="", shell_complete=by_shell("sites"), help="List: only runs on this site.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES), metavar="STATE",
    help=f"List: only these states or verdicts ({', '.join(_STATES)}). Repeatable.",
)  # fmt: skip
@click.option("--since", "since_s", callback=age_s, metavar="2d", help="List: only runs submitted since then.")
@click.option("--last", type=click.IntRange(min=1), help=f"List: at most so many, the newest. [default: {_LAST}]")
@click.option("--all", "every", is_flag=True, help="List: all that there are.")
@click.option("--watch", is_flag=True, help="List: look again every 5 s, until Ctrl-C.")
@JSON
def command(
    run: str | None, name: str, site: str, states: tuple[str, ...], since_s: int | None, last: int | None, every: bool,
    watch: bool, as_json: bool,
) -> int:  # fmt: skip
    """List the runs and studies, or show the state of RUN or STUDY (an id or name, or its beginning; a job id; or a
    directory).

    Runs of a study are listed with --all or --name only. A run that has ended gets its verdict, if it has none yet.
    """
    if run is not None:
        if name or site or states or since_s or last or every or watch:
            raise click.UsageError(
                f"options of the list together with RUN; fix: leave one out (`{PROGRAM} wait {run}` watches one run)"
            )
        return _show_run(run, as_json=as_json)
    from runner.jobs.facts import Selection, list_runs

    if every and last:
        raise click.UsageError("--all and --last together; fix: leave one out")
    if watch and as_json:
        raise click.UsageError("--watch and --json together; fix: leave one out")
    since = time.time() - since_s if since_s is not None else 0.0
    most = None if every else last or _LAST
    selection = Selection(name, site, frozenset(states), since, most, of_studies=bool(every or name))
    if watch:
        try:
            _watch(selection)
        except KeyboardInterrupt:
            return Exit.GOOD
    listing, studies = list_runs(selection), _studies(selection)
    if as_json:
        from runner.cli import json_output
        from runner.model.output import RunList

        return json_output.show(RunList(listing.runs, listing.more, listing.refused, studies))
    for line in _lines(listing, studies, selection, width_of_terminal()):
        click.echo(line)
    for what in dict.fromkeys(error.what for error in listing.errors):
        warn(f"{what}; the states of its runs are unknown")
    if listing.more:
        say(f"older runs: --last N, or --all; one run: {PROGRAM} status RUN")
    if listing.refused:
        count = "1 submission was" if listing.refused == 1 else f"{listing.refused} submissions were"
        say(f"{count} refused, and no run: {PROGRAM} status --state not-submitted")
    return Exit.GOOD


def _watch(selection: Selection) -> NoReturn:
    """In a terminal the list is drawn anew, elsewhere it is printed whenever a state or a result has changed."""
    from runner.jobs.facts import list_runs

    last: object = None
    answers: Answers = {}
    while not sys.stdout.isatty():
        listing, studies = list_runs(selection, answers), _studies(selection)
        if last != (listing.runs, studies):
            click.echo("\n".join(_lines(listing, studies, selection, None)))
        last = (listing.runs, studies)
        time.sleep(_WATCH_EVERY_S)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            listing = list_runs(selection, answers)
            lines = _lines(listing, _studies(selection), selection, console.width)
            lines += [f"warning: {error.what}" for error in listing.errors]
            lines.append(f"{datetime.now():%H:%M:%S}, every {_WATCH_EVERY_S:.0f} s; Ctrl-C ends it")
            live.update(Text("\n".join(lines)), refresh=True)
            time.sleep(_WATCH_EVERY_S)


def _studies(selection: Selection) -> tuple[ListedStudy, ...]:
    """Those to which the selection applies; none where it is one of states, which studies do not have."""
    from runner.study.directory import ids

    if selection.states or not ids():
        return ()
    from runner.study.gather import list_studies

    last = None if selection.last is None else min(selection.last, _LAST_STUDIES)
    return list_studies(name=selection.name, site=selection.site, since_s=selection.since_s, last=last)


def _lines(listing: Listing, studies: Sequence[ListedStudy], selection: Selection, width: int | None) -> list[str]:
    now = datetime.now(timezone.utc)
    lines = run_lines(listing.runs, now, width) if listing.runs else []
    if studies:
        from runner.cli.study import study_lines

        lines += [*([""] if lines else []), *study_lines(studies, now, width)]
    if lines:
        return lines
    if selection == type(selection)(last=selection.last, of_studies=selection.of_studies):
        return [f"no runs yet; start one with `{PROGRAM} submit`"]
    return [f"no run is of that selection; all: {PROGRAM} status"]


def _show_run(wanted: str, *, as_json: bool) -> int:
    from runner.cli.wait import show_verdict
    from runner.jobs.directory import Run
    from runner.jobs.life import Standing, standing
    from runner.jobs.lookup import kept_outcome
    from runner.study.directory import find_subject, find_sweep

    if (sweep := find_sweep(wanted)) is not None:
        from runner.cli.wait import show_runs

        if sweep.missing:
            warn(sweep.missing)
        code = show_runs(sweep.submitted, as_json=as_json)
        for attempt in sweep.submitted if sweep.sweep.is_chain and not as_json else ():
            if isinstance(state := standing(attempt, warn=warn), Verdict):
                show([f"{attempt.name}: {'; '.join((state.outcome, *state.reasons[:1]))}"])
            elif sweep.left_out and state.progress.state and _NOT_THERE.search(state.progress.state.reason):
                fix = f"to let it start on those that are left out: scontrol update JobId={state.job_id} ExcNodeList="
                show([f"{attempt.name}: the nodes that it may have are not available; {fix}"])
        show([f"later attempts leave out {', '.join(sweep.left_out)}"] if sweep.left_out and not as_json else [])
        show([f"no attempt follows: {sweep.end}"] if sweep.end and not as_json else [])
        return code
    run = find_subject(wanted)
    if not isinstance(run, Run):
        from runner.cli.study import show_facts
        from runner.study.gather import facts

        return show_facts(facts(run), as_json=as_json, reading=True)
    is_known = kept_outcome(run) not in ("", "ended", "unknown")
    with job_display(run, quiet=as_json or is_known) as on_progress:
        now = standing(run, on_progress, warn)
    if as_json:
        from runner.cli import json_output
        from runner.jobs.facts import run_facts

        return json_output.show(run_facts(run, now, studies_of(run)))
    if isinstance(now, Standing):
        _show_standing(run, now)
    else:
        show([f"run {run.run_id}"])
        show_verdict(run, now)
    return Exit.GOOD


def _show_standing(run: Run, now: Standing) -> None:
    """Of a job that has not ended: its state, its last output, and what to do next."""
    from runner.cli.allotment import lines_of_standing
    from runner.jobs.facts import run_facts
    from runner.jobs.logs import last_output

    show([f"run {run.run_id}, job {now.job_id}: {describe(now.progress, now.tasks)}"])
    is_running = now.progress.state is not None and now.progress.state.phase == "running"
    last = last_output(run)
    if last is not None:
        show([f"  last output {age(last.age_s)} ago ({last.file}): {last.line}"])
    elif is_running:
        click.echo("  no output yet")
    show([f"  run directory: {run.path}"])
    facts = run_facts(run, now)
    show(f"  {line}" for line in lines_of_standing(facts, width_of_terminal()))
    follow = "logs --follow" if is_running else "wait"
    show([f"  next: {PROGRAM} {follow} {run.run_id}"])


_REASON = 32  # characters of why a job waits


def run_lines(runs: Sequence[ListedRun], now: datetime, width: int | None) -> list[str]:
    """The table, no line wider than ``width`` as far as ids allow; None for any width."""

    def old(each: ListedRun) -> str:
        return _age(each, now)

    run = Column[ListedRun]("run", values="run")
    gpus = Column[ListedRun]("GPUs", lambda each: str(each.gpus) if each.gpus else "", right=True)
    # What a narrow table leaves out: the id of a run contains its name, a result says that it has ended, and the id
    # finds all the rest.
    values = Column[ListedRun]("values", lambda each: settings_text(each.values.items()))
    swept = [values] if any(each.values for each in runs) else []
    whole: tuple[Column[ListedRun], ...] = (
        run, Column("name", values="name", leave=1), *swept, Column("job", _job), Column("state", values="state"), gpus,
        Column("site", values="site"), Column("age", old, right=True), Column("result", _result),
    )  # fmt: skip
    fewer: tuple[Column[ListedRun], ...] = (
        run, *swept, Column("job", _job, leave=3), gpus, Column("site", values="site", leave=2),
        Column("age", old, right=True, leave=1), Column("result", _state_or_result),
    )  # fmt: skip
    table = for_terminal(whole, runs, width, whole=True) or for_terminal(fewer, runs, width, whole=True)
    return table or [line for each in runs for line in _two_lines(each, now, width or 0)]


def _job(run: ListedRun) -> str:
    """The parts of a job's id after the first only distinguish machines."""
    return run.job.partition(".")[0]


def _age(run: ListedRun, now: datetime) -> str:
    return age((now - run.submitted).total_seconds()) if run.submitted else ""


def _result(run: ListedRun) -> str:
    """The verdict; of a job that waits the reason, as Slurm's own list shows it."""
    if run.reason:
        reason = run.reason.removeprefix("Not Running: ")  # how PBS begins
        return f"({reason if len(reason) <= _REASON else reason[: _REASON - 3] + '...'})"
    figure = run.figure
    if figure is None:
        return run.outcome or ""
    return f"{rate(figure.value)} {figure.unit}/s" + (f" ({in_short(figure.doubts)})" if figure.doubts else "")


def _state_or_result(run: ListedRun) -> str:
    result = _result(run)
    return f"{run.state} {result}" if result.startswith("(") else result or run.state


def _two_lines(run: ListedRun, now: datetime, width: int) -> list[str]:
    """The id, and below it what else fits, the most telling first."""
    line = plain(f"{GAP}{_state_or_result(run)}")
    for fact in (gpus_text(run.gpus or 0), _age(run, now) or "-", run.site, f"job {_job(run) or '-'}"):
        if len(line) + len(GAP) + len(plain(fact)) <= width:
            line += f"{GAP}{plain(fact)}"
    return [plain(run.run), line]
