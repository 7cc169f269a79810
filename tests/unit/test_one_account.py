"""What `make test` runs one after the other ends with one account, and fails where any of it has failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def run(directory: Path, *words: str) -> tuple[int, str]:
    """Exit status of pytest with this project's options, and its output."""
    program = (sys.executable, "-m", "pytest", "-c", "pytest.ini", "-p", "tests.conftest", "-p", "no:cacheprovider")
    done = subprocess.run(
        [*program, *words], cwd=directory, env={"PYTHONPATH": str(CHECKOUT), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize("fails", [False, True])
def test_the_last_line_and_the_status_are_those_of_both_runs(tmp_path: Path, fails: bool) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_first.py").write_text(f"def test_one(): pass\ndef test_two(): assert {not fails}\n")
    (tmp_path / "test_second.py").write_text("def test_three(): pass\n")
    assert run(tmp_path, "-n", "2", "--leave=reports", "test_first.py")[0] == fails
    status, said = run(tmp_path, "--count-in=reports", "test_second.py")
    assert status == fails
    assert ("1 failed, 2 passed" if fails else "3 passed") in said.splitlines()[-1]
    assert ("FAILED test_first.py::test_two" in said) == fails
