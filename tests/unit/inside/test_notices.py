"""Notices of the time limit reach the programs that listen, through a file, and nothing else of the step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runner.core import paths
from tests.support.waiting import until

LISTENS = (
    "import os, signal, sys, time\n"
    "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print('checkpoint', flush=True)))\n"
    "print('up', flush=True); time.sleep(60)"
)
DEAF = "import time; print('up', flush=True); time.sleep(4)"


def start(run: Path, *program: str) -> subprocess.Popen[str]:
    launcher = (sys.executable, str(paths.share("recipes") / "lib/launch.py"), "--run", str(run), "--world", "1")
    return subprocess.Popen([*launcher, "--", *program], stdout=subprocess.PIPE, text=True)


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
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "up\n"
        notice(tmp_path)
        assert launcher.stdout.readline() == "checkpoint\n"
    assert launcher.returncode == 0


def test_a_program_that_does_not_listen_goes_on(tmp_path: Path) -> None:
    with start(tmp_path, sys.executable, "-c", DEAF) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "up\n"
        notice(tmp_path)
    assert launcher.returncode == 0


def test_signals_still_reach_the_launcher_while_it_looks_for_notices(tmp_path: Path) -> None:
    with start(tmp_path, sys.executable, "-c", DEAF.replace("4", "60")) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "up\n"
        launcher.terminate()
        until(lambda: launcher.poll() is not None, "the launcher ends", timeout_s=20)
    assert launcher.returncode == 128 + 15
