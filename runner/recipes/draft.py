"""The options of a Python program, read from its ``add_argument`` calls; the program is neither run nor imported."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.model.request import Recipe

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


# What a recipe file may hold without quotes: it is a string in every version of YAML.
_PLAIN = re.compile(r"[A-Za-z0-9._/=-]*[A-Za-z_/][A-Za-z0-9._/=-]*\Z", re.ASCII)
_NUMBER_LIKE = re.compile(r"[-+.0-9][-+.0-9a-zA-Z_]*\Z", re.ASCII)
_CONSTANTS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n", ".inf", ".nan", "-.inf"))


def draft(recipe: Recipe, options: Sequence[ProgramOption]) -> str:
    """The file for a recipe, with the options of its program."""
    lines = [
        f"name: {quoted(recipe.name)}",
        f"description: {quoted(recipe.description)}",
        "# The image that the job runs in; `submit --image` overrides it.",
        f"image: {quoted(recipe.image)}",
        "# It starts in the copy of this folder that each run keeps.",
        f"program: [{', '.join(map(quoted, recipe.program))}]",
        "# What forms the world: horovod, or none for programs that only read RANK, WORLD_SIZE and their like.",
        f"framework: {recipe.framework}",
        '# if-left: a result that the program leaves is held to proof; without one, the verdict is "ran".',
        f"result: {recipe.result}",
    ]
    if recipe.processes != "per-gpu":
        lines += ["# The program starts its own processes, once a node.", f"processes: {recipe.processes}"]
    if options:
        lines.append("# Options of the program, for `submit --set KEY=VALUE`; null: the program's own default.")
        lines.append("options:")
        lines += [
            f"  {quoted(option.name)}: {'false' if option.is_flag else 'null'}{_note(option)}" for option in options
        ]
        chosen = [option for option in options if option.choices]
        lines += ["choices:"] * bool(chosen)
        lines += [
            f"  {quoted(option.name)}: [{', '.join(quoted(value) for value in option.choices)}]" for option in chosen
        ]
    else:
        lines.append("options: {}")
    lines += ["env:", '  PYTHONNOUSERSITE: "1"']
    return "\n".join(lines) + "\n"


def _note(option: ProgramOption) -> str:
    shown = "" if option.default is None or option.is_flag else str(option.default)
    return f"  # {shown}" if shown and shown.isprintable() and len(shown) <= 40 else ""


def quoted(value: str | int) -> str:
    """A value as YAML that is read back as the same value."""
    if isinstance(value, int):
        return str(value)
    plain = _PLAIN.match(value) and not _NUMBER_LIKE.match(value) and value.lower() not in _CONSTANTS
    if plain and not value.startswith("-"):
        return value
    return '"' + "".join(_escaped(character) for character in value) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable() and ord(character) < 0x10000:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
