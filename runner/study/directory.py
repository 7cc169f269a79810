"""The directory of a study: its question, and the run directories of all its launches.

    RUNS/20261122-120500-NAME-study/    linked in the state directory, as runs are
        study.json                      the question (model.study.Study), written whole, once
        launches/KEY/RUN/               each attempt of launch KEY: an ordinary run directory
        lock, lease                     one `scale` at a time: by the kernel, or among machines that share the directory
        stop.json                       the study was cancelled, and nothing more is to be started

Nothing else is recorded: an attempt is there once its run directory is, and a launch is proven once a verdict of one of
its runs says so. So a process that ends at any moment loses nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from runner.core import file_system, files, lease, paths, process_identity
from runner.core.errors import RefusedError, UnknownStateError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.lock import locked
from runner.jobs.directory import LAUNCHES, STUDY, RunDirectory, is_whole_id
from runner.model.study import Study
from runner.study.plan import is_whole

_ID = re.compile(r"\d{8}-\d{6}-(?P<name>.+)-study(\.\d+)?\Z")
_LOCK, _LEASE = "lock", "lease"
_RUN_NUMBER = re.compile(r"(?P<id>.+-\d+?)(?:\.(?P<number>\d+))?\Z")


class StudyDirectory:
    """A study's directory, absolute, and what was asked."""

    def __init__(self, path: Path, study: Study) -> None:
        self.path = path
        self.study = study

    @property
    def name(self) -> str:
        """The name in its id: ``--name``, or the recipe's."""
        return name_of(self.path.name)

    def launches(self, key: str) -> Path:
        """Where the run directories of a launch lie."""
        return self.path / LAUNCHES / key

    def runs(self, key: str) -> tuple[RunDirectory, ...]:
        """Every run directory of a launch, the oldest first; what else someone put there is none."""
        names = filter(is_whole_id, file_system.names_in(self.launches(key)))
        return tuple(RunDirectory(self.launches(key) / name) for name in sorted(names, key=_in_order))

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
        if not file_system.is_local(self.path):
            return is_leased(self.path)
        try:
            with locked(self.path / _LOCK, _silent, limit_s=0.0):
                return False
        except UnknownStateError:
            return True

    @contextmanager
    def exclusive(self, say: Callable[[str], None]) -> Iterator[None]:
        """Hold the study during the block: one process at a time starts launches.

        Args:
            say: takes a line where it waits for a process of another machine that may be dead.

        Raises:
            RefusedError: another process holds it.
        """
        if not file_system.is_local(self.path):
            with held_among_machines(self.path, say):
                yield
            return
        with ExitStack() as stack:
            try:  # a second, as another process may look for a moment whether it is held
                stack.enter_context(locked(self.path / _LOCK, _silent, limit_s=1.0))
            except UnknownStateError:
                raise _at_work(self.path / _LOCK) from None
            yield


def is_leased(path: Path) -> bool:
    """Whether a process of this machine holds a study's lease."""
    held = lease.read(path / _LEASE)
    return held is not None and process_identity.state(held.owner) == "alive"


@contextmanager
def held_among_machines(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold a study's lease during the block: where many machines see it, and their kernels know no common lock.

    Raises:
        RefusedError: another process holds it.
    """
    if is_leased(path):
        raise _at_work(path / _LEASE)
    with ExitStack() as stack:
        try:
            stack.enter_context(lease.leased(path / _LEASE, say, limit_s=lease.PATIENCE_S + 30.0))
        except UnknownStateError:
            raise _at_work(path / _LEASE) from None
        yield


def create(root: Path, name: str, study: Study, now_s: float) -> StudyDirectory:
    """A new study below ``root``: its id is made of the time and ``name``.

    Raises:
        UsageError: it cannot be made there.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    try:
        root.mkdir(parents=True, exist_ok=True)
        index().mkdir(mode=0o700, parents=True, exist_ok=True)
        path = _reserved(root.resolve(), f"{stamp}-{name}-study")
        (path / LAUNCHES).mkdir()
        whole = msgspec.structs.replace(study, study=path.name)
        files.write_private(path / STUDY, msgspec.json.format(msgspec.json.encode(whole), indent=1).decode() + "\n")
        link = index() / path.name
        link.unlink(missing_ok=True)
        link.symlink_to(path)
    except OSError as error:
        raise UsageError(
            f"the study's directory cannot be made: {error.strerror}",
            where=str(error.filename or root),
            fix="use --runs with a directory that every node sees and you may write to",
        ) from None
    return StudyDirectory(path, whole)


def read(path: Path) -> StudyDirectory | None:
    """The study in a directory; None where there is none, it cannot be read, or was altered so that it is none."""
    try:
        study = msgspec.json.decode(file_system.read_bytes(path / STUDY), type=Study)
    except (OSError, ValueError, RecursionError):
        return None
    return StudyDirectory(path.resolve(), study) if is_whole(study) else None


def name_of(study_id: str) -> str:
    """The name in a study's id; the id where it has none."""
    parts = _ID.match(study_id)
    return parts["name"] if parts else study_id


def index() -> Path:
    """Links from ids of studies to their directories."""
    return paths.state_dir() / "studies"


def ids() -> tuple[str, ...]:
    """Ids of all studies of this user whose directories are still there, the newest first."""
    with suppress(OSError):
        links = sorted(index().iterdir(), key=lambda link: (link.lstat().st_mtime_ns, link.name), reverse=True)
        return tuple(link.name for link in links if (link / STUDY).is_file())
    return ()


def _silent(_line: str) -> None:
    """Nothing is said: it is not waited for."""


def _reserved(root: Path, name: str) -> Path:
    for number in range(1, 10_000):
        path = root / (name if number == 1 else f"{name}.{number}")
        if (index() / path.name).exists():
            continue
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path
    raise FileExistsError(17, "no name is free", str(root / name))


def _in_order(run_id: str) -> tuple[str, int]:
    parts = _RUN_NUMBER.match(run_id)
    return (parts["id"], int(parts["number"] or 1)) if parts else (run_id, 0)


def _at_work(path: Path) -> RefusedError:
    return RefusedError(
        "another `scale` is at work on this study",
        where=str(path),
        fix=f"wait for it, or see `{PROGRAM} status {path.parent.name}`",
    )
