"""A class of the source becomes an instance."""

from __future__ import annotations

import ast

from runner.linting import names
from runner.linting.reading.functions import call_function
from runner.linting.reading.outside import external
from runner.linting.reading.reader import Reader
from runner.linting.reading.scope import Class, Frame, Function, ancestors
from runner.linting.trace import NOTHING, Arguments, Keywords, Value, union


def instance(
    reader: Reader, kind: Class, arguments: Arguments, keywords: Keywords,
    node: ast.Call, frame: Frame,
) -> Value:  # fmt: skip
    """Read ``__init__``; the instance, with what it was given and what its class asks for."""
    reader.made += 1
    tags = {f"instance:{reader.made}"} | set(_mentions(reader, kind))
    base = " ".join(names.canonical(each.path) for each in ancestors(kind))
    if any(word in base for word in ("Module", "Model", "keras.layers")):
        tags.add(f"model:{reader.made}")
    if "Sampler" in base or "Sampler" in kind.node.name:
        tags.add(f"sampler:{reader.made}" if tags & {names.RANK} else f"plainsampler:{reader.made}")
    this = Value(frozenset(tags), reference=kind)
    reader.event(f"new {kind.node.name}", node, frame, arguments, keywords, this)
    init = kind.method("__init__")
    if init is not None:
        call_function(reader, init, arguments, keywords, this)
    inherited = union((*arguments, *(value for _, value in keywords))).tags
    by_rank = (names.RANK, names.SIZE) if init is None or _uses_its_arguments(kind, init) else ()
    things = {tag for tag in inherited if ":" in tag or tag in by_rank}
    for each in ancestors(kind):
        if each.path.endswith("DataLoader"):
            made = external(reader, "torch.utils.data.DataLoader", node, frame, arguments, keywords, NOTHING, False)
            tags |= made.tags
    return Value(frozenset(tags | things), reference=kind)


def _mentions(reader: Reader, kind: Class) -> frozenset[str]:
    """Whether the methods of a class ask for the rank or size."""
    if kind.node in reader.mentioned:
        return reader.mentioned[kind.node]
    reader.mentioned[kind.node] = frozenset()  # while it is looked for: a method may make another instance
    found: set[str] = set()
    frame = Frame(kind.module, {}, None)
    for node in ast.walk(kind.node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            path = names.canonical(reader.quietly(node.func, frame).path)
            found |= names.CALLS.get(path, frozenset()) & {names.RANK, names.SIZE}
    reader.mentioned[kind.node] = frozenset(found)
    return reader.mentioned[kind.node]


def _uses_its_arguments(kind: Class, init: Function) -> bool:
    """Whether anything but a plain ``self.name = name`` uses an argument of ``__init__`` that is a rank or size."""
    assert isinstance(init.node, ast.FunctionDef | ast.AsyncFunctionDef)
    kept: set[str] = set()
    plain: set[ast.AST] = set()
    for node in ast.walk(init.node):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                pairs = list(zip(target.elts, value.elts, strict=True))
            else:
                pairs = [(target, value)]
        for target, value in pairs:
            if isinstance(target, ast.Attribute) and isinstance(value, ast.Name) and names.meaning(value.id):
                kept.add(target.attr)
                plain.add(value)
    parameters = {each.arg for each in (*init.node.args.args, *init.node.args.kwonlyargs)}
    by_rank = {name for name in parameters if names.meaning(name)}
    if not by_rank and not kept:
        return True
    for node in ast.walk(kind.node):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in kept:
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in by_rank and node not in plain:
            return True
    return not kept
