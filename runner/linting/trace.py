"""The calls of a script: from where each is reached, by which ranks, in which loops, and in which order."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from astroid import nodes

from runner.linting import names
from runner.linting.conditions import ROOT, around_in_function, guards_at
from runner.linting.resolve import Callee, Resolver, class_of, dotted
from runner.linting.values import NOTHING, Call, Given, Value

_RATES = ("visible_device_list", "lr", "learning_rate")
_ENTRIES = ("main", "run", "train", "worker", "main_worker")
_ROOT_DECORATORS = re.compile(
    r"(rank_zero_only|main_process_only|on_main_process|master_only|only_rank_?0|rank0_only)\Z"
)


@dataclass(frozen=True)
class Loop:
    """A loop, and what it goes over."""

    node: nodes.NodeNG
    over: Value


@dataclass(frozen=True, eq=False)
class Reach:
    """How a place is reached, or the body of a function or module.

    Attributes:
        guards: ``root``: only rank 0 comes here; ``not_root``; ``local_root``: one rank of each node.
        loops: those around it, the outermost first.
        order: lines, from the script's through those of the calls that lead here; events compare by it.
        certain: it is known when this runs; not so in a function that nothing is seen to call.
    """

    guards: frozenset[str] = frozenset()
    loops: tuple[Loop, ...] = ()
    order: tuple[int, ...] = ()
    certain: bool = True


@dataclass(frozen=True, eq=False)
class Event(Reach, Call):
    """One call, or one assignment to a rate (``set lr``) or an environment variable (``set env``).

    Attributes:
        discarded: the result is not used.
        place: where it is, for a person.
        function: the name of the function that it is in.
    """

    node: Any = None
    discarded: bool = False
    place: str = ""
    function: str = ""

    @property
    def text(self) -> str:
        """The source of the call."""
        return str(self.node.as_string()) if isinstance(self.node, nodes.Call) else ""


@dataclass
class Trace:
    """The events of a script, and the imported names that its classes inherit from."""

    resolver: Resolver
    events: list[Event] = field(default_factory=list)
    bases: list[str] = field(default_factory=list)
    _sites: dict[nodes.NodeNG, list[nodes.NodeNG]] = field(default_factory=lambda: defaultdict(list))
    _reached: dict[nodes.NodeNG, Reach | None] = field(default_factory=dict)

    def read(self) -> None:
        """Find the events."""
        found = [node for source in self.resolver.sources.values() for node in source.nodes() if self.resolver.spend()]
        for node in found:
            self._find_sites(node)
        for node in found:
            for callee, given in self._calls(node):
                reach = self.reach(node)
                if reach is not None:
                    self.events.append(self._event(callee, given, node, reach))
        self.events.sort(key=lambda event: event.order)

    def _event(self, callee: Callee, given: Given, node: Any, reach: Reach) -> Event:
        parent = node.parent.parent if isinstance(node.parent, nodes.Await) else node.parent
        place = self.resolver.sources[node.root()].place(node.lineno)
        return Event(
            callee.name, self.resolver.number(node), *given, callee.receiver, **vars(reach), node=node,
            discarded=isinstance(parent, nodes.Expr), place=place, function=getattr(node.frame(), "name", ""),
        )  # fmt: skip

    def _find_sites(self, node: nodes.NodeNG) -> None:
        """Note what a node calls, hands on to be called, or imports."""
        match node:
            case nodes.Call():
                callee = self.resolver.callee(node)
                handed = () if callee.function else (*node.args, *(each.value for each in node.keywords))
                functions = [callee.function, *(self.resolver.value(each).reference for each in handed)]
                for each in functions:
                    if isinstance(each, nodes.FunctionDef | nodes.Lambda):
                        self._sites[each].append(node)
            case nodes.Import() | nodes.ImportFrom():
                base = self.resolver.absolute(node) if isinstance(node, nodes.ImportFrom) else ""
                for name in (base, *(f"{base}.{name}".strip(".") for name, _ in node.names)):
                    module = self.resolver.module(name)
                    if module is not None:
                        self._sites[module].append(node)
            case nodes.ClassDef():
                self.bases += [each for each in self.resolver.ancestors(node) if isinstance(each, str)]

    def _calls(self, node: Any) -> Iterator[tuple[Callee, Given]]:
        """What a node calls or sets, with what it is given."""
        value = self.resolver.value
        match node:
            case nodes.Call():
                callee, given = self.resolver.callee(node), self.resolver.arguments(node)
                yield callee, given
                if callee.name == "os.environ.setdefault" and len(given[0]) == 2:
                    yield Callee("set env"), given
            case nodes.Name() | nodes.Attribute() if isinstance(node.parent, nodes.Decorators) and value(node).path:
                yield Callee(names.canonical(value(node).path)), ((), ())
            case nodes.AssignAttr() if node.attrname in _RATES and isinstance(node.parent, nodes.Assign):
                yield Callee(f"set {node.attrname}", value(node.expr)), ((value(node.parent.value),), ())
            case nodes.Subscript(parent=nodes.Assign(targets=[target])) if target is node:
                key, new = value(node.slice), value(node.parent.value)
                if value(node.value).path == "os.environ":
                    yield Callee("set env"), ((key, new), ())
                elif key.constant in ("lr", "learning_rate"):
                    yield Callee("set lr"), ((new,), ())

    @property
    def loops(self) -> list[Loop]:
        """The loops of all events."""
        return list({loop: None for event in self.events for loop in event.loops})

    def reach(self, node: nodes.NodeNG) -> Reach | None:
        """How a place is reached; None where nothing comes to it."""
        if node not in self._reached:
            self._reached[node] = None  # while it is looked for: a function may call itself
            self._reached[node] = self._reach(node)
        return self._reached[node]

    def _reach(self, node: nodes.NodeNG) -> Reach | None:
        around = [node, *around_in_function(node)]
        outer = self._entry(around[-1])
        if outer is None:
            return None
        loops = list(outer.loops)
        for child, each in zip(around[-2::-1], around[:0:-1], strict=True):
            if isinstance(each, nodes.For | nodes.While) and child in each.body:
                loops.append(Loop(each, self.resolver.value(each.iter) if isinstance(each, nodes.For) else NOTHING))
        order = (*outer.order, node.end_lineno or 0, node.end_col_offset or 0)  # inner calls end before outer ones
        return Reach(outer.guards | guards_at(self.resolver, node), tuple(loops), order, outer.certain)

    def _entry(self, scope: Any) -> Reach | None:
        """How the body of a function or a module is reached: by all the calls that are seen, or by none of them."""
        reached = [reach for each in self._sites.get(scope, ()) if (reach := self.reach(each)) is not None]
        if scope is next(iter(self.resolver.sources)):
            return Reach()
        certain = [each for each in reached if each.certain] or reached
        if certain:
            guards = frozenset.intersection(*(each.guards for each in certain))
            first, deepest = (
                min(each.order for each in certain),
                max(certain, key=lambda each: (len(each.loops), each.order)),
            )
            found = Reach(guards, deepest.loops, first, certain[0].certain)
        elif self._may_be_called(scope):
            found = Reach(order=(1_000_000_000,), certain=False)
        else:
            return None
        decorators = scope.decorators.nodes if getattr(scope, "decorators", None) else ()
        by_root = any(_ROOT_DECORATORS.search(dotted(each)) for each in decorators)
        return Reach(found.guards | {ROOT}, found.loops, found.order, found.certain) if by_root else found

    def _may_be_called(self, scope: Any) -> bool:
        """Whether a function may be called where that is not seen: by a framework, a table, a command line."""
        if not isinstance(scope, nodes.FunctionDef):
            return False
        owner = class_of(scope)
        if scope.root() is not next(iter(self.resolver.sources)):
            return scope in self.resolver.named or owner in self.resolver.named
        by_base = owner is not None and any(isinstance(each, str) for each in self.resolver.ancestors(owner))
        return scope.decorators is not None or scope.name in (*_ENTRIES, *self._used) or by_base

    @cached_property
    def _used(self) -> set[str]:
        return {getattr(each, "name", "") or getattr(each, "attrname", "") for each in self.resolver.references}
