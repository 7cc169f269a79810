"""Whole scripts, written by a reader who had not seen the rules: every mistake is named, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import Exit
from runner.linting.check import check

SCRIPTS = Path(__file__).resolve().parents[2] / "support" / "training_scripts"
# file -> (the steps that are named, what is wrong)
EXPECTED = {
    name: ([int(step) for step in steps.split(",")], mistake)
    for name, steps, mistake in (line.split("\t") for line in (SCRIPTS / "expected.txt").read_text().splitlines())
}


@pytest.mark.parametrize("path", sorted((SCRIPTS / "correct").glob("*.py")), ids=lambda path: path.stem)
def test_a_correct_script_raises_no_alarm(path: Path) -> None:
    report = check(path)
    assert [row for row in report.rows if row.finding.state in ("missing", "wrong")] == []
    assert report.exit_code == Exit.GOOD


@pytest.mark.parametrize("name", EXPECTED)
def test_a_mistake_is_named_by_its_step_and_no_other(name: str) -> None:
    steps, mistake = EXPECTED[name]
    report = check(SCRIPTS / "wrong" / name)
    named = [row for row in report.rows if row.finding.state in ("missing", "wrong")]
    assert [row.step for row in named] == steps, mistake
    assert all(row.finding.reason and row.finding.fix for row in named)
    assert report.exit_code == Exit.REFUSED


def test_there_is_a_line_for_each_script_and_there_are_enough() -> None:
    assert sorted(EXPECTED) == sorted(path.name for path in (SCRIPTS / "wrong").glob("*.py"))
    assert len(EXPECTED) >= 20
    assert len(list((SCRIPTS / "correct").glob("*.py"))) >= 10
