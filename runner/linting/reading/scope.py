"""What a name of a script can stand for: modules, functions, classes, and the variables of a call."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from runner.linting.reading.syntax import dotted
from runner.linting.source import Source
from runner.linting.trace import Arguments, Value


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
        return () if isinstance(self.node, ast.Lambda) else tuple(dotted(each) for each in self.node.decorator_list)

    @property
    def is_property(self) -> bool:
        """Whether it is read as an attribute."""
        return any(each.rpartition(".")[2] in ("property", "cached_property") for each in self.decorators)


@dataclass(frozen=True)
class Class:
    """A class of the source."""

    node: ast.ClassDef
    module: Module
    bases: Arguments

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
    """The variables of a call, or of a module; ``of_module``: those that it declares ``global``."""

    module: Module
    values: dict[str, Value]
    above: Frame | None = None
    function: str = ""
    returned: list[Value] = field(default_factory=list)
    of_module: set[str] = field(default_factory=set)

    def bind(self, name: str, value: Value) -> None:
        """Give a name its value, in the module too where ``global`` says so."""
        self.values[name] = value
        if name in self.of_module:
            self.module.values[name] = value


def ancestors(kind: Class) -> Iterable[Value]:
    """The bases of a class, and theirs."""
    for base in kind.bases:
        yield base
        if isinstance(base.reference, Class) and base.reference is not kind:
            yield from ancestors(base.reference)
