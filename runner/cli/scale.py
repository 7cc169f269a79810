"""``scale``: how does it scale? A study of many runs, planned, carried out and resumed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.job_options import JobCommand, arguments_of, command_line, enter, given, job_options, of_the_call, typed
from runner.cli.options import by_shell, say
from runner.core.errors import Exit, UsageError
from runner.core.text import counted

if TYPE_CHECKING:
    from runner.model.origin import CommandLine
    from runner.model.study import Launch
    from runner.preparation.request import JobOptions
    from runner.study.directory import StudyDirectory
    from runner.study.question import Offer, Preparations, Question

_REPEATS, _ATTEMPTS = 3, 3
# With --resume, the first command line has said everything else.
_OF_RESUMING = frozenset(("resume", "budget", "attempts", "yes", "wait", "dry_run", "as_json"))


@click.command(cls=JobCommand)
@job_options
@click.option("--arms", default="full", show_default=True, metavar="ARM,...", help="What each size is run as.")
@click.option(
    "--repeats", type=click.IntRange(1, 1000), default=_REPEATS, show_default=True, help="Launches of each point."
)
@click.option("--strong", is_flag=True, help="The batch that --set gives is the whole one: the GPUs share it.")
@click.option(
    "--same-nodes", is_flag=True, help="One job of the largest size, and in it all launches, one after another."
)
@click.option(
    "--solo-gpus",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="With --same-nodes, GPUs of each node that are alone in one repeat; others in the next. All by default.",
)
@click.option("--budget", type=click.FloatRange(min=0), metavar="GPU-HOURS", help="Refuse a study that takes more.")
@click.option(
    "--attempts",
    type=click.IntRange(1, 100),
    default=_ATTEMPTS,
    show_default=True,
    help="How many runs a launch may have, where those before are not proven.",
)
@click.option("--resume", shell_complete=by_shell("studies"), metavar="STUDY", help="Run what is missing of a study.")
@click.option("--yes", is_flag=True, help="Do not ask before jobs are submitted.")
@click.option("--wait", is_flag=True, help="Wait for all jobs to finish, then print the figures.")
def command(resume: str | None, attempts: int, dry_run: bool, **values: Any) -> int:
    """Measure how a program scales: scale --gpus 1,2,4,8,16 [--set batch-size=128,256] [--repeats 3].

    Each point is a size and a combination of the --set values; the options of submit hold for every launch. What it is
    expected to cost is printed first. An interrupted study goes on with --resume STUDY: nothing is measured twice.
    """
    from runner.study.attempts import settle
    from runner.study.lookup import find

    if resume is None:
        return _new(attempts, dry_run, **values)
    if others := given(command, typed(click.get_current_context())).keys() - _OF_RESUMING:
        flags = sorted(f"--{name.replace('_', '-')}" if name != "arguments" else "--" for name in others)
        raise UsageError(
            "the study has its options already", where=flags[0], fix="leave it out; another question is another study"
        )
    study = find(resume)
    if dry_run:
        return _Call(study.study.command, study, attempts, dry_run=True, **values).go_on(study)
    with study.exclusive(say):
        study.go_on()
        settle(study)
        return _Call(study.study.command, study, attempts, dry_run=False, **values).go_on(study)


def _new(attempts: int, dry_run: bool, **values: Any) -> int:
    return _Call(command_line(""), None, attempts, dry_run=dry_run, **values).begin()


for _option in command.params:
    if _option.name == "gpus":
        _option.required, _option.type = False, click.STRING
        assert isinstance(_option, click.Option)
        _option.help, _option.metavar = "Numbers of GPUs, one rank on each: 1,2,4,8.", "N,..."


class _Call:
    """One call of ``scale``: the question from its command line, and what is to be done for it."""

    def __init__(
        self,
        line: CommandLine,
        study: StudyDirectory | None,
        limit: int,
        *,
        dry_run: bool,
        budget: float | None,
        yes: bool,
        wait: bool,
        as_json: bool,
        same_nodes: bool = False,
        **_others: Any,
    ) -> None:
        from runner.preparation.job import prepare
        from runner.study.question import Preparations

        self.study, self.limit, self.dry_run, self.same_nodes = study, limit, dry_run, same_nodes
        self.budget, self.yes, self.waits, self.as_json = budget, yes, wait, as_json
        self._given = _given_of(line, study)
        if study is not None:
            enter(line.directory, "the study")
        self.question = _question(given(command, line.arguments[1:]))
        keep, noted = not dry_run, dict[str, None]()

        def say_once(line: str) -> None:
            if line not in noted:
                noted[line] = None
                say(line)

        self.jobs: Preparations = Preparations(
            lambda launch: _options_of(self._words(launch)), lambda options: prepare(options, say=say_once, keep=keep)
        )

    def begin(self) -> int:
        """Plan a new study, show what it costs, and start it; returns the exit code."""
        from runner.cli.waiting import slow
        from runner.study.question import choose, offers

        with slow("preparing the jobs"):
            found = offers(self.question, self.jobs)
        chosen = choose(self.question, found, same_nodes=self.same_nodes)
        if (code := self._not_begun(found, chosen)) is not None:
            return code
        study = self._begun(chosen)
        with study.exclusive(say):
            return self._started(study, chosen.launches)

    def go_on(self, study: StudyDirectory) -> int:
        """Show what the launches that are missing cost, and start them; returns the exit code."""
        from runner.cli.waiting import slow
        from runner.study import gather
        from runner.study.attempts import to_start
        from runner.study.programs import refuse_another
        from runner.study.question import offer

        made = gather.attempts(study)
        launches = to_start(study.study.launches, made, self.limit)
        with slow("preparing the jobs"):
            chosen = offer(study.study.way, launches, self.jobs, of=study.study.launches)
        if launches:
            refuse_another(study.study.launches, made, self.jobs.of, keep_diff=not self._given.get("no_diff"))
            self._show_changes(study)
        code = self._not_begun((chosen,), chosen)
        return self._started(study, launches) if code is None else code

    def _show_changes(self, study: StudyDirectory) -> None:
        """Warn where launches would now be others than those that ran."""
        from runner.cli.diff import show_differences
        from runner.cli.show import warn
        from runner.jobs.comparison import code_differences, plan_differences, recipe_difference
        from runner.model.plan import PlanRecord
        from runner.preparation.job import code_of
        from runner.study.allocation import in_place

        runs = ((launch, run) for launch in study.study.launches for run in study.runs(launch.key))
        for launch, run in runs:
            if (plan := run.read("plan.json", PlanRecord)) is None:
                continue
            now, keep = self.jobs.of(launch), not self._given.get("no_diff")
            placed = now.plan
            if study.study.way == "one-allocation":
                largest = max(study.study.launches, key=lambda each: each.gpus)
                placed = in_place(now.plan, launch, self.jobs.of(largest).plan)
            differences = (
                *plan_differences(plan, placed),
                *code_differences(run, *code_of(now, keep_diff=keep)),
                *recipe_difference(run, now.recipe_directory),
            )
            if differences:
                warn(f"what is launched now differs from {run.run_id} (first -> now); a new study would not mix them:")
                show_differences(differences, err=True)
            return

    def _not_begun(self, found: Sequence[Offer], chosen: Offer) -> int | None:
        """Show what each way costs; the exit code where nothing is to be started, else None."""
        from runner.cli import json_output
        from runner.cli.show import show_findings
        from runner.cli.study_table import cost_lines
        from runner.cli.table import show, width_of_terminal
        from runner.model.study import PlannedStudy
        from runner.study.question import check_budget

        costs = tuple(each.cost for each in found)
        width = width_of_terminal(err=self.as_json)
        show(cost_lines(costs, chosen.cost, len(chosen.launches), width), err=self.as_json)
        show_findings(chosen.findings)
        if not chosen.is_refused:
            check_budget(chosen.cost, self.budget, self._used())
        if not self.dry_run and not chosen.is_refused:
            if not chosen.launches or self._confirmed(len(chosen.launches), chosen.cost.jobs):
                return None
            click.echo("nothing was submitted", err=True)
            return Exit.GOOD
        error = json_output.of_findings(chosen.findings)
        code = Exit.GOOD if error is None else Exit.REFUSED
        if self.as_json:
            planned = PlannedStudy(chosen.cost.way, chosen.launches, costs, chosen.findings)
            return json_output.show(planned, exit_code=code, error=error)
        if self.dry_run:
            show(each.key for each in chosen.launches)
        click.echo("refused: nothing was submitted" if error else "dry run: nothing was submitted", err=True)
        return code

    def _used(self) -> float:
        """GPU-hours that the study has used, and that launches in the queue or under way are expected to take."""
        from runner.study.gather import facts
        from runner.study.question import offer

        if self.study is None or self.budget is None:
            return 0.0
        now = facts(self.study)
        if now.way != "separate":  # one allocation at a time
            return now.gpu_hours
        ahead = tuple(each.launch for each in now.launches if each.state in ("pending", "running"))
        return now.gpu_hours + offer("separate", ahead, self.jobs).cost.gpu_hours

    def _confirmed(self, launches: int, jobs: int) -> bool:
        if self.yes or self.as_json or not sys.stdin.isatty():
            return True
        return click.confirm(f"submit {counted(jobs, 'job')} for {counted(launches, 'launch')}?", default=True)

    def _begun(self, chosen: Offer) -> StudyDirectory:
        from runner.study.beginning import begin

        first = self.jobs.of(chosen.launches[0])
        runs = Path(self._given.get("runs", "runs"))
        made = begin(self.question, chosen, first, command_line(first.site_file), runs)
        if not self.as_json:
            click.echo(f"study {made.path.name}: {made.path}")
        return made

    def _started(self, study: StudyDirectory, launches: tuple[Launch, ...]) -> int:
        from runner.cli.study import interrupted, listening, show_facts
        from runner.jobs.life import WaitInterrupted
        from runner.study.gather import facts
        from runner.study.ways import Work, way

        with listening(quiet=self.as_json) as listener:
            work = Work(
                study,
                self.jobs.of,
                self._command_of,
                listener,
                keep_diff=not self._given.get("no_diff"),
                waits=self.waits,
                limit=self.limit,
            )
            try:
                way(study.study.way).carry_out(work, launches)
            except WaitInterrupted:
                return interrupted(study, as_json=self.as_json)
        return show_facts(facts(study), as_json=self.as_json)

    def _words(self, launch: Launch) -> list[str]:
        """The arguments of ``submit`` that this launch is."""
        from runner.cli import submit
        from runner.study.question import recipe_of

        values = {**self._given, "gpus": str(launch.gpus), "options": []}
        recipe = recipe_of(_options_of(arguments_of(submit.command, values)))
        values["options"] = [f"{name}={value}" for name, value in self.question.options(launch, recipe)]
        return arguments_of(submit.command, values)

    def _command_of(self, launch: Launch) -> CommandLine:
        from runner.model.origin import CommandLine

        return CommandLine(("submit", *self._words(launch)), str(Path.cwd()), self.jobs.of(launch).site_file)


def _question(values: Mapping[str, Any]) -> Question:
    from runner.study.question import ask

    if "gpus" not in values:
        raise UsageError("no sizes are given", where="--gpus", fix="write numbers of GPUs: --gpus 1,2,4,8")
    pairs = [(name, text) for name, _, text in (each.partition("=") for each in values.get("options", ()))]
    return ask(
        values["gpus"],
        values.get("arms", "full"),
        pairs,
        int(values.get("repeats", _REPEATS)),
        strong=bool(values.get("strong")),
        solo_gpus=int(values["solo_gpus"]) if "solo_gpus" in values else None,
    )


def _given_of(line: CommandLine, study: StudyDirectory | None) -> dict[str, Any]:
    """What the command line gives of ``submit``'s options. Of a study that goes on, site and image stay the same."""
    from runner.preparation.repetition import image_of, repeated

    values = {
        name: value for name, value in given(command, line.arguments[1:]).items() if name not in of_the_call(command)
    }
    if study is None:
        return values
    runs = (run for launch in study.study.launches for run in study.runs(launch.key))
    first = next((plan for run in runs if (plan := _plan_of(run)) is not None), None)
    return repeated(values, {}, without=(), image="" if first is None else image_of(first), site=line.site)


def _plan_of(run: Any) -> Any:
    from runner.model.plan import PlanRecord

    return run.read("plan.json", PlanRecord)


def _options_of(arguments: list[str]) -> JobOptions:
    """The options of a ``submit`` with these arguments."""
    from runner.cli import submit
    from runner.preparation.request import make_options

    with submit.command.make_context("submit", list(arguments)) as context:
        values = {name: value for name, value in context.params.items() if name not in of_the_call(submit.command)}
    values.pop("no_diff")
    return make_options(**values)
