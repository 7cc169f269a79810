"""What a verb is about: a run or a study, whichever the user means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.jobs.directory import RunDirectory
    from runner.study.directory import StudyDirectory


def find_subject(wanted: str | None) -> RunDirectory | StudyDirectory:
    """The run or the study that a user means; None is the newest run.

    A study's whole id, name or directory goes before a run, and a run before the beginning of a study's id or name:
    the runs of a study have its name, too.

    Raises:
        UsageError: there is neither, or there are several.
    """
    from runner.jobs import lookup
    from runner.study.lookup import beginning, exactly

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
