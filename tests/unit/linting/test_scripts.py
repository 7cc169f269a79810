"""Whole scripts, written by a reader who had not seen the rules: every mistake is named, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runner.core.errors import Exit
from runner.linting.check import check

SCRIPTS = Path(__file__).resolve().parents[2] / "support" / "training_scripts"


class Edit(msgspec.Struct, frozen=True):
    """Whole lines of a correct script, which stand in it once, and what stands there instead."""

    old: str
    new: str


class Mistake(msgspec.Struct, frozen=True):
    """A correct script with something wrong; ``steps``: those that are named."""

    mistake: str
    of: str
    steps: list[int]
    edits: list[Edit]

    def script(self) -> str:
        text = (SCRIPTS / "correct" / f"{self.of}.py").read_text()
        assert all(f"\n{text}".count(f"\n{edit.old}") == 1 for edit in self.edits), "an edit fits one place"
        places = sorted(((f"\n{text}".index(f"\n{edit.old}"), edit) for edit in self.edits), key=lambda each: -each[0])
        for start, edit in places:
            text = text[:start] + edit.new + text[start + len(edit.old) :]
        return text


MISTAKES = msgspec.yaml.decode((SCRIPTS / "mistakes.yaml").read_bytes(), type=dict[str, Mistake])
assert len(MISTAKES) >= 63


@pytest.mark.parametrize("path", sorted((SCRIPTS / "correct").glob("*.py")), ids=lambda path: path.stem)
def test_a_correct_script_raises_no_alarm(path: Path) -> None:
    report = check(path)
    assert [row for row in report.rows if row.finding.state in ("missing", "wrong")] == []
    assert report.exit_code == Exit.GOOD


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_by_its_step_and_no_other(name: str, tmp_path: Path) -> None:
    case = MISTAKES[name]
    path = tmp_path / f"{name}.py"
    path.write_text(case.script())
    report = check(path)
    named = [row for row in report.rows if row.finding.state in ("missing", "wrong")]
    assert [row.step for row in named] == case.steps, case.mistake
    assert all(row.finding.reason and row.finding.fix for row in named)
    assert report.exit_code == Exit.REFUSED
