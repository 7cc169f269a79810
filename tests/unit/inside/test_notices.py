"""The launcher's program hears notices of the time limit where it listens, and has no variable that was unset."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_runner_inside.launcher import program

from runner.core import paths
from tests.support.commands import ran

LAUNCHER = (sys.executable, str(paths.share("recipes") / "lib/launch.py"))
LISTENS = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print('checkpoint', flush=True)))\n"
    "print('up', flush=True); time.sleep(60)"
)


def start(run: Path, *program: str) -> subprocess.Popen[str]:
    """The launcher of a program that has said that it is up."""
    words = [*LAUNCHER, "--run", str(run), "--world", "1", "--", *program]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    return child


def notice(run: Path) -> None:
    """As the batch script's trap does."""
    with (run / "notices").open("a") as file:
        file.write("USR1\n")


@pytest.mark.parametrize(
    "program",
    [(sys.executable, "-c", LISTENS), ("bash", "-c", '"$0" -c "$1"; exit $?', sys.executable, LISTENS)],
    ids=["program", "below a shell"],
)
def test_a_program_that_listens_hears_it(tmp_path: Path, program: tuple[str, ...]) -> None:
    (tmp_path / "notices").touch()
    with start(tmp_path, *program) as launcher:
        notice(tmp_path)
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "checkpoint\n"
    assert launcher.returncode == 0


def test_a_program_that_has_become_another_users_keeps_no_signal_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one with the set-user-id bit does."""
    another, own = 10, 11
    heard = []

    def kill(pid: int, number: int) -> None:
        if pid == another:
            raise PermissionError
        heard.append((pid, number))

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(program, "_listeners", lambda *_: (another, own))
    relay = program.Relay()
    relay._pid = another
    relay._notify()
    assert heard == [(own, signal.SIGUSR1)]
    relay._handle(signal.SIGTERM, None)
    assert relay.forwarded == [signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM]


def test_a_program_that_does_not_listen_goes_on(tmp_path: Path) -> None:
    with start(tmp_path, sys.executable, "-c", "import time; print('up', flush=True); time.sleep(3)") as launcher:
        notice(tmp_path)
    assert launcher.returncode == 0


def test_the_program_has_none_of_them_wherever_they_came_from() -> None:
    env = {"PATH": os.environ["PATH"], "OF_THE_IMAGE": "1", "KEPT": "a b", "TMPDIR": "/tmp"}
    words = (*LAUNCHER, "--world", "1", "--unset", "OF_THE_IMAGE,CUDA_DEVICE_ORDER,NOT_SET", "--", "env", "-0")
    seen = dict(line.partition("=")[::2] for line in ran(words, env=env).out.split("\0"))
    assert seen["KEPT"] == "a b"
    assert not {"OF_THE_IMAGE", "CUDA_DEVICE_ORDER", "NOT_SET"} & set(seen)
