"""Keeps a job's nodes for a person at a terminal: ``main`` is the program of such a job.

``gpu-runner shell`` touches ``attached`` in the run directory for as long as it lives, as does ``serve``. Where it was
killed, it has not cancelled the job: this program ends once the file has stood still for PATIENCE_S by its own clock.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 300.0
_POLL_S = 5.0


def hold(
    attached: Path,
    patience_s: float = PATIENCE_S,
    poll_s: float = _POLL_S,
    goes_on: Callable[[], bool] = lambda: True,
) -> None:
    """Return once ``attached`` has stood still, or has not been there, for so long, or ``goes_on`` says no."""
    last, since = None, time.monotonic()
    while time.monotonic() - since < patience_s and goes_on():
        try:
            now = attached.stat().st_mtime_ns
        except OSError:
            now = None
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(poll_s)


def main() -> None:
    """As a program, of the run directory of its job."""
    hold(Path(os.environ["RUNNER_RUN_DIR"]) / "attached")
    print(f"no terminal has been attached for {PATIENCE_S:.0f} s: the job ends", file=sys.stderr)
