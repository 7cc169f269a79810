"""The records that a run's ranks leave: reading them, and waiting for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def has_started(ranks: int) -> Callable[[Path], bool]:
    """Holds of a run of which so many ranks have started."""
    return lambda run: len(records(run, "start")) == ranks


def records(run: Path, kind: str) -> dict[int, dict[str, Any]]:
    return {
        int(path.name.split(".")[0]): json.loads(path.read_text()) for path in (run / "ranks").glob(f"*.{kind}.json")
    }
