"""Runs programs; nothing else in this project does.

Argument lists only, never a shell; every call has a time limit; a child that exceeds it is killed with its whole
process group. None is looked for where other users could put theirs (PATH), by us or by what we run. Output is decoded
as UTF-8 with undecodable bytes replaced.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from runner.core import process_identity
from runner.core.errors import InfrastructureError, RunnerError, UnknownStateError

if TYPE_CHECKING:
    import threading

Child = subprocess.Popen[bytes]
CalledProcessError = subprocess.CalledProcessError  # of libraries that run programs themselves
PIPE = subprocess.PIPE
DEVNULL = subprocess.DEVNULL
STDOUT = subprocess.STDOUT
TimeoutExpired = subprocess.TimeoutExpired
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_END_S, _PAUSE_S = 10.0, 0.01  # a process that was killed is gone a little later


@dataclass(frozen=True)
class Completed:
    """A program that ended.

    Attributes:
        argv: the argument list as run.
        code: exit status; ``-N`` if signal ``N`` ended it.
        out, err: what it wrote, decoded.
    """

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    def last_lines(self, count: int = 15) -> str:
        """The last ``count`` lines of its standard error, or of its output where that is empty."""
        text = self.err.strip() or self.out.strip()
        return "\n".join(text.splitlines()[-count:])


class CommandNotFoundError(RunnerError):
    """The program is not in PATH; the caller knows the fix."""


class CommandFailedError(InfrastructureError):
    """The program ended with a non-zero status."""

    def __init__(self, done: Completed) -> None:
        what = f"{done.argv[0]} failed with exit code {done.code}: {done.last_lines()}"
        super().__init__(what, where=" ".join(done.argv))
        self.done = done


class CommandTimeoutError(UnknownStateError):
    """The program did not end in time and was killed."""

    def __init__(self, argv: Sequence[str], what: str) -> None:
        super().__init__(f"{argv[0]} {what} and was stopped", where=" ".join(argv))


def find(program: str, path: str | None = None) -> Path | None:
    """The program's path, or None where PATH (or ``path``) does not hold it."""
    import shutil  # with all kinds of compression, which no start needs

    file = shutil.which(program, path=_whole(os.environ.get("PATH", os.defpath) if path is None else path))
    return Path(file) if file else None


def _whole(path: str) -> str:
    """Without the parts of a PATH in which other users could put programs."""
    if all(each.startswith("/") for each in path.split(":")):
        return path
    from runner.core.ownership import whole_parts

    return whole_parts(path) or os.defpath


def _environment(env: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """The same, with such a PATH."""
    given = os.environ if env is None else env
    path = given.get("PATH", "")
    whole = _whole(path) if path else ""
    return env if whole == path else {**given, "PATH": whole}


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input_text: str | None = None,
    check: bool = True,
) -> Completed:
    """Run a program to its end and return its output.

    Args:
        env: the whole environment; None inherits ours.
        check: raise CommandFailedError on a non-zero status.

    Raises:
        CommandNotFoundError, CommandFailedError, CommandTimeoutError.
    """
    command = _words(argv)
    child = start(command, cwd=cwd, env=env, stdin=DEVNULL if input_text is None else PIPE)
    try:
        out, err = child.communicate(None if input_text is None else input_text.encode(), timeout=timeout_s)
    except BaseException as error:
        kill_group(child)
        if isinstance(error, TimeoutExpired):
            raise CommandTimeoutError(command, f"did not answer within {timeout_s:g} s") from None
        raise
    done = Completed(command, child.returncode, _decode(out), _decode(err))
    if check and done.code != 0:
        raise CommandFailedError(done)
    return done


@dataclass(frozen=True)
class Answer:
    """What a program wrote, as bytes.

    Attributes:
        code: exit status. out: its output. err: the end of its errors, decoded.
        is_cut: it wrote more, and was ended.
    """

    code: int
    out: bytes
    err: str
    is_cut: bool


def read(
    argv: Sequence[str | Path], most: int, *, timeout_s: float, cwd: Path | None = None, env: Mapping[str, str]
) -> Answer:
    """Run a program and return at most the first ``most`` bytes of its output, whatever its status. Raises
    CommandNotFoundError, CommandTimeoutError.
    """
    import tempfile

    with tempfile.TemporaryFile() as errors:
        child = start(argv, cwd=cwd, env=env, stderr=errors)
        with _limited(child, timeout_s) as late:
            assert child.stdout is not None
            with child.stdout as pipe:
                out = pipe.read(most + 1)
            if len(out) > most:
                kill_group(child)
            code = child.wait()
        if late.is_set():
            raise CommandTimeoutError(_words(argv), f"did not answer within {timeout_s:g} s")
        errors.seek(0)
        return Answer(code, out[:most], _decode(errors.read()[-2000:]), len(out) > most)


def stream(
    argv: Sequence[str | Path],
    on_line: Callable[[str], None],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a program, handing each line of its output and errors (merged) to ``on_line``; returns its status. Raises
    CommandNotFoundError, CommandTimeoutError.
    """
    child = start(argv, cwd=cwd, env=env, stderr=STDOUT)
    with _limited(child, timeout_s) as late:
        assert child.stdout is not None
        for line in child.stdout:
            on_line(_decode(line).rstrip("\r\n"))
        code = child.wait()
    if late.is_set():
        raise CommandTimeoutError(_words(argv), f"took longer than {timeout_s:g} s")
    return code


@contextmanager
def _limited(child: Child, timeout_s: float) -> Iterator[threading.Event]:
    """Ends the child's group when its time is over, and if an exception ends the wait; gives whether it was late."""
    import threading

    late = threading.Event()

    def expire() -> None:
        late.set()
        kill_group(child)

    watchdog = threading.Timer(timeout_s, expire)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield late
    except BaseException:
        kill_group(child)
        raise
    finally:
        watchdog.cancel()


def foreground(
    argv: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path | None = None, to_stderr: bool = False
) -> int:
    """Run a program with our own input and output, for as long as it takes; returns its status as ``Completed`` has it.

    In a terminal it stays in our process group: it may read from the terminal, and Ctrl-C reaches it as it reaches us.
    Whatever ends the wait ends it, too.

    Args:
        to_stderr: what it writes to standard output goes to standard error.

    Raises:
        CommandNotFoundError.
    """
    command = _words(argv)
    shares_terminal = os.isatty(0)
    try:
        child = subprocess.Popen(
            command, cwd=cwd, env=_environment(env), stdout=2 if to_stderr else None,
            start_new_session=not shares_terminal,
        )  # fmt: skip
    except (FileNotFoundError, PermissionError) as error:
        raise CommandNotFoundError(f"{command[0]} cannot be run: {error.strerror}", where=command[0]) from error
    interrupts = signal.signal(signal.SIGINT, signal.SIG_IGN) if shares_terminal else None
    try:
        return child.wait()
    finally:
        if interrupts is not None:
            signal.signal(signal.SIGINT, interrupts)
        if child.poll() is None and not shares_terminal:
            kill_group(child)
        elif child.poll() is None:
            child.terminate()
            with suppress(TimeoutExpired):
                child.wait(2.0)
            child.kill()


@contextmanager
def nothing_left() -> Iterator[None]:
    """Whatever the programs of the block have started is ended with it, in a session of its own or not: what an image
    leaves behind could exchange files while we read them. Raises InfrastructureError: something cannot be ended.
    """
    import ctypes  # few run what is not trusted

    adopt = ctypes.CDLL(None).prctl
    before = {each.pid for each in process_identity.children()}
    adopt(_ADOPT_ORPHANS, 1)
    try:
        yield
    finally:
        try:
            _end_all_but(before)
        finally:
            adopt(_ADOPT_ORPHANS, 0)


def _end_all_but(before: Container[int]) -> None:
    """End all children, and the orphans that become ours with the end of each: while one lives, there is a child."""
    until = time.monotonic() + _END_S
    while left := [each for each in process_identity.children() if each.pid not in before]:
        for child in left:
            with suppress(PermissionError):
                process_identity.send(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)
        if time.monotonic() > until:
            what = "what the command has left running cannot be ended, and could change files while they are packed"
            raise InfrastructureError(what, where=f"process {left[0].pid}", fix="end it, and do this again")
        time.sleep(_PAUSE_S)


def start(
    argv: Sequence[str | Path],
    *,
    stdin: int | IO[bytes] = DEVNULL,
    stdout: int | IO[bytes] = PIPE,
    stderr: int | IO[bytes] = PIPE,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Child:
    """Start a program in its own session and return at once: for pipelines and daemons. The caller ends it. Raises
    CommandNotFoundError; RunnerError: there is no directory ``cwd``.
    """
    command = _words(argv)
    try:
        return subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=_environment(env), start_new_session=True
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise RunnerError(f"no such directory: {cwd}", where=" ".join(command)) from error
        raise CommandNotFoundError(f"{command[0]} was not found", where="PATH", fix=f"install {command[0]}") from error
    except PermissionError as error:
        raise CommandNotFoundError(f"{command[0]} may not be executed", where=command[0]) from error


def become(argv: Sequence[str]) -> NoReturn:
    """Replace this process by a program, given by its path. Raises CommandNotFoundError: it cannot be run."""
    try:
        os.execv(argv[0], list(argv))
    except OSError as error:
        raise CommandNotFoundError(f"{argv[0]} cannot be run: {error.strerror}", where=argv[0]) from error


def kill_group(child: Child, grace_s: float = 2.0) -> None:
    """End a child and its process group: SIGTERM, then SIGKILL after ``grace_s`` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with suppress(TimeoutExpired):
            child.wait(grace_s)
            return


def _words(argv: Sequence[str | Path]) -> tuple[str, ...]:
    return tuple(map(str, argv))


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
