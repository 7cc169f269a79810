"""``scale``: how does it scale? A study of many runs, planned, carried out and resumed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from runner.cli import json_output
from runner.cli.job_options import ReferringCommand, given, job_options, typed, upgraded
from runner.cli.options import by_shell, on_command_line, say, show_findings, warn
from runner.cli.progress import slow
from runner.cli.table import show, width_of_terminal
from runner.core.errors import Exit, UsageError
from runner.core.text import counted
from runner.model.study import ATTEMPTS, REPEATS, PlannedStudy

if TYPE_CHECKING:
    from runner.jobs.differences import Difference
    from runner.jobs.directory import Run
    from runner.model.job import CommandLine
    from runner.model.request import RequestRecord
    from runner.study.directory import StudyDirectory
    from runner.study.question import Question
    from runner.study.separate import Listener

# With --resume, the study has everything else.
_OF_RESUMING = frozenset(("resume", "budget", "attempts", "yes", "wait", "dry_run", "as_json"))


@click.command(cls=ReferringCommand)
@job_options(required=False, type=str, help="Numbers of GPUs, one rank on each: 1,2,4,8.", metavar="N,...")
@click.option(
    "--arms",
    default="full",
    show_default=True,
    metavar="ARM,...",
    help="Ways to train at each size: full, uncoupled, coordination, solo, solo-hooks.",
)
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=REPEATS, show_default=True, help="Launches of each point."
)
@click.option("--strong", is_flag=True, help="The batch that --set gives is the whole one: the GPUs share it.")
@click.option(
    "--same-nodes", is_flag=True, help="One job of the largest size, and in it all launches, one after another."
)
@click.option(
    "--solo-gpus", type=click.IntRange(1, 1000), metavar="N",
    help="With --same-nodes and solo: so many GPUs of each node are measured alone in a repeat. [default: all]",
)  # fmt: skip
@click.option("--budget", type=click.FloatRange(min=0), metavar="GPU-HOURS", help="Refuse a study that takes more.")
@click.option(
    "--attempts", type=click.IntRange(1, 100), default=ATTEMPTS, show_default=True,
    help="How many runs a launch may have, where those before are not proven.",
)  # fmt: skip
@click.option("--resume", shell_complete=by_shell("studies"), metavar="STUDY", help="Run what is missing of a study.")
@click.option("--yes", is_flag=True, help="Do not ask before jobs are submitted.")
@click.option("--wait", is_flag=True, help="Wait for all jobs to finish, then print the figures.")
def command(
    same_nodes: bool, budget: float | None, attempts: int, resume: str | None, yes: bool, wait: bool, dry_run: bool,
    as_json: bool, **question: Any,
) -> int:  # fmt: skip
    """Measure how a program scales. Each point is a size and a combination of the --set values.

    The options of submit hold for every launch (--help-all). What it is expected to cost is printed first. An
    interrupted study goes on with --resume: nothing is measured twice.
    """
    from runner.cli.study import detached, show_facts
    from runner.jobs.life import WaitInterrupted
    from runner.study import run as studies
    from runner.study.directory import find
    from runner.study.gather import facts

    how = studies.How(same_nodes, budget, attempts, wait, dry_run)
    caller = _Terminal(yes=yes, dry_run=dry_run, as_json=as_json)
    try:
        if resume is None:
            del question["full"]  # a study prints no script
            done = studies.run(_question(**question), how, caller, _command_line)
        else:
            _check_resuming()
            caller.study = find(resume)
            done = studies.resume(caller.study, how, caller, upgraded)
    except WaitInterrupted:
        assert caller.study is not None
        return detached(caller.study, as_json=as_json)
    if isinstance(done, PlannedStudy):
        return caller.not_begun(done)
    return show_facts(facts(done), as_json=as_json)


def _question(**options: Any) -> Question:
    from runner.preparation.request import make_request
    from runner.study.question import ask

    context = click.get_current_context()
    sizes = context.params["gpus"]
    if sizes is None:
        raise UsageError("no sizes are given", where="--gpus", fix="write numbers of GPUs: --gpus 1,2,4,8")
    return ask(make_request({**given(context), "gpus": 1}), sizes, **options)


def _check_resuming() -> None:
    """Refuse options that only a new study has."""
    context = click.get_current_context()
    if others := {name for name in on_command_line(context) if context.params[name]} - _OF_RESUMING:
        flagged = (each for each in context.command.params if each.name in others)
        flags = sorted("--" if each.name == "arguments" else each.opts[-1] for each in flagged)
        raise UsageError(
            "the study has its options already", where=flags[0], fix="leave it out; another question is another study"
        )


def _command_line(record: RequestRecord) -> CommandLine:
    from runner.model.job import CommandLine

    site = "" if record.request.site else record.site
    return CommandLine(("scale", *typed()), record.request.directory, site)


class _Terminal:
    """A ``runner.study.run.Caller`` that shows a study as it goes, and asks before jobs are submitted."""

    def __init__(self, *, yes: bool, dry_run: bool, as_json: bool) -> None:
        self._yes, self._dry_run, self._as_json = yes, dry_run, as_json
        self.study: StudyDirectory | None = None
        self.say = say

    def preparing(self) -> AbstractContextManager[None]:
        """See ``Caller``, as of the others."""
        return slow("preparing the jobs")

    def planned(self, planned: PlannedStudy) -> None:
        from runner.cli.study import cost_lines

        chosen = next(each for each in planned.costs if each.way == planned.way)
        width = width_of_terminal(err=self._as_json)
        show(cost_lines(planned.costs, chosen, len(planned.launches), width), err=self._as_json)
        show_findings(planned.findings)

    def agrees(self, planned: PlannedStudy) -> bool:
        if self._yes or self._as_json or not sys.stdin.isatty():
            return True
        jobs = next(each.jobs for each in planned.costs if each.way == planned.way)
        question = f"submit {counted(jobs, 'job')} for {counted(len(planned.launches), 'launch')}?"
        return click.confirm(question, default=True)

    def begun(self, study: StudyDirectory) -> None:
        self.study = study
        if not self._as_json:
            show([f"study {study.path.name}: {study.path}"])

    def differs(self, first: Run, differences: Sequence[Difference]) -> None:
        from runner.cli.rerun import difference_lines

        warn(f"what is launched now differs from {first.run_id} (first -> now); a new study would not mix them:")
        for line in difference_lines(differences):
            say(line)

    def listening(self) -> AbstractContextManager[Listener]:
        from runner.cli.study import listening

        return listening(quiet=self._as_json)

    def not_begun(self, planned: PlannedStudy) -> int:
        """Say why nothing was submitted; returns the exit code."""
        error = json_output.of_findings(planned.findings)
        if not self._dry_run and error is None:
            say("nothing was submitted")
            return Exit.GOOD
        code = Exit.GOOD if error is None else Exit.REFUSED
        if self._as_json:
            return json_output.show(planned, exit_code=code, error=error)
        if self._dry_run:
            show(each.key for each in planned.launches)
        say("refused: nothing was submitted" if error else "dry run: nothing was submitted")
        return code
