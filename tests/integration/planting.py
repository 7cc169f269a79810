"""Faults as a table: what is planted, and what must be told of it. Jobs are submitted together, then judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.commands import Runner

RECIPE = Path(__file__).parents[1] / "recipes" / "faults"
PLANT = Path(__file__).parent / "plant"


@dataclass(frozen=True)
class Planted:
    """One job that goes wrong.

    Attributes:
        fault: of the recipe; empty for none.
        outcome, code: the verdict and the exit code that it must get.
        says: each stands in the verdict's reasons or its log line, in the first reason the first.
        before: ``CODE@RANK``, what goes wrong on a rank before the launcher has begun there.
        words: further options of ``submit``.
    """

    fault: str
    outcome: str
    code: int
    says: tuple[str, ...] = ()
    before: str = ""
    words: tuple[str, ...] = ()

    def submission(self) -> list[str]:
        """The words of ``submit``: four ranks on two nodes."""
        before = ("--mount", f"{PLANT}:/usr/local/bin", "--env", f"PLANT={self.before}") if self.before else ()
        fault = ("--", "--fault", self.fault) if self.fault else ()
        return ["submit", "--recipe", str(RECIPE), "--gpus", "4", "--nodes", "2", *before, *self.words, *fault]


def submitted(runner: Runner, planted: Mapping[str, Planted]) -> dict[str, Path]:
    """Submit every one; returns the run directories."""
    return {
        name: Path(json.loads(runner(*_with_json(each.submission()), code=0).out)["directory"])
        for name, each in planted.items()
    }


def _with_json(words: list[str]) -> list[str]:
    return [words[0], "--json", *words[1:]]


def is_told(runner: Runner, run: Path, planted: Planted) -> dict[str, Any]:
    """Wait for the run's end; the verdict must be the right one and tell what it must tell. Returns it."""
    said = runner("wait", str(run), code=planted.code).out
    verdict: dict[str, Any] = json.loads((run / "verdict.json").read_text())
    tells(verdict, planted)
    assert ("images/s" in said) is (planted.outcome == "measured"), said
    return verdict


def tells(verdict: dict[str, Any], planted: Planted) -> None:
    """The verdict is the right one and tells what it must tell."""
    assert verdict["outcome"] == planted.outcome, verdict
    assert (verdict["images_per_s"] is None) is (planted.outcome != "measured")
    told = [*verdict["reasons"], verdict["log"]]
    for place, sentence in enumerate(planted.says):
        assert any(sentence in each for each in (told[:1] if place == 0 else told)), (sentence, verdict)
