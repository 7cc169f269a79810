"""Reads a script in the order in which it runs, and follows what depends on rank and size.

Calls of functions of the same files are followed with their arguments; a loop's body is read once; both branches of an
``if`` are read, each with what its condition says of the rank. Nothing is run or imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from runner.linting import names
from runner.linting.results import Call, result_of
from runner.linting.source import Folder, Source
from runner.linting.trace import ITSELF, NOTHING, SCALARS, Event, Loop, Trace, Value, text_of, union

_MOST_STEPS = 100_000
_MOST_DEPTH = 14
_ENTRIES = ("main", "run", "train", "worker", "main_worker")
_ROOT, _NOT_ROOT, _LOCAL = "root", "not_root", "local_root"
_FLAGS = {"is_root": _ROOT, "not_root": _NOT_ROOT, "is_local_root": _LOCAL}
_OPPOSITE = {_ROOT: _NOT_ROOT, _NOT_ROOT: _ROOT, _LOCAL: "", "": ""}


@dataclass
class Module:
    """The names of one file."""

    source: Source
    values: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Function:
    """A function of the source; ``owner``: the instance's class for a method."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    module: Module
    owner: Class | None = None
    closure: Frame | None = None

    @property
    def name(self) -> str:
        """Its name; empty for a lambda."""
        return "" if isinstance(self.node, ast.Lambda) else self.node.name

    @property
    def decorators(self) -> tuple[str, ...]:
        """Their dotted names."""
        return () if isinstance(self.node, ast.Lambda) else tuple(_dotted(each) for each in self.node.decorator_list)

    @property
    def is_property(self) -> bool:
        """Whether it is read as an attribute."""
        return any(each.rpartition(".")[2] in ("property", "cached_property") for each in self.decorators)


@dataclass(frozen=True)
class Class:
    """A class of the source."""

    node: ast.ClassDef
    module: Module
    bases: tuple[Value, ...]

    def methods(self) -> Iterator[Function]:
        """Its own methods, ``__init__`` first."""
        nodes = [node for node in self.node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in sorted(nodes, key=lambda node: node.name != "__init__"):
            yield Function(node, self.module, self)

    def method(self, name: str) -> Function | None:
        """The method of that name, its own or of a base in the source."""
        for node in self.node.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return Function(node, self.module, self)
        for base in self.bases:
            if isinstance(base.reference, Class) and base.reference is not self:
                found = base.reference.method(name)
                if found:
                    return found
        return None


@dataclass
class Frame:
    """The variables of a call, or of a module."""

    module: Module
    values: dict[str, Value]
    above: Frame | None = None
    function: str = ""
    returned: list[Value] = field(default_factory=list)


def read(script: Source, folder: Folder) -> Trace:
    """The trace of a script.

    Raises:
        RecursionError: the source is nested too deeply.
    """
    reader = _Reader(folder)
    reader.run(script)
    return reader.trace


class _Reader:
    def __init__(self, folder: Folder) -> None:
        self.trace = Trace()
        self._folder = folder
        self._modules: dict[str, Module] = {}
        self._attributes: dict[str, Value] = {}
        self._environment: dict[str, Value] = {}
        self._guards: tuple[str, ...] = ()
        self._loops: tuple[int, ...] = ()
        self._active: list[ast.AST] = []
        self._seen: set[ast.AST] = set()
        self._classes: list[Class] = []
        self._mentioned: dict[ast.AST, frozenset[str]] = {}
        self._by_name: set[ast.AST] = set()  # methods that were read for a call on something unknown
        self._referenced: dict[ast.AST, Function | Class] = {}  # of modules beside the script
        self._steps = 0
        self._made = 0
        self._certain = True
        self._statement: ast.AST | None = None
        self._branches = 0  # conditions around this statement, within its function

    def run(self, script: Source) -> None:
        module = Module(script)
        frame = Frame(module, module.values)
        self._block(script.tree.body, frame)
        self._read_the_rest(module, frame)
        if self._folder.unread and not self.trace.uncertain:
            self.trace.uncertain = f"{self._folder.unread[0]} could not be read"

    def _read_the_rest(self, module: Module, frame: Frame) -> None:
        """What nothing is seen to call: callbacks, entry points, methods that a framework or a table calls."""
        self._certain = False
        here = [node for node in module.source.tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        left = [Function(node, module, None, frame) for node in here]
        kinds = [value.reference for value in module.values.values() if isinstance(value.reference, Class)]
        left += [each for kind in kinds if kind.module is module for each in kind.methods()]
        left.sort(key=lambda each: each.name not in _ENTRIES)
        used = _names_in(module.source.tree)
        for function in left:
            if function.node not in self._seen and (function.name in used or _may_be_called(function)):
                self._call_function(function, (), (), NOTHING)
        for reference in list(self._referenced.values()):
            for function in [reference] if isinstance(reference, Function) else list(reference.methods()):
                if function.node not in self._seen:
                    self._call_function(function, (), (), NOTHING)

    # Statements

    def _block(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        with self._guarded(""):
            for statement in body:
                self._one(statement, frame)
                if isinstance(statement, ast.If):
                    inside, outside = self._test(statement.test, frame)
                    if _leaves(statement.body) and outside:
                        self._guards = (*self._guards, outside)
                    elif statement.orelse and _leaves(statement.orelse) and inside:
                        self._guards = (*self._guards, inside)

    @contextmanager
    def _guarded(self, guard: str) -> Any:
        before = self._guards
        if guard:
            self._guards = (*before, guard)
        try:
            yield
        finally:
            self._guards = before

    def _spend(self) -> bool:
        """Whether there is time left for one more step."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            self.trace.uncertain = "the script is too large to be read to its end"
        return self._steps <= _MOST_STEPS

    def _one(self, node: ast.stmt, frame: Frame) -> None:
        if not self._spend():
            return
        method = getattr(self, f"_do_{type(node).__name__}", None)
        if method is not None:
            method(node, frame)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._value(child, frame)
            elif isinstance(child, ast.stmt):
                self._one(child, frame)

    def _do_Import(self, node: ast.Import, frame: Frame) -> None:
        for alias in node.names:
            self.trace.imports.add(alias.name)
            top = alias.name if alias.asname else alias.name.partition(".")[0]
            frame.values[alias.asname or top] = self._imported(top)
            if top != alias.name:
                self._imported(alias.name)

    def _do_ImportFrom(self, node: ast.ImportFrom, frame: Frame) -> None:
        base = node.module or ""
        if node.level:
            here = frame.module.source.name.removesuffix(".py").removesuffix("/__init__")
            above = (
                here.split("/")[: -node.level] if frame.module.source.name.endswith("/__init__.py") is False else [here]
            )
            base = ".".join(part for part in (*above, base) if part)
        elif base:
            self.trace.imports.add(base)
        for alias in node.names:
            if alias.name == "*":
                module = self._module(base)
                frame.values.update(module.values if module else _star(base))
                continue
            if not node.level:
                self.trace.imports.add(f"{base}.{alias.name}")
            module = self._module(base)
            value = module.values.get(alias.name) if module else None
            self._refer(value)
            frame.values[alias.asname or alias.name] = value or self._imported(f"{base}.{alias.name}".strip("."))

    def _refer(self, value: Value | None) -> None:
        """A function or class of a module beside the script is named: it may be called where that is not seen."""
        if value is not None and isinstance(value.reference, Function | Class):
            self._referenced[value.reference.node] = value.reference

    def _imported(self, path: str) -> Value:
        self.trace.names.add(names.canonical(path))
        return Value(path=path, reference=self._module(path))

    def _module(self, name: str) -> Module | None:
        """The module of that name beside the script, read when it is first imported."""
        if not name or name in self._modules:
            return self._modules.get(name)
        source = self._folder.module(name)
        if source is None:
            return None
        module = self._modules[name] = Module(source)
        with self._guarded(""):
            loops, self._loops = self._loops, ()
            self._block(source.tree.body, Frame(module, module.values))
            self._loops = loops
        return module

    def _do_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> None:
        for decorator in node.decorator_list:
            value = self._value(decorator, frame)
            if value.path and not isinstance(decorator, ast.Call):
                self._event(names.canonical(value.path), decorator, frame, (), ())
        for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each)):
            self._value(default, frame)
        frame.values[node.name] = Value(reference=Function(node, frame.module, None, frame))

    _do_AsyncFunctionDef = _do_FunctionDef

    def _do_ClassDef(self, node: ast.ClassDef, frame: Frame) -> None:
        bases = tuple(self._value(base, frame) for base in node.bases)
        for base in bases:
            if base.path:
                self._event(f"class {names.canonical(base.path)}", node, frame, (), ())
        kind = Class(node, frame.module, bases)
        self._classes.append(kind)
        frame.values[node.name] = Value(reference=kind)

    def _do_Return(self, node: ast.Return, frame: Frame) -> None:
        frame.returned.append(self._value(node.value, frame) if node.value else NOTHING)

    def _do_Expr(self, node: ast.Expr, frame: Frame) -> None:
        self._statement = node.value.value if isinstance(node.value, ast.Await) else node.value
        value = self._value(node.value, frame)
        if isinstance(node.value, ast.Yield):
            frame.returned.append(value)

    def _do_If(self, node: ast.If, frame: Frame) -> None:
        self._value(node.test, frame)
        inside, outside = self._test(node.test, frame)
        always = ast.unparse(node.test).startswith("__name__ ==")
        self._branches += not always
        with self._guarded(inside):
            self._block(node.body, frame)
        with self._guarded(outside):
            self._block(node.orelse, frame)
        self._branches -= not always

    def _do_For(self, node: ast.For | ast.AsyncFor, frame: Frame) -> None:
        over = self._value(node.iter, frame)
        self._made += 1
        number = self._made
        self.trace.loops[number] = Loop(number, over, self._loops)
        before = self._loops
        self._loops = (*before, number)
        self._assign(node.target, Value(over.tags - ITSELF), frame)
        self._block(node.body, frame)
        self._loops = before
        self._block(node.orelse, frame)

    _do_AsyncFor = _do_For

    def _do_While(self, node: ast.While, frame: Frame) -> None:
        self._value(node.test, frame)
        self._made += 1
        self.trace.loops[self._made] = Loop(self._made, NOTHING, self._loops)
        before = self._loops
        self._loops = (*before, self._made)
        inside, _ = self._test(node.test, frame)
        with self._guarded(inside):
            self._block(node.body, frame)
        self._loops = before
        self._block(node.orelse, frame)

    def _do_With(self, node: ast.With | ast.AsyncWith, frame: Frame) -> None:
        for item in node.items:
            value = self._value(item.context_expr, frame)
            if item.optional_vars:
                self._assign(item.optional_vars, value, frame)
        self._block(node.body, frame)

    _do_AsyncWith = _do_With

    def _do_Try(self, node: ast.Try, frame: Frame) -> None:
        for body in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
            self._block(body, frame)

    _do_TryStar = _do_Try

    def _do_Match(self, node: ast.Match, frame: Frame) -> None:
        self._value(node.subject, frame)
        for case in node.cases:
            self._block(case.body, frame)

    def _do_Assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self._value(node.value, frame)
        for target in node.targets:
            self._assign(target, value, frame)

    def _do_AnnAssign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self._assign(node.target, self._value(node.value, frame), frame)

    def _do_AugAssign(self, node: ast.AugAssign, frame: Frame) -> None:
        before, after = self._value(node.target, frame), self._value(node.value, frame)
        self._assign(node.target, _combined(node.op, before, after), frame)

    def _do_Delete(self, node: ast.Delete, frame: Frame) -> None:
        pass

    _do_Global = _do_Nonlocal = _do_Pass = _do_Break = _do_Continue = _do_Delete

    def _assign(self, target: ast.expr, value: Value, frame: Frame) -> None:
        if value == NOTHING and isinstance(target, ast.Name | ast.Attribute):
            name = target.id if isinstance(target, ast.Name) else target.attr
            value = Value(names.meaning(name))
        if isinstance(target, ast.Name):
            old = frame.values.get(target.id)
            if _ROOT in self._guards and (old is None or old.constant in (None, False)) and not value.has("is_root"):
                value = replace(value, tags=value.tags | {"root_only"})
            if old is not None and (self._guards or self._branches):
                value = _joined(old, value)
            frame.values[target.id] = value
        elif isinstance(target, ast.Attribute):
            self._value(target.value, frame)
            path = _dotted(target)
            old = self._attributes.get(target.attr)
            if _ROOT in self._guards and (old is None or old.constant in (None, False)) and not value.has("is_root"):
                value = replace(value, tags=value.tags | {"root_only"})
            frame.values[path] = value
            self._attributes[target.attr] = value
            if target.attr in ("visible_device_list", "lr", "learning_rate"):
                receiver = self._value(target.value, frame)
                self._event(f"set {target.attr}", target, frame, (value,), (), receiver)
        elif isinstance(target, ast.Subscript):
            base, key = self._value(target.value, frame), self._value(target.slice, frame)
            if base.path == "os.environ" and isinstance(key.constant, str):
                self._environment[key.constant] = value
                self._event("set env", target, frame, (key, value), ())
            elif key.constant in ("lr", "learning_rate"):
                self._event("set lr", target, frame, (value,), (), base)
            if isinstance(key.constant, str):
                self._attributes[key.constant] = value
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
                self._assign(each, by_place.get(place, whole), frame)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, replace(value, items=()), frame)

    # Expressions

    def _value(self, node: ast.expr | None, frame: Frame) -> Value:
        if node is None or not self._spend():
            return NOTHING
        method = getattr(self, f"_eval_{type(node).__name__}", None)
        if method is not None:
            value = method(node, frame)
            assert isinstance(value, Value)
            return value
        return union(self._value(child, frame) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))

    def _eval_Constant(self, node: ast.Constant, _frame: Frame) -> Value:
        if isinstance(node.value, str):
            if len(node.value) < 200:
                self.trace.texts.add(node.value)
            if node.value.lower().startswith(("cuda:", "/gpu:", "gpu:", "/device:gpu:")) and node.value[-1:].isdigit():
                return Value(frozenset(("gpu0",)), constant=node.value)
        return Value(constant=node.value)

    def _eval_Name(self, node: ast.Name, frame: Frame) -> Value:
        looked: Frame | None = frame
        while looked is not None:
            if node.id in looked.values:
                return looked.values[node.id]
            looked = looked.above
        if node.id in frame.module.values:
            return frame.module.values[node.id]
        if node.id in (
            "print",
            "open",
            "range",
            "enumerate",
            "zip",
            "len",
            "int",
            "float",
            "str",
            "min",
            "max",
            "getattr",
        ):
            return Value(path=f"builtins.{node.id}")
        return Value(names.meaning(node.id))

    def _eval_Attribute(self, node: ast.Attribute, frame: Frame) -> Value:
        path = _dotted(node)
        if path and path in frame.values:
            return frame.values[path]
        base = self._value(node.value, frame)
        if isinstance(base.reference, Module):
            inner = base.reference.values.get(node.attr)
            self._refer(inner)
            return inner if inner is not None else self._imported(f"{base.path}.{node.attr}")
        if base.path:
            return self._imported(f"{base.path}.{node.attr}")
        if isinstance(base.reference, Class):
            method = base.reference.method(node.attr)
            if method is not None and not base.numbered("instance"):
                return Value(reference=method)
            if method is not None and method.is_property:
                return self._call_function(method, (), (), base)
        if node.attr in self._attributes and not base.has("wrapped_model"):
            return self._attributes[node.attr]
        tags = base.tags - SCALARS
        if node.attr in ("state_dict", "parameters", "module", "sampler", "dataset"):
            return replace(base, tags=tags, constant=..., items=())
        return Value(tags | names.meaning(node.attr))

    def _eval_Subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        base, key = self._value(node.value, frame), self._value(node.slice, frame)
        if base.path == "os.environ":
            return self._variable(key)
        for held, value in base.items:
            if key.constant is not ... and held == key.constant and type(held) is type(key.constant):
                return value
        if isinstance(key.constant, str):
            if key.constant in self._attributes:
                return self._attributes[key.constant]
            return Value((base.tags - SCALARS) | names.meaning(key.constant))
        fixed = isinstance(key.constant, int)
        return Value((base.tags | key.tags) - ITSELF | ({"fixed"} if fixed else frozenset()))

    def _eval_Tuple(self, node: ast.Tuple | ast.List, frame: Frame) -> Value:
        values = [self._value(each, frame) for each in node.elts]
        if not values:
            return Value(constant=())
        return replace(union(values), items=tuple(enumerate(values)) if len(values) <= 16 else ())

    _eval_List = _eval_Tuple

    def _eval_Dict(self, node: ast.Dict, frame: Frame) -> Value:
        keys = [self._value(key, frame) if key else NOTHING for key in node.keys]
        values = [self._value(each, frame) for each in node.values]
        pairs = [
            (key.constant, value) for key, value in zip(keys, values, strict=True) if isinstance(key.constant, str)
        ]
        return replace(union(values), items=tuple(pairs))

    def _eval_JoinedStr(self, node: ast.JoinedStr, frame: Frame) -> Value:
        head = node.values[0].value if node.values and isinstance(node.values[0], ast.Constant) else ""
        inner = union(self._value(each.value, frame) for each in node.values if isinstance(each, ast.FormattedValue))
        for each in node.values:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                self.trace.texts.add(each.value[:200])
        if isinstance(head, str) and head.lower().endswith(("cuda:", "gpu:")):
            return Value(inner.tags)
        before = node.values[-2] if len(node.values) == 3 else None
        if isinstance(before, ast.Constant) and before.value == ":":
            return Value(inner.tags)  # a device: f"{kind}:{number}"
        return text_of(inner)

    def _eval_BinOp(self, node: ast.BinOp, frame: Frame) -> Value:
        left, right = self._value(node.left, frame), self._value(node.right, frame)
        return _combined(node.op, left, right)

    def _eval_Compare(self, node: ast.Compare, frame: Frame) -> Value:
        for each in (node.left, *node.comparators):
            self._value(each, frame)
        return self._flag(node, frame)

    def _eval_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Value:
        values = []
        with self._guarded(""):
            for each in node.values:
                values.append(self._value(each, frame))
                inside, outside = self._test(each, frame)
                guard = inside if isinstance(node.op, ast.And) else outside
                if guard:
                    self._guards = (*self._guards, guard)
        flag = self._flag(node, frame)
        return flag if flag.tags else union(values)

    def _eval_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Value:
        value = self._value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            return self._flag(node, frame)
        if isinstance(value.constant, int | float) and isinstance(node.op, ast.USub):
            return Value(constant=-value.constant)
        return Value(value.tags)

    def _flag(self, node: ast.expr, frame: Frame) -> Value:
        inside, _ = self._test(node, frame)
        tag = next((tag for tag, guard in _FLAGS.items() if guard == inside), "")
        return Value(frozenset((tag,)) if tag else frozenset())

    def _eval_IfExp(self, node: ast.IfExp, frame: Frame) -> Value:
        self._value(node.test, frame)
        inside, outside = self._test(node.test, frame)
        with self._guarded(inside):
            then = self._value(node.body, frame)
        with self._guarded(outside):
            other = self._value(node.orelse, frame)
        whole = replace(_joined(then, other), constant=...)
        empty = (None, False, 0, "")
        if (inside == _ROOT and other.constant in empty) or (inside == _NOT_ROOT and then.constant in empty):
            return replace(whole, tags=whole.tags | {"root_only"})
        if inside == _ROOT and isinstance(node.orelse, ast.List | ast.Tuple) and not node.orelse.elts:
            return replace(whole, tags=whole.tags | {"root_only"})
        return whole

    def _eval_NamedExpr(self, node: ast.NamedExpr, frame: Frame) -> Value:
        value = self._value(node.value, frame)
        self._assign(node.target, value, frame)
        return value

    def _eval_Lambda(self, node: ast.Lambda, frame: Frame) -> Value:
        inner = Frame(frame.module, {}, frame, frame.function)
        for argument in (*node.args.args, *node.args.kwonlyargs):
            inner.values[argument.arg] = NOTHING
        return Value(self._value(node.body, inner).tags, reference=Function(node, frame.module, None, frame))

    def _eval_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame) -> Value:
        inner = Frame(frame.module, {}, frame, frame.function, frame.returned)
        over = []
        guards = self._guards
        for each in node.generators:
            value = self._value(each.iter, inner)
            over.append(value)
            self._assign(each.target, Value(value.tags - ITSELF), inner)
            over += [self._value(test, inner) for test in each.ifs]
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        value = union([*over, *(self._value(each, inner) for each in results)])
        self._guards = guards
        return value

    _eval_SetComp = _eval_GeneratorExp = _eval_DictComp = _eval_ListComp

    def _eval_Starred(self, node: ast.Starred, frame: Frame) -> Value:
        return replace(self._value(node.value, frame), items=())

    def _eval_Await(self, node: ast.Await, frame: Frame) -> Value:
        return self._value(node.value, frame)

    # Conditions

    def _test(self, node: ast.expr, frame: Frame) -> tuple[str, str]:
        """What holds of the rank where a condition is true, and where it is false."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inside, outside = self._test(node.operand, frame)
            return outside, inside
        if isinstance(node, ast.BoolOp):
            tests = [self._test(each, frame) for each in node.values]
            then = [test[0] for test in tests if test[0]]
            otherwise = [test[1] for test in tests if test[1]]
            if isinstance(node.op, ast.And):
                every = len(then) == len(tests)
                return (then[0] if then else ""), (otherwise[0] if every and otherwise else "")
            # "or": meant for the root where one of them names it (`not distributed or rank == 0`).
            root = _ROOT if _ROOT in then else _LOCAL if _LOCAL in then else ""
            return root, (otherwise[0] if otherwise else "")
        if isinstance(node, ast.Compare):
            return self._comparison(node, frame) if len(node.ops) == 1 else ("", "")
        quiet = self._quietly(node, frame)
        for tag, guard in _FLAGS.items():
            if quiet.has(tag):
                return guard, _OPPOSITE[guard]
        if quiet.has(names.RANK) and quiet.has(names.EXACT):
            return _NOT_ROOT, _ROOT
        if quiet.has("root_only") and isinstance(node, ast.Name | ast.Attribute):
            return _ROOT, ""
        return "", ""

    def _comparison(self, node: ast.Compare, frame: Frame) -> tuple[str, str]:
        left, right = self._quietly(node.left, frame), self._quietly(node.comparators[0], frame)
        operator = node.ops[0]
        if left.constant is not ... and right.constant is ...:
            left, right = right, left
            operator = {ast.Lt: ast.Gt(), ast.Gt: ast.Lt()}.get(type(operator), operator)
        if left.has("root_only") and right.constant is None:
            if isinstance(operator, ast.IsNot | ast.NotEq):
                return _ROOT, ""
            return "", _ROOT
        ranks = left.has(names.RANK), left.has(names.LOCAL_RANK)
        if not any(ranks) or not left.has(names.EXACT):
            if left.has("is_root") and right.constant is True:
                return _ROOT, _NOT_ROOT
            return "", ""
        guard = _ROOT if ranks[0] else _LOCAL
        zero = right.constant == 0 and right.constant is not False
        among = [value.constant for _, value in right.items]
        if (zero and isinstance(operator, ast.Eq | ast.Is | ast.LtE)) or (
            right.constant == 1 and isinstance(operator, ast.Lt)
        ):
            return guard, _OPPOSITE[guard]
        if zero and isinstance(operator, ast.NotEq | ast.IsNot | ast.Gt):
            return _OPPOSITE[guard], guard
        if isinstance(operator, ast.In) and 0 in among:
            return guard, _OPPOSITE[guard]
        if isinstance(operator, ast.NotIn) and 0 in among:
            return _OPPOSITE[guard], guard
        if isinstance(operator, ast.Eq) and isinstance(right.constant, int):
            return guard, ""  # one rank, if another one
        if isinstance(operator, ast.Eq) and right.constant is ... and ranks[0]:
            return guard, _OPPOSITE[guard]  # rank == root_rank
        if isinstance(operator, ast.NotEq) and right.constant is ... and ranks[0]:
            return _OPPOSITE[guard], guard
        return "", ""

    def _quietly(self, node: ast.expr, frame: Frame) -> Value:
        """The value, without a second event for the calls in it."""
        events, self.trace.events = self.trace.events, []
        made, guards = self._made, self._guards
        try:
            return self._value(node, frame)
        finally:
            self.trace.events = events
            self._made, self._guards = max(made, self._made), guards

    # Calls

    def _eval_Call(self, node: ast.Call, frame: Frame) -> Value:
        discarded = self._statement is node
        self._statement = None
        callee = self._value(node.func, frame)
        receiver = NOTHING
        if isinstance(node.func, ast.Attribute) and not callee.path:
            receiver = self._value(node.func.value, frame)
        arguments = tuple(self._value(each, frame) for each in node.args)
        keywords = tuple((each.arg or "", self._value(each.value, frame)) for each in node.keywords)
        path = names.canonical(callee.path)
        if isinstance(callee.reference, Function) and not path:
            return self._local(callee.reference, arguments, keywords, receiver, node, frame)
        if isinstance(callee.reference, Class) and not callee.numbered("instance"):
            return self._instance(callee.reference, arguments, keywords, node, frame)
        if isinstance(callee.reference, Class):
            owner = callee.reference
            for name in ("__call__", "forward", "call"):
                method = owner.method(name)
                if method is not None:
                    self._event(f".{name}", node, frame, arguments, keywords, callee)
                    return self._call_function(method, arguments, keywords, callee)
        if isinstance(node.func, ast.Attribute) and not path:
            if isinstance(receiver.reference, Class):
                method = receiver.reference.method(node.func.attr)
                if method is not None:
                    return self._local(method, arguments, keywords, receiver, node, frame)
            path = f".{node.func.attr}"
            self._call_by_name(node.func.attr, receiver, arguments, keywords)
        elif not path:
            path = f"?{node.func.id}" if isinstance(node.func, ast.Name) else "?"
            receiver = callee
        return self._external(path, node, frame, arguments, keywords, receiver, discarded)

    def _call_by_name(
        self, name: str, receiver: Value, arguments: tuple[Value, ...], keywords: tuple[tuple[str, Value], ...]
    ) -> None:
        """A method of something unknown, whose telling name only classes of the source have."""
        if receiver.reference is not None or "_" not in name.strip("_") or len(name) < 10:
            return
        for kind in self._classes:
            method = kind.method(name)
            if method is not None and method.node not in self._active and method.node not in self._by_name:
                self._by_name.add(method.node)
                self._call_function(method, arguments, keywords, NOTHING)

    def _local(
        self, function: Function, arguments: tuple[Value, ...], keywords: tuple[tuple[str, Value], ...],
        receiver: Value, node: ast.Call, frame: Frame,
    ) -> Value:  # fmt: skip
        name = function.node.name if not isinstance(function.node, ast.Lambda) else "lambda"
        self._event(f"local {name}", node, frame, arguments, keywords, receiver)
        return self._call_function(function, arguments, keywords, receiver)

    def _instance(
        self, kind: Class, arguments: tuple[Value, ...], keywords: tuple[tuple[str, Value], ...],
        node: ast.Call, frame: Frame,
    ) -> Value:  # fmt: skip
        self._made += 1
        tags = {f"instance:{self._made}"} | set(self._mentions(kind))
        base = " ".join(names.canonical(each.path) for each in _ancestors(kind))
        if any(word in base for word in ("Module", "Model", "keras.layers")):
            tags.add(f"model:{self._made}")
        if "Sampler" in base or "Sampler" in kind.node.name:
            tags.add(f"sampler:{self._made}" if tags & {names.RANK} else f"plainsampler:{self._made}")
        instance = Value(frozenset(tags), reference=kind)
        self._event(f"new {kind.node.name}", node, frame, arguments, keywords, instance)
        init = kind.method("__init__")
        if init is not None:
            self._call_function(init, arguments, keywords, instance)
        inherited = union((*arguments, *(value for _, value in keywords))).tags
        by_rank = (names.RANK, names.SIZE) if init is None or _uses_its_arguments(kind, init) else ()
        things = {tag for tag in inherited if ":" in tag or tag in by_rank}
        for each in _ancestors(kind):
            if each.path.endswith("DataLoader"):
                made = self._external("torch.utils.data.DataLoader", node, frame, arguments, keywords, NOTHING, False)
                tags |= made.tags
        return Value(frozenset(tags | things), reference=kind)

    def _mentions(self, kind: Class) -> frozenset[str]:
        """Whether the methods of a class ask for the rank or size."""
        if kind.node in self._mentioned:
            return self._mentioned[kind.node]
        self._mentioned[kind.node] = frozenset()  # while it is looked for: a method may make another instance
        found: set[str] = set()
        frame = Frame(kind.module, {}, None)
        for node in ast.walk(kind.node):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                path = names.canonical(self._quietly(node.func, frame).path)
                found |= names.CALLS.get(path, frozenset()) & {names.RANK, names.SIZE}
        self._mentioned[kind.node] = frozenset(found)
        return self._mentioned[kind.node]

    def _call_function(
        self, function: Function, arguments: tuple[Value, ...], keywords: tuple[tuple[str, Value], ...], receiver: Value
    ) -> Value:
        node = function.node
        self._seen.add(node)
        if isinstance(node, ast.Lambda):
            return self._value(node.body, Frame(function.module, _bound(node.args, arguments), function.closure))
        if node in self._active or len(self._active) >= _MOST_DEPTH or self._steps > _MOST_STEPS:
            return NOTHING
        values = _bound(node.args, arguments)
        first = node.args.args[0].arg if node.args.args else ""
        if function.owner is not None and not _is_static(node):
            this = (
                receiver
                if receiver.reference is not None
                else Value(frozenset(("instance:0",)), reference=function.owner)
            )
            values = _bound(node.args, (this, *arguments))
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
                    Value(meaning) if meaning else self._quietly(defaults[name], outer) if name in defaults else NOTHING
                )
        guard = _ROOT if any(names.ROOT_DECORATORS.search(_dotted(each)) for each in node.decorator_list) else ""
        self._active.append(node)
        branches, self._branches, loops = self._branches, 0, self._loops
        try:
            with self._guarded(guard):
                self._block(node.body, frame)
        except RecursionError:
            self.trace.uncertain = "the script is nested too deeply to be read to its end"
        finally:
            self._branches, self._loops = branches, loops
            self._active.pop()
        if not frame.returned:
            return NOTHING
        value = frame.returned[0]
        for other in frame.returned[1:]:
            value = _joined(value, other)
        return value

    def _variable(self, key: Value, default: Value = NOTHING) -> Value:
        if isinstance(key.constant, str):
            if key.constant in names.VARIABLES:
                return Value(frozenset((names.VARIABLES[key.constant], names.EXACT)))
            if key.constant in self._environment:
                return self._environment[key.constant]
        return Value(default.tags)

    def _external(
        self, path: str, node: ast.Call, frame: Frame, arguments: tuple[Value, ...],
        keywords: tuple[tuple[str, Value], ...], receiver: Value, discarded: bool,
    ) -> Value:  # fmt: skip
        """A call of what the source does not have: its event, and what is known of its result."""
        if path in ("os.getenv", "os.environ.get", "os.environ.pop", "os.environ.setdefault") and arguments:
            if path.endswith("setdefault") and len(arguments) == 2:
                self._event("set env", node, frame, arguments, ())
            return self._variable(arguments[0], arguments[1] if len(arguments) > 1 else NOTHING)
        number = self._event(path, node, frame, arguments, keywords, receiver, discarded)
        self._call_back(path, arguments, keywords)
        if path == "builtins.getattr" and len(arguments) > 1:
            return self._attribute_by_name(arguments)
        if path == "functools.partial" and arguments:
            rest = union((*arguments[1:], *(value for _, value in keywords)))
            return replace(arguments[0], tags=arguments[0].tags | rest.tags)
        call = Call(path, number, arguments, keywords, receiver)
        if call.last in ("DistributedDataParallel", "FullyShardedDataParallel"):
            self._mark_raw(node, frame, number)
        if call.last in ("append", "extend", "update", "add", "insert") and isinstance(node.func, ast.Attribute):
            self._add_to(node.func.value, call, frame)
        return result_of(call)

    def _attribute_by_name(self, arguments: tuple[Value, ...]) -> Value:
        """``getattr(thing, name, default)``."""
        name = arguments[1].constant
        if arguments[0].path:
            return self._imported(f"{arguments[0].path}.{name if isinstance(name, str) else 'Any'}")
        if isinstance(name, str):
            return self._attributes.get(name) or Value(names.meaning(name))
        return NOTHING

    def _add_to(self, held: ast.expr, call: Call, frame: Frame) -> None:
        """A list or its like takes what is added to it."""
        name = held.id if isinstance(held, ast.Name) else _dotted(held)
        if name in frame.values:
            old = frame.values[name]
            added = frozenset(tag for tag in call.tags if tag not in ("root_only", "is_root"))
            frame.values[name] = Value(old.tags | added, old.path, reference=old.reference)

    def _mark_raw(self, node: ast.Call, frame: Frame, number: int) -> None:
        """The name of a model that is wrapped under another name stands for the one without synchronisation."""
        if node.args and isinstance(node.args[0], ast.Name) and node.args[0].id in frame.values:
            held = frame.values[node.args[0].id]
            frame.values[node.args[0].id] = replace(held, tags=held.tags | {f"raw:{number}"})

    def _call_back(self, path: str, arguments: tuple[Value, ...], keywords: tuple[tuple[str, Value], ...]) -> None:
        """Functions that are passed to others are called by them."""
        for value in (*arguments, *(value for _, value in keywords)):
            if isinstance(value.reference, Function) and not isinstance(value.reference.node, ast.Lambda):
                if value.reference.node in self._seen and path.rpartition(".")[2] != "spawn":
                    continue
                given: tuple[Value, ...] = ()
                if path.rpartition(".")[2] == "spawn":
                    rest = next(
                        (value for name, value in keywords if name == "args"),
                        arguments[1] if len(arguments) > 1 else NOTHING,
                    )
                    given = (
                        Value(frozenset((names.RANK, names.LOCAL_RANK, names.EXACT))),
                        *(value for _, value in rest.items),
                    )
                self._call_function(value.reference, given, (), NOTHING)

    def _event(
        self, name: str, node: ast.AST, frame: Frame, arguments: tuple[Value, ...],
        keywords: tuple[tuple[str, Value], ...], receiver: Value = NOTHING, discarded: bool = False,
    ) -> int:  # fmt: skip
        self._made += 1
        self.trace.events.append(
            Event(
                name,
                node,
                frame.module.source.place(getattr(node, "lineno", 1)),
                arguments,
                keywords,
                receiver,
                frozenset(self._guards),
                self._loops,
                self._made,
                self._certain,
                discarded,
                frame.function,
            )
        )
        return self._made


def _names_in(tree: ast.Module) -> frozenset[str]:
    """Names and attributes that are read somewhere."""
    return frozenset(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


def _may_be_called(function: Function) -> bool:
    """Whether something outside may call a function that the source does not name: a framework, a command line."""
    if function.decorators or function.name in _ENTRIES:
        return True
    return function.owner is not None and any(base.path for base in _ancestors(function.owner))


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


def _ancestors(kind: Class) -> Iterable[Value]:
    for base in kind.bases:
        yield base
        if isinstance(base.reference, Class) and base.reference is not kind:
            yield from _ancestors(base.reference)


def _star(base: str) -> dict[str, Value]:
    if names.canonical(f"{base}.x") != "hvd.x":
        return {}
    known = (
        *("init", "rank", "size", "local_rank", "local_size", "DistributedOptimizer", "DistributedGradientTape"),
        *("allreduce", "broadcast_parameters", "broadcast_optimizer_state", "broadcast_variables"),
    )
    return {name: Value(path=f"{base}.{name}") for name in known}


def _is_static(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)


def _bound(parameters: ast.arguments, arguments: tuple[Value, ...]) -> dict[str, Value]:
    names_of = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    return dict(zip(names_of, arguments, strict=False))


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether a block always ends what is around it."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return _dotted(last.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    return isinstance(last, ast.Return | ast.Continue | ast.Break | ast.Raise)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute | ast.Call):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        else:
            node = node.func
    return ".".join([node.id, *parts[::-1]]) if isinstance(node, ast.Name) else ""


def _joined(one: Value, other: Value) -> Value:
    """What is known of a value that is one of two."""
    tags = one.tags | other.tags
    items: tuple[tuple[Any, Value], ...] = ()
    if one.items and [key for key, _ in one.items] == [key for key, _ in other.items]:
        items = tuple((key, _joined(value, dict(other.items)[key])) for key, value in one.items)
    elif not one.items or not other.items:
        items = one.items or other.items
    return Value(
        tags,
        one.path or other.path,
        one.constant if one.constant == other.constant else ...,
        one.reference if one.reference is not None else other.reference,
        items,
    )


def _combined(operator: ast.operator, left: Value, right: Value) -> Value:
    if isinstance(left.constant, str) or isinstance(right.constant, str):
        if isinstance(operator, ast.Mod):
            return text_of(replace(right, tags=right.tags | left.tags))
        if isinstance(left.constant, str) and left.constant.lower().endswith(("cuda:", "gpu:")):
            return Value(right.tags)
        return text_of(union((left, right)))
    tags = (left.tags | right.tags) - ITSELF
    by_rank = left.has(names.EXACT) or (left.has(names.RANK) and right.has(names.LOCAL_SIZE))
    is_local = right.has(names.LOCAL_RANK) and right.has(names.EXACT)
    if isinstance(operator, ast.Add) and is_local and left.constant is ...:
        return Value(frozenset((names.RANK, names.EXACT)))  # the node's first rank and the local rank
    if isinstance(operator, ast.Mod) and by_rank and not right.has(names.SIZE):
        return Value(frozenset((names.LOCAL_RANK, names.EXACT)))  # the rank by the GPUs of a node
    if isinstance(operator, ast.Div | ast.FloorDiv) and right.has(names.SIZE):
        tags |= {"over_size"}
        if left.has("over_size") or left.has(names.SIZE):
            tags -= {"over_size"}
    if isinstance(operator, ast.Mult) and left.has("over_size") and right.has(names.SIZE):
        tags -= {"over_size"}
    return Value(tags)
