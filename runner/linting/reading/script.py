"""From a script and the modules beside it to the trace of its calls."""

from __future__ import annotations

import ast

from runner.linting.reading.expressions import EXPRESSIONS
from runner.linting.reading.functions import call_function
from runner.linting.reading.reader import Reader
from runner.linting.reading.scope import Class, Frame, Function, Module, ancestors
from runner.linting.reading.statements import STATEMENTS
from runner.linting.reading.syntax import names_read_in
from runner.linting.source import Folder, Source
from runner.linting.trace import NOTHING, Trace

_ENTRIES = ("main", "run", "train", "worker", "main_worker")


def read(script: Source, folder: Folder) -> Trace:
    """The trace of a script.

    Raises:
        RecursionError: the source is nested too deeply.
    """
    reader = Reader(folder, EXPRESSIONS, STATEMENTS)
    module = Module(script)
    frame = Frame(module, module.values)
    reader.block(script.tree.body, frame)
    _read_the_rest(reader, module, frame)
    if reader.folder.unread and not reader.trace.uncertain:
        reader.trace.uncertain = f"{reader.folder.unread[0]} could not be read"
    return reader.trace


def _read_the_rest(reader: Reader, module: Module, frame: Frame) -> None:
    """What nothing is seen to call: callbacks, entry points, methods that a framework or a table calls."""
    reader.certain = False
    here = [node for node in module.source.tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    left = [Function(node, module, None, frame) for node in here]
    kinds = [value.reference for value in module.values.values() if isinstance(value.reference, Class)]
    left += [each for kind in kinds if kind.module is module for each in kind.methods()]
    left.sort(key=lambda each: each.name not in _ENTRIES)
    used = names_read_in(module.source.tree)
    for function in left:
        if function.node not in reader.seen and (function.name in used or _may_be_called(function)):
            call_function(reader, function, (), (), NOTHING)
    for reference in list(reader.referenced.values()):
        for function in [reference] if isinstance(reference, Function) else list(reference.methods()):
            if function.node not in reader.seen:
                call_function(reader, function, (), (), NOTHING)


def _may_be_called(function: Function) -> bool:
    """Whether something outside may call a function that the source does not name: a framework, a command line."""
    if function.decorators or function.name in _ENTRIES:
        return True
    return function.owner is not None and any(base.path for base in ancestors(function.owner))
