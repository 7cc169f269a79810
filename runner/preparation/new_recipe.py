"""A recipe folder for a program of the user's: ``recipe.yaml`` and copies of the program's files."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner.core import files as atomic
from runner.core.errors import RefusedError, UsageError
from runner.core.invocation import PROGRAM
from runner.model.request import Recipe
from runner.planning.starters import TORCHRUN, starter
from runner.preparation.horovod_use import sources
from runner.recipes.draft import ProgramOption, draft, program_options
from runner.recipes.loader import FILE, recipe_of

MOST_BYTES = 1 << 20  # of a file that is copied: source and settings, no data
_TENSORFLOW = re.compile(rb"^\s*(?:import|from)\s+(?:tensorflow|keras|horovod\.(?:tensorflow|keras))\b", re.MULTILINE)


@dataclass(frozen=True)
class NewRecipe:
    """What is to be written.

    Attributes:
        text: of ``recipe.yaml``.
        files: to copy, by their path below the directory that the program starts in.
        left_out: paths among the program's arguments that are not copied, each with the reason.
    """

    recipe: Recipe
    text: str
    files: tuple[Path, ...]
    left_out: tuple[tuple[str, str], ...]


def new_recipe(name: str, program: Sequence[str], start: Path) -> NewRecipe:
    """The recipe that runs a program as it runs in the directory ``start``; nothing is written.

    Args:
        name: of the recipe's folder; characters that a recipe's name cannot have are replaced.

    Raises:
        UsageError: no program, one that starts ranks on other nodes, a script that is not there or outside ``start``,
            or a character that no file of YAML can hold.
    """
    if not program:
        fix = f"{PROGRAM} recipe new DIR -- python train.py"
        raise UsageError("no program is given", where="recipe new", fix=fix)
    start = start.resolve()
    _refuse_starter(program, start)
    words = tuple(_relative(word, start) for word in program)
    bad = next((word for word in words if "\0" in word or not _is_unicode(word)), None)
    if bad is not None:
        raise UsageError(
            "an argument is not Unicode text", where=ascii(bad), fix="rename the file, or pass it by --set"
        )
    _refuse_missing(words, start)
    found = [(file.resolve(), line) for file, line in sources(words, start)]
    inside = tuple(dict.fromkeys(file.relative_to(start) for file, _ in found if start in file.parents))
    named, left_out = _arguments(words, start)
    files = tuple(dict.fromkeys((*inside, *named)))
    uses_tensorflow = any(_TENSORFLOW.search(_head(start / file)) for file in inside)
    base = recipe_of(program)
    recipe = msgspec.structs.replace(
        base,
        name=re.sub(r"[^A-Za-z0-9._-]", "-", name).strip(".-")[:64] or base.name,
        description=f"Runs {next(iter(files)).name if files else base.name}.",
        image="gpu-runner/horovod-tensorflow" if uses_tensorflow else base.image,
        program=words,
        framework="horovod" if any(line for _, line in found) else "none",
    )
    options = _options(start, inside)
    known = {option.name: option for option in options}
    recipe = msgspec.structs.replace(
        recipe,
        options={key: False if option.is_flag else None for key, option in known.items()},
        choices={key: option.choices for key, option in known.items() if option.choices},
        env={"PYTHONNOUSERSITE": "1"},
    )
    return NewRecipe(recipe, draft(recipe, options), files, left_out)


def write_recipe(new: NewRecipe, directory: Path, start: Path) -> tuple[Path, ...]:
    """Write the folder; returns the files that were copied. A file that is already in its place stays as it is.

    Raises:
        RefusedError: the folder has a recipe, or another file of a name that would be copied.
        OSError: the folder cannot be written.
    """
    start = start.resolve()
    target = directory / FILE
    if os.path.lexists(target):
        raise RefusedError("there is a recipe already", where=str(target), fix="name another folder, or edit that file")
    to_copy = [file for file in new.files if not _is_same(start / file, directory / file)]
    taken = next((file for file in to_copy if os.path.lexists(directory / file)), None)
    if taken is not None:
        fix = "name another folder, or remove that file"
        raise RefusedError("there is another file of this name", where=str(directory / taken), fix=fix)
    for file in to_copy:
        copy = directory / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(copy, (start / file).read_bytes(), mode=(start / file).stat().st_mode & 0o777)
    directory.mkdir(parents=True, exist_ok=True)
    atomic.write(target, new.text.encode())
    return tuple(to_copy)


def _refuse_starter(program: Sequence[str], start: Path) -> None:
    other = starter(program)
    if other is None or other.name == TORCHRUN:
        return
    fix = f"leave {other.name} out: gpu-runner starts the ranks"
    if other.plain:
        fix += f" (recipe new DIR -- {shlex.join(other.plain)})"
    raise UsageError(f"{other.name} starts ranks of its own", where=str(start), fix=fix)


def _refuse_missing(words: Sequence[str], start: Path) -> None:
    """A script by a relative path is looked for in the recipe's folder alone, never in the image."""
    is_python = words[0].rpartition("/")[2].startswith("python")
    if not (is_python or starter(words)) or "-m" in words or "-c" in words:
        return
    script = next((word for word in words[1:] if word.endswith(".py")), None)
    if script is not None and not Path(script).is_absolute() and not _is_file(start / script):
        fix = "call `recipe new` in the program's directory"
        raise UsageError(f"there is no file {script} in this directory", where=str(start), fix=fix)


def _relative(word: str, start: Path) -> str:
    """An argument as it reads from within the folder: a file below ``start`` by its relative path."""
    path = Path(word)
    if not word or "\0" in word or not path.is_absolute() or start not in path.parents:
        if word.endswith(".py") and word.startswith("..") and _is_file(start / word):
            raise UsageError(
                "the program is outside of this directory",
                where=word,
                fix="call `recipe new` in the program's directory",
            )
        return word
    return str(path.relative_to(start))


def _arguments(words: Sequence[str], start: Path) -> tuple[tuple[Path, ...], tuple[tuple[str, str], ...]]:
    """Files and directories of this machine that the arguments name: those to copy, and those to leave out."""
    files, left_out = [], []
    for word in words:
        text = word.partition("=")[2] if word.startswith("--") and "=" in word else word
        path = start / text
        if not text or text.startswith("-") or not _exists(path) or path.resolve() == start:
            continue
        if start not in path.resolve().parents:
            if Path(text).is_absolute() and not _is_program(path):
                left_out.append((text, "it is not below this directory"))
        elif not _is_file(path):
            left_out.append((text, "it is a directory"))
        elif path.stat().st_size > MOST_BYTES:
            left_out.append((text, f"{path.stat().st_size / 1e6:.0f} MB"))
        else:
            files.append(path.resolve().relative_to(start))
    return tuple(files), tuple(left_out)


def _is_program(path: Path) -> bool:
    return os.access(path, os.X_OK) and _is_file(path)


def _options(start: Path, files: Sequence[Path]) -> tuple[ProgramOption, ...]:
    """Those of the program's first file that has any."""
    for file in files:
        options = [
            option for option in program_options((start / file).read_text("utf-8", "replace"))
            if _is_key(option.name)
        ]  # fmt: skip
        if options:
            return tuple(options)
    return ()


def _is_key(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name, re.ASCII) is not None


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(MOST_BYTES)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
