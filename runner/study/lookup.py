"""What a verb is about: a run or a study, whichever the user means.

A study is found by its id, its directory, its name, or the beginning of the id or name. This module imports little:
`cancel` and `logs` need no more to find what they are about.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.core.errors import UsageError
from runner.core.invocation import PROGRAM
from runner.jobs import lookup
from runner.jobs.directory import STUDY, RunDirectory
from runner.study.directory import StudyDirectory, ids, index, name_of, read

_MOST = 8
Subject = RunDirectory | StudyDirectory


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


def find(wanted: str) -> StudyDirectory:
    """The study that a user means.

    Raises:
        UsageError: there is none, or there are several.
    """
    study = exactly(wanted) or beginning(wanted)
    if study is None:
        known = ids()[:3]
        recent = f" Recent: {', '.join(known)}." if known else ""
        raise UsageError(f'no study matches "{wanted}".{recent}', fix=f"begin one with `{PROGRAM} scale --gpus 1,2,4`")
    return study


def exactly(wanted: str) -> StudyDirectory | None:
    """The study of that whole id, directory or name; None for none.

    Raises:
        UsageError: several have that name, or it was altered.
    """
    for path in (Path(wanted), index() / wanted):
        if wanted and (path / STUDY).is_file():
            return _read(path)
    return None if not wanted or "/" in wanted else _one(wanted, [each for each in ids() if name_of(each) == wanted])


def beginning(wanted: str) -> StudyDirectory | None:
    """The study whose id or name begins so; None for none.

    Raises:
        UsageError: there are several.
    """
    if not wanted or "/" in wanted:
        return None
    return _one(wanted, [each for each in ids() if each.startswith(wanted) or name_of(each).startswith(wanted)])


def _one(wanted: str, matching: Sequence[str]) -> StudyDirectory | None:
    if len(matching) > 1:
        more = f" and {len(matching) - _MOST} more" if len(matching) > _MOST else ""
        raise UsageError(
            f'"{wanted}" matches {len(matching)} studies: {", ".join(matching[:_MOST])}{more}',
            fix="give the id of one of them, or as much of it as no other has",
        )
    return _read(index() / matching[0]) if matching else None


def _read(path: Path) -> StudyDirectory:
    study = read(path)
    if study is None:
        raise UsageError(
            "the study's question cannot be read, or is not as `scale` wrote it",
            where=str(path / STUDY),
            fix="put back the file as it was; the runs in `launches` beside it stay as they are",
        )
    return study
