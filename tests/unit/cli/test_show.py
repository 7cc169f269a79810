"""How a verdict is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.cli.wait import show_verdict
from runner.jobs.directory import Run
from runner.model.verdict import ArmFigure, Verdict

HOSTILE = "rank 0 on n0\x1b[2J\x07\n\r\u202e\udcff\x00 ende"
SHOWN = "rank 0 on n0\\x1b[2J\\x07\\n\\r\\u202e\\udcff\\x00 ende"


@pytest.mark.parametrize("place", ["reasons", "proven", "remarks", "log"])
def test_control_characters_of_records_and_logs_do_not_reach_the_terminal(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fields: dict[str, Any] = {place: HOSTILE if place == "log" else (HOSTILE,)}
    show_verdict(Run(Path("/runs/r")), Verdict(outcome="ran", **fields))
    assert SHOWN in capsys.readouterr().out


def test_each_arm_of_a_run_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    arms = (ArmFigure("uncoupled", 39.96, 9.0, 1.0, 1.1, 30.0), ArmFigure("full", 30.0, 7.5, 1.3, 1.3, 40.0))
    show_verdict(Run(Path("/runs/r")), Verdict(outcome="measured", images_per_s=30.0, window_s=40.0, arms=arms))
    printed = capsys.readouterr().out.splitlines()
    assert "  arm uncoupled: 40.0 images/s over 30.00 s, slowest rank 9.0" in printed
    assert len([line for line in printed if line.startswith("  arm ")]) == 2


def test_any_language_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show_verdict(Run(Path("/runs/r")), Verdict(outcome="failed", reasons=("Größe 日本 ñ",)))
    assert "Größe 日本 ñ" in capsys.readouterr().out
