"""What a condition says of the rank that comes to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from astroid import nodes

from runner.linting import names
from runner.linting.values import Value

if TYPE_CHECKING:
    from runner.linting.resolve import Resolver

ROOT, NOT_ROOT, LOCAL_ROOT = "root", "not_root", "local_root"
FLAGS = {"is_root": ROOT, "not_root": NOT_ROOT, "is_local_root": LOCAL_ROOT}
# A condition on the local rank says nothing of the ranks where it is false: they are on every node.
_OPPOSITE = {ROOT: NOT_ROOT, NOT_ROOT: ROOT, LOCAL_ROOT: "", "": ""}
_ENDS = ("sys.exit", "exit", "quit", "os._exit")
_MIRRORED = {"<": ">", ">": "<"}


def condition(resolver: Resolver, node: Any) -> tuple[str, str]:
    """What holds of the rank where a condition is true, and where it is false."""
    found = resolver.conditions.get(node) or (_condition(resolver, node) if resolver.spend() else ("", ""))
    if resolver.is_settled:
        resolver.conditions[node] = found
    return found


def _condition(resolver: Resolver, node: Any) -> tuple[str, str]:
    match node:
        case nodes.UnaryOp(op="not"):
            inside, outside = condition(resolver, node.operand)
            return outside, inside
        case nodes.BoolOp():
            parts = [condition(resolver, each) for each in node.values]
            then, other = [each for each, _ in parts if each], [each for _, each in parts if each]
            if node.op == "and":
                return (then[0] if then else ""), (other[0] if len(then) == len(parts) and other else "")
            # Meant for the root where one of them names it: `not distributed or rank == 0`.
            return next((each for each in (ROOT, LOCAL_ROOT) if each in then), ""), (other[0] if other else "")
        case nodes.Compare(ops=[(operator, right)]):
            return _comparison(resolver.value(node.left), operator, resolver.value(right))
        case nodes.Compare():
            return "", ""
    value = resolver.value(node)
    flag = next((guard for tag, guard in FLAGS.items() if value.has(tag)), "")
    if flag or value.has("root_only"):
        return flag or ROOT, _OPPOSITE[flag]
    if value.has(names.EXACT) and value.has(names.RANK, names.LOCAL_RANK):  # `if rank:`
        guard = ROOT if value.has(names.RANK) else LOCAL_ROOT
        return _OPPOSITE[guard], guard
    return "", ""


def _comparison(left: Value, operator: str, right: Value) -> tuple[str, str]:
    if left.constants and not right.constants:
        left, right, operator = right, left, _MIRRORED.get(operator, operator)
    if left.has("root_only") and right.constant is None:
        return (ROOT, "") if operator in ("is not", "!=") else ("", ROOT)
    if not left.has(names.RANK, names.LOCAL_RANK) or not left.has(names.EXACT):
        return (ROOT, NOT_ROOT) if left.has("is_root") and right.constant is True else ("", "")
    guard = ROOT if left.has(names.RANK) else LOCAL_ROOT
    is_zero = right.constant == 0 and right.constant is not False
    is_named = left.has(names.RANK) and not right.constants  # rank == root_rank
    has_zero = any(each.constant == 0 for each in right.items)
    if operator in ("==", "is", "<=", "in") or (operator == "<" and right.constant == 1):
        if (is_zero and operator != "in") or operator == "<" or (is_named and operator == "==") or has_zero:
            return guard, _OPPOSITE[guard]
        return (guard, "") if operator == "==" and isinstance(right.constant, int) else ("", "")  # another one rank
    if operator in ("!=", "is not", ">", "not in") and (is_zero or (is_named and operator == "!=") or has_zero):
        return _OPPOSITE[guard], guard
    return "", ""


def around_in_function(node: Any) -> list[Any]:
    """What is around a place, up to its function or module."""
    found = []
    while node.parent is not None and not isinstance(node, nodes.FunctionDef):
        node = node.parent
        found.append(node)
    return found


def guards_at(resolver: Resolver, node: Any) -> frozenset[str]:
    """What holds of the rank that comes to a place in its function."""
    around = around_in_function(node)
    pairs = zip([node, *around], around, strict=False)
    return frozenset(guard for child, parent in pairs for guard in _guards(resolver, child, parent) if guard)


def _guards(resolver: Resolver, child: Any, parent: Any) -> Iterator[str]:
    """What holds of the rank in a part of a statement or expression, and not around it."""
    if isinstance(parent, nodes.If | nodes.IfExp) and child is not parent.test:
        inside = child in parent.body if isinstance(parent, nodes.If) else child is parent.body
        yield condition(resolver, parent.test)[0 if inside else 1]
    elif isinstance(parent, nodes.BoolOp):
        for each in parent.values[: parent.values.index(child)]:
            yield condition(resolver, each)[1 if parent.op == "or" else 0]
    blocks = [getattr(parent, name, None) for name in ("body", "orelse", "finalbody")] if child.is_statement else []
    for block in blocks:
        before = block[: block.index(child)] if isinstance(block, list) and child in block else []
        for each in before:  # one that ends its block for some ranks
            if isinstance(each, nodes.If) and resolver.spend() and (_leaves(each.body) or _leaves(each.orelse)):
                yield condition(resolver, each.test)[1 if _leaves(each.body) else 0]


def _leaves(body: list[Any]) -> bool:
    """Whether a block always ends what is around it."""
    last = body[-1] if body else None
    if isinstance(last, nodes.Expr) and isinstance(last.value, nodes.Call):
        function = last.value.func.as_string()
        return function in _ENDS
    return isinstance(last, nodes.Return | nodes.Continue | nodes.Break | nodes.Raise)
