"""A study is run here, from its question, or from where an earlier call has left it: for every entry the same.

offers    what each way to carry it out costs, and what the checks say
choose    one of them; refuse what the budget does not cover
begin     the directory
carry out the launches that are missing, the study held
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from runner.jobs.differences import Difference, code_differences, plan_differences, recipe_difference
from runner.jobs.directory import Run
from runner.jobs.states import ensure_own
from runner.model.job import CommandLine
from runner.model.plan import PlanRecord
from runner.model.request import RequestRecord
from runner.model.study import ATTEMPTS, PlannedStudy, Study
from runner.preparation.job import code_of, prepare
from runner.preparation.request import check_directory, check_foreign, image_of, record_of, repeated
from runner.study import gather, one_allocation, separate
from runner.study.attempts import settle, to_start
from runner.study.directory import StudyDirectory, create
from runner.study.question import (
    Offer,
    Preparations,
    Question,
    check_budget,
    check_measures,
    check_user_budget,
    choose,
    offer,
    offers,
)
from runner.study.sameness import refuse_another
from runner.study.separate import Listener, Work


@dataclass(frozen=True)
class How:
    """How a study is run, whatever it asks.

    Attributes:
        same_nodes: in one allocation. budget: GPU-hours; None for no limit. attempts: runs that a launch may have.
        waits: until all launches have ended. dry_run: nothing is submitted.
    """

    same_nodes: bool = False
    budget: float | None = None
    attempts: int = ATTEMPTS
    waits: bool = False
    dry_run: bool = False


class Caller(Protocol):
    """Who runs a study: what is shown on the way, and asked."""

    def say(self, line: str, /) -> None:
        """A line about a choice that was made."""

    def preparing(self) -> AbstractContextManager[None]:
        """Around what may take a while before anything is shown."""

    def planned(self, planned: PlannedStudy, /) -> None:
        """What is to be launched, and what each way costs."""

    def agrees(self, planned: PlannedStudy, /) -> bool:
        """Whether it is to be submitted."""

    def begun(self, study: StudyDirectory, /) -> None:
        """Its directory is there."""

    def differs(self, first: Run, differences: Sequence[Difference], /) -> None:
        """What is launched now is not what was launched first."""

    def listening(self) -> AbstractContextManager[Listener]:
        """What is called while launches are started and waited for."""


def run(
    question: Question, how: How, caller: Caller, command: Callable[[RequestRecord], CommandLine]
) -> StudyDirectory | PlannedStudy:
    """Begin a study; where nothing was begun (a dry run, a refusal, the caller does not agree) return what was planned.

    Args:
        command: the command line of ``scale``, for a reader.

    Raises:
        UsageError, RefusedError: a launch cannot be planned, or the budget is too small. Else as ``resume``.
    """
    jobs = _preparations(question, how, caller)
    with caller.preparing():
        all_offers = offers(question, jobs)
    chosen = choose(question, all_offers, same_nodes=how.same_nodes)
    check_measures(jobs.of(chosen.launches[0]), chosen.cost, waits=how.waits)
    planned = _planned(all_offers, chosen)
    if not _goes_on(planned, chosen, how, caller):
        return planned
    first = jobs.of(chosen.launches[0])
    record = record_of(question.request, first.site_file)
    asked = Study(
        schema="1",
        study="",
        created=datetime.now(timezone.utc).replace(microsecond=0),
        command=command(record),
        site=first.plan.site,
        recipe=first.plan.recipe,
        way=chosen.cost.way,
        gpus=question.gpus,
        arms=question.arms,
        settings=question.settings,
        repeats=question.repeats,
        strong=question.strong,
        launches=chosen.launches,
        request=record,
    )
    study = create(Path(question.request.runs), first.plan.job_name, asked, time.time())
    caller.begun(study)
    with study.exclusive(caller.say):
        _carry_out(study, chosen, jobs, how, caller)
    return study


def resume(
    study: StudyDirectory, how: How, caller: Caller, older: Callable[[CommandLine], RequestRecord]
) -> StudyDirectory | PlannedStudy:
    """Run what is missing of a study; returns as ``run``.

    Args:
        older: the request of a study that has only its command line.

    Raises:
        RefusedError: another process is at work on it, it is another user's, or launches would now be of another
            program. Else as ``run``.
        WaitInterrupted: Ctrl-C while it waits.
    """
    ensure_own(Run(study.path))  # what it asks for runs as this user
    asked = study.study
    record = older(asked.command) if asked.request is None else asked.request
    check_directory(record, "the study")
    # Before anything is noted in it: of a copy it would be this user's.
    check_foreign(repeated(record, {}), {}, Run(study.path), own=study.is_begun_here)
    if how.dry_run:
        return _resumed(study, how, caller, record)
    with study.exclusive(caller.say):
        study.go_on()
        settle(study, asked.launches)
        return _resumed(study, how, caller, record)


def cancel(study: StudyDirectory) -> tuple[str, ...]:
    """Cancel all jobs of the study, and let nothing more be started; returns the ids of jobs that had not ended. Raises
    RefusedError as ``Campaign.stop``.
    """
    study.stop()
    return one_allocation.cancel(study) if study.study.way == "one-allocation" else separate.cancel(study)


def _resumed(study: StudyDirectory, how: How, caller: Caller, record: RequestRecord) -> StudyDirectory | PlannedStudy:
    asked = study.study
    runs = ((launch, each) for launch in asked.launches for each in study.runs(launch.key))
    ran = next(((*each, plan) for each in runs if (plan := each[1].read("plan.json", PlanRecord)) is not None), None)
    request = repeated(record, {}, image="" if ran is None else image_of(ran[2]))  # site and image stay those that ran
    question = Question(request, asked.gpus, asked.arms, asked.repeats, asked.strong)
    jobs = _preparations(question, how, caller)
    made = gather.look(study).attempts
    launches = to_start(asked.launches, made, how.attempts)
    with caller.preparing():
        chosen = offer(asked.way, launches, jobs, of=asked.launches)
    if launches:
        refuse_another(asked.launches, made, jobs.of)
    if launches and ran is not None:
        launch, first, plan = ran
        now = jobs.of(launch)
        placed = now.plan
        if asked.way == "one-allocation":
            largest = max(asked.launches, key=lambda each: each.gpus)
            placed = one_allocation.in_place(placed, launch, jobs.of(largest).plan)
        differences = (
            *plan_differences(plan, placed),
            *code_differences(first, *code_of(now)),
            *recipe_difference(first, now.recipe_directory),
        )
        if differences:
            caller.differs(first, differences)
    planned = _planned((chosen,), chosen)
    if not _goes_on(planned, chosen, how, caller, lambda: _used(study, jobs)):
        return planned
    _carry_out(study, chosen, jobs, how, caller)
    return study


def _preparations(question: Question, how: How, caller: Caller) -> Preparations:
    noted: set[str] = set()

    def say_once(line: str) -> None:
        if line not in noted:
            noted.add(line)
            caller.say(line)

    return Preparations(question, lambda request: prepare(request, say=say_once, keep=not how.dry_run))


def _planned(of: Sequence[Offer], chosen: Offer) -> PlannedStudy:
    return PlannedStudy(chosen.cost.way, chosen.launches, tuple(each.cost for each in of), chosen.findings)


def _goes_on(
    planned: PlannedStudy, chosen: Offer, how: How, caller: Caller, used: Callable[[], float] = lambda: 0.0
) -> bool:
    """Whether launches are to be submitted, after what they cost was shown. Raises RefusedError by the budget."""
    caller.planned(planned)
    if any(job.is_refused for job in chosen.jobs):
        return False
    if chosen.jobs:
        check_user_budget(chosen.jobs[0].request, chosen.cost.most_gpu_hours)
    if how.budget is not None:
        check_budget(chosen.cost, how.budget, used())
    return not how.dry_run and (not chosen.launches or caller.agrees(planned))


def _used(study: StudyDirectory, jobs: Preparations) -> float:
    """GPU-hours that the study has used, and that launches in the queue or under way are expected to take."""
    now = gather.facts(study)
    if now.way != "separate":  # one allocation at a time
        return now.gpu_hours
    ahead = tuple(each.launch for each in now.launches if each.state in ("pending", "running"))
    return now.gpu_hours + offer("separate", ahead, jobs).cost.gpu_hours


def _carry_out(study: StudyDirectory, chosen: Offer, jobs: Preparations, how: How, caller: Caller) -> None:
    way = one_allocation if study.study.way == "one-allocation" else separate
    with caller.listening() as listener:
        first = {"waits": how.waits, "waits_for_first": True}
        work = Work(study, study.study.launches, jobs.of, listener, limit=how.attempts, **first)
        way.carry_out(work, chosen.launches)
