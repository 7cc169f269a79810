"""Wait until nothing of a study is in the queue, runs, or is about to be started."""

from __future__ import annotations

from runner.core.errors import UnknownStateError
from runner.core.invocation import PROGRAM
from runner.jobs.life import Warn, finish
from runner.jobs.watch import REAL_CLOCK, Clock
from runner.model.study import StudyFacts
from runner.study import gather
from runner.study.directory import StudyDirectory

_SHORTEST_S, _LONGEST_S = 0.5, 10.0


def wait(study: StudyDirectory, warn: Warn, *, timeout_s: float | None = None, clock: Clock = REAL_CLOCK) -> StudyFacts:
    """The study's facts once it is still. Its runs are judged as they end.

    Args:
        warn: called with what could not be kept.
        timeout_s: seconds to wait at most.

    Raises:
        UnknownStateError: the time is over.
    """
    began = clock.monotonic()
    pause = _SHORTEST_S
    while True:
        is_driven = study.is_held
        made = gather.attempts(study)
        awaited = [each.run for attempts in made.values() for each in attempts if each.awaited]
        for run in awaited:
            finish(run, lambda _progress: None, warn, timeout_s=timeout_s, clock=clock)
        if awaited:
            continue
        now = gather.facts(study, made)
        if now.state != "running" and not is_driven:
            return now
        if timeout_s is not None and clock.monotonic() - began > timeout_s:
            raise UnknownStateError(
                f"the study has not ended within {timeout_s:g} s",
                where=str(study.path),
                fix=f"continue with `{PROGRAM} wait {study.path.name}`, or `cancel` it",
            )
        clock.sleep(pause)
        pause = min(pause * 1.2, _LONGEST_S)
