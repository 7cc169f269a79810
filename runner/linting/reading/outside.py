"""A call of what the source does not have: frameworks, the standard library, values that could not be followed."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import reduce
from typing import Any

from runner.linting import names
from runner.linting.reading.functions import call_function
from runner.linting.reading.imports import imported
from runner.linting.reading.merging import dictionary, joined
from runner.linting.reading.reader import Reader
from runner.linting.reading.scope import Frame, Function
from runner.linting.reading.syntax import dotted
from runner.linting.results import Call, result_of
from runner.linting.trace import NOTHING, Arguments, Keywords, Value, union

_ADDS = ("append", "extend", "update", "add", "insert", "setdefault")


def external(
    reader: Reader, path: str, node: ast.Call, frame: Frame, arguments: Arguments,
    keywords: Keywords, receiver: Value, discarded: bool,
) -> Value:  # fmt: skip
    """A call of what the source does not have: its event, and what is known of its result."""
    if path in ("os.getenv", "os.environ.get", "os.environ.pop", "os.environ.setdefault") and arguments:
        if path.endswith("setdefault") and len(arguments) == 2:
            reader.event("set env", node, frame, arguments, ())
        return variables(reader, arguments[0], arguments[1] if len(arguments) > 1 else NOTHING)
    number = reader.event(path, node, frame, arguments, keywords, receiver, discarded)
    _call_back(reader, path, arguments, keywords)
    if path == "builtins.getattr" and len(arguments) > 1:
        return _attribute_by_name(reader, arguments)
    if path == "builtins.dict":
        return dictionary(
            [*((None, value) for value in arguments), *((name or None, value) for name, value in keywords)]
        )
    if path == "functools.partial" and arguments:
        rest = union((*arguments[1:], *(value for _, value in keywords)))
        return replace(arguments[0], tags=arguments[0].tags | rest.tags)
    call = Call(path, number, arguments, keywords, receiver)
    if call.last in ("DistributedDataParallel", "FullyShardedDataParallel"):
        _mark_raw(node, frame, number)
    if isinstance(node.func, ast.Attribute) and call.last in _ADDS:
        _add_to(node.func.value, call, frame)
    return result_of(call)


def variables(reader: Reader, key: Value, default: Value = NOTHING) -> Value:
    """An environment variable, or one of several that mean the same."""
    if key.has("one_of"):
        values = [_variable(reader, each, default) for _, each in key.items]
        meant = {value.tags for value in values if value.tags}
        return reduce(joined, values) if len(meant) == 1 else NOTHING
    return _variable(reader, key, default)


def _variable(reader: Reader, key: Value, default: Value) -> Value:
    """What launchers give an environment variable, or the script did."""
    if isinstance(key.constant, str):
        if key.constant in names.VARIABLES:
            return Value(frozenset((names.VARIABLES[key.constant], names.EXACT)))
        if key.constant in reader.environment:
            return reader.environment[key.constant]
    return Value(default.tags)


def _attribute_by_name(reader: Reader, arguments: Arguments) -> Value:
    """``getattr(thing, name, default)``."""
    name = arguments[1].constant
    if arguments[0].path:
        return imported(reader, f"{arguments[0].path}.{name if isinstance(name, str) else 'Any'}")
    if isinstance(name, str):
        return reader.attributes.get(name) or Value(names.meaning(name))
    return NOTHING


def _add_to(held: ast.expr, call: Call, frame: Frame) -> None:
    """A list or its like takes what is added to it."""
    name = held.id if isinstance(held, ast.Name) else dotted(held)
    if name in frame.values:
        old = frame.values[name]
        added = frozenset(tag for tag in call.tags if tag not in ("root_only", "is_root"))
        items = _updated(old, call)
        kept = old.tags if items else old.tags - {"all_keys"}
        frame.values[name] = Value(kept | added, old.path, reference=old.reference, items=items)


def _updated(old: Value, call: Call) -> tuple[tuple[Any, Value], ...]:
    """The keys of a dictionary after ``update``; none where not all are known."""
    if call.last != "update" or not all(value.items for value in (old, *call.arguments)):
        return ()
    new = dict(old.items)
    for value in call.arguments:
        new.update(value.items)
    return tuple({**new, **dict(call.keywords)}.items())


def _mark_raw(node: ast.Call, frame: Frame, number: int) -> None:
    """The name of a model that is wrapped under another name stands for the one without synchronisation."""
    model = node.args[0] if node.args else None
    while isinstance(model, ast.Call) and model.args:  # torch.compile(model), convert_sync_batchnorm(model)
        model = model.args[0]
    if isinstance(model, ast.Name) and model.id in frame.values:
        held = frame.values[model.id]
        frame.values[model.id] = replace(held, tags=held.tags | {f"raw:{number}"})


def _call_back(reader: Reader, path: str, arguments: Arguments, keywords: Keywords) -> None:
    """Functions that are passed to others are called by them."""
    for value in (*arguments, *(value for _, value in keywords)):
        if isinstance(value.reference, Function) and not isinstance(value.reference.node, ast.Lambda):
            if value.reference.node in reader.seen and path.rpartition(".")[2] != "spawn":
                continue
            given: Arguments = ()
            if path.rpartition(".")[2] == "spawn":
                rest = next(
                    (value for name, value in keywords if name == "args"),
                    arguments[1] if len(arguments) > 1 else NOTHING,
                )
                given = (
                    Value(frozenset((names.RANK, names.LOCAL_RANK, names.EXACT))),
                    *(value for _, value in rest.items),
                )
            call_function(reader, value.reference, given, (), NOTHING)
