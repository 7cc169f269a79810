"""docs/gpu.md: its commands are what they seem."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from runner.cli import run
from runner.core.errors import Exit

PAGE = (Path(__file__).parents[3] / "docs/gpu.md").read_text()


def test_what_the_page_submits_or_makes_is_no_wrong_usage(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a dry run, which may be refused for what is not here."""
    monkeypatch.chdir(tmp_path)
    tried = 0
    for line in re.findall(r"^ {4}python -m runner (.*)$", PAGE, re.MULTILINE):
        words = shlex.split(line.replace("SITE", "technion").replace("DIR", str(tmp_path)), comments=True)
        if words[0] == "submit" or words[:2] == ["env", "create"]:
            code = run([*words, "--dry-run"])
            assert code in (Exit.GOOD, Exit.REFUSED), (words, capfd.readouterr().err)
            tried += 1
    assert tried >= 6
