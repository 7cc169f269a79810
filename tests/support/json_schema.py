"""Holds JSON against a JSON Schema, by the part of it that ours uses; every key must be one that it names."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "object": (dict,),
}  # fmt: skip


def faults(value: Any, schema: dict[str, Any], kind: str | None = None) -> list[str]:
    """What is wrong with it, one sentence each; ``kind``: the definition of the schema to hold it against, or all."""
    return _faults(value, schema if kind is None else schema["$defs"][kind], schema["$defs"], "")


def _faults(value: Any, rule: dict[str, Any], definitions: dict[str, Any], at: str) -> list[str]:
    unknown = set(rule) - _KNOWN
    assert not unknown, f"this is not checked: {unknown}"
    wrong: list[str] = []
    if "$ref" in rule:
        wrong += _faults(value, definitions[rule["$ref"].removeprefix("#/$defs/")], definitions, at)
    for each in rule.get("allOf", ()):
        wrong += _faults(value, each, definitions, at)
    if "anyOf" in rule:
        likely_first = sorted(rule["anyOf"], key=lambda each: not _has_its_constants(value, each))
        wrong += _least(_faults(value, each, definitions, at) for each in likely_first)
    if "not" in rule and not _faults(value, rule["not"], definitions, at):
        wrong.append(f"{at or 'it'} is what it must not be: {value!r}")
    if "const" in rule and value != rule["const"]:
        wrong.append(f"{at} is not {rule['const']!r}")
    if "enum" in rule and value not in rule["enum"]:
        wrong.append(f"{at} is none of {rule['enum']}: {value!r}")
    kinds = [rule["type"]] if isinstance(rule.get("type"), str) else rule.get("type", [])
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [*wrong, f"{at or 'it'} is no {' or '.join(kinds)}: {value!r}"]
    if _is(value, "number") and value < rule.get("minimum", value):
        wrong.append(f"{at} is under {rule['minimum']}: {value!r}")
    if _is(value, "number") and "exclusiveMinimum" in rule and value <= rule["exclusiveMinimum"]:
        wrong.append(f"{at} is not over {rule['exclusiveMinimum']}: {value!r}")
    if isinstance(value, dict):
        wrong += _object_faults(value, rule, definitions, at)
    if isinstance(value, list):
        wrong += _array_faults(value, rule, definitions, at)
    return wrong


def _has_its_constants(value: Any, rule: dict[str, Any]) -> bool:
    constants = {name: each["const"] for name, each in rule.get("properties", {}).items() if "const" in each}
    return (
        isinstance(value, dict) and all(value.get(name) == each for name, each in constants.items())
        if constants
        else True
    )


def _least(tried: Iterable[list[str]]) -> list[str]:
    """Nothing where one of them has none; none after it is tried."""
    least: list[str] | None = None
    for each in tried:
        if not each:
            return each
        least = each if least is None or len(each) < len(least) else least
    return least or []


def _object_faults(value: dict[str, Any], rule: dict[str, Any], definitions: dict[str, Any], at: str) -> list[str]:
    wrong = [f"{at}.{name} is missing" for name in rule.get("required", ()) if name not in value]
    names = rule.get("properties", {})
    others = rule.get("additionalProperties", {} if "type" not in rule or "properties" not in rule else None)
    for name, each in value.items():
        if name in names:
            wrong += _faults(each, names[name], definitions, f"{at}.{name}")
        elif others is None or others is False:
            wrong.append(f"{at}.{name} is unknown")
        elif isinstance(others, dict):
            wrong += _faults(each, others, definitions, f"{at}.{name}")
    return wrong


def _array_faults(value: list[Any], rule: dict[str, Any], definitions: dict[str, Any], at: str) -> list[str]:
    first = rule.get("prefixItems", ())
    wrong = [
        fault
        for number, (each, item) in enumerate(zip(value, first, strict=False))
        for fault in _faults(each, item, definitions, f"{at}[{number}]")
    ]
    items = rule.get("items", {})
    for number, each in enumerate(value[len(first) :], len(first)):
        wrong += _faults(each, items, definitions, f"{at}[{number}]") if items is not False else [f"{at} is too long"]
    if not rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)):
        wrong.append(f"{at} has {len(value)} items")
    return wrong


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


_KNOWN = frozenset(
    (
        "$schema", "$defs", "$ref", "title", "description", "default", "type", "properties", "required",
        "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "anyOf", "allOf", "not", "const",
        "enum", "minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength", "pattern", "format",
    )
)  # fmt: skip
_SCHEMA = json.loads((Path(__file__).parents[2] / "recipes/lib/modules/gpu_runner_inside/schema.json").read_text())


def check(record: dict[str, Any]) -> None:
    """Accept a rank's record that is as gpu_runner_inside/schema.json defines its ``kind``; else name what is wrong."""
    kind = record.get("kind")
    assert kind in _SCHEMA["$defs"], f"no kind of record: {kind!r}"
    assert not (wrong := faults(record, _SCHEMA, kind)), f"{kind} record: " + "; ".join(wrong)
