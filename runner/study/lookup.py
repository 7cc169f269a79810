"""Which study a user means: by its id, its directory, its name, or the beginning of the id or name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.core.errors import UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import first_of
from runner.jobs.directory import STUDY
from runner.study.directory import StudyDirectory, ids, index, name_of, read

_MOST = 8


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
        raise UsageError(
            f'"{wanted}" matches {len(matching)} studies: {first_of(matching, _MOST)}',
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
