"""Meshes of many clients over the rendezvous, as jobs and over a lossy network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.commands import Runner

MESH = Path(__file__).parents[1] / "recipes" / "mesh"


def meshes(runner: Runner, *words: str) -> list[dict[str, Any]]:
    """What a job of 16 tasks on two nodes reports of the meshes that its clients formed."""
    runner("submit", "--recipe", str(MESH), "--gpus", "16", "--nodes", "2", "--wait", "--", *words, code=0)
    figures: list[dict[str, Any]] = json.loads((runner.newest() / "mesh.json").read_text())
    return figures


def over_a_bad_road(clients: int, *, loss: float, delay_ms: int) -> dict[str, Any]:
    """One mesh in a network namespace of its own; the loss is of packets, the delay of each, in both directions."""
    words = ["--clients", str(clients), "--loss", str(loss), "--delay-ms", str(delay_ms)]
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", sys.executable, MESH / "main.py", *words],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def complete(figures: dict[str, Any]) -> bool:
    """Every client formed its mesh, and every request was answered, at once."""
    lost = int(figures["requests"]) - int(figures["requests_answered"])
    return (figures["failed"], figures["retries"], lost) == (0, 0, 0)
