"""What a verb is about: a run or a study, whichever the user means."""

from __future__ import annotations

from collections.abc import Sequence

from runner.core.errors import UsageError
from runner.jobs import lookup
from runner.jobs.directory import Run
from runner.study.directory import StudyDirectory, beginning, exactly

Subject = Run | StudyDirectory


def find_subject(wanted: str | None) -> Subject:
    """The run or the study that a user means; None is the newest run.

    A study's whole id, name or directory goes before a run, and a run before the beginning of a study's id or name:
    the runs of a study have its name, too.

    Raises:
        UsageError: there is neither, or there are several.
    """
    if wanted is None:
        return lookup.find(None)
    if (study := exactly(wanted)) is not None:
        return study
    try:
        return lookup.find(wanted)
    except UsageError:
        if (study := beginning(wanted)) is not None:
            return study
        raise


def find_subjects(names: Sequence[str]) -> tuple[Subject, ...]:
    """What these names mean, each once; the newest run without any.

    Raises:
        UsageError: as ``find_subject``.
    """
    found = [find_subject(name) for name in names] or [find_subject(None)]
    return tuple({each.path: each for each in found}.values())
