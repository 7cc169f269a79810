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
    if value == NOTHING and isinstance(target, ast.Name | ast.Attribute):
        name = target.id if isinstance(target, ast.Name) else target.attr
        value = Value(names.meaning(name))
    if isinstance(target, ast.Name):
        old = frame.values.get(target.id)
        if ROOT in reader.guards and (old is None or old.constant in (None, False)) and not value.has("is_root"):
            value = replace(value, tags=value.tags | {"root_only"})
        if old is not None and (reader.guards or reader.branches):
            value = joined(old, value)
        frame.values[target.id] = value
    elif isinstance(target, ast.Attribute):
        reader.value(target.value, frame)
        path = dotted(target)
        old = reader.attributes.get(target.attr)
        if ROOT in reader.guards and (old is None or old.constant in (None, False)) and not value.has("is_root"):
            value = replace(value, tags=value.tags | {"root_only"})
        frame.values[path] = value
        reader.attributes[target.attr] = value
        if target.attr in ("visible_device_list", "lr", "learning_rate"):
            receiver = reader.value(target.value, frame)
            reader.event(f"set {target.attr}", target, frame, (value,), (), receiver)
    elif isinstance(target, ast.Subscript):
        base, key = reader.value(target.value, frame), reader.value(target.slice, frame)
        if base.path == "os.environ" and isinstance(key.constant, str):
            reader.environment[key.constant] = value
            reader.event("set env", target, frame, (key, value), ())
        elif key.constant in ("lr", "learning_rate"):
            reader.event("set lr", target, frame, (value,), (), base)
        if isinstance(key.constant, str):
            reader.attributes[key.constant] = value
            if isinstance(target.value, ast.Name) and target.value.id in frame.values:
                held = frame.values[target.value.id]
                items = tuple(pair for pair in held.items if pair[0] != key.constant)
                frame.values[target.value.id] = replace(
                    held, tags=held.tags | value.tags, items=(*items, (key.constant, value))
                )
    elif isinstance(target, ast.Tuple | ast.List):
        by_place = dict(value.items)
        whole = replace(value, constant=..., items=())
        for place, each in enumerate(target.elts):
            assign(reader, each, by_place.get(place, whole), frame)
    elif isinstance(target, ast.Starred):
        assign(reader, target.value, replace(value, items=()), frame)
