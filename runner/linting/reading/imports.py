"""Names that are imported, and modules beside the script, read when they are first imported."""

from __future__ import annotations

import ast

from runner.linting import names
from runner.linting.reading.reader import Reader
from runner.linting.reading.scope import Class, Frame, Function, Module
from runner.linting.trace import Value


def import_names(reader: Reader, node: ast.Import, frame: Frame) -> None:
    """``import a.b as c``."""
    for alias in node.names:
        reader.trace.imports.add(alias.name)
        top = alias.name if alias.asname else alias.name.partition(".")[0]
        frame.bind(alias.asname or top, imported(reader, top))
        if top != alias.name:
            imported(reader, alias.name)


def import_from(reader: Reader, node: ast.ImportFrom, frame: Frame) -> None:
    """``from a import b``, ``from . import b``, ``from a import *``."""
    base = _absolute(frame.module.source.name, node.level, node.module or "")
    if base and not node.level:
        reader.trace.imports.add(base)
    for alias in node.names:
        if alias.name == "*":
            module = _module(reader, base)
            frame.values.update(module.values if module else _star(base))
            continue
        if not node.level:
            reader.trace.imports.add(f"{base}.{alias.name}")
        module = _module(reader, base)
        value = module.values.get(alias.name) if module else None
        refer(reader, value)
        frame.bind(alias.asname or alias.name, value or imported(reader, f"{base}.{alias.name}".strip(".")))


def _absolute(file: str, level: int, name: str) -> str:
    """The dotted name of what a file imports by a name with that many dots before it."""
    if not level:
        return name
    here = file.removesuffix(".py").split("/")
    return ".".join(part for part in (*here[:-level], name) if part)


def refer(reader: Reader, value: Value | None) -> None:
    """A function or class of a module beside the script is named: it may be called where that is not seen."""
    if value is not None and isinstance(value.reference, Function | Class):
        reader.referenced[value.reference.node] = value.reference


def imported(reader: Reader, path: str) -> Value:
    """A name outside this file; the module beside the script, where it is one."""
    reader.trace.names.add(names.canonical(path))
    return Value(path=path, reference=_module(reader, path))


def _module(reader: Reader, name: str) -> Module | None:
    """The module of that name beside the script, read when it is first imported."""
    if not name or name in reader.modules:
        return reader.modules.get(name)
    source = reader.folder.module(name)
    if source is None:
        return None
    module = reader.modules[name] = Module(source)
    with reader.guarded(""):
        loops, reader.loops = reader.loops, ()
        reader.block(source.tree.body, Frame(module, module.values))
        reader.loops = loops
    return module


def _star(base: str) -> dict[str, Value]:
    if names.canonical(f"{base}.x") != "hvd.x":
        return {}
    known = (
        *("init", "rank", "size", "local_rank", "local_size", "DistributedOptimizer", "DistributedGradientTape"),
        *("allreduce", "broadcast_parameters", "broadcast_optimizer_state", "broadcast_variables"),
    )
    return {name: Value(path=f"{base}.{name}") for name in known}
