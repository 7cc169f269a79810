"""Statements: one function for each kind."""

from __future__ import annotations

import ast

from runner.linting import names
from runner.linting.reading.assignments import assign
from runner.linting.reading.conditions import guards_of
from runner.linting.reading.imports import import_from, import_names
from runner.linting.reading.merging import combined, element_of
from runner.linting.reading.reader import Execute, Reader
from runner.linting.reading.scope import Class, Frame, Function
from runner.linting.reading.syntax import leaves
from runner.linting.trace import NOTHING, Loop, Value


def _function(reader: Reader, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> None:
    for decorator in node.decorator_list:
        value = reader.value(decorator, frame)
        if value.path and not isinstance(decorator, ast.Call):
            reader.event(names.canonical(value.path), decorator, frame, (), ())
    for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each)):
        reader.value(default, frame)
    frame.values[node.name] = Value(reference=Function(node, frame.module, None, frame))


def _class(reader: Reader, node: ast.ClassDef, frame: Frame) -> None:
    bases = tuple(reader.value(base, frame) for base in node.bases)
    for base in bases:
        if base.path:
            reader.event(f"class {names.canonical(base.path)}", node, frame, (), ())
    kind = Class(node, frame.module, bases)
    reader.classes.append(kind)
    frame.values[node.name] = Value(reference=kind)


def _return(reader: Reader, node: ast.Return, frame: Frame) -> None:
    frame.returned.append(reader.value(node.value, frame) if node.value else NOTHING)


def _expression(reader: Reader, node: ast.Expr, frame: Frame) -> None:
    reader.statement = node.value.value if isinstance(node.value, ast.Await) else node.value
    value = reader.value(node.value, frame)
    if isinstance(node.value, ast.Yield):
        frame.returned.append(value)


def _if(reader: Reader, node: ast.If, frame: Frame) -> None:
    reader.value(node.test, frame)
    inside, outside = guards_of(reader, node.test, frame)
    always = ast.unparse(node.test).startswith("__name__ ==")
    reader.branches += not always
    with reader.guarded(inside):
        reader.block(node.body, frame)
    with reader.guarded(outside):
        reader.block(node.orelse, frame)
    reader.branches -= not always
    inside, outside = guards_of(reader, node.test, frame)  # for what comes after it in its block
    if leaves(node.body) and outside:
        reader.guards = (*reader.guards, outside)
    elif node.orelse and leaves(node.orelse) and inside:
        reader.guards = (*reader.guards, inside)


def _for(reader: Reader, node: ast.For | ast.AsyncFor, frame: Frame) -> None:
    over = reader.value(node.iter, frame)
    reader.made += 1
    number = reader.made
    reader.trace.loops[number] = Loop(number, over, reader.loops)
    before = reader.loops
    reader.loops = (*before, number)
    assign(reader, node.target, element_of(over), frame)
    reader.block(node.body, frame)
    reader.loops = before
    reader.block(node.orelse, frame)


def _while(reader: Reader, node: ast.While, frame: Frame) -> None:
    reader.value(node.test, frame)
    reader.made += 1
    reader.trace.loops[reader.made] = Loop(reader.made, NOTHING, reader.loops)
    before = reader.loops
    reader.loops = (*before, reader.made)
    inside, _ = guards_of(reader, node.test, frame)
    with reader.guarded(inside):
        reader.block(node.body, frame)
    reader.loops = before
    reader.block(node.orelse, frame)


def _with(reader: Reader, node: ast.With | ast.AsyncWith, frame: Frame) -> None:
    for item in node.items:
        value = reader.value(item.context_expr, frame)
        if item.optional_vars:
            assign(reader, item.optional_vars, value, frame)
    reader.block(node.body, frame)


def _try(reader: Reader, node: ast.Try, frame: Frame) -> None:
    reader.block(node.body, frame)
    imported = {name: value for name, value in frame.values.items() if value.path}
    reader.branches += 1
    for handler in node.handlers:
        reader.block(handler.body, frame)
    reader.branches -= 1
    frame.values.update(imported)  # not what stands in for a package where it is missing
    for body in (node.orelse, node.finalbody):
        reader.block(body, frame)


def _match(reader: Reader, node: ast.Match, frame: Frame) -> None:
    reader.value(node.subject, frame)
    for case in node.cases:
        reader.block(case.body, frame)


def _assignment(reader: Reader, node: ast.Assign, frame: Frame) -> None:
    value = reader.value(node.value, frame)
    for target in node.targets:
        assign(reader, target, value, frame)


def _annotated(reader: Reader, node: ast.AnnAssign, frame: Frame) -> None:
    if node.value is not None:
        assign(reader, node.target, reader.value(node.value, frame), frame)


def _augmented(reader: Reader, node: ast.AugAssign, frame: Frame) -> None:
    before, after = reader.value(node.target, frame), reader.value(node.value, frame)
    assign(reader, node.target, combined(node.op, before, after), frame)


def _global(_reader: Reader, node: ast.Global, frame: Frame) -> None:
    frame.of_module.update(node.names)


def _nothing(reader: Reader, node: ast.Delete, frame: Frame) -> None:
    pass


# By the name of the kind in `ast`, where not every Python has all of them; of any other kind its parts are read.
STATEMENTS: dict[str, Execute] = {
    "Import": import_names,
    "ImportFrom": import_from,
    "FunctionDef": _function,
    "AsyncFunctionDef": _function,
    "ClassDef": _class,
    "Return": _return,
    "Expr": _expression,
    "If": _if,
    "For": _for,
    "AsyncFor": _for,
    "While": _while,
    "With": _with,
    "AsyncWith": _with,
    "Try": _try,
    "TryStar": _try,
    "Match": _match,
    "Assign": _assignment,
    "AnnAssign": _annotated,
    "AugAssign": _augmented,
    "Delete": _nothing,
    "Global": _global,
    "Nonlocal": _nothing,
    "Pass": _nothing,
    "Break": _nothing,
    "Continue": _nothing,
}
