"""Which run a user means: by its id, its name, the beginning of either, its job's id, its directory, or its place in
the list of runs.

A run of a study is found by its whole id, its job or its directory: it has the study's name.

A submission that the scheduler refused is a run only to whoever gives its whole id or its directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from runner.core import files, ownership
from runner.core.errors import UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import counted, printable
from runner.jobs.directory import OF_OWNER, SCRIPT, Run, index, is_own, is_whole_id, linked
from runner.model.job import Submitted

_MOST_RECENT, _MOST_CANDIDATES = 3, 8
_BACK = re.compile(r"@([1-9][0-9]{0,8})\Z", re.ASCII)  # @1: the newest run, @2: the one before

_JOB_ID = re.compile(r"[1-9]\d*(_\d+)?\Z", re.ASCII)  # to Slurm, 0 is any job


def find(run: str | None) -> Run:
    """The run that a user means; None is the newest of this user, as ``@1`` is, and ``@2`` the one before.

    A whole id, name or job id goes before the beginning of an id or a name.

    Raises:
        UsageError: there is no such run, or there are several; names those that may be meant.
    """
    if run is None:
        return _newest(1)
    if match := _BACK.match(run):
        return _newest(int(match[1]))
    matching, are_whole = matching_runs(run)
    if not are_whole and _JOB_ID.match(run):
        from runner.jobs.scripts import job_of_others  # where no run of ours has this job

        if (job := job_of_others(run)) is not None:
            return job
    if not matching:
        raise _no_match(run)
    if len(matching) > 1:
        raise UsageError(
            f'"{printable(run)}" matches {len(matching)} runs: {_listed(matching, _MOST_CANDIDATES)}',
            fix="give the id of one of them, or as much of it as no other has",
        )
    return matching[0]


def matching_runs(wanted: str) -> tuple[Sequence[Run], bool]:
    """The runs that this may mean, and whether it is the whole directory, id, name or job of each, or a beginning."""
    for candidate in places_of(wanted, index()):
        if _is_run_directory(candidate):
            return [Run(candidate)], True
    runs = tuple(linked()) if wanted and "/" not in wanted else ()
    whole = [each for each in runs if _is_whole(each, wanted) and _is_run(each)]
    # The whole id of a run that is gone begins that of another one (-1 and -1.2), which is not meant.
    if whole or is_whole_id(wanted):
        return whole, bool(whole)
    return [each for each in runs if _is_beginning(each, wanted) and _is_run(each)], False


def places_of(wanted: str, known: Path) -> tuple[Path, ...]:
    """The directories that may be meant, each ``resolved``: that of this path, and this user's to which a link among
    ``known`` leads. By a bare word only this user's, and here none that all may write to: others could give theirs, or
    make of that one, a run of any name. Raises UsageError as ``resolved``.
    """
    here, kept = Path(wanted), known / wanted
    if "/" in wanted:
        return (resolved(here), *map(resolved, filter(is_own, (kept,))))
    places = (kept,) if ownership.is_open(here) else (here, kept)
    return tuple(filter(is_own, map(resolved, filter(is_own, places))))


def resolved(path: Path) -> Path:
    """As ``files.resolved``. Raises UsageError also where the directory is closed to this user."""
    real = files.resolved(path)
    with suppress(OSError, ValueError):
        if real.is_dir() and not os.access(real, os.R_OK | os.X_OK, effective_ids=True):
            raise UsageError("this run is another user's, and closed to you", where=str(path), fix=OF_OWNER)
    return real


def runs_of_sweep(wanted: str) -> list[Run]:
    """The runs of the sweep of that whole id or name; none without one. Raises UsageError: there are several."""
    own = [each for each in linked() if each.swept and _is_run(each)]
    own = [each for each in own if wanted in (each.path.parents[2].name, each.name.rpartition(".")[0])]
    if len(sweeps := {each.path.parents[2].name for each in own}) > 1:
        what = f'"{printable(wanted)}" matches {len(sweeps)} sweeps: {", ".join(sorted(sweeps))}'
        raise UsageError(what, fix="give the id of one of them")
    return own[::-1]


def _newest(place: int) -> Run:
    """The newest run (1), or one before it."""
    newest = tuple(islice(filter(_is_run, linked()), place))
    if len(newest) == place:
        return newest[-1]
    if newest:
        fix = f"`{PROGRAM} status` lists them"
        raise UsageError(f"there is no @{place}: you have {counted(len(newest), 'run')}", fix=fix)
    refused = next(linked(), None)
    also = "" if refused is None else f"; {refused.run_id} was never submitted"
    raise UsageError(f"there are no runs yet{also}", fix=f"start one with `{PROGRAM} submit`")


def was_refused(run: Run) -> bool:
    """Whether the scheduler did not take its job."""
    record = record_of(run)
    return record is not None and bool(record.refused)


def kept_outcome(run: Run) -> str:
    """What the run directory says of the run's end: the verdict's outcome, ``not submitted``, ``ended`` where it was
    not judged yet, or nothing.
    """
    verdict = run.listed_verdict
    if verdict is not None:
        return verdict.outcome
    if was_refused(run):
        return "not submitted"
    return "ended" if run.ended is not None else ""


def _is_run_directory(path: Path) -> bool:
    """By its script, and its id or what is kept beside the script: another directory may have a ``job.sh``, too,
    and its name may be that of a run.
    """
    return (path / SCRIPT).is_file() and (
        is_whole_id(path.name) or any(os.path.lexists(path / name) for name in ("job.json", "plan.json"))
    )


def _is_run(run: Run) -> bool:
    """Whether it was submitted, as far as is known; before its script is there, it cannot have been."""
    return (run.path / SCRIPT).is_file() and not was_refused(run)


def _is_whole(run: Run, wanted: str) -> bool:
    """By name, or by the job's id: of one that has parts (``12.server``) the first is enough."""
    if wanted == run.name and run.group is None:
        return True
    if not wanted[0].isdigit():
        return False
    record = record_of(run)
    return record is not None and wanted in (record.job_id, record.job_id.partition(".")[0])


def record_of(run: Run) -> Submitted | None:
    """Its submission; None also where the directory cannot be read: it is no obstacle to finding others."""
    with suppress(OSError):
        return run.submitted
    return None


def _is_beginning(run: Run, wanted: str) -> bool:
    begins_so = run.run_id.startswith(wanted) or run.run_id.split("-", 2)[-1].startswith(wanted)
    return begins_so and run.group is None


def _no_match(wanted: str) -> UsageError:
    recent = list(islice(filter(_is_run, linked()), _MOST_RECENT))
    shown = f" Recent: {_listed(recent, _MOST_RECENT)}." if recent else ""
    job = "; and no scheduler here knows a job of this id, or not any more" if _JOB_ID.match(wanted) else ""
    if ownership.is_open(here := Path(wanted)) and _is_run_directory(here):
        job = f"; to the one here all may write: name it ./{printable(wanted)}, or close it (chmod go-w)"
    return UsageError(f'no run matches "{printable(wanted)}"{job}.{shown} All: {PROGRAM} status')


def _listed(runs: Sequence[Run], most: int) -> str:
    texts = [f"{run.run_id} ({outcome})" if (outcome := kept_outcome(run)) else run.run_id for run in runs[:most]]
    more = f" and {len(runs) - most} more" if len(runs) > most else ""
    return f"{', '.join(texts)}{more}"
