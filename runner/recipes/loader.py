"""The user's program, as typed after ``--``: it has no recipe file."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.core import paths
from runner.core.errors import UsageError
from runner.core.strict_yaml import load
from runner.core.text import instead
from runner.model.request import PLAIN_NAME, PLAIN_NAME_FIX, Recipe, written
from runner.planning.launchers import starter

_IMAGE = "gpu-runner/horovod-pytorch"
_FILE = re.compile(r"[^-].*\.(py|sh|pl|R|jl)\Z")


def is_program(arguments: Sequence[str]) -> bool:
    """Whether arguments after ``--`` are a program: they are unless the first looks like an option."""
    return bool(arguments) and not arguments[0].startswith("-")


def recipe_of(program: Sequence[str]) -> Recipe:
    """The recipe that runs a program with its arguments. It has the name of the program's file; one that starts ranks,
    as torchrun does, is started once a node.
    """
    file = next((argument for argument in program if _FILE.match(argument)), program[0])
    stem = posixpath.splitext(posixpath.basename(file))[0]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip(".-")[:64]
    return Recipe(
        name=name or "program",
        description="A program without a recipe.",
        image=_IMAGE,
        program=tuple(program),
        framework="none",
        result="if-left",
        processes="per-gpu" if starter(program) is None else "own",
    )


FILE = "recipe.yaml"


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe and the directory that its program lies in; None for a program without a recipe file."""

    recipe: Recipe
    directory: Path | None


def library() -> Path:
    """The directory of the launcher and what programs share, copied into every run directory."""
    return paths.share("recipes") / "lib"


def names() -> tuple[str, ...]:
    """The shipped recipes, by name."""
    return tuple(sorted(path.parent.name for path in paths.share("recipes").glob("*/recipe.yaml")))


def every_name() -> tuple[str, ...]:
    """All that can be named: the shipped recipes, and those beside the configuration."""
    return tuple(dict.fromkeys((*names(), *(path.parent.name for path in paths.configured(f"recipes/*/{FILE}")))))


def read_recipe(name_or_directory: str) -> LoadedRecipe:
    """A recipe that is shipped, or beside the configuration, by name; or a directory by path (with a ``/``, ``.``, or a
    name that no such recipe has, and others cannot exchange). Raises UsageError: there is none, or its ``recipe.yaml``
    is invalid; says file:line and key.
    """
    shipped = paths.share("recipes") / name_or_directory
    if (named := directory_of(name_or_directory, Path())) is not None:
        directory = named.absolute()
    elif (shipped / FILE).is_file():
        directory = shipped
    elif name_or_directory in every_name():
        directory = paths.check_settings(paths.configured(f"recipes/{name_or_directory}/{FILE}")[0]).parent
    else:
        what = f"no recipe named {name_or_directory!r}"
        fix = instead(name_or_directory, every_name(), f"recipes: {', '.join(every_name())}, or a directory's path")
        raise UsageError(what, where="--recipe", fix=fix)
    recipe = load(directory / FILE, Recipe)
    if not PLAIN_NAME.match(recipe.name) or set(recipe.name) == {"."}:
        where = f"{directory / FILE}: name"
        raise UsageError(f"{recipe.name!r} cannot be a recipe's name", where=where, fix=PLAIN_NAME_FIX)
    if not recipe.program:
        raise UsageError("no program is given", where=f"{directory / FILE}: program")
    for key in recipe.choices:
        _check_option(recipe, key, f"{directory / FILE}: choices")
    _check_limits(recipe, f"{directory / FILE}: limits")
    return LoadedRecipe(recipe, directory)


def directory_of(name_or_directory: str, below: Path) -> Path | None:
    """The directory that this means for who is in ``below``, as ``read_recipe`` has it; None: it is a name. Raises
    UsageError: others can exchange it, and it is not named by a path.
    """
    directory = below / name_or_directory
    if "/" in name_or_directory or name_or_directory in (".", ".."):
        return directory
    if name_or_directory in every_name() or not (directory / FILE).is_file():
        return None
    for place in (directory, directory / FILE):  # which may be left there by others
        paths.check_bare_name(name_or_directory, place, "the recipe", "--recipe", used=place != directory)
    return directory


def _check_limits(recipe: Recipe, where: str) -> None:
    """Refuse limits of options, or of values, that the recipe does not have: they would never hold, or always."""
    for key, by_value in recipe.limits.items():
        _check_option(recipe, key, where)
        for value, limited in by_value.items():
            _check_value(recipe, key, value, where)
            for other, allowed in limited.items():
                _check_option(recipe, other, where)
                if other == key or not allowed:
                    what = "limits itself" if other == key else f"leaves {other!r} no value"
                    raise UsageError(f"{key}={value} {what}", where=where, fix="name values of other options")
                for each in allowed:
                    _check_value(recipe, other, written(each), where)


def _check_option(recipe: Recipe, key: str, where: str) -> None:
    if key not in recipe.options:
        fix = instead(key, recipe.options, f"options: {', '.join(sorted(recipe.options)) or 'none'}")
        raise UsageError(f"the recipe has no option {key!r}", where=where, fix=fix)


def _check_value(recipe: Recipe, key: str, value: str, where: str) -> None:
    is_flag = isinstance(recipe.options[key], bool)
    known = ["false", "true"] if is_flag else [str(choice) for choice in recipe.choices.get(key, ())]
    if known and value not in known:
        fix = instead(value, known, f"one of: {', '.join(known)}")
        raise UsageError(f"{value!r} is no choice of the option {key!r}", where=where, fix=fix)


def recipe_or_program(recipe: str | None, program: Sequence[str]) -> LoadedRecipe:
    """The recipe of that name or directory; without one, the recipe that runs the program. Raises UsageError: as
    ``read_recipe``.
    """
    return LoadedRecipe(recipe_of(program), None) if recipe is None else read_recipe(recipe)
