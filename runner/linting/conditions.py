"""What a condition says of the rank, and so which ranks come to a place.

As a value, a condition has tags: where it is true, only rank 0 is here (``root``), or all but rank 0 (``not_root``), or
one rank of each node (``local_root``); with ``else_`` in front, the same where it is false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from astroid import nodes

from runner.linting.values import CONDITIONS, Value

_NONE = frozenset[str]()
_ROOT = frozenset(("root", "else_not_root"))
# A condition on the local rank says nothing of the ranks where it is false: they are on every node.
_LOCAL_ROOT = frozenset(("local_root",))
_EXITS = ("sys.exit", "exit", "quit", "os._exit")
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_MOST_PARTS = 50


def negated(tags: Iterable[str]) -> frozenset[str]:
    """What ``not`` a condition says."""
    return frozenset(each[5:] if each.startswith("else_") else f"else_{each}" for each in tags)


def joined(operator: str, parts: Iterable[frozenset[str]]) -> frozenset[str]:
    """What ``and`` or ``or`` of conditions says: ``not distributed or rank == 0`` is meant for the root."""
    lost = {"not_root"} if operator == "or" else {"else_root", "else_not_root", "else_local_root"}
    return _NONE.union(*parts) - lost


def truth(value: Value) -> frozenset[str]:
    """What a value says as a condition."""
    if value.has("exact") and value.has("rank", "local_rank"):  # `if rank:`
        return negated(_ROOT if value.has("rank") else _LOCAL_ROOT)
    return value.tags & CONDITIONS or (_ROOT if value.has("root_only") else _NONE)


def comparison(left: Value, operator: str, right: Value) -> frozenset[str]:
    """What a comparison says."""
    if left.constants and not right.constants:
        left, right, operator = right, left, _MIRRORED.get(operator, operator)
    is_negative, number = operator in ("!=", "is not", ">", ">=", "not in"), right.constant
    if left.has("root_only") and number is None:
        return _ROOT if is_negative else negated(_ROOT)
    if not (left.has("rank", "local_rank") and left.has("exact")):
        return truth(left) if number is True else _NONE
    said = _ROOT if left.has("rank") else _LOCAL_ROOT
    if operator in ("in", "not in"):
        is_of_root = any(each.constant == 0 for each in right.items)
    elif right.constants:
        is_of_root = type(number) is int and number == (1 if operator in ("<", ">=") else 0)
    else:
        is_of_root = left.has("rank") and operator in ("==", "!=")  # rank == root_rank
    if is_of_root:
        return negated(said) if is_negative else said
    return said - {"else_not_root"} if operator == "==" and isinstance(number, int) else _NONE


def guards_at(node: Any, value: Callable[[Any], Value]) -> frozenset[str]:
    """What holds of the rank that comes to a place in its function; ``value``: says what is known of an expression."""
    around = around_in_function(node)
    tests = [test for child, parent in zip([node, *around], around, strict=False) for test in _tests(child, parent)]
    said = (truth(value(test)) if is_true else negated(truth(value(test))) for test, is_true in tests)
    return frozenset(each for tags in said for each in tags if not each.startswith("else_"))


def _tests(child: Any, parent: Any) -> Iterator[tuple[Any, bool]]:
    """The conditions on a part of a statement or expression that are not on the whole, and whether they are true."""
    if isinstance(parent, nodes.If | nodes.IfExp) and child is not parent.test:
        yield parent.test, child in parent.body if isinstance(parent, nodes.If) else child is parent.body
    elif isinstance(parent, nodes.BoolOp):  # `rank == 0 and save()`
        before = parent.values[: min(parent.values.index(child), _MOST_PARTS)]
        yield from ((each, parent.op == "and") for each in before)
    for name in ("body", "orelse", "finalbody") if child.is_statement else ():
        block = getattr(parent, name, None)
        for each in block[: block.index(child)] if isinstance(block, list) and child in block else ():
            if isinstance(each, nodes.If) and (_leaves(each.body) or _leaves(each.orelse)):
                yield each.test, not _leaves(each.body)


def _leaves(body: list[Any]) -> bool:
    """Whether a block always ends what is around it."""
    last = body[-1] if body else None
    if isinstance(last, nodes.Expr):
        return isinstance(last.value, nodes.Call) and last.value.func.as_string() in _EXITS
    return isinstance(last, nodes.Return | nodes.Continue | nodes.Break | nodes.Raise)


def around_in_function(node: Any) -> list[Any]:
    """What is around a place, up to its function or module."""
    around = []
    while node.parent is not None and not isinstance(node, nodes.FunctionDef):
        node = node.parent
        around.append(node)
    return around
