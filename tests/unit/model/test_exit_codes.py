"""One exit code, one meaning: in the table, in the launcher, and in the page that explains them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gpu_runner_inside.launcher.failure import STATUS

from runner.model.exit_codes import TABLE, ExitCode, codes

ROOT = Path(__file__).resolve().parents[3]
LAUNCHER = ROOT / "recipes/lib/launch.py"
PAGE = ROOT / "docs/failures.md"


def test_no_code_has_two_meanings() -> None:
    assert len({entry.code for entry in TABLE}) == len(TABLE)
    assert len({entry.name for entry in TABLE}) == len(TABLE)


def test_the_launcher_ends_with_the_codes_of_the_table() -> None:
    """It runs where this package is not installed, so it has its own copy."""
    assert {entry.name: code for code, entry in codes("launcher").items()} == STATUS


def test_the_launchers_documentation_names_each_of_its_codes() -> None:
    documented = LAUNCHER.read_text().partition("Exit status:")[2].partition('"""')[0]
    assert {name: int(code) for code, name in re.findall(r"\b(\d+) ([a-z]+(?:-[a-z0-9]+)+)", documented)} == {
        name: code for name, code in STATUS.items()
    }


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_the_page_of_failures_has_a_row_for_each_code(entry: ExitCode) -> None:
    assert f"| {entry.code} | {entry.source} | `{entry.name}` | {entry.meaning} |" in PAGE.read_text()
