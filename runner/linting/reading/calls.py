"""A call: of a function, a class or an instance of the source, or of what the source does not have."""

from __future__ import annotations

import ast

from runner.linting import names
from runner.linting.reading.classes import instance
from runner.linting.reading.functions import call_function
from runner.linting.reading.outside import external
from runner.linting.reading.reader import Reader
from runner.linting.reading.scope import Class, Frame, Function
from runner.linting.trace import NOTHING, Arguments, Keywords, Value


def call(reader: Reader, node: ast.Call, frame: Frame) -> Value:
    """Read the callee and the arguments, then the call; its result."""
    discarded = reader.statement is node
    reader.statement = None
    callee = reader.value(node.func, frame)
    receiver = NOTHING
    if isinstance(node.func, ast.Attribute) and not callee.path:
        receiver = reader.value(node.func.value, frame)
    arguments = tuple(reader.value(each, frame) for each in node.args)
    keywords = tuple(pair for each in node.keywords for pair in _by_name(each.arg, reader.value(each.value, frame)))
    path = names.canonical(callee.path)
    if isinstance(callee.reference, Function) and not path:
        return _local(reader, callee.reference, arguments, keywords, receiver, node, frame)
    if isinstance(callee.reference, Class) and not callee.numbered("instance"):
        return instance(reader, callee.reference, arguments, keywords, node, frame)
    if isinstance(callee.reference, Class):
        owner = callee.reference
        for name in ("__call__", "forward", "call"):
            method = owner.method(name)
            if method is not None:
                reader.event(f".{name}", node, frame, arguments, keywords, callee)
                return call_function(reader, method, arguments, keywords, callee)
    if isinstance(node.func, ast.Attribute) and not path:
        if isinstance(receiver.reference, Class):
            method = receiver.reference.method(node.func.attr)
            if method is not None:
                return _local(reader, method, arguments, keywords, receiver, node, frame)
        path = f".{node.func.attr}"
        _call_by_name(reader, node.func.attr, receiver, arguments, keywords)
    elif not path:
        path = f"?{node.func.id}" if isinstance(node.func, ast.Name) else "?"
        receiver = callee
    return external(reader, path, node, frame, arguments, keywords, receiver, discarded)


def _by_name(name: str | None, value: Value) -> Keywords:
    """A keyword; of ``**options`` what is known of its keys, but no literal: another may have taken its place.

    An empty name stands for the keys that are not known.
    """
    if name is not None:
        return ((name, value),)
    known = tuple((key, each) for key, each in value.items if isinstance(key, str) and each.constant is ...)
    return known if value.has("all_keys") else (*known, ("", value))


def _call_by_name(reader: Reader, name: str, receiver: Value, arguments: Arguments, keywords: Keywords) -> None:
    """A method of something unknown, whose telling name only classes of the source have."""
    if receiver.reference is not None or "_" not in name.strip("_") or len(name) < 10:
        return
    for kind in reader.classes:
        method = kind.method(name)
        if method is not None and method.node not in reader.active and method.node not in reader.by_name:
            reader.by_name.add(method.node)
            call_function(reader, method, arguments, keywords, NOTHING)


def _local(
    reader: Reader, function: Function, arguments: Arguments, keywords: Keywords,
    receiver: Value, node: ast.Call, frame: Frame,
) -> Value:  # fmt: skip
    name = function.node.name if not isinstance(function.node, ast.Lambda) else "lambda"
    reader.event(f"local {name}", node, frame, arguments, keywords, receiver)
    return call_function(reader, function, arguments, keywords, receiver)
