"""Many runs with one question: their directory, the lock on it, and the log of what was launched.

    DIRECTORY/launches/KEY/RUN/   each attempt at launch KEY: an ordinary run directory
    DIRECTORY/launches.log        a line for each run that was launched, and for each that never began; only added to
    DIRECTORY/launches.head       the SHA-256 of its last line, sealed by this user: one that was cut off is seen
    DIRECTORY/lock, lease         one process at a time starts runs: by the kernel, or among machines that share it
    DIRECTORY/stop.json           it was cancelled, and nothing more is to be started

An attempt is there once its run directory is, and what it is worth says its verdict. So a process that ends at any
moment loses nothing. A run that the log has, and that is none any more, is a gap that no later run closes. Each line
names the hash of the line before: one that was taken out or changed is seen. A log that comes after a lost one says so.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec

from runner.core import files, lock, process_identity
from runner.core.errors import RefusedError, UnknownStateError
from runner.core.files import sha256
from runner.core.lock import locked
from runner.jobs.directory import LAUNCHES, LOG, REQUEST, STUDY, SWEEP, Run, is_linked, is_whole_id
from runner.jobs.seals import judgements, keep_judgement, make_key, seal
from runner.jobs.states import ensure_own
from runner.model.job import Sweep
from runner.model.request import RequestRecord
from runner.model.study import Study
from runner.model.verdict import Verdict

_HEAD = "launches.head"
_GONE, _CUT = "is gone", "lacks its end"
_LOCK, _LEASE, _STOP = "lock", "lease", "stop.json"
_LEAST, _MOST = 1e-9, 1e15  # of a rate in samples per second, and of a time in seconds
_RUN_NUMBER = re.compile(r"(?P<id>.+-\d+?)(?:\.(?P<number>\d+))?\Z")


Event = Literal["begun", "lost", "launched", "measured", "never-began"]


class LogLine(msgspec.Struct, frozen=True):
    """What happened to a run.

    Attributes:
        event: ``begun``: the log. ``lost``: the log before this one, or a part of it. ``never-began``: the run's
            allocation ended before; its directory was removed. ``measured``: it was found to be, and stays so.
        launch, run: key and id; empty where the event is the log's.
        time_s: Unix time. before: SHA-256 of the line before; empty in the first.
        question: SHA-256 of what the campaign asks, in its first line; empty where that is in no file.
    """

    event: Event
    launch: str
    run: str
    time_s: float
    before: str = ""
    question: str = ""


@dataclass(frozen=True)
class Log:
    """The log as it was read. ``trouble``: why it is not the one that was written; empty where it is. ``hashes``:
    SHA-256 of its lines.
    """

    lines: tuple[LogLine, ...]
    trouble: str
    hashes: tuple[str, ...] = ()

    @property
    def launched(self) -> Mapping[str, Mapping[str, None]]:
        """Ids of runs by the launch's key, in their order, without those that never began."""
        launched: dict[str, dict[str, None]] = defaultdict(dict)
        for line in self.lines:  # in their order: an id may be taken again after a run that never began
            if line.event == "launched":
                launched[line.launch][line.run] = None
            elif line.event == "never-began" and line.run not in self.measured:
                launched[line.launch].pop(line.run, None)
        return launched

    @cached_property
    def measured(self) -> frozenset[str]:
        """Ids of the runs that it says were."""
        return frozenset(line.run for line in self.lines if line.event == "measured")

    def place(self, key: str, run: str) -> int:
        """Of a run's launch among its lines, which an id is not by its clock's time; behind all where it has none."""
        return self._places.get((key, run), len(self.lines))

    @cached_property
    def _places(self) -> dict[tuple[str, str], int]:
        return {(line.launch, line.run): at for at, line in enumerate(self.lines) if line.event == "launched"}

    def unnoted(self, runs: Mapping[str, Sequence[Run]]) -> list[tuple[str, Run]]:
        """Of these runs by the launch's key those that it does not have."""
        known = {(line.launch, line.run) for line in self.lines if line.event != "measured"}
        return [(key, run) for key, each in runs.items() for run in each if (key, run.run_id) not in known]


def read_log(content: bytes) -> Log:
    """The lines of a log that can be read."""
    lines, hashes, before = [], list[str](), ""
    is_altered = not content.splitlines()
    for raw in content.splitlines():
        try:
            line = msgspec.json.decode(raw, type=LogLine)
        except (ValueError, RecursionError):
            line = None
        if line is None or any(map(_leads_away, filter(None, (line.launch, line.run)))):
            is_altered = True
            continue
        is_altered = is_altered or line.before != before
        before = sha256(raw)
        hashes.append(before)
        lines.append(line)
    return Log(tuple(lines), "was altered" if is_altered else "", tuple(hashes))


def log_remarks(content: bytes | None, places: Mapping[str, int], runs: Mapping[str, str]) -> tuple[str, ...]:
    """What the log of a study says beside the runs that its launches are proven by, a sentence each.

    Args:
        content: None where it is missing. places: of the launches, as planned, by their keys. runs: their ids.
    """
    if content is None:
        return ("its log of launches is not there",)
    log = read_log(content)
    told = [f"its log of launches {log.trouble}"] if log.trouble else []
    told += ["its log of launches was lost, and begun anew"] if any(e.event == "lost" for e in log.lines) else []
    highest = -1
    for key, each in log.launched.items():
        if others := [run for run in each if run != runs.get(key)]:
            told.append(f"{key}: {', '.join(others)} was launched, too, and is no run of the figures")
    for line in log.lines:
        place = places.get(line.launch, -1)
        if line.event == "launched" and runs.get(line.launch) == line.run:
            if place < highest:
                told.append(f"{line.launch}: {line.run} was launched after launches that were planned behind it")
            highest = max(highest, place)
    unnoted = {run for run in runs.values() if run} - {line.run for line in log.lines}
    return (*told, *(f"its log of launches does not have the run {run}" for run in sorted(unnoted)))


class Campaign:
    """The directory of many runs with one question, absolute.

    Attributes:
        at_work, instead: why another process cannot work on it now, and what else to do. goes_on: the command that
            goes on with it.
        is_logged: it has had a log from its beginning on.
    """

    at_work = instead = goes_on = ""
    folder = LAUNCHES
    is_logged = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def launches(self, key: str) -> Path:
        """Where the run directories of a launch lie."""
        return self.path / self.folder / key

    def runs(self, key: str) -> tuple[Run, ...]:
        """Every run directory of a launch, the oldest first; what else someone put there is none, nor is a run of
        another user than the campaign's, to which a link could lead, or one elsewhere, which a copy of another user's
        campaign could name.
        """
        if _leads_away(key):
            return ()
        names = sorted(filter(is_whole_id, Run(self.path / self.folder).names_in(key)), key=_in_order)
        owner = Run(self.path).owner if names else None
        runs = (Run(self.launches(key) / name) for name in names)
        return tuple(run for run in runs if _is_directory(run.path) and run.owner == owner)

    def gone(self, log: Log, runs: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, str]]:
        """What was launched, and is no run any more: a sentence by the run's id, by the launch's key. ``runs``: those
        of all launches, by their keys.
        """
        launched, gone = log.launched, defaultdict[str, dict[str, str]](dict)
        for key, each in runs.items():
            there = {run.run_id: run for run in each}
            for name in launched.get(key, ()):
                if name in there and (order := there[name].changed_order):
                    gone[key][name] = f"its run {name} was launched, and its {order} was changed since"
                elif name not in there or not _is_submitted(there[name]):
                    is_left = (self.launches(key) / name).is_dir()
                    left = "no record of its job is left" if is_left else "its directory is gone"
                    gone[key][name] = f"its run {name} was launched, and {left}"
                elif _was_measured(there[name], log) and not _is_measured(there[name]):
                    gone[key][name] = f"its run {name} was measured, and its records do not show it any more"
        return gone

    def gaps(
        self, log: Log, runs: Mapping[str, Sequence[Run]], gone: Mapping[str, Mapping[str, str]], asked: str = STUDY
    ) -> tuple[str, ...]:
        """What cannot be shown, and what is wrong with the log that says so, a sentence each; arguments as ``gone``.
        ``asked``: the question's file; a sweep's log has no run that was refused.
        """
        unnoted = log.unnoted(runs) if asked == STUDY else []
        if unnoted:  # who held it until now has noted them
            unnoted = [] if self.is_held else self.log().unnoted(runs)
        trouble = log.trouble
        if not trouble and any(line.launch not in runs for line in log.lines if line.launch):
            trouble = "was altered"
        gaps = [f"{key}: {why}" for key, each in gone.items() for why in each.values()]
        gaps += [f"its log of launches {trouble}"] if trouble and (self.is_logged or trouble != _GONE) else []
        question = next((line.question for line in log.lines if line.question), "")
        if question not in ("", sha256(Run(self.path).content(asked))):
            gaps.append(f"its {asked} is not the one that it was begun with")
        gaps += ["its log of launches was lost, and begun anew"] if any(e.event == "lost" for e in log.lines) else []
        if self.is_logged and not trouble:
            gaps += [f"{key}: its log of launches does not have the run {run.run_id}" for key, run in unnoted]
        return tuple(gaps)

    def begin_log(self, question: str) -> None:
        """Make the log, in which nothing was launched yet. ``question``: the content of its file."""
        self._add("begun", question=sha256(question.encode()))

    def note(self, event: Event, key: str, runs: Sequence[Run]) -> None:
        """Add to the log; the campaign is held meanwhile."""
        self._add(event, key, [run.run_id for run in runs])

    def _add(self, event: Event, key: str = "", runs: Sequence[str] = ("",), question: str = "") -> None:
        lines = Run(self.path).content(LOG).splitlines()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        for run in runs:
            before = sha256(lines[-1]) if lines else ""
            line = LogLine(event, key, run, time.time(), before, question)
            lines.append(json.dumps(msgspec.to_builtins(line)).encode())
            place = os.open(self.path / LOG, flags, 0o600)
            try:
                size = os.fstat(place).st_size
                if os.write(place, lines[-1] + b"\n") <= len(lines[-1]):
                    os.ftruncate(place, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path / LOG))
                os.fsync(place)
            finally:
                os.close(place)
            with suppress(OSError):
                make_key()
            end = sha256(lines[-1])
            if asked := self._asked(STUDY) or self._asked(SWEEP):
                keep_judgement(sha256(asked), end)
            files.write_private(self.path / _HEAD, f"{end} {seal(end)}\n")

    def _asked(self, name: str) -> bytes:
        """The question, if it is in this file."""
        return Run(self.path).content(name)

    def note_known(self, keys: Sequence[str]) -> None:
        """Add to the log the runs that are there and were not noted: the process that launched them ended before. It
        left those of one submission; where there are more, or the log is gone, it says for ever that it was lost. What
        a user has put there instead, or has submitted into that directory, stays a gap until it is taken away.

        Raises:
            RefusedError: the log is no file.
        """
        path = self.path / LOG
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            fix = "put back the file as it was; or remove this one, and the lost log stays a gap"
            raise RefusedError("the log of launches is no regular file", where=str(path), fix=fix)
        log = self.log()
        known = {line.run for line in log.lines if line.event != "measured"}
        there = ((key, run) for key in keys for run in self.runs(key) if run.run_id not in known)
        new = [each for each in there if log.trouble or self._has_launched(each[1])]
        new.sort(key=lambda each: _in_order(each[1].run_id))
        submissions = {(run.submitted and run.submitted.allocation) or run.run_id for _, run in new}
        if self.is_logged and (log.trouble or len(submissions) > 1):
            self._add("lost")
        for key, run in new:
            self.note("launched", key, [run])
        known |= {run.run_id for _, run in new}
        for key in keys:
            self.note_measured(key, *(run for run in self.runs(key) if run.run_id in known - log.measured))

    def _has_launched(self, run: Run) -> bool:
        """Whether it was the study, and in this place."""
        with suppress(OSError):
            asked, own = Run(self.path).read(STUDY, Study), run.read(REQUEST, RequestRecord)
            is_its_own = not (asked and asked.request and own) or asked.request.request.runs == own.request.runs
            return is_its_own and (is_linked(run) or run.ran_in == run.path)
        return False

    def note_measured(self, key: str, *runs: Run) -> None:
        """Add to the log those of these runs that are."""
        self.note("measured", key, [run for run in runs if (now := kept_verdict(run)) and now.outcome == "measured"])

    def log(self) -> Log:
        """The log now: the lines that can be read."""
        path = self.path / LOG
        if not os.path.lexists(path):
            return Log((), _GONE)
        head = Run(self.path).content(_HEAD).decode("ascii", "replace")  # before the log, which only grows
        end, _, sealed = head.strip().partition(" ")
        asked = self._asked(STUDY)
        sweep = None if asked else Run(self.path).read(SWEEP, Sweep)
        # What was noted of an older sweep, without an id, may be of another one that asks the same.
        is_one = bool(asked) or (sweep is not None and sweep.sweep != "")
        key = sha256(asked or self._asked(SWEEP))
        noted = Run(judgements()).content(key).decode("ascii", "replace") if is_one else ""
        state = path.lstat()
        log = read_log(Run(self.path).content(LOG) if stat.S_ISREG(state.st_mode) else b"")
        if (end or self.is_logged) and end not in log.hashes:
            return replace(log, trouble=log.trouble or _CUT)
        beyond = log.lines[log.hashes.index(end) + 1 :] if end else ()  # of a process at work, or killed there
        is_lost = is_one and bool(end) and not noted and end != log.hashes[0]  # of the first line there is none
        is_foreign = sealed != seal(end) or is_lost or any(e.event == "never-began" for e in beyond)
        if state.st_uid == os.geteuid() and is_foreign:
            return replace(log, trouble=log.trouble or "is not as gpu-runner left it here")
        return replace(log, trouble=log.trouble or _CUT) if noted and noted not in log.hashes else log

    @property
    def is_begun_here(self) -> bool:
        """Whether this user began what the study asks now; a copy of another's may name programs of that user's."""
        return (judgements() / sha256(self._asked(STUDY))).is_file()

    @property
    def is_stopped(self) -> bool:
        """Whether it was cancelled since it was last resumed."""
        return (self.path / _STOP).exists()

    def stop(self) -> None:
        """Record that nothing more is to be started. Raises RefusedError as ``ensure_own``."""
        ensure_own(Run(self.path))
        if not self.is_stopped:
            files.write_private(self.path / _STOP, f'{{"time_s": {time.time():.0f}}}\n')

    def go_on(self) -> None:
        """Forget that it was cancelled. Raises RefusedError: a directory says so, which nothing of ours made."""
        if _is_directory(self.path / _STOP):
            what = "the record that this was cancelled is a directory"
            raise RefusedError(what, where=str(self.path / _STOP), fix="remove it; then this command goes on")
        (self.path / _STOP).unlink(missing_ok=True)

    @property
    def is_held(self) -> bool:
        """Whether another process of this machine starts launches of it, or waits for them to start more. Of another
        user's campaign that is unknown by its lock, which only its owner opens, and counts as no.
        """
        if not files.is_local(self.path):
            return is_leased(self.path)
        if Run(self.path).owner != os.geteuid():
            return False
        try:
            with locked(self.path / _LOCK, _silent, limit_s=0.0):
                return False
        except UnknownStateError:
            return True

    def exclusive(self, say: Callable[[str], None]) -> AbstractContextManager[None]:
        """Hold it during the block: one process at a time starts launches. Raises RefusedError where another does.

        Args:
            say: takes a line where it waits for a process of another machine that may be dead.
        """
        if not files.is_local(self.path):
            return self.held_among_machines(say)
        # a second, as another process may look for a moment whether it is held
        return self._held(_LOCK, locked(self.path / _LOCK, _silent, limit_s=1.0))

    def held_among_machines(self, say: Callable[[str], None]) -> AbstractContextManager[None]:
        """As ``exclusive``, by its lease: where many machines see it, and their kernels know no common lock."""
        if is_leased(self.path):
            raise self._at_work(_LEASE)
        return self._held(_LEASE, lock.leased(self.path / _LEASE, say, limit_s=lock.PATIENCE_S + 30.0))

    @contextmanager
    def _held(self, name: str, held: AbstractContextManager[object]) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(held)
            except UnknownStateError:
                raise self._at_work(name) from None
            yield

    def _at_work(self, held: str) -> RefusedError:
        return RefusedError(self.at_work, where=str(self.path / held), fix=f"wait for it, or {self.instead}")


def gaps_of(path: Path) -> tuple[str, ...]:
    """The gaps of the study, or sweep, in that directory."""
    campaign = Campaign(path)
    with suppress(OSError):
        if (study := Run(path).read(STUDY, Study)) is not None:
            log = campaign.log()  # before the runs: each that it has was made before it was noted
            runs = {launch.key: campaign.runs(launch.key) for launch in study.launches}
            return campaign.gaps(log, runs, campaign.gone(log, runs))
        if (sweep := Run(path).read(SWEEP, Sweep)) is not None:
            log = campaign.log()
            runs = {key: campaign.runs(key) for key in sweep.runs}
            return campaign.gaps(log, runs, {} if sweep.is_chain else campaign.gone(log, runs), SWEEP)
    return ("its study cannot be read",)


def kept_verdict(run: Run) -> Verdict | None:
    """The run's verdict, unless it is to be judged again, by its scheduler or its records: also where no figure can be
    made of its rates and times, as an altered file may hold anything.
    """
    verdict = run.verdict
    if verdict is None or verdict.outcome == "unknown":
        return None
    values = [verdict.images_per_s]
    for arm in verdict.arms:
        values += (arm.samples_per_s, arm.slowest_samples_per_s, arm.step_s, arm.slowest_step_s)
    is_possible = all(each is None or _LEAST < each < _MOST for each in values)
    return verdict if is_possible or verdict.outcome != "measured" else None


def _was_measured(run: Run, log: Log) -> bool:
    return run.run_id in log.measured or run.first_judged[1] == "measured"


def _is_measured(run: Run) -> bool:
    """Also where its verdict is to be made again."""
    from runner.jobs.life import judge_at_once  # of few runs the verdict is lost

    verdict = kept_verdict(run) or judge_at_once(run)
    return verdict is not None and verdict.outcome == "measured"


def _is_submitted(run: Run) -> bool:
    record = run.submitted
    return (record is not None and not record.refused) or kept_verdict(run) is not None


def is_leased(path: Path) -> bool:
    """Whether a process of this machine holds a campaign's lease."""
    held = lock.read_lease(path / _LEASE)
    return held is not None and process_identity.state(held.owner) == "alive"


def _silent(_line: str) -> None:
    """Nothing is said: it is not waited for."""


def _is_directory(path: Path) -> bool:
    """Whether it is one itself: what a link leads to is not the campaign's."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def _leads_away(key: str) -> bool:
    """Whether it names nothing below the directory to which it is added."""
    return not {"", ".."}.isdisjoint(key.split("/"))


def _in_order(run_id: str) -> tuple[str, int]:
    parts = _RUN_NUMBER.match(run_id)
    return (parts["id"], int(parts["number"] or 1)) if parts else (run_id, 0)
