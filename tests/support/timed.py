"""The timed stand-in for training: a recipe whose steps are sleeps, whose records and proof are real."""

from __future__ import annotations

from pathlib import Path

RECIPE = Path(__file__).parent / "timed_recipe"
# On this machine, with whatever Python its shell has; about 1.5 s of it are the launcher's.
SUBMIT = ("submit", "--recipe", str(RECIPE), "--runtime", "native", "--wait")
