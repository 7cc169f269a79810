"""Facts of a syntax tree alone. Pure."""

from __future__ import annotations

import ast
from collections.abc import Sequence


def dotted(node: ast.expr) -> str:
    """``a.b`` of ``a.b`` and of ``a.b(...)``; empty for what does not begin with a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute | ast.Call):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        else:
            node = node.func
    return ".".join([node.id, *parts[::-1]]) if isinstance(node, ast.Name) else ""


def names_read_in(tree: ast.Module) -> frozenset[str]:
    """Names and attributes that are read somewhere."""
    return frozenset(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


def is_static(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method takes no instance."""
    return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether a block always ends what is around it."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return dotted(last.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    return isinstance(last, ast.Return | ast.Continue | ast.Break | ast.Raise)
