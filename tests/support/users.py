"""Code that is run as another user of this machine, with that user's real rights: needs root."""

import ctypes
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.core.errors import RunnerError

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="run it as root: it mounts, or becomes other users")
UNPRIVILEGED = 65534
# Three users and a group, by numbers that no system gives out.
ALICE, BOB, CAROL = 61001, 61002, 61003
GROUP = 61100
_PR_SET_DUMPABLE = 4  # linux/prctl.h


def become(uid: int, *, reads: bool = False, groups: tuple[int, ...] = ()) -> tuple[str, ...]:
    """The words before a command of that user; ``reads``: whatever holds this checkout and its Python can be read."""
    rights = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search") if reads else ()
    others = "--groups=" + ",".join(map(str, groups)) if groups else "--clear-groups"
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", others, *rights)


def given_up(directory: Path) -> tuple[str, ...]:
    """Where we are root: give all of it to an ordinary user, and the words that become this user."""
    if os.geteuid() != 0:
        return ()
    for path in (directory, *directory.rglob("*")):
        os.chown(path, UNPRIVILEGED, UNPRIVILEGED, follow_symlinks=False)
    return become(UNPRIVILEGED, reads=True)


@dataclass(frozen=True)
class Outcome:
    """What a call as another user gave: a value, or the three parts of the error that it ended with."""

    value: Any = None
    what: str = ""
    where: str = ""
    fix: str = ""


def outcome_as(
    uid: int, call: Callable[..., Any], *arguments: Any, umask: int = 0o022, groups: tuple[int, ...] = ()
) -> Outcome:
    """Run a function in a process of that user, whose own group has the same number."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = Outcome(what="it ended without an answer")
        try:
            _become(uid, groups, umask)
            outcome = Outcome(call(*arguments))
        except RunnerError as error:
            outcome = Outcome(None, error.what, error.where, error.fix)
        except BaseException as error:
            outcome = Outcome(None, repr(error))
        finally:
            os.write(writing, pickle.dumps(outcome))
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        raw = pipe.read()
    os.waitpid(child, 0)
    outcome = pickle.loads(raw)
    assert isinstance(outcome, Outcome)
    return outcome


def run_as(
    uid: int, call: Callable[..., Any], *arguments: Any, umask: int = 0o022, groups: tuple[int, ...] = ()
) -> Any:
    """The value of a function that is run by that user, which must not fail."""
    outcome = outcome_as(uid, call, *arguments, umask=umask, groups=groups)
    assert not outcome.what, outcome
    return outcome.value


def killed_as(uid: int, call: Callable[[Callable[[], None]], None]) -> None:
    """Run a function as that user; it is killed outright when it calls its argument."""
    child = os.fork()
    if child == 0:
        try:
            _become(uid, (), 0o022)
            call(lambda: os.kill(os.getpid(), signal.SIGKILL))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@contextmanager
def open_directory() -> Iterator[Path]:
    """A temporary directory that every user can enter, as pytest's own cannot be."""
    path = Path(tempfile.mkdtemp(prefix="several-users-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _become(uid: int, groups: tuple[int, ...], umask: int) -> None:
    os.umask(umask)
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)  # as after exec: its children may use its /proc/PID/fd
