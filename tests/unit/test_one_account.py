"""What `make test` runs one after the other ends with one account, and fails where any of it has failed."""

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
pytest_plugins = "pytester"


@pytest.fixture(autouse=True)
def _three_tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeini("[pytest]")
    pytester.makepyfile(
        test_first="def test_one(): pass\ndef test_two(): assert False\n", test_second="def test_three(): pass\n"
    )
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("CI", "MAKE_TEST_BEGAN"):
        monkeypatch.delenv(name, raising=False)


def run(pytester: pytest.Pytester, *words: str) -> tuple[int, str]:
    done = pytester.runpytest_inprocess("-p", "tests.conftest", "-p", "no:cacheprovider", *words)
    return int(done.ret), done.stdout.str()


@pytest.mark.parametrize("fails", [False, True])
def test_the_last_line_and_the_status_are_those_of_both_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))  # of the process that xdist starts
    pytester.makepyfile(test_first=f"def test_one(): pass\ndef test_two(): assert {not fails}\n")
    assert run(pytester, "-p", "xdist", "-n", "1", "--leave=reports", "test_first.py")[0] == fails
    status, said = run(pytester, "--count-in=reports", "test_second.py")
    assert status == fails
    assert ("1 failed, 2 passed" if fails else "3 passed") in said.splitlines()[-1]
    assert ("FAILED test_first.py::test_two" in said) == fails


def test_a_skipped_module_is_counted_and_in_continuous_integration_a_failure(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_first="import pytest\npytest.skip('no such package', allow_module_level=True)\n")
    run(pytester, "-ra", "--leave=reports", "test_first.py")
    status, said = run(pytester, "-ra", "--count-in=reports", "test_second.py")
    assert (status, "1 passed, 1 skipped" in said.splitlines()[-1]) == (0, True)
    monkeypatch.setenv("CI", "true")
    status, said = run(pytester, "test_first.py", "test_second.py")
    assert status != 0
    assert "skipped in continuous integration" in said


@pytest.mark.parametrize(("wanted", "expected"), [("one", 0), ("two", 1), ("three", 0), ("four", 5)])
def test_a_selection_may_leave_one_of_the_runs_without_tests(
    pytester: pytest.Pytester, wanted: str, expected: int
) -> None:
    assert run(pytester, "-k", wanted, "--leave=reports", "test_first.py")[0] <= 1
    assert run(pytester, "-k", wanted, "--count-in=reports", "test_second.py")[0] == expected


def test_an_empty_run_without_a_selection_is_no_success(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_first="")
    assert run(pytester, "--leave=reports", "test_first.py")[0] == pytest.ExitCode.NO_TESTS_COLLECTED


def test_make_runs_unit_tests_side_by_side_and_integration_tests_one_at_a_time() -> None:
    makefile = (CHECKOUT / "Makefile").read_text()
    side_by_side = re.search(r"^SIDE_BY_SIDE := (.+)$", makefile, re.MULTILINE)
    assert side_by_side
    assert "--numprocesses $(shell echo $$((2 * $$(nproc))))" in side_by_side[1]
    assert re.search(r"pytest tests/unit tests/golden \$\(SIDE_BY_SIDE\) --leave=", makefile)
    assert re.search(r"pytest tests/integration --numprocesses 0 --count-in=", makefile)  # also with PYTEST_ADDOPTS=-n4
    assert '"pytest-xdist' in (CHECKOUT / "pyproject.toml").read_text()
    assert "\npytest-xdist==" in (CHECKOUT / "requirements.lock").read_text()


def test_what_builds_a_checkout_is_in_its_lock_so_that_nothing_is_fetched_without_a_hash() -> None:
    backend = re.search(r'requires = \["(hatchling==[0-9.]+)"\]', (CHECKOUT / "pyproject.toml").read_text())
    lock, script = ((CHECKOUT / name).read_text() for name in ("requirements.lock", "runner/setup/venv.sh"))
    script += (CHECKOUT / "runner/setup/install.sh").read_text()
    assert backend and all(f"\n{name}" in lock for name in (f"{backend[1]} ", "editables==", "pip==", "setuptools=="))
    calls = [line for line in script.splitlines() if re.search(r"\bpip .*\b(install|download) ", line)]
    safe = ("--require-hashes", "--no-build-isolation", "--no-index")
    assert len(calls) == 4 and all(any(word in line for word in safe) for line in calls)
