"""The watcher of a node, as programs mark their windows: whoever else connects."""

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
from gpu_runner_inside import window
from gpu_runner_inside.launcher.watcher import Watcher

from tests.support.users import AS_ROOT, CAROL


@AS_ROOT
def test_a_stranger_who_connects_and_is_silent_holds_up_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ranks").mkdir()
    watcher = Watcher({"run_dir": str(tmp_path), "node_rank": 0, "rank": 0, "host": "x", "token": "1"})
    try:
        monkeypatch.setenv(window.VARIABLE, watcher.variables[window.VARIABLE])
        assert window.mark("begin")

        child = os.fork()
        if child == 0:
            os.setresuid(CAROL, CAROL, CAROL)
            silent = [socket.socket(socket.AF_UNIX) for _ in range(6)]
            for each in silent:
                each.connect("\0" + watcher.variables[window.VARIABLE])
            time.sleep(5)
            os._exit(0)
        time.sleep(0.2)
        marked = window.mark("end")  # which waits two seconds
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert marked
    finally:
        watcher.end()


@AS_ROOT
def test_strangers_who_fill_the_queue_hold_up_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ranks").mkdir()
    watcher, crowd = Watcher({"run_dir": str(tmp_path), "node_rank": 0, "rank": 0, "host": "x", "token": "1"}), []
    try:
        for _ in range(6):
            crowd.append(os.fork())
            if crowd[-1] == 0:
                os.setresuid(CAROL, CAROL, CAROL)
                while True:
                    with socket.socket(socket.AF_UNIX) as each, suppress(OSError):
                        each.setblocking(False)
                        each.connect("\0" + watcher.variables[window.VARIABLE])
        monkeypatch.setenv(window.VARIABLE, watcher.variables[window.VARIABLE])
        time.sleep(0.5)
        assert [window.mark("begin") for _ in range(10)] == [True] * 10
    finally:
        for child in crowd:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        watcher.end()
