"""What a condition says of the rank that comes to it."""

from __future__ import annotations

import ast

from runner.linting import names
from runner.linting.reading.reader import Reader
from runner.linting.reading.scope import Frame
from runner.linting.trace import Value

ROOT, NOT_ROOT, LOCAL_ROOT = "root", "not_root", "local_root"
_FLAGS = {"is_root": ROOT, "not_root": NOT_ROOT, "is_local_root": LOCAL_ROOT}
# A condition on the local rank says nothing of the ranks where it is false: they are on every node.
_OPPOSITE = {ROOT: NOT_ROOT, NOT_ROOT: ROOT, LOCAL_ROOT: "", "": ""}


def guards_of(reader: Reader, node: ast.expr, frame: Frame) -> tuple[str, str]:
    """What holds of the rank where a condition is true, and where it is false."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inside, outside = guards_of(reader, node.operand, frame)
        return outside, inside
    if isinstance(node, ast.BoolOp):
        return _of_several(node.op, [guards_of(reader, each, frame) for each in node.values])
    if isinstance(node, ast.Compare):
        if len(node.ops) != 1:
            return "", ""
        left, right = reader.quietly(node.left, frame), reader.quietly(node.comparators[0], frame)
        return _of_a_comparison(node.ops[0], left, right)
    return _of_a_value(reader.quietly(node, frame), isinstance(node, ast.Name | ast.Attribute))


def flag(reader: Reader, node: ast.expr, frame: Frame) -> Value:
    """The value of a condition: whether it is true on rank 0 alone, or on all but rank 0."""
    inside, _ = guards_of(reader, node, frame)
    tag = next((tag for tag, guard in _FLAGS.items() if guard == inside), "")
    return Value(frozenset((tag,)) if tag else frozenset())


def _of_several(operator: ast.boolop, conditions: list[tuple[str, str]]) -> tuple[str, str]:
    then = [inside for inside, _ in conditions if inside]
    otherwise = [outside for _, outside in conditions if outside]
    if isinstance(operator, ast.And):
        every = len(then) == len(conditions)
        return (then[0] if then else ""), (otherwise[0] if every and otherwise else "")
    # "or": meant for the root where one of them names it (`not distributed or rank == 0`).
    root = ROOT if ROOT in then else LOCAL_ROOT if LOCAL_ROOT in then else ""
    return root, (otherwise[0] if otherwise else "")


def _of_a_value(value: Value, is_name: bool) -> tuple[str, str]:
    for tag, guard in _FLAGS.items():
        if value.has(tag):
            return guard, _OPPOSITE[guard]
    if value.has(names.RANK) and value.has(names.EXACT):
        return NOT_ROOT, ROOT
    return (ROOT if value.has("root_only") and is_name else ""), ""


def _of_a_comparison(operator: ast.cmpop, left: Value, right: Value) -> tuple[str, str]:
    if left.constant is not ... and right.constant is ...:
        left, right = right, left
        operator = {ast.Lt: ast.Gt(), ast.Gt: ast.Lt()}.get(type(operator), operator)
    if left.has("root_only") and right.constant is None:
        return (ROOT, "") if isinstance(operator, ast.IsNot | ast.NotEq) else ("", ROOT)
    if not left.has(names.RANK, names.LOCAL_RANK) or not left.has(names.EXACT):
        return (ROOT, NOT_ROOT) if left.has("is_root") and right.constant is True else ("", "")
    guard = ROOT if left.has(names.RANK) else LOCAL_ROOT
    with_root = left.has(names.RANK) and right.constant is ...  # rank == root_rank
    if _is_true_on_zero_alone(operator, right) or (with_root and isinstance(operator, ast.Eq)):
        return guard, _OPPOSITE[guard]
    if _is_false_on_zero_alone(operator, right) or (with_root and isinstance(operator, ast.NotEq)):
        return _OPPOSITE[guard], guard
    if isinstance(operator, ast.Eq) and isinstance(right.constant, int):
        return guard, ""  # one rank, if another one
    return "", ""


def _is_true_on_zero_alone(operator: ast.cmpop, right: Value) -> bool:
    """``rank == 0``, ``rank < 1``, ``rank in (-1, 0)``."""
    return (
        (_is_zero(right) and isinstance(operator, ast.Eq | ast.Is | ast.LtE))
        or (right.constant == 1 and isinstance(operator, ast.Lt))
        or (isinstance(operator, ast.In) and _has_zero(right))
    )


def _is_false_on_zero_alone(operator: ast.cmpop, right: Value) -> bool:
    """``rank != 0``, ``rank > 0``, ``rank not in (-1, 0)``."""
    return (_is_zero(right) and isinstance(operator, ast.NotEq | ast.IsNot | ast.Gt)) or (
        isinstance(operator, ast.NotIn) and _has_zero(right)
    )


def _is_zero(value: Value) -> bool:
    return value.constant == 0 and value.constant is not False


def _has_zero(value: Value) -> bool:
    return 0 in [each.constant for _, each in value.items]
