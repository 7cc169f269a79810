"""Programs as their authors published them."""

from __future__ import annotations

from pathlib import Path

UNCHANGED = Path(__file__).parents[1] / "recipes" / "unchanged"
