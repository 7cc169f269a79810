"""``prove``: show by a ladder of rungs what works on GPUs, and leave a record of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.job_options import some_job_options
from runner.cli.options import answer, path_option, say, site_option, warn
from runner.cli.progress import display
from runner.cli.table import show
from runner.core.errors import Exit
from runner.core.invocation import PROGRAM
from runner.model.output import Problem

if TYPE_CHECKING:
    from runner.model.verdict import ProofRecord, ProvenValue, RungRecord
    from runner.proving.climb import Climb
    from runner.proving.ladder import Ladder, Rung


@click.command()
@site_option("A shipped site, or a site file. [default: $RUNNER_SITE, or local: this machine]", "local")
@click.option("--gpus", type=int, help="GPUs of the jobs on all GPUs. [default: those of a node]")
@click.option("--quick", is_flag=True, help="Short measurements: every figure is a demonstration.")
@click.option(
    "--pretend-cpu", "pretend", is_flag=True, help="Run on CPUs: shows that the command works, nothing about GPUs."
)
@click.option("--again", multiple=True, metavar="RUNG", help="Repeat this step, though it has passed.")
@some_job_options("image", "env_name", "runtime")
@path_option(
    "--at", metavar=None,
    help="Where an environment is made, if no image, environment or runtime is named. [default: below --runs]",
)  # fmt: skip
@click.option("--kind", type=click.Choice(["virtualenv", "conda", "modules"]), help="Of that environment.")
@path_option(
    "--wheels", metavar="DIR",
    help="For that environment: packages that `env wheels DIR` collected; nothing is fetched from a network.",
)  # fmt: skip
@click.option(
    "--requirement", "requirements", multiple=True, metavar="SPEC",
    help="For that environment: a requirement for pip, instead of the pinned framework.",
)  # fmt: skip
@some_job_options("account", "project", "scratch", "queue", "scheduler_option", "force")
@click.option(
    "--runs", type=Path, metavar="PATH", default=Path("runs"), show_default=True,
    help="Directory for run directories; every node must see it. Its results lie in PATH/prove-SITE.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the proof record as JSON.")
def command(again: tuple[str, ...], as_json: bool, **values: Any) -> int:
    """Test step by step what works on this machine's GPUs, or a site's: driver, NCCL, the benchmark in each precision.

    Every step ends within nine minutes, besides the time in the queue. Called again, it goes on where it stopped, and
    repeats nothing that has passed with the same inputs. Exits with 6 if a step fails.
    """
    from runner.jobs.life import WaitInterrupted
    from runner.proving import rungs
    from runner.proving.climb import Listener, choose, climb, exclusive, keep_record, make_environment

    choices = choose(again=again, **values)
    ladder, root = choices.ladder, choices.place.root
    show = _Show(ladder, quiet=as_json)
    listener = Listener(show.begins, show.ended, lambda _progress: None, warn)
    with exclusive(root):
        with display(quiet=as_json) as progress:
            make_environment(choices, progress)
        try:
            done = climb(ladder, rungs.rungs(), choices.place, listener, again)
        except WaitInterrupted as stopped:
            say(f"interrupted; job {stopped.job_id} continues, and the next call goes on with it")
            return Exit.INTERRUPTED
        record, kept = keep_record(ladder, done, root)
    error = _first_problem(done)
    code = Exit.NOT_PROVEN if error else Exit.GOOD
    return answer(record, _summary(ladder, done, record, kept, root), as_json=as_json, exit_code=code, error=error)


def _first_problem(done: Climb) -> Problem | None:
    """The first rung that failed or could not be tried."""
    failed = [each for each in done.records if each.state == "failed"]
    if failed:
        return Problem("not-proven", f"{failed[0].rung}: failed: {failed[0].reason}", "".join(failed[0].runs[:1]))
    return next((Problem("not-proven", f"{rung}: not tried: {why}") for rung, why in done.blocked.items()), None)


class _Show:
    """Prints each rung as it begins and ends."""

    def __init__(self, ladder: Ladder, *, quiet: bool) -> None:
        self._label = f"[{ladder.label}] " if ladder.label else ""
        self._quiet = quiet

    def begins(self, rung: Rung, most_s: int) -> None:
        if not self._quiet:
            most = f" (at most {-(-most_s // 60)} min)" if most_s else ""
            click.echo(f"{self._label}{rung.name}: {rung.title}{most} ...")

    def ended(self, rung: Rung, record: RungRecord, is_new: bool) -> None:
        if self._quiet:
            return
        before = "" if is_new else " (before, with the same inputs)"
        show([f"{self._label}{rung.name}: {record.state}{before}{f': {record.reason}' if record.reason else ''}"])
        for name, value in record.figures.items():
            click.echo(f"    {name} {_text(value)}" + (f"   [{record.label}]" if record.label else ""))
        if record.state == "failed":
            for run in record.runs:
                show([f"    run directory: {run}"])


def _summary(ladder: Ladder, done: Climb, record: ProofRecord | None, kept: Path | None, root: Path) -> Iterator[str]:
    yield from (f"{name}: not tried: {why}" for name, why in done.blocked.items())
    states = [each.state for each in done.records]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("passed", "failed", "not applicable"))
    yield f"{counts}{f', {len(done.blocked)} not tried' if done.blocked else ''}"
    if record is None:
        return
    if ladder.pretend:
        yield f"record: {root / 'record.json'}; pretend: CPU, so everything about GPUs stays UNPROVEN"
    elif kept is None:
        yield f"record: {root / 'record.json'}; it proves too little: UNPROVEN stays"
    else:
        yield f"record: {kept}"
        yield f"  next: {PROGRAM} site show {record.site}"


def _text(value: ProvenValue) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
