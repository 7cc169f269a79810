"""The directory of a study, sweep or chain: its question, the run directories of its launches, and which one a user
means.

RUNS/20261122-120500-NAME-study/    (or -sweep, -chain) linked in the state directory, as runs are
    study.json                      the question (model.study.Study), or sweep.json, written whole, once
    ...                             as of every campaign (runner.jobs.campaign)
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from runner.core import files, paths
from runner.core.errors import UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import counted, first_of
from runner.jobs import lookup
from runner.jobs.campaign import Campaign, gaps_of
from runner.jobs.creation import make_root
from runner.jobs.directory import CHAIN_END, LAUNCHES, STUDY, SWEEP, Run, own_run
from runner.model.job import Sweep
from runner.model.study import Study
from runner.study.plan import is_whole

SICK = "sick"  # of a chain, which its attempts (chain.sh) write
CHECKPOINTS = "checkpoints"  # of all of them
DONE = "the program is done"  # why no attempt follows, by chain.sh
_MOST = 8  # that a message names
_ID = re.compile(r"\d{8}-\d{6}-(?P<name>.+)-(study|sweep|chain)(\.\d+)?\Z")


class StudyDirectory(Campaign):
    """A study's directory, absolute, and what was asked."""

    at_work = "another `scale` is at work on this study"
    chain = None

    def __init__(self, path: Path, study: Study) -> None:
        super().__init__(path)
        self.study = study
        self.name = name_of(path.name)
        self.goes_on = f"{PROGRAM} scale --resume {path.name}"
        self.instead = f"see `{PROGRAM} status {path.name}`"


class SweepDirectory(Campaign):
    """A sweep's directory, absolute, and what was asked: a name for its runs, each of which has it with a number."""

    at_work = "its runs are being submitted"

    def __init__(self, path: Path, sweep: Sweep) -> None:
        super().__init__(path)
        self.sweep = sweep
        self.goes_on = self.instead = f"{PROGRAM} status {path.name}"

    @property
    def submitted(self) -> tuple[Run, ...]:
        """Its runs that were submitted, or may have been."""
        return tuple(
            run for key in self.sweep.runs for run in self.runs(key) if run.submitted and not lookup.was_refused(run)
        )

    @property
    def missing(self) -> str:
        """A sentence on the runs that were not submitted, or are lost; empty where there are none, or they may still be
        submitted.
        """
        if self.sweep.is_chain:
            return ""
        there = {run.path.parent.name for run in self.submitted}
        lacks = [key for key in self.sweep.runs if key not in there]
        if not lacks or self.is_held:
            return ""
        if gaps := gaps_of(self.path):
            return f"{self.path.name}: {first_of(gaps, _MOST, '; ')}"
        records = (run.submitted for key in lacks for run in self.runs(key))
        why = next((record.refused for record in records if record and record.refused), "that was ended before")
        count = f"{len(lacks)} of {counted(len(self.sweep.runs), 'run')} of {self.path.name}"
        return f"{count} not submitted ({first_of(lacks, _MOST)}): {why}"

    @property
    def end(self) -> str:
        """Why no attempt of a chain follows; empty while one may."""
        return Run(self.path).content(CHAIN_END).decode("utf-8", "replace").strip()

    @property
    def left_out(self) -> tuple[str, ...]:
        """The nodes that later attempts of a chain leave out, each with why: ``dgx01 (attempt 1: it failed)``."""
        lines = Run(self.path).content(SICK).decode("utf-8", "replace").splitlines()
        rows = [line.split("\t") for line in lines if line.count("\t") == 2]
        return tuple(dict.fromkeys(f"{node} (attempt {attempt}: {fault})" for node, attempt, fault in rows))

    def stop(self) -> None:
        super().stop()
        if self.sweep.is_chain and not self.end:
            files.write_private(self.path / CHAIN_END, "it was cancelled\n")


Subject = Run | StudyDirectory


def next_attempt(subject: Subject) -> Run | None:
    """Of an attempt that has ended, the next one, if it is queued or has begun; else None."""
    chain = subject.chain
    runs = () if chain is None else Campaign(chain).runs(str(int(subject.path.parent.name) + 1))
    for run in runs:
        files.touch_directory(run.path)  # what another machine has written there becomes visible
    return runs[0] if runs and not runs[0].is_needless else None


def create(root: Path, name: str, study: Study, now_s: float) -> StudyDirectory:
    """A new study below ``root``: its id is made of the time and ``name``.

    Raises:
        UsageError: it cannot be made there.
    """
    path = _made(root, f"{name}-study", STUDY, now_s, lambda own: msgspec.structs.replace(study, study=own))
    return _read(path)


def create_sweep(root: Path, name: str, sweep: Sweep, now_s: float) -> SweepDirectory:
    """As ``create``, a new sweep or chain."""
    label = f"{name}-{'chain' if sweep.is_chain else 'sweep'}"
    path = _made(root, label, SWEEP, now_s, lambda own: msgspec.structs.replace(sweep, sweep=own))
    return SweepDirectory(path, msgspec.structs.replace(sweep, sweep=path.name))


def _made(root: Path, label: str, file: str, now_s: float, asked: Callable[[str], msgspec.Struct]) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    try:
        root = make_root(root)
        files.make_closed(index())
        path = _reserved(root, f"{stamp}-{label}")
        (path / LAUNCHES).mkdir()
        text = json.dumps(msgspec.to_builtins(asked(path.name)), indent=1) + "\n"
        Campaign(path).begin_log(text)
        files.write_private(path / file, text)
        link = index() / path.name
        link.unlink(missing_ok=True)
        link.symlink_to(path)
    except OSError as error:
        raise UsageError(
            f"the directory of the runs cannot be made: {error.strerror}",
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
    """The study in a directory, by its real path; None where there is none, it cannot be read, or was altered so that
    it is none.
    """
    try:
        study = msgspec.convert(json.loads(Run(path).content_of(STUDY)), Study)
    except (OSError, ValueError, RecursionError):
        return None
    return StudyDirectory(path, study) if is_whole(study) else None


def name_of(study_id: str) -> str:
    """The name in a study's id (``--name``, or the recipe's); the id where it has none."""
    parts = _ID.match(study_id)
    return parts["name"] if parts else study_id


def index() -> Path:
    """Links from ids of studies to their directories."""
    return paths.state("studies")


def ids(file: str = STUDY) -> tuple[str, ...]:
    """Ids of all studies, or sweeps, of this user whose directories are still there, the newest first."""
    with suppress(OSError):
        links = sorted(index().iterdir(), key=lambda link: (link.lstat().st_mtime_ns, link.name), reverse=True)
        runs = ((link.name, run) for link in links if (run := own_run(link)) is not None)
        return tuple(name for name, run in runs if (run.path / file).is_file())
    return ()


def find(wanted: str) -> StudyDirectory:
    """The study that a user means. Raises UsageError: there is none, or there are several."""
    study = _exactly(wanted) or _beginning(wanted)
    if study is None:
        known = ids()[:3]
        recent = f" Recent: {', '.join(known)}." if known else ""
        raise UsageError(f'no study matches "{wanted}".{recent}', fix=f"begin one with `{PROGRAM} scale --gpus 1,2,4`")
    return study


def find_subject(wanted: str | None) -> Subject:
    """The run or the study that a user means; None is the newest run.

    A study's whole id, name or directory goes before a run, and a run before the beginning of a study's id or name:
    the runs of a study have its name, too.

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
    """What these names mean, each once; the newest run without any. A sweep stands for its runs. Raises as
    ``find_subject``, and UsageError where no run of a sweep was submitted.
    """
    made: dict[Path, Subject] = {}
    for name in names or (None,):
        sweep = find_sweep(name)
        if sweep is not None and not sweep.submitted:
            raise UsageError(
                sweep.missing or "no run of it is submitted yet", where=str(sweep.path), fix="submit it again"
            )
        made |= {each.path: each for each in (sweep.submitted if sweep else (find_subject(name),))}
    return tuple(made.values())


def find_sweep(wanted: str | None) -> SweepDirectory | None:
    """The sweep of that directory, id, name, array, or beginning of an id or name, where no other run begins so; None
    for none. Raises UsageError: there are several, or it cannot be read.
    """
    if not wanted:
        return None
    matching = [path for path in lookup.places_of(wanted, index()) if (path / SWEEP).is_file()][:1]
    if not matching and "/" not in wanted:
        matching = [
            index() / each for each in ids(SWEEP) if wanted in (name_of(each), *_arrays(index() / each, wanted))
        ]
        matching = [lookup.resolved(path) for path in matching or _begun_sweeps(wanted)]
    if len(matching) > 1:
        names = first_of([path.name for path in matching], _MOST)
        raise UsageError(f'"{wanted}" matches {len(matching)} sweeps: {names}', fix="give the id of one of them")
    for path in matching:
        sweep = Run(path).read(SWEEP, Sweep)
        if sweep is None or not all(map(str.isdecimal, sweep.runs)):
            raise UsageError("the sweep cannot be read", where=str(path / SWEEP), fix="put back the file as it was")
        return SweepDirectory(path, sweep)
    return None


def _begun_sweeps(wanted: str) -> list[Path]:
    """The sweeps whose id or name begins so; none where a run of none of them, or a study, is meant."""
    begun = [each for each in ids(SWEEP) if each.startswith(wanted) or name_of(each).startswith(wanted)]
    if not begun or _exactly(wanted) is not None:
        return []
    runs, are_whole = lookup.matching_runs(wanted)
    are_theirs = all(run.path.parents[2].name in begun for run in runs)
    return [index() / each for each in begun] if are_theirs and not are_whole else []


def _arrays(path: Path, wanted: str) -> tuple[str, ...]:
    """The jobs of a sweep's arrays, where a job may be meant."""
    runs = (path / LAUNCHES).glob("*/*/job.json") if wanted.isdigit() else ()
    records = (lookup.record_of(Run(each.parent)) for each in runs)
    return tuple(record.job_id.partition("_")[0] for record in records if record is not None)


def _exactly(wanted: str) -> StudyDirectory | None:
    """The study of that whole id, directory or name; None for none."""
    for path in lookup.places_of(wanted, index()) if wanted else ():
        if (path / STUDY).is_file():
            return _read(path)
    return None if not wanted or "/" in wanted else _one(wanted, [each for each in ids() if name_of(each) == wanted])


def _beginning(wanted: str) -> StudyDirectory | None:
    """The study whose id or name begins so; None for none."""
    if not wanted or "/" in wanted:
        return None
    return _one(wanted, [each for each in ids() if each.startswith(wanted) or name_of(each).startswith(wanted)])


def _one(wanted: str, matching: Sequence[str]) -> StudyDirectory | None:
    if len(matching) > 1:
        raise UsageError(
            f'"{wanted}" matches {len(matching)} studies: {first_of(matching, _MOST)}',
            fix="give the id of one of them, or as much of it as no other has",
        )
    return _read(lookup.resolved(index() / matching[0])) if matching else None


def _read(path: Path) -> StudyDirectory:
    study = read(path)
    if study is None:
        raise UsageError(
            "the study's question cannot be read, or is not as `scale` wrote it",
            where=str(path / STUDY),
            fix="put back the file as it was; the runs in `launches` beside it stay as they are",
        )
    return study
