"""The start of a job's keeper, by real bash: whatever else its nodes say, the ranks begin when all are ready."""

from __future__ import annotations

import subprocess

import pytest

from runner.model.exit_codes import NODE_NOT_READY
from runner.model.step import texts
from runner.schedulers.slurm.keeper import AT_END, start


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
