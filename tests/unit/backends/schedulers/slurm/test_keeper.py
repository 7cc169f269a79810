"""A job's keeper, by real bash: the ranks begin when all nodes are ready, whatever else these say; and its end."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from runner.model.exit_codes import NODE_NOT_READY
from runner.model.step import texts
from runner.render import folded
from tests.support.shell_files import bash, library


def job(directory: Path, nodes: str, keeper: str, then: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A script whose keeper is this code, up to its end."""
    (directory / "logs").mkdir(exist_ok=True)
    begin = (
        f"coproc RUNNER_KEEPER {{ exec {folded(texts('bash', '-c', keeper, 'bash', *words))}; }}\nrunner_until_ready"
    )
    return bash(directory, f"runner_hosts=({nodes})\ntrap runner_at_end EXIT\n{begin}\n{then}")


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
def test_nodes_are_ready_when_each_of_them_is(tmp_path: Path, lines: str, code: int) -> None:
    stays = "cat" if lines.endswith("ready\n") and not code else ":"
    done = job(library(tmp_path), "n1 n2", 'printf %s "$1"; "$2" >&2', "echo begins", lines, stays)
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
    ready = "echo ready; sleep 1; echo ready; while read -r _; do :; done; touch cleaned"
    done = job(library(tmp_path, slurm=("read -r -t 10 ", "read -r -t 0.3 ")), "n1 n2", ready, "echo begins")
    assert (done.returncode, done.stdout) == ((NODE_NOT_READY, "") if lost else (0, "begins\n"))
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize(("at_end", "longest_s", "late"), [("sleep 1", 20, False), ("exec sleep 60", 1, True)])
def test_a_clean_up_that_hangs_keeps_no_nodes(tmp_path: Path, at_end: str, longest_s: int, late: bool) -> None:
    """It is waited for, though not for ever, and the script's exit code is its own."""
    library(tmp_path, slurm=("runner_most=600", f"runner_most={longest_s}"))
    began = time.monotonic()
    assert job(tmp_path, "n1", f"echo ready; read -r _; {at_end}; touch cleaned", "exit 3").returncode == 3
    assert time.monotonic() - began < 40
    assert (tmp_path / "cleaned").exists() is not late
    assert (tmp_path / "logs" / "cleanup.log").exists() is late
