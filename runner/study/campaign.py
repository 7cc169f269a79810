"""Many runs with one question: their directory, the lock on it, and the log of what was launched.

    DIRECTORY/launches/KEY/RUN/   each attempt at launch KEY: an ordinary run directory
    DIRECTORY/launches.log        a line for each run that was launched, and for each that never began; only added to
    DIRECTORY/lock, lease         one process at a time starts runs: by the kernel, or among machines that share it
    DIRECTORY/stop.json           it was cancelled, and nothing more is to be started

An attempt is there once its run directory is, and what it is worth says its verdict. So a process that ends at any
moment loses nothing. A run that the log has, and whose directory is gone, is a gap that no later run closes. Each line
names the hash of the line before: one that was taken out or changed is seen.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from runner.core import files, lock, process_identity
from runner.core.errors import RefusedError, UnknownStateError
from runner.core.files import sha256
from runner.core.lock import locked
from runner.jobs.directory import LAUNCHES, Run, is_whole_id

LOG = "launches.log"
_LOCK, _LEASE = "lock", "lease"
_RUN_NUMBER = re.compile(r"(?P<id>.+-\d+?)(?:\.(?P<number>\d+))?\Z")


class LogLine(msgspec.Struct, frozen=True):
    """What happened to a run.

    Attributes:
        event: ``never-began``: its allocation ended before; its directory was removed.
        time_s: Unix time. before: SHA-256 of the line before; empty in the first.
    """

    event: Literal["launched", "never-began"]
    launch: str
    run: str
    time_s: float
    before: str = ""


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
        """Every run directory of a launch, the oldest first; what else someone put there is none."""
        names = filter(is_whole_id, files.names_in(self.launches(key)))
        return tuple(Run(self.launches(key) / name) for name in sorted(names, key=_in_order))

    def gone(self) -> dict[str, tuple[Run, ...]]:
        """The runs that were launched, and whose directories are not there any more, by the launch's key."""
        launched: dict[tuple[str, str], Run] = {}
        for line in self._log()[0]:  # in their order: an id may be taken again after a run that never began
            if line.event == "launched":
                launched[line.launch, line.run] = Run(self.launches(line.launch) / line.run)
            else:
                launched.pop((line.launch, line.run), None)
        missing: dict[str, tuple[Run, ...]] = {}
        for (key, _), run in launched.items():
            if not run.path.is_dir():
                missing[key] = (*missing.get(key, ()), run)
        return missing

    def gaps(self) -> tuple[str, ...]:
        """What was launched and is not there any more, a sentence each."""
        missing = [
            f"{key}: its run {run.run_id} was launched, and its directory is gone"
            for key, runs in self.gone().items()
            for run in runs
        ]
        if self.is_logged and not (self.path / LOG).exists():
            missing.append("its log of launches is gone")
        return (*missing, *(["its log of launches was altered"] if self._log()[1] else []))

    def begin_log(self) -> None:
        """Make the log, in which nothing is yet."""
        (self.path / LOG).touch(mode=0o600)

    def note(self, event: Literal["launched", "never-began"], key: str, runs: Sequence[Run]) -> None:
        """Add to the log; the campaign is held meanwhile."""
        lines = Run(self.path).content(LOG).splitlines()
        for run in runs:
            before = sha256(lines[-1]) if lines else ""
            lines.append(json.dumps(msgspec.to_builtins(LogLine(event, key, run.run_id, time.time(), before))).encode())
            place = os.open(self.path / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(place, lines[-1] + b"\n")
                os.fsync(place)
            finally:
                os.close(place)

    def note_known(self, keys: Sequence[str]) -> None:
        """Add to the log the runs that are there and were not noted: the process that launched them ended before."""
        known = {line.run for line in self._log()[0]}
        for key in keys:
            self.note("launched", key, [run for run in self.runs(key) if run.run_id not in known])

    def _log(self) -> tuple[tuple[LogLine, ...], bool]:
        """The lines that can be read, and whether it is another log than was written."""
        lines, before, is_altered = [], "", False
        for raw in Run(self.path).content(LOG).splitlines():
            try:
                line = msgspec.json.decode(raw, type=LogLine)
            except (ValueError, RecursionError):
                is_altered = True
                continue
            is_altered = is_altered or line.before != before
            before = sha256(raw)
            lines.append(line)
        return tuple(lines), is_altered

    @property
    def is_stopped(self) -> bool:
        """Whether it was cancelled since it was last resumed."""
        return (self.path / "stop.json").exists()

    def stop(self) -> None:
        """Record that nothing more is to be started."""
        files.write_private(self.path / "stop.json", f'{{"time_s": {time.time():.0f}}}\n')

    def go_on(self) -> None:
        """Forget that it was cancelled."""
        (self.path / "stop.json").unlink(missing_ok=True)

    @property
    def is_held(self) -> bool:
        """Whether another process of this machine starts launches of it, or waits for them to start more."""
        if not files.is_local(self.path):
            return is_leased(self.path)
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


def is_leased(path: Path) -> bool:
    """Whether a process of this machine holds a campaign's lease."""
    held = lock.read_lease(path / _LEASE)
    return held is not None and process_identity.state(held.owner) == "alive"


def _silent(_line: str) -> None:
    """Nothing is said: it is not waited for."""


def _in_order(run_id: str) -> tuple[str, int]:
    parts = _RUN_NUMBER.match(run_id)
    return (parts["id"], int(parts["number"] or 1)) if parts else (run_id, 0)
