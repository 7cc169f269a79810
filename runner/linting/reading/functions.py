"""A call of a function of the source: its body is read with the arguments of the call."""

from __future__ import annotations

import ast

from runner.linting import names
from runner.linting.reading.conditions import ROOT
from runner.linting.reading.merging import joined
from runner.linting.reading.reader import Reader
from runner.linting.reading.scope import Frame, Function
from runner.linting.reading.syntax import dotted, is_static
from runner.linting.trace import NOTHING, Value

_MOST_DEPTH = 14


def call_function(
    reader: Reader,
    function: Function,
    arguments: tuple[Value, ...],
    keywords: tuple[tuple[str, Value], ...],
    receiver: Value,
) -> Value:
    node = function.node
    reader.seen.add(node)
    if isinstance(node, ast.Lambda):
        return reader.value(node.body, Frame(function.module, bound(node.args, arguments), function.closure))
    if node in reader.active or len(reader.active) >= _MOST_DEPTH or reader.out_of_steps:
        return NOTHING
    values = bound(node.args, arguments)
    first = node.args.args[0].arg if node.args.args else ""
    if function.owner is not None and not is_static(node):
        this = (
            receiver if receiver.reference is not None else Value(frozenset(("instance:0",)), reference=function.owner)
        )
        values = bound(node.args, (this, *arguments))
        values[first] = this
    known = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs)}
    values.update({name: value for name, value in keywords if name in known})
    outer = Frame(function.module, function.module.values)
    frame = Frame(function.module, values, function.closure or outer, node.name)
    defaults = dict(zip([each.arg for each in node.args.args[::-1]], node.args.defaults[::-1], strict=False))
    defaults.update(
        {each.arg: value for each, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value}
    )
    for name in known:
        if name not in values:
            meaning = names.meaning(name)
            values[name] = (
                Value(meaning) if meaning else reader.quietly(defaults[name], outer) if name in defaults else NOTHING
            )
    guard = ROOT if any(names.ROOT_DECORATORS.search(dotted(each)) for each in node.decorator_list) else ""
    reader.active.append(node)
    branches, reader.branches, loops = reader.branches, 0, reader.loops
    try:
        with reader.guarded(guard):
            reader.block(node.body, frame)
    except RecursionError:
        reader.trace.uncertain = "the script is nested too deeply to be read to its end"
    finally:
        reader.branches, reader.loops = branches, loops
        reader.active.pop()
    if not frame.returned:
        return NOTHING
    value = frame.returned[0]
    for other in frame.returned[1:]:
        value = joined(value, other)
    return value


def bound(parameters: ast.arguments, arguments: tuple[Value, ...]) -> dict[str, Value]:
    names_of = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    return dict(zip(names_of, arguments, strict=False))
