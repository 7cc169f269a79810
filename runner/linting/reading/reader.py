"""What changes while a script is read, and how its statements and expressions reach each other."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from runner.linting.reading.scope import Class, Frame, Function, Module
from runner.linting.source import Folder
from runner.linting.trace import NOTHING, Arguments, Event, Keywords, Trace, Value, union

_MOST_STEPS = 100_000


@dataclass
class Reader:
    """One reading of a script.

    Attributes:
        expressions: the function for a kind of expression, by its name in `ast`; ``statements`` likewise.
        modules: those beside the script that were read, by their dotted names.
        attributes: the last value of an attribute or text key, of whatever it was set.
        environment: environment variables that the script set.
        guards: what is known of the rank that comes here, as in ``Event``; ``loops``: the loops around this place.
        active: the functions that are being read, the outermost first; ``seen``: all that were ever read.
        classes: of the source.
        mentioned: for a class, whether its methods ask for the rank or size.
        by_name: methods that were read for a call on something unknown.
        referenced: functions and classes that the script names, of modules beside it.
        made: how many events and things there are, which gives the next its number.
        certain: as in ``Event``.
        statement: the expression that is this whole statement, so that nothing takes its result.
        branches: conditions around this statement, within its function.
    """

    folder: Folder
    expressions: Mapping[str, Evaluate]
    statements: Mapping[str, Execute]
    trace: Trace = field(default_factory=Trace)
    modules: dict[str, Module] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)
    environment: dict[str, Value] = field(default_factory=dict)
    guards: tuple[str, ...] = ()
    loops: tuple[int, ...] = ()
    active: list[ast.AST] = field(default_factory=list)
    seen: set[ast.AST] = field(default_factory=set)
    classes: list[Class] = field(default_factory=list)
    mentioned: dict[ast.AST, frozenset[str]] = field(default_factory=dict)
    by_name: set[ast.AST] = field(default_factory=set)
    referenced: dict[ast.AST, Function | Class] = field(default_factory=dict)
    steps: int = 0
    made: int = 0
    certain: bool = True
    statement: ast.AST | None = None
    branches: int = 0

    def block(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        """Read statements; what they say of the rank for those after them ends with the block."""
        with self.guarded(""):
            for statement in body:
                self.one(statement, frame)

    def one(self, node: ast.stmt, frame: Frame) -> None:
        """Read a statement."""
        if not self.spend():
            return
        execute = self.statements.get(type(node).__name__)
        if execute is not None:
            execute(self, node, frame)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child, frame)
            elif isinstance(child, ast.stmt):
                self.one(child, frame)

    def value(self, node: ast.expr | None, frame: Frame) -> Value:
        """Read an expression."""
        if node is None or not self.spend():
            return NOTHING
        evaluate = self.expressions.get(type(node).__name__)
        if evaluate is not None:
            return evaluate(self, node, frame)
        return union(self.value(child, frame) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))

    def quietly(self, node: ast.expr, frame: Frame) -> Value:
        """The value, without a second event for the calls in it."""
        events, self.trace.events = self.trace.events, []
        made, guards = self.made, self.guards
        try:
            return self.value(node, frame)
        finally:
            self.trace.events = events
            self.made, self.guards = max(made, self.made), guards

    @contextmanager
    def guarded(self, guard: str) -> Iterator[None]:
        """What is read inside is reached as the guard says; the guards before are back afterwards."""
        before = self.guards
        if guard:
            self.guards = (*before, guard)
        try:
            yield
        finally:
            self.guards = before

    def spend(self) -> bool:
        """Whether there is time left for one more step."""
        self.steps += 1
        if self.out_of_steps:
            self.trace.uncertain = "the script is too large to be read to its end"
        return not self.out_of_steps

    @property
    def out_of_steps(self) -> bool:
        """Whether as much was read as ever is."""
        return self.steps > _MOST_STEPS

    def event(
        self, name: str, node: ast.AST, frame: Frame, arguments: Arguments,
        keywords: Keywords, receiver: Value = NOTHING, discarded: bool = False,
    ) -> int:  # fmt: skip
        """Record an event; its number."""
        self.made += 1
        self.trace.events.append(
            Event(
                name,
                node,
                frame.module.source.place(getattr(node, "lineno", 1)),
                arguments,
                keywords,
                receiver,
                frozenset(self.guards),
                self.loops,
                self.made,
                self.certain,
                discarded,
                frame.function,
            )
        )
        return self.made


Evaluate = Callable[[Reader, Any, Frame], Value]
Execute = Callable[[Reader, Any, Frame], None]
