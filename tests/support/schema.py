"""Holds a record against gpu_runner_inside/schema.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.json_schema import faults

_SCHEMA = json.loads((Path(__file__).parents[2] / "recipes/lib/modules/gpu_runner_inside/schema.json").read_text())


def check(record: dict[str, Any]) -> None:
    """Accept a record that is as the definition of its ``kind`` says.

    Raises:
        AssertionError: it is not; names all that is wrong.
    """
    kind = record.get("kind")
    assert kind in _SCHEMA["$defs"], f"no kind of record: {kind!r}"
    found = faults(record, _SCHEMA, kind)
    assert not found, f"{kind} record: " + "; ".join(found)
