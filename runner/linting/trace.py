"""The calls of a script, in the order in which they run.

Functions of the same files are followed with their arguments; a loop's body is read once; both branches of an ``if``
are read, each with what its condition says of the rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from astroid import nodes

from runner.linting import names
from runner.linting.conditions import ROOT, condition
from runner.linting.resolve import Callee, Resolver, class_of, dotted
from runner.linting.values import NOTHING, Call, Value

_MOST_DEPTH = 14
_RATES = ("visible_device_list", "lr", "learning_rate")
_ENTRIES = ("main", "run", "train", "worker", "main_worker")
_ENDS = ("sys.exit", "exit", "quit", "os._exit")
_ROOT_DECORATORS = re.compile(
    r"(rank_zero_only|main_process_only|on_main_process|master_only|only_rank_?0|rank0_only)\Z"
)


@dataclass(frozen=True)
class Loop:
    """A loop, and what it goes over."""

    node: nodes.NodeNG
    over: Value


@dataclass(frozen=True, eq=False)
class Event(Call):
    """One call, or one assignment to a rate (``set lr``) or an environment variable (``set env``).

    Attributes:
        guards: ``root``: only rank 0 comes here; ``not_root``; ``local_root``: one rank of each node.
        loops: those around it, the outermost first.
        order: its place among all events.
        certain: it is known when this runs; not so in a function that nothing is seen to call.
        discarded: the result is not used.
        place: where it is, for a person.
        function: the name of the function that it is in.
    """

    node: Any = None
    guards: frozenset[str] = frozenset()
    loops: tuple[Loop, ...] = ()
    order: int = 0
    certain: bool = True
    discarded: bool = False
    place: str = ""
    function: str = ""

    @property
    def text(self) -> str:
        """The source of the call."""
        return str(self.node.as_string()) if isinstance(self.node, nodes.Call) else ""


@dataclass
class Trace:
    """A reading of a script: its events, the imported names that classes inherit from, and the names behind them."""

    resolver: Resolver
    events: list[Event] = field(default_factory=list)
    bases: list[str] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    _guards: tuple[str, ...] = ()
    _around: tuple[Loop, ...] = ()
    _certain: bool = True
    _seen: set[nodes.NodeNG] = field(default_factory=set)
    _active: list[nodes.NodeNG] = field(default_factory=list)

    def read(self) -> None:
        """Read the script, then what nothing in it is seen to call: callbacks, entry points, a framework's methods."""
        script = next(iter(self.resolver.sources))
        self._module(script)
        self._certain = False
        classes = [each for each in script.body if isinstance(each, nodes.ClassDef)]
        methods = [each for kind in classes for each in _methods(kind)]
        left = [each for each in script.body if isinstance(each, nodes.FunctionDef)] + methods
        used = {getattr(each, "name", "") or getattr(each, "attrname", "") for each in self.resolver.references}
        for function in sorted(left, key=lambda each: each.name not in _ENTRIES):
            if function.name in used or self._may_be_called(function):
                self._rest(function)
        for named in list(self.resolver.named):
            for function in _methods(named) if isinstance(named, nodes.ClassDef) else [named]:
                self._rest(function)

    def _rest(self, function: Any) -> None:
        if function not in self._seen:
            self._follow(function)

    def _may_be_called(self, function: nodes.FunctionDef) -> bool:
        """Whether something outside may call a function that the source does not name: a framework, a command line."""
        owner = class_of(function)
        by_base = owner is not None and any(isinstance(each, str) for each in self.resolver.ancestors(owner))
        return function.decorators is not None or function.name in _ENTRIES or by_base

    def _module(self, module: nodes.Module) -> None:
        if module not in self._seen:
            self._seen.add(module)
            around, self._around = self._around, ()
            self._block(module.body)
            self._around = around

    def _follow(self, function: Any) -> None:
        """Read the body of a function where it is called, but for one that is being read."""
        if function in self._active or len(self._active) >= _MOST_DEPTH:
            return
        self._seen.add(function)
        self._active.append(function)
        decorators = function.decorators.nodes if getattr(function, "decorators", None) else ()
        around, root = self._around, any(_ROOT_DECORATORS.search(dotted(each)) for each in decorators)
        with self._where(ROOT if root else ""):
            self._block(function.body if isinstance(function.body, list) else [function.body])
        self._around = around
        self._active.pop()

    @contextmanager
    def _where(self, guard: str) -> Iterator[None]:
        """What is read inside is reached as the guard says; the guards before are back afterwards."""
        before = self._guards
        self._guards = (*before, guard) if guard else before
        yield
        self._guards = before

    def _block(self, body: Sequence[nodes.NodeNG]) -> None:
        with self._where(""):
            for statement in body:
                if self._guards:
                    self.resolver.guards[statement] = frozenset(self._guards)
                if self.resolver.spend():
                    self._statement(statement)

    def _statement(self, node: Any) -> None:
        match node:
            case nodes.FunctionDef():
                for each in node.decorators.nodes if node.decorators else ():
                    self._expression(each)
                    path = names.canonical(self.resolver.value(each).path)
                    if path and not isinstance(each, nodes.Call):
                        self._event(Callee(path), each)
            case nodes.ClassDef():
                self.bases += [each for each in self.resolver.ancestors(node) if isinstance(each, str)]
            case nodes.If():
                self._if(node)
            case nodes.For() | nodes.While():
                self._loop(node)
            case nodes.Import() | nodes.ImportFrom():
                base = self.resolver.absolute(node) if isinstance(node, nodes.ImportFrom) else ""
                for name in (base, *(f"{base}.{name}".strip(".") for name, _ in node.names)):
                    module = self.resolver.module(name)
                    if module is not None:
                        self._module(module)
            case nodes.Assign() | nodes.AugAssign() | nodes.AnnAssign():
                self._expression(node.value)
                for target in node.targets if isinstance(node, nodes.Assign) else [node.target]:
                    self._set(target, node)
            case _:
                blocks = [getattr(node, name, []) for name in ("body", "handlers", "cases", "orelse", "finalbody")]
                inner = {each for block in blocks for each in block}
                for child in node.get_children():
                    if child not in inner:
                        self._expression(child)
                for block in blocks:
                    self._block(block)

    def _if(self, node: nodes.If) -> None:
        self._expression(node.test)
        inside, outside = condition(self.resolver, node.test)
        with self._where(inside):
            self._block(node.body)
        with self._where(outside):
            self._block(node.orelse)
        if _leaves(node.body) and outside:  # for what comes after it in its block
            self._guards = (*self._guards, outside)
        elif _leaves(node.orelse) and inside:
            self._guards = (*self._guards, inside)

    def _loop(self, node: nodes.For | nodes.While) -> None:
        is_for = isinstance(node, nodes.For)
        self._expression(node.iter if is_for else node.test)
        loop = Loop(node, self.resolver.value(node.iter) if is_for else NOTHING)
        self.loops.append(loop)
        around, self._around = self._around, (*self._around, loop)
        with self._where("" if is_for else condition(self.resolver, node.test)[0]):
            self._block(node.body)
        self._around = around
        self._block(node.orelse)

    def _set(self, target: Any, node: Any) -> None:
        value = self.resolver.value(node.value)
        if isinstance(target, nodes.AssignAttr) and target.attrname in _RATES:
            receiver = self.resolver.value(target.expr)
            self._event(Callee(f"set {target.attrname}", receiver), target, ((value,), ()))
        elif isinstance(target, nodes.Subscript):
            key = self.resolver.value(target.slice)
            if self.resolver.value(target.value).path == "os.environ":
                self._event(Callee("set env"), target, ((key, value), ()))
            elif key.constant in ("lr", "learning_rate"):
                self._event(Callee("set lr"), target, ((value,), ()))

    def _expression(self, node: Any) -> None:
        """The calls of an expression, inner ones first."""
        if node is None or not self.resolver.spend():
            return
        if isinstance(node, nodes.BoolOp | nodes.IfExp):
            parts = node.values if isinstance(node, nodes.BoolOp) else [node.test, node.body]
            with self._where(""):
                for each in parts:
                    self._expression(each)
                    inside, outside = condition(self.resolver, each)
                    guard = outside if getattr(node, "op", "") == "or" else inside
                    self._guards = (*self._guards, guard) if guard else self._guards
            if isinstance(node, nodes.IfExp):
                with self._where(condition(self.resolver, node.test)[1]):
                    self._expression(node.orelse)
            return
        generators = getattr(node, "generators", [])
        for child in (*generators, *(each for each in node.get_children() if each not in generators)):
            self._expression(child)
        if isinstance(node, nodes.Call):
            self._call(node)

    def _call(self, node: nodes.Call) -> None:
        callee = self.resolver.callee(node)
        event = self._event(callee, node, self.resolver.arguments(node))
        if callee.name == "os.environ.setdefault" and len(event.arguments) == 2:
            self._event(Callee("set env"), node, (event.arguments, ()))
        if callee.function is not None:
            self._follow(callee.function)
        for value in event.values if callee.function is None else ():
            if isinstance(value.reference, nodes.FunctionDef) and (value.reference not in self._seen):
                self._follow(value.reference)

    def _event(self, callee: Callee, node: Any, given: Any = ((), ())) -> Event:
        arguments, keywords = given
        parent = node.parent.parent if isinstance(node.parent, nodes.Await) else node.parent
        place = self.resolver.sources[node.root()].place(node.lineno)
        event = Event(
            callee.name, self.resolver.number(node), arguments, keywords, callee.receiver, node,
            frozenset(self._guards), self._around, len(self.events), self._certain, isinstance(parent, nodes.Expr),
            place, getattr(node.frame(), "name", ""),
        )  # fmt: skip
        self.events.append(event)
        return event


def _methods(kind: nodes.ClassDef) -> list[Any]:
    found = [each for each in kind.body if isinstance(each, nodes.FunctionDef)]
    return sorted(found, key=lambda each: each.name != "__init__")


def _leaves(body: Sequence[Any]) -> bool:
    """Whether a block always ends what is around it."""
    last = body[-1] if body else None
    if isinstance(last, nodes.Expr) and isinstance(last.value, nodes.Call):
        return dotted(last.value.func) in _ENDS
    return isinstance(last, nodes.Return | nodes.Continue | nodes.Break | nodes.Raise)
