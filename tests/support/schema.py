"""Holds a record against gpu_runner_inside/schema.json, by the part of JSON Schema that it uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DEFINITIONS = json.loads(
    (Path(__file__).parents[2] / "recipes/lib/modules/gpu_runner_inside/schema.json").read_text()
)["$defs"]
_TYPES = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def check(record: dict[str, Any]) -> None:
    """Accept a record that is as the definition of its ``kind`` says.

    Raises:
        AssertionError: it is not; names all that is wrong.
    """
    kind = record.get("kind")
    assert kind in _DEFINITIONS, f"no kind of record: {kind!r}"
    found = _object_faults(record, _DEFINITIONS[kind])
    assert not found, f"{kind} record: " + "; ".join(found)


def _object_faults(record: dict[str, Any], definition: dict[str, Any]) -> list[str]:
    found = [f"{name} is missing" for name in definition["required"] if name not in record]
    for name, value in record.items():
        rule = definition["properties"].get(name)
        found += [f"{name} is unknown"] if rule is None else [f"{name} {fault}" for fault in _faults(value, rule)]
    return found


def _faults(value: Any, rule: dict[str, Any]) -> list[str]:
    kinds = rule.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    found = []
    if "const" in rule and value != rule["const"]:
        found.append(f"is not {rule['const']!r}")
    if "enum" in rule and value not in rule["enum"]:
        found.append(f"is none of {rule['enum']}")
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [*found, f"is no {' or '.join(kinds)}: {value!r}"]
    if "minimum" in rule and value is not None and value < rule["minimum"]:
        found.append(f"is under {rule['minimum']}: {value!r}")
    if "exclusiveMinimum" in rule and value <= rule["exclusiveMinimum"]:
        found.append(f"is not over {rule['exclusiveMinimum']}: {value!r}")
    if isinstance(value, list) and any(_faults(each, rule["items"]) for each in value):
        found.append(f"holds something else: {value!r}")
    if isinstance(value, dict) and "properties" in rule:
        found += _object_faults(value, rule)
    each_of = rule.get("additionalProperties")
    if isinstance(value, dict) and each_of and any(_faults(each, each_of) for each in value.values()):
        found.append("holds something else")
    return found


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and not (isinstance(value, bool) and kind in ("integer", "number"))
