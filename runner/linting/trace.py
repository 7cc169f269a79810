"""What a reading of a script leaves: its calls, in the order in which they run, and what is known of arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Value:
    """What is known of an expression.

    Attributes:
        tags: ``rank``, ``local_rank``, ``size``, ``local_size``: it depends on them; ``exact``: it is that rank, not
            only made with it; ``by_rank_in_text``: a text that depends on it; ``fixed``: it is one element of a list;
            ``over_size``: it was divided by the size; ``is_root``, ``not_root``, ``is_local_root``: it is true there;
            ``root_only``: it is None, or not set, elsewhere; ``gpu0``: it names one fixed GPU;
            ``in_memory``: a buffer, no file; ``wrapped``; ``count``: a range of numbers; ``one_of``: it is one of its
            items; ``all_keys``: a dictionary that has no other keys than its items; and things that were made, with a
            number each: ``loader:3``, ``sampler:2``, ``optimizer:5``, ``model:1``.
        path: dotted name of what was imported, ``torch.optim.SGD``; empty for anything else.
        constant: of a literal; ``...`` for no literal.
        reference: a function or class of the source, with what it belongs to.
        items: of a tuple or a dictionary, by place or key.
    """

    tags: frozenset[str] = frozenset()
    path: str = ""
    constant: Any = ...
    reference: Any = None
    items: tuple[tuple[Any, Value], ...] = ()

    def numbered(self, kind: str) -> frozenset[str]:
        """The things of a kind that it is, or was made from."""
        return frozenset(tag for tag in self.tags if tag.startswith(f"{kind}:"))

    def has(self, *tags: str) -> bool:
        """Whether it has any of these tags."""
        return not self.tags.isdisjoint(tags)


NOTHING = Value()
# Of a call: in their order, and by name; an empty name stands for ``**keywords``.
Arguments = tuple[Value, ...]
Keywords = tuple[tuple[str, Value], ...]
# What is true of a value itself, and not of what is made with it.
ITSELF = frozenset(("exact", "root_only", "fixed", "one_of", "all_keys"))
# What a thing does not have because its owner has it.
SCALARS = ITSELF | frozenset(
    ("rank", "local_rank", "size", "local_size", "cross_rank", "is_root", "not_root", "is_local_root", "over_size",
     "by_rank_in_text", "gpu0", "count")
)  # fmt: skip


def union(values: Iterable[Value]) -> Value:
    """What is known of a value that is made from others."""
    return Value(frozenset[str]().union(*(value.tags for value in values)) - ITSELF)


def text_of(value: Value) -> Value:
    """A text that a value is written into."""
    by_rank = value.has("rank", "local_rank", "by_rank_in_text")
    return Value(value.tags - SCALARS | ({"by_rank_in_text"} if by_rank else frozenset()))


@dataclass(frozen=True)
class Event:
    """One call, or one assignment to a rate (``name`` ``set lr``) or an environment variable (``set env``).

    Attributes:
        name: dotted name of what is called, where it was imported; ``.step`` for a method of a value.
        receiver: what a method belongs to.
        guards: ``root``: only rank 0 comes here; ``not_root``; ``local_root``: one rank of each node.
        loops: numbers of the loops around it, the outermost first.
        certain: it is known when this runs; not so in a function that nothing is seen to call.
        discarded: the result is not used.
        place: where it is, for a person.
        function: the name of the function that it is in.
        made: the number that what it made carries in its tags.
    """

    name: str
    node: ast.AST
    place: str
    arguments: Arguments = ()
    keywords: Keywords = ()
    receiver: Value = NOTHING
    guards: frozenset[str] = frozenset()
    loops: tuple[int, ...] = ()
    number: int = 0
    certain: bool = True
    discarded: bool = False
    function: str = ""

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    def argument(self, place: int | None, *names: str) -> Value | None:
        """The argument of a name or place; None where it is not given."""
        for name, value in self.keywords:
            if name in names:
                return value
        return self.arguments[place] if place is not None and place < len(self.arguments) else None

    @property
    def values(self) -> tuple[Value, ...]:
        """All arguments."""
        return (*self.arguments, *(value for _, value in self.keywords))

    @property
    def tags(self) -> frozenset[str]:
        """The tags of all arguments."""
        return frozenset().union(*(value.tags for value in self.values))

    @property
    def has_unknown_arguments(self) -> bool:
        """Whether it takes ``*arguments`` or ``**keywords`` that are not known."""
        return any(not name for name, _ in self.keywords)


@dataclass(frozen=True)
class Loop:
    """A loop: what it goes over, and the loops around it."""

    number: int
    over: Value
    around: tuple[int, ...]


@dataclass
class Trace:
    """Everything that a reading leaves.

    Attributes:
        imports: dotted names of what the files import.
        uncertain: why something may be missing here that the script has; empty if nothing is.
        names: what the script names of what it imports, as `canonical` spells it.
        texts: string literals of the script.
    """

    events: list[Event] = field(default_factory=list)
    loops: dict[int, Loop] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    uncertain: str = ""

    def calls(self, match: Callable[[Event], bool]) -> list[Event]:
        """The events that match, in order."""
        return [event for event in self.events if match(event)]

    def by_name(self, *names: str) -> list[Event]:
        """The events with one of these names: ``hvd.init``, ``.step``, or ``*.DataLoader`` for a last part."""
        return list(self._by_name(names))

    def _by_name(self, names: Iterable[str]) -> Iterator[Event]:
        wanted = set(names)
        for event in self.events:
            if event.name in wanted or f"*.{event.last}" in wanted:
                yield event

    def imported(self, *packages: str) -> bool:
        """Whether one of these packages, or a module below it, is imported."""
        return any(name == package or name.startswith(f"{package}.") for name in self.imports for package in packages)
