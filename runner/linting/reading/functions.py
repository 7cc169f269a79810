"""A call of a function of the source: its body is read with the arguments of the call."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import reduce

from runner.linting import names
from runner.linting.reading.conditions import ROOT
from runner.linting.reading.merging import dictionary, joined
from runner.linting.reading.reader import Reader
from runner.linting.reading.scope import Frame, Function
from runner.linting.reading.syntax import dotted, is_static
from runner.linting.trace import NOTHING, Arguments, Keywords, Value, union

_MOST_DEPTH = 14


def call_function(
    reader: Reader, function: Function, arguments: Arguments, keywords: Keywords, receiver: Value
) -> Value:
    """Read the body of a function; what it returns. ``receiver``: what a method belongs to."""
    node = function.node
    reader.seen.add(node)
    if isinstance(node, ast.Lambda):
        return reader.value(node.body, Frame(function.module, _by_place(node.args, arguments), function.closure))
    if node in reader.active or len(reader.active) >= _MOST_DEPTH or reader.out_of_steps:
        return NOTHING
    outer = Frame(function.module, function.module.values)
    values = _given(node, function, arguments, keywords, receiver)
    frame = Frame(function.module, values, function.closure or outer, node.name)
    defaults = _defaults(node.args)
    for name in _parameters(node.args):
        if name not in values:
            meaning = names.meaning(name)
            values[name] = (
                Value(meaning) if meaning else reader.quietly(defaults[name], outer) if name in defaults else NOTHING
            )
    _read_body(reader, node, frame)
    return reduce(joined, frame.returned) if frame.returned else NOTHING


def _read_body(reader: Reader, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> None:
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


def _given(
    node: ast.FunctionDef | ast.AsyncFunctionDef, function: Function, arguments: Arguments, keywords: Keywords,
    receiver: Value,
) -> dict[str, Value]:  # fmt: skip
    """The parameters that the call gives a value, by name; the instance of a method is the first."""
    values, this = _by_place(node.args, arguments), None
    if function.owner is not None and not is_static(node):
        unknown = Value(frozenset(("instance:0",)), reference=function.owner)
        this = receiver if receiver.reference is not None else unknown
        values = _by_place(node.args, (this, *arguments))
        values[node.args.args[0].arg if node.args.args else ""] = this
    known = _parameters(node.args)
    values.update({name: value for name, value in keywords if name in known})
    taken = len(node.args.posonlyargs) + len(node.args.args)
    if node.args.vararg is not None:
        rest = ((this, *arguments) if this is not None else arguments)[taken:]
        values[node.args.vararg.arg] = replace(union(rest), items=tuple(enumerate(rest)))
    if node.args.kwarg is not None:
        others = [(name or None, value) for name, value in keywords if name not in known]
        values[node.args.kwarg.arg] = dictionary(others)
    return values


def _by_place(parameters: ast.arguments, arguments: Arguments) -> dict[str, Value]:
    names_of = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    return dict(zip(names_of, arguments, strict=False))


def _parameters(parameters: ast.arguments) -> set[str]:
    return {each.arg for each in (*parameters.args, *parameters.kwonlyargs, *parameters.posonlyargs)}


def _defaults(parameters: ast.arguments) -> dict[str, ast.expr]:
    by_place = zip([each.arg for each in parameters.args[::-1]], parameters.defaults[::-1], strict=False)
    by_name = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
    return {**dict(by_place), **{each.arg: value for each, value in by_name if value}}
