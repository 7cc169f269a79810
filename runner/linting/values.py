"""What is known of a value, of what is made with it, and of what a call of a framework returns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from astroid import nodes

from runner.linting.frameworks import matches, meaning

_DEVICE = re.compile(r"(cuda|gpu):(%\w|\{[^}]*\})?\Z", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Value:
    """What is known of an expression.

    Attributes:
        tags: ``rank``, ``local_rank``, ``size``, ``local_size``: it depends on them; ``exact``: it is that rank, not
            only made with it; ``by_rank_in_text``: a text that depends on it; ``over_size``: it was divided by the
            size; what it says of the rank as a condition (conditions.py); ``root_only``: it is None, or not set, on
            other ranks; ``fixed``: one element of a list, or one GPU by its name; ``in_memory``: a buffer; ``count``: a
            range of numbers; ``wrapped``: by Horovod; ``instance``: of a class of the source; and things, with the
            call that made them: ``loader:3``, ``sampler:2``, ``model:1``, ``optimizer:5``, ``ddp:4``.
        what: the dotted name of what was imported, ``torch.optim.SGD``; or a function, class or module of the source.
        constants: the literals that it may be.
        items: of a tuple, by place.
    """

    tags: frozenset[str] = frozenset()
    what: Any = None
    constants: frozenset[Any] = frozenset()
    items: tuple[Value, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is known of it."""
        return bool(self.tags or self.what or self.constants or self.items)

    @property
    def path(self) -> str:
        """The dotted name of what was imported; empty for anything else."""
        return self.what if isinstance(self.what, str) else ""

    @property
    def constant(self) -> Any:
        """The literal that it is; ``...`` for no literal, or one of several."""
        return next(iter(self.constants)) if len(self.constants) == 1 else ...

    def things(self, *kinds: str) -> frozenset[str]:
        """The things of these kinds (of all, where none is given) that it is, or was made from."""
        return frozenset(tag for tag in self.tags if ":" in tag and (not kinds or tag.partition(":")[0] in kinds))

    def has(self, *tags: str) -> bool:
        """Whether it has any of these tags."""
        return not self.tags.isdisjoint(tags)


NOTHING = Value()
# What is true of a value itself, and not of what is made with it; and what a thing does not have as its owner has it.
_ITSELF = frozenset(("exact", "root_only", "fixed", "instance"))
CONDITIONS = frozenset(("root", "not_root", "local_root", "else_root", "else_not_root", "else_local_root"))
SCALARS = _ITSELF | CONDITIONS | {"rank", "local_rank", "size", "local_size", "over_size", "by_rank_in_text", "count"}


def tagged(*tags: str) -> Value:
    """A value of which nothing else is known."""
    return Value(frozenset(tags))


def union(values: Iterable[Value]) -> Value:
    """What is known of a value that is made from others."""
    tags = frozenset[str]().union(*(value.tags for value in values)) - _ITSELF
    return Value(frozenset(tag for tag in tags if not tag.startswith("object:")))


def either(values: Iterable[Value]) -> Value:
    """What is known of a value that is one of several; its literals are known where all of them are."""
    every = tuple(values)
    literals = [each.constants for each in every]
    items = [each.items for each in every if each.items]
    return Value(
        frozenset[str]().union(*(each.tags for each in every)),
        next((each.what for each in every if each.what), None),
        frozenset[Any]().union(*literals) if all(literals) else frozenset(),
        items[0] if len(items) == 1 else (),
    )


def text_of(value: Value, into: Any = "") -> Value:
    """A text that a value is written into; of a device's name, ``cuda:{}``, the number alone matters."""
    tags = union((value,)).tags
    if isinstance(into, str) and _DEVICE.search(into):
        return Value(tags)
    by_rank = value.has("rank", "local_rank", "by_rank_in_text")
    return Value(tags - SCALARS | ({"by_rank_in_text"} if by_rank else set()))


def combined(operator: str, left: Value, right: Value) -> Value:
    """What is known of ``left operator right``."""
    tags = union((left, right)).tags
    if any(isinstance(each.constant, str) for each in (left, right)):
        return text_of(Value(tags), left.constant)
    if operator == "+" and {"local_rank", "exact"} <= right.tags and not left.constants:
        return tagged("rank", "exact")  # the node's first rank and the local rank
    by_node = left.has("rank") and (left.has("exact") or right.has("local_size"))
    if operator == "%" and by_node and not right.has("size"):
        return tagged("local_rank", "exact")  # the rank by the GPUs of a node
    if right.has("size") and operator in ("/", "//", "*"):
        divided = operator != "*" and not left.has("over_size", "size") and not right.has("over_size")
        tags = tags | {"over_size"} if divided else tags - {"over_size"}
    return Value(tags)


@dataclass(frozen=True, eq=False, kw_only=True)
class Reach:
    """How a place is reached.

    Attributes:
        guards: ``root``: only rank 0 comes here; ``not_root``; ``local_root``: one rank of each node.
        loops: those around it, the outermost first.
        order: lines, from the script's through those of the calls that lead here; calls compare by it.
        certain: it is known when this runs; not so in a function that nothing is seen to call.
    """

    guards: frozenset[str] = frozenset()
    loops: tuple[nodes.NodeNG, ...] = ()
    order: tuple[int, ...] = ()
    certain: bool = True


@dataclass(frozen=True, eq=False)
class Call(Reach):
    """A call, or an assignment to a rate (``set.lr``) or environment variable (``set.env``) as one.

    Attributes:
        name: dotted name of what was imported; ``.step`` for a method of a value, ``local f`` for a function of the
            source, ``new C`` for a class of it, ``?f`` for what is unknown.
        receiver: what a method belongs to.
        function: that can be followed; ``kind``: the class of the source that it makes an instance of.
        keywords: what is given by name; an empty name stands for ``**keywords`` that are not known.
        place: where it is, for a person.
    """

    name: str
    node: Any
    receiver: Value = NOTHING
    function: Any = None
    kind: Any = None
    arguments: tuple[Value, ...] = ()
    keywords: Mapping[str, Value] = field(default_factory=dict)
    place: str = ""

    @cached_property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    def means(self, *rows: str) -> bool:
        """Whether it is of one of these rows of ``calls``."""
        return any(matches(row, self.name) for row in rows)

    def thing(self, kind: str) -> str:
        """What its result carries in its tags."""
        return f"{kind}:{id(self.node)}"

    @property
    def values(self) -> tuple[Value, ...]:
        """All arguments."""
        return (*self.arguments, *self.keywords.values())

    @property
    def discarded(self) -> bool:
        """Whether the result is not used."""
        parent = self.node.parent
        return isinstance(parent.parent if isinstance(parent, nodes.Await) else parent, nodes.Expr)

    @property
    def text(self) -> str:
        """The source of the call."""
        return str(self.node.as_string()) if isinstance(self.node, nodes.Call) else ""

    def given(self, place: int | None, *by_name: str) -> Value | None:
        """The argument of a name or place; None where it is not given."""
        at_place = self.arguments[place] if place is not None and place < len(self.arguments) else None
        return next((self.keywords[name] for name in by_name if name in self.keywords), at_place)

    def argument(self, place: int | None, *by_name: str) -> Value:
        """The argument of a name or place; nothing is known of one that is not given."""
        return self.given(place, *by_name) or NOTHING


def result_of(call: Call) -> Value:
    """The result of a call of what the source does not have: frameworks, the standard library."""
    given = union((*call.values, call.receiver))
    number = next((tag for tag in ("rank", "local_rank", "size", "local_size", "in_memory") if call.means(tag)), "")
    if number or meaning(call.last):
        return tagged(number, "exact") if number else Value(meaning(call.last))
    if call.name == "builtins.range":
        return Value(given.tags | {"count"})
    if call.arguments and call.means("same"):
        return call.arguments[0]
    if call.means("on_device"):
        return call.receiver
    if call.name in ("builtins.max", "builtins.min"):
        return Value(either(call.values).tags)
    if call.name == ".format":
        return text_of(given, call.receiver.constant)
    if call.means("wrapped"):
        return Value(given.tags | {"wrapped"})
    if call.means("schedule"):
        return Value(rate_of(call) - given.things("optimizer") - {"wrapped"})
    by_path = call.means("path") or call.receiver.has("by_rank_in_text")
    kept = given.tags - CONDITIONS - {"over_size"} - (frozenset() if by_path else {"by_rank_in_text"})
    things = given.things()
    made = {
        "loader": kept,
        "sampler": things,
        "optimizer": things - given.things("model", "ddp"),
        "tape": frozenset[str](),
        "ddp": things | call.argument(0).things("object"),
        "model": given.tags,
    }
    kind = next((each for each in made if call.means(each)), "object")
    return Value(made.get(kind, kept) | {call.thing(kind)})


def rate_of(call: Call) -> frozenset[str]:
    """What the rate of a schedule is made from: not a number of steps that is divided by the number of ranks."""
    return union(value for value in call.values if not value.has("over_size")).tags
