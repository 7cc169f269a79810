"""The text of a recipe file for a program of the user's. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runner.model.recipe import Recipe
from runner.recipes.program_options import ProgramOption

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
