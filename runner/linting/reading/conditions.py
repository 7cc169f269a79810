"""What a condition says of the rank that comes to it."""

from __future__ import annotations

import ast

from runner.linting import names
from runner.linting.reading.reader import Reader
from runner.linting.reading.scope import Frame
from runner.linting.trace import Value

ROOT, NOT_ROOT, LOCAL_ROOT = "root", "not_root", "local_root"
_FLAGS = {"is_root": ROOT, "not_root": NOT_ROOT, "is_local_root": LOCAL_ROOT}
_OPPOSITE = {ROOT: NOT_ROOT, NOT_ROOT: ROOT, LOCAL_ROOT: "", "": ""}


def test(reader: Reader, node: ast.expr, frame: Frame) -> tuple[str, str]:
    """What holds of the rank where a condition is true, and where it is false."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inside, outside = test(reader, node.operand, frame)
        return outside, inside
    if isinstance(node, ast.BoolOp):
        tests = [test(reader, each, frame) for each in node.values]
        then = [test[0] for test in tests if test[0]]
        otherwise = [test[1] for test in tests if test[1]]
        if isinstance(node.op, ast.And):
            every = len(then) == len(tests)
            return (then[0] if then else ""), (otherwise[0] if every and otherwise else "")
        # "or": meant for the root where one of them names it (`not distributed or rank == 0`).
        root = ROOT if ROOT in then else LOCAL_ROOT if LOCAL_ROOT in then else ""
        return root, (otherwise[0] if otherwise else "")
    if isinstance(node, ast.Compare):
        return _comparison(reader, node, frame) if len(node.ops) == 1 else ("", "")
    quiet = reader.quietly(node, frame)
    for tag, guard in _FLAGS.items():
        if quiet.has(tag):
            return guard, _OPPOSITE[guard]
    if quiet.has(names.RANK) and quiet.has(names.EXACT):
        return NOT_ROOT, ROOT
    if quiet.has("root_only") and isinstance(node, ast.Name | ast.Attribute):
        return ROOT, ""
    return "", ""


def _comparison(reader: Reader, node: ast.Compare, frame: Frame) -> tuple[str, str]:
    left, right = reader.quietly(node.left, frame), reader.quietly(node.comparators[0], frame)
    operator = node.ops[0]
    if left.constant is not ... and right.constant is ...:
        left, right = right, left
        operator = {ast.Lt: ast.Gt(), ast.Gt: ast.Lt()}.get(type(operator), operator)
    if left.has("root_only") and right.constant is None:
        if isinstance(operator, ast.IsNot | ast.NotEq):
            return ROOT, ""
        return "", ROOT
    ranks = left.has(names.RANK), left.has(names.LOCAL_RANK)
    if not any(ranks) or not left.has(names.EXACT):
        if left.has("is_root") and right.constant is True:
            return ROOT, NOT_ROOT
        return "", ""
    guard = ROOT if ranks[0] else LOCAL_ROOT
    zero = right.constant == 0 and right.constant is not False
    among = [value.constant for _, value in right.items]
    if (zero and isinstance(operator, ast.Eq | ast.Is | ast.LtE)) or (
        right.constant == 1 and isinstance(operator, ast.Lt)
    ):
        return guard, _OPPOSITE[guard]
    if zero and isinstance(operator, ast.NotEq | ast.IsNot | ast.Gt):
        return _OPPOSITE[guard], guard
    if isinstance(operator, ast.In) and 0 in among:
        return guard, _OPPOSITE[guard]
    if isinstance(operator, ast.NotIn) and 0 in among:
        return _OPPOSITE[guard], guard
    if isinstance(operator, ast.Eq) and isinstance(right.constant, int):
        return guard, ""  # one rank, if another one
    if isinstance(operator, ast.Eq) and right.constant is ... and ranks[0]:
        return guard, _OPPOSITE[guard]  # rank == root_rank
    if isinstance(operator, ast.NotEq) and right.constant is ... and ranks[0]:
        return _OPPOSITE[guard], guard
    return "", ""


def flag(reader: Reader, node: ast.expr, frame: Frame) -> Value:
    inside, _ = test(reader, node, frame)
    tag = next((tag for tag, guard in _FLAGS.items() if guard == inside), "")
    return Value(frozenset((tag,)) if tag else frozenset())
