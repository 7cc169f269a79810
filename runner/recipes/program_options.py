"""The options of a Python program, read from its ``add_argument`` calls; the program is neither run nor imported."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from typing import Any

_FLAGS = frozenset(("store_true", "store_false"))


@dataclass(frozen=True)
class ProgramOption:
    """One option with a long name.

    Attributes:
        is_flag: it takes no value.
        default: as far as it stands in the call; None where it does not.
        choices: as far as they stand in the call, or in a constant of the file.
    """

    name: str
    is_flag: bool = False
    default: str | int | float | bool | None = None
    choices: tuple[str | int, ...] = ()


def program_options(source: str) -> tuple[ProgramOption, ...]:
    """The options, in the file's order, each name once; none where the source is no Python that can be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the program's own, of no matter here
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: dict[str, ProgramOption] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            option = _option(node, constants)
            if option is not None:
                found.setdefault(option.name, option)
    return tuple(found.values())


def _option(call: ast.Call, constants: dict[str, ast.expr]) -> ProgramOption | None:
    names = [_literal(argument, constants) for argument in call.args]
    name = next((name[2:] for name in names if isinstance(name, str) and name[:2] == "--" and name[2:]), None)
    if name is None:
        return None
    values = {keyword.arg: _literal(keyword.value, constants) for keyword in call.keywords}
    default, choices = values.get("default"), values.get("choices")
    return ProgramOption(
        name,
        is_flag=values.get("action") in _FLAGS,
        default=default if isinstance(default, str | int | float | bool) else None,
        choices=tuple(choices)
        if isinstance(choices, tuple | list | dict) and all(type(choice) in (str, int) for choice in choices)
        else (),
    )


def _literal(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    """The value of an expression that is a literal, or the name of a constant that is one; else None."""
    if isinstance(node, ast.Name):
        node = constants.get(node.id, node)
    if isinstance(node, ast.Dict):  # choices=TABLE: its keys
        return [None if key is None else _literal(key, {}) for key in node.keys]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
