"""Runs of the training script in tests/recipes/metered, and what its ranks print at their end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.commands import Runner

SCRIPT = Path(__file__).parents[1] / "recipes" / "metered"


def measure(local: Runner, peculiarity: str, source: str, *words: str, code: int = 0) -> tuple[Path, dict[str, Any]]:
    """The directory of a run of two ranks, and its verdict.

    Args:
        source: what counts the steps: ``script``, ``hook`` (--meter), or ``none``.
    """
    flag = ("--meter",) if source == "hook" else ()
    patience = ("--env", "RUNNER_METER_PATIENCE_S=30")
    program = ("python3", "main.py", peculiarity, source)
    local("submit", "--gpus", "2", "--wait", *flag, *patience, *words, "--", *program, code=code, cwd=SCRIPT)
    run = local.newest()
    return run, json.loads((run / "verdict.json").read_text())


def states(run: Path) -> list[list[str]]:
    """The checksums of weights, statistics, gradients, momentum and random state that each rank printed."""
    return [
        [line.split()[1] for line in (run / "logs" / f"rank-{rank}.out").read_text().splitlines() if "state " in line]
        for rank in range(2)
    ]
