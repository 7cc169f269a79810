"""What `make test` runs one after the other ends with one account, and fails where any of it has failed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def run(directory: Path, *words: str, **env: str) -> tuple[int, str]:
    program = (sys.executable, "-m", "pytest", "-c", "pytest.ini", "-p", "tests.conftest", "-p", "no:cacheprovider")
    base = {"PYTHONPATH": str(CHECKOUT), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*program, *words], cwd=directory, env=base | env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize("fails", [False, True])
def test_the_last_line_and_the_status_are_those_of_both_runs(tmp_path: Path, fails: bool) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_first.py").write_text(f"def test_one(): pass\ndef test_two(): assert {not fails}\n")
    (tmp_path / "test_second.py").write_text("def test_three(): pass\n")
    assert run(tmp_path, "-p", "xdist", "-n", "2", "--leave=reports", "test_first.py")[0] == fails
    status, said = run(tmp_path, "--count-in=reports", "test_second.py")
    assert status == fails
    assert ("1 failed, 2 passed" if fails else "3 passed") in said.splitlines()[-1]
    assert ("FAILED test_first.py::test_two" in said) == fails


def test_a_skipped_module_is_counted_and_in_continuous_integration_a_failure(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_first.py").write_text("import pytest\npytest.skip('no such package', allow_module_level=True)\n")
    (tmp_path / "test_second.py").write_text("def test_three(): pass\n")
    run(tmp_path, "-ra", "--leave=reports", "test_first.py")
    status, said = run(tmp_path, "-ra", "--count-in=reports", "test_second.py")
    assert (status, "1 passed, 1 skipped" in said.splitlines()[-1]) == (0, True)
    status, said = run(tmp_path, "test_first.py", "test_second.py", CI="true")
    assert status != 0
    assert "skipped in continuous integration" in said


@pytest.mark.parametrize(("wanted", "expected"), [("one", 0), ("two", 1), ("three", 0), ("four", 5)])
def test_a_selection_may_leave_one_of_the_runs_without_tests(tmp_path: Path, wanted: str, expected: int) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_first.py").write_text("def test_one(): pass\ndef test_two(): assert False\n")
    (tmp_path / "test_second.py").write_text("def test_three(): pass\n")
    assert run(tmp_path, "-k", wanted, "--leave=reports", "test_first.py")[0] <= 1
    assert run(tmp_path, "-k", wanted, "--count-in=reports", "test_second.py")[0] == expected


def test_an_empty_run_without_a_selection_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_first.py").touch()
    assert run(tmp_path, "--leave=reports", "test_first.py")[0] == pytest.ExitCode.NO_TESTS_COLLECTED


def test_make_runs_unit_tests_side_by_side_and_integration_tests_one_at_a_time() -> None:
    makefile = (CHECKOUT / "Makefile").read_text()
    side_by_side = re.search(r"^SIDE_BY_SIDE := (.+)$", makefile, re.MULTILINE)
    assert side_by_side
    assert "--numprocesses auto" in side_by_side[1]
    assert re.search(r"pytest tests/unit tests/golden \$\(SIDE_BY_SIDE\) --leave=", makefile)
    assert re.search(r"pytest tests/integration --numprocesses 0 --count-in=", makefile)  # also with PYTEST_ADDOPTS=-n4
    assert '"pytest-xdist' in (CHECKOUT / "pyproject.toml").read_text()
    assert "\npytest-xdist==" in (CHECKOUT / "requirements.lock").read_text()
