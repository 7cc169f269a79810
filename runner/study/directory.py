"""The directory of a study, or of a sweep: its question, the run directories of its launches, and which one a user
means.

RUNS/20261122-120500-NAME-study/    (or -sweep) linked in the state directory, as runs are
    study.json                      the question (model.study.Study), or sweep.json, written whole, once
    ...                             as of every campaign (runner.study.campaign)
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from runner.core import files, paths
from runner.core.errors import UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import first_of
from runner.jobs import lookup
from runner.jobs.directory import LAUNCHES, STUDY, SWEEP, Run
from runner.model.study import Study
from runner.model.sweep import Sweep
from runner.study.campaign import Campaign
from runner.study.plan import is_whole

_MOST = 8  # that a message names
_ID = re.compile(r"\d{8}-\d{6}-(?P<name>.+)-(study|sweep)(\.\d+)?\Z")


class StudyDirectory(Campaign):
    """A study's directory, absolute, and what was asked."""

    at_work = "another `scale` is at work on this study"

    def __init__(self, path: Path, study: Study) -> None:
        super().__init__(path)
        self.study = study
        self.name = name_of(path.name)
        self.goes_on = f"{PROGRAM} scale --resume {path.name}"
        self.instead = f"see `{PROGRAM} status {path.name}`"
        self.is_logged = study.logged


class SweepDirectory(Campaign):
    """A sweep's directory, absolute, and what was asked."""

    at_work = "its runs are being submitted"

    def __init__(self, path: Path, sweep: Sweep) -> None:
        super().__init__(path)
        self.sweep = sweep
        self.name = name_of(path.name)
        self.goes_on = self.instead = f"{PROGRAM} status {path.name}"


Group = StudyDirectory | SweepDirectory
Subject = Run | Group


def create(root: Path, name: str, study: Study, now_s: float) -> StudyDirectory:
    """A new study below ``root``: its id is made of the time and ``name``.

    Raises:
        UsageError: it cannot be made there.
    """
    path = _made(root, f"{name}-study", lambda study_id: replace(study, study=study_id, logged=True), STUDY, now_s)
    return _read(path)


def create_sweep(root: Path, name: str, sweep: Sweep, now_s: float) -> SweepDirectory:
    """As ``create``, a new sweep."""
    path = _made(root, f"{name}-sweep", lambda sweep_id: replace(sweep, sweep=sweep_id), SWEEP, now_s)
    return SweepDirectory(path, replace(sweep, sweep=path.name))


def _made(root: Path, label: str, asked: Callable[[str], msgspec.Struct], document: str, now_s: float) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    try:
        root.mkdir(parents=True, exist_ok=True)
        index().mkdir(mode=0o700, parents=True, exist_ok=True)
        path = _reserved(root.resolve(), f"{stamp}-{label}")
        (path / LAUNCHES).mkdir()
        Campaign(path).begin_log()
        files.write_private(path / document, json.dumps(msgspec.to_builtins(asked(path.name)), indent=1) + "\n")
        link = index() / path.name
        link.unlink(missing_ok=True)
        link.symlink_to(path)
    except OSError as error:
        raise UsageError(
            f"the directory of its runs cannot be made: {error.strerror}",
            where=str(error.filename or root),
            fix="use --runs with a directory that every node sees and you may write to",
        ) from None
    return path


def _reserved(root: Path, name: str) -> Path:
    for number in range(1, 10_000):
        path = root / (name if number == 1 else f"{name}.{number}")
        with suppress(FileExistsError):
            if not (index() / path.name).exists():
                path.mkdir(mode=0o700)
                return path
    raise FileExistsError(17, "no name is free", str(root / name))


def read(path: Path) -> StudyDirectory | None:
    """The study in a directory; None where there is none, it cannot be read, or was altered so that it is none."""
    try:
        study = msgspec.convert(json.loads(files.read_bytes(path / STUDY)), Study)
    except (OSError, ValueError, RecursionError):
        return None
    return StudyDirectory(path.resolve(), study) if is_whole(study) else None


def name_of(study_id: str) -> str:
    """The name in a study's or a sweep's id (``--name``, or the recipe's); the id where it has none."""
    parts = _ID.match(study_id)
    return parts["name"] if parts else study_id


def index() -> Path:
    """Links from ids of studies to their directories."""
    return paths.state_dir() / "studies"


def ids(*documents: str) -> tuple[str, ...]:
    """Ids of all studies (STUDY) or sweeps of this user whose directories are still there, the newest first."""
    documents = documents or (STUDY,)
    with suppress(OSError):
        links = sorted(index().iterdir(), key=lambda link: (link.lstat().st_mtime_ns, link.name), reverse=True)
        return tuple(link.name for link in links if any((link / each).is_file() for each in documents))
    return ()


def find(wanted: str) -> StudyDirectory:
    """The study that a user means. Raises UsageError: there is none, or there are several."""
    study = _exactly(wanted) or _beginning(wanted)
    if not isinstance(study, StudyDirectory):
        known = ids()[:3]
        recent = f" Recent: {', '.join(known)}." if known else ""
        raise UsageError(f'no study matches "{wanted}".{recent}', fix=f"begin one with `{PROGRAM} scale --gpus 1,2,4`")
    return study


def find_subject(wanted: str | None) -> Subject:
    """The run, the study or the sweep that a user means; None is the newest run.

    A study's whole id, name or directory goes before a run, and a run before the beginning of a study's id or name:
    the runs of a study have its name, too. So it is with sweeps, and with the job of a sweep's array.

    Raises:
        UsageError: there is neither, or there are several.
    """
    if wanted is not None and (study := _exactly(wanted)) is not None:
        return study
    try:
        return lookup.find(wanted)
    except UsageError:
        if wanted is not None and (study := _beginning(wanted)) is not None:
            return study
        raise


def find_subjects(names: Sequence[str]) -> tuple[Subject, ...]:
    """What these names mean, each once; the newest run without any. Raises as ``find_subject``."""
    return tuple({each.path: each for each in map(find_subject, names or (None,))}.values())


def runs_and_studies(names: Sequence[str]) -> tuple[Run | StudyDirectory, ...]:
    """The same for who reads figures: a sweep stands for its runs."""
    made: list[Run | StudyDirectory] = []
    for each in find_subjects(names):
        made += sweep_runs(each) if isinstance(each, SweepDirectory) else [each]
    return tuple({each.path: each for each in made}.values())


def sweep_runs(sweep: SweepDirectory) -> tuple[Run, ...]:
    """Its runs that were submitted, or that may have been. Raises UsageError: there are none."""
    runs = [run for each in sweep.sweep.runs for run in sweep.runs(each.key) if not lookup.was_refused(run)]
    if not runs:
        raise UsageError("no run of this sweep was submitted", where=str(sweep.path), fix=f"see `{sweep.instead}`")
    return tuple(runs)


def _exactly(wanted: str) -> Group | None:
    """The study or the sweep of that whole id, directory or name; None for none."""
    for path in (Path(wanted), index() / wanted):
        for document in (STUDY, SWEEP) if wanted else ():
            if (path / document).is_file():
                return _read(path) if document == STUDY else read_sweep(path)
    if not wanted or "/" in wanted:
        return None
    return _one(wanted, [each for each in ids(STUDY, SWEEP) if name_of(each) == wanted])


def _beginning(wanted: str) -> Group | None:
    """The study or the sweep whose id or name begins so; None for none."""
    if not wanted or "/" in wanted:
        return None
    known = ids(STUDY, SWEEP)
    return _one(wanted, [each for each in known if each.startswith(wanted) or name_of(each).startswith(wanted)])


def _one(wanted: str, matching: Sequence[str]) -> Group | None:
    if len(matching) > 1:
        kinds = "studies and sweeps" if any((index() / each / SWEEP).is_file() for each in matching) else "studies"
        raise UsageError(
            f'"{wanted}" matches {len(matching)} {kinds}: {first_of(matching, _MOST)}',
            fix="give the id of one of them, or as much of it as no other has",
        )
    return _exactly(matching[0]) if matching else None


def read_sweep(path: Path) -> SweepDirectory:
    sweep = Run(path.resolve()).read(SWEEP, Sweep)
    if sweep is None:
        fix = "put back the file as it was; the runs in `launches` beside it stay as they are"
        raise UsageError("what the sweep was asked for cannot be read", where=str(path / SWEEP), fix=fix)
    return SweepDirectory(path.resolve(), sweep)


def _read(path: Path) -> StudyDirectory:
    study = read(path)
    if study is None:
        raise UsageError(
            "the study's question cannot be read, or is not as `scale` wrote it",
            where=str(path / STUDY),
            fix="put back the file as it was; the runs in `launches` beside it stay as they are",
        )
    return study
