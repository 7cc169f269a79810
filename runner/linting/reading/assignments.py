"""A variable, an attribute, or a key takes a value."""

from __future__ import annotations

import ast
from dataclasses import replace

from runner.linting import names
from runner.linting.reading.conditions import ROOT
from runner.linting.reading.merging import joined
from runner.linting.reading.reader import Reader
from runner.linting.reading.scope import Frame
from runner.linting.reading.syntax import dotted
from runner.linting.trace import NOTHING, Value


def assign(reader: Reader, target: ast.expr, value: Value, frame: Frame) -> None:
    """Give a target its value; the elements of a tuple, one by one."""
    if isinstance(target, ast.Name):
        _variable(reader, target, value, frame)
    elif isinstance(target, ast.Attribute):
        _attribute(reader, target, value, frame)
    elif isinstance(target, ast.Subscript):
        _key(reader, target, value, frame)
    elif isinstance(target, ast.Tuple | ast.List):
        by_place = dict(value.items)
        whole = replace(value, constant=..., items=())
        for place, each in enumerate(target.elts):
            assign(reader, each, by_place.get(place, whole), frame)
    elif isinstance(target, ast.Starred):
        assign(reader, target.value, replace(value, items=()), frame)


def _variable(reader: Reader, target: ast.Name, value: Value, frame: Frame) -> None:
    old = (frame.module.values if target.id in frame.of_module else frame.values).get(target.id)
    value = _where_it_is_set(reader, _by_its_name(value, target.id), old)
    if old is not None and (reader.guards or reader.branches):
        value = joined(old, value)
    frame.bind(target.id, value)


def _attribute(reader: Reader, target: ast.Attribute, value: Value, frame: Frame) -> None:
    reader.value(target.value, frame)
    value = _where_it_is_set(reader, _by_its_name(value, target.attr), reader.attributes.get(target.attr))
    frame.values[dotted(target)] = value
    reader.attributes[target.attr] = value
    if target.attr in ("visible_device_list", "lr", "learning_rate"):
        receiver = reader.value(target.value, frame)
        reader.event(f"set {target.attr}", target, frame, (value,), (), receiver)


def _key(reader: Reader, target: ast.Subscript, value: Value, frame: Frame) -> None:
    base, key = reader.value(target.value, frame), reader.value(target.slice, frame)
    if base.path == "os.environ" and isinstance(key.constant, str):
        reader.environment[key.constant] = value
        reader.event("set env", target, frame, (key, value), ())
    elif key.constant in ("lr", "learning_rate"):
        reader.event("set lr", target, frame, (value,), (), base)
    elif isinstance(target.value, ast.Name) and target.value.id in frame.values and not isinstance(key.constant, str):
        held = frame.values[target.value.id]
        frame.values[target.value.id] = replace(held, tags=held.tags - {"all_keys"})
    if isinstance(key.constant, str):
        reader.attributes[key.constant] = value
        if isinstance(target.value, ast.Name) and target.value.id in frame.values:
            held = frame.values[target.value.id]
            items = (*(pair for pair in held.items if pair[0] != key.constant), (key.constant, value))
            frame.values[target.value.id] = replace(held, tags=held.tags | value.tags, items=items)


def _by_its_name(value: Value, name: str) -> Value:
    """The value; what the name says, where nothing is known of it."""
    return Value(names.meaning(name)) if value == NOTHING else value


def _where_it_is_set(reader: Reader, value: Value, old: Value | None) -> Value:
    """The value, marked where only rank 0 has it."""
    is_unset = old is None or old.constant in (None, False)
    if ROOT in reader.guards and is_unset and not value.has("is_root"):
        return replace(value, tags=value.tags | {"root_only"})
    return value
