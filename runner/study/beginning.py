"""A new study from its question: its directory."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path

from runner.model.origin import CommandLine
from runner.model.study import Study
from runner.preparation.job import PreparedJob
from runner.study.directory import StudyDirectory, create
from runner.study.question import Offer, Question


def begin(question: Question, chosen: Offer, first: PreparedJob, command: CommandLine, runs: Path) -> StudyDirectory:
    """Make the directory of a study, in which nothing is started yet.

    Args:
        chosen: the way that is taken. first: its first launch as a job.
        command: the command line of ``scale``, by which it is resumed. runs: where its directory is made.

    Raises:
        UsageError: it cannot be made there.
    """
    study = Study(
        schema="1",
        study="",
        created=datetime.now(timezone.utc).replace(microsecond=0),
        command=command,
        site=first.plan.site,
        recipe=first.plan.recipe,
        way=chosen.cost.way,
        gpus=question.gpus,
        arms=question.arms,
        settings=question.settings,
        repeats=question.repeats,
        strong=question.strong,
        launches=chosen.launches,
    )
    return create(runs, first.plan.job_name, study, time.time())
