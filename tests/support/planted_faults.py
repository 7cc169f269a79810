"""Faults as a table: what is planted, and what must be reported of it. Jobs are submitted together, then judged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.commands import Runner
from tests.support.documents import result

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

    def submission(self, *options: str) -> list[str]:
        """The words of ``submit``: four ranks on two nodes."""
        before = ("--mount", f"{PLANT}:/usr/local/bin", "--env", f"PLANT={self.before}") if self.before else ()
        fault = ("--", "--fault", self.fault) if self.fault else ()
        shape = ("--gpus", "4", "--nodes", "2")
        return ["submit", "--recipe", str(RECIPE), *shape, *options, *before, *self.words, *fault]


def submitted(runner: Runner, planted: Mapping[str, Planted]) -> dict[str, Path]:
    """Submit every one; returns the run directories."""
    return {
        name: Path(result(runner(*each.submission("--json"), code=0).out)["directory"])
        for name, each in planted.items()
    }


def under_way(ranks: int) -> Callable[[Path], bool]:
    """Holds of a run of which so many ranks are in their program."""
    return lambda run: len(list((run / "ranks").glob("*.report.json"))) == ranks


def started(runner: Runner, planted: Planted) -> Path:
    """Submit it, and wait until its four ranks are in their program."""
    child, run = runner.start_until(under_way(4), *planted.submission())
    assert child.wait(60) == 0
    return run


def is_reported(runner: Runner, run: Path, planted: Planted) -> dict[str, Any]:
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


def with_sbatch(runner: Runner, directory: Path, body: str) -> Runner:
    """The same cluster through PATH, with another sbatch; ``BIN`` in its text is the directory of the right one."""
    fake = directory / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\n" + body.replace("BIN", f"'{runner.clients}'") + "\n")
    fake.chmod(0o755)
    site = directory / "site.yaml"
    site.write_text("".join(line for line in runner.site.open() if not line.startswith("box:")))
    path = f"{fake.parent}:{runner.clients}:{os.environ['PATH']}"
    return replace(runner, site=site, runs=directory / "runs", more={"PATH": path})
