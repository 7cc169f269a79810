"""A job's keeper, by real bash: the ranks begin when all nodes are ready, whatever else these say; and its end."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from runner.backends.schedulers.slurm.keeper import AT_END, LONGEST_S, LOOK_S, start
from runner.model.exit_codes import NODE_NOT_READY
from runner.model.step import texts


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("ready\nready\n", 0),
        ("job 7 on n1\nready\n\nlicences: 3\nready\n", 0),
        ("ready\nfailed\n", NODE_NOT_READY),
        ("ready\n", NODE_NOT_READY),
        ("job 7 on n1\n", NODE_NOT_READY),
        ("", NODE_NOT_READY),
    ],
)
def test_nodes_are_ready_when_each_of_them_is(lines: str, code: int) -> None:
    stays = "cat" if lines.endswith("ready\n") and not code else ":"
    keeper = start(texts("bash", "-c", 'printf %s "$1"; "$2" >&2', "bash", lines, stays))
    script = f"set -uo pipefail\nrunner_hosts=(n1 n2)\n{AT_END}trap runner_at_end EXIT\n{keeper}echo begins\n"
    done = subprocess.run(
        ["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (code, "" if code else "begins\n")


@pytest.mark.parametrize(
    ("report", "lost"),
    [
        ("srun: error: n2: task 1: Killed", True),
        ("srun: error: n[1-2]: tasks 0-1: Killed", True),
        ("srun: error: task 1 launch failed: Slurmd could not connect IO", True),
        ("srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)", False),
    ],
)
def test_a_task_that_was_killed_is_not_waited_for(tmp_path: Path, report: str, lost: bool) -> None:
    """The other node is ready, and cleans up; a node that only takes long is waited for."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/batch.err").write_text(f"{report}\n")
    keeper = start(texts("bash", "-c", "echo ready; sleep 1; echo ready; while read -r _; do :; done; touch cleaned"))
    keeper = keeper.replace(f"read -r -t {LOOK_S} ", "read -r -t 0.3 ")
    script = f"set -uo pipefail\nrunner_hosts=(n1 n2)\n{AT_END}trap runner_at_end EXIT\n{keeper}echo begins\n"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == ((NODE_NOT_READY, b"") if lost else (0, b"begins\n"))
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize(("at_end", "longest_s", "late"), [("sleep 1", 20, False), ("exec sleep 60", 1, True)])
def test_a_clean_up_that_hangs_keeps_no_nodes(tmp_path: Path, at_end: str, longest_s: int, late: bool) -> None:
    """It is waited for, though not for ever, and the script's exit code is its own."""
    (tmp_path / "logs").mkdir()
    keeper = start(texts("bash", "-c", f"echo ready; read -r _; {at_end}; touch cleaned"))
    ending = AT_END.replace(str(LONGEST_S), str(longest_s))
    script = f"set -uo pipefail\nrunner_hosts=(n1)\n{ending}trap runner_at_end EXIT\n{keeper}exit 3\n"
    began = time.monotonic()
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=50, check=False)
    assert done.returncode == 3
    assert time.monotonic() - began < 40
    assert (tmp_path / "cleaned").exists() is not late
    assert (tmp_path / "logs" / "cleanup.log").exists() is late
