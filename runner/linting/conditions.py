"""What a condition says of the rank that comes to it."""

from __future__ import annotations

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
_MIRRORED = {"<": ">", ">": "<"}


def condition(resolver: Resolver, node: Any) -> tuple[str, str]:
    """What holds of the rank where a condition is true, and where it is false."""
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
