"""A recipe folder for a program of the user's, with the options in its source; how a recipe is run at each site."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runner.core import files as atomic
from runner.core import ownership
from runner.core.errors import RefusedError, UsageError
from runner.core.invocation import PROGRAM
from runner.model.backends import SCHEDULERS
from runner.model.request import Recipe, Request
from runner.model.site import Site
from runner.planning.launchers import starter, starters
from runner.planning.starters import KINDS, plain
from runner.preparation.choices import image_reference
from runner.preparation.program_source import ProgramOption, is_file, program_options, read_text, scripts, sources
from runner.recipes.loader import FILE, recipe_of

_GPUS, _GPUS_HERE = 16, 2
MOST_BYTES = 1 << 20  # of a file that is copied: source and settings, no data
_TENSORFLOW = re.compile(r"^\s*(?:import|from)\s+(?:tensorflow|keras|horovod\.(?:tensorflow|keras))\b", re.MULTILINE)
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)


@dataclass(frozen=True)
class UseAtSite:
    """The command at one site.

    Attributes:
        image: the image that the job takes there.
        needs: the user's values that jobs there have to have, by their option or in the configuration.
    """

    site: str
    command: tuple[str, ...]
    image: str
    needs: tuple[str, ...]


def commands_at_sites(recipe: str, program: Recipe, sites: Iterable[Site]) -> tuple[UseAtSite, ...]:
    """The command at each site that names nodes, or takes them from a scheduler.

    Args:
        recipe: its name, or its folder as the user gives it.
    """
    uses = []
    for site in sites:
        nodes = SCHEDULERS[site.scheduler].nodes
        gpus = str(_GPUS_HERE if nodes == "this-machine" else _GPUS)
        where = ("--hosts", "nodea:8,nodeb:8") if nodes == "listed" else ("--site", site.name)
        command = (*shlex.split(PROGRAM), "submit", "--gpus", gpus, *where, "--recipe", recipe)
        uses.append(UseAtSite(site.name, command, image_reference(program, site, Request(gpus=1)), tuple(site.needs)))
    return tuple(uses)


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

    Raises UsageError: no program, one that starts ranks on other nodes, a script that is not there or outside
    ``start``, or a character that no file of YAML can hold.
    """
    if not program:
        fix = f"{PROGRAM} recipe new DIR -- python train.py"
        raise UsageError("no program is given", where="recipe new", fix=fix)
    start = start.resolve()
    found = starters(program, scripts(start))
    other = next((each for each in found if not KINDS[each.name].several or not KINDS[each.name].needs), None)
    if other is not None:
        fix = f"leave {other.name} out: gpu-runner starts the ranks"
        fix += f" (recipe new DIR -- {shlex.join(plain(other))})" if plain(other) else ""
        raise UsageError(f"{other.name} starts ranks of its own", where=str(start), fix=fix)
    words = tuple(_relative(word, start) for word in program)
    bad = next((word for word in words if re.search("[\0\ud800-\udfff]", word)), None)
    if bad is not None:
        what, fix = "an argument is not Unicode text", "rename the file, or pass it by --set"
        raise UsageError(what, where=ascii(bad), fix=fix)
    _refuse_missing(words, start)
    program_files = [(file.resolve(), line) for file, line in sources(words, start)]
    inside = tuple(dict.fromkeys(file.relative_to(start) for file, _ in program_files if start in file.parents))
    named, left_out = _arguments(words, start)
    files = tuple(dict.fromkeys((*inside, *named)))
    options = next(filter(None, (_options(start, file) for file in inside)), ())  # of the first file that has any
    base = recipe_of(program)
    uses_tensorflow = any(_TENSORFLOW.search(read_text(start / file)) for file in inside)
    known = {option.name: option for option in options}
    recipe = msgspec.structs.replace(
        base,
        name=re.sub(r"[^A-Za-z0-9._-]", "-", name).strip(".-")[:64] or base.name,
        description=f"Runs {next(iter(files)).name if files else base.name}.",
        image="gpu-runner/horovod-tensorflow" if uses_tensorflow else base.image,
        program=words,
        framework="horovod" if any(line for _, line in program_files) else "none",
        options={key: False if option.is_flag else None for key, option in known.items()},
        choices={key: option.choices for key, option in known.items() if option.choices},
        env={"PYTHONNOUSERSITE": "1"},
        processes="own" if found else base.processes,
    )
    return NewRecipe(recipe, draft(recipe, options), files, left_out)


def write_recipe(new: NewRecipe, directory: Path, start: Path) -> tuple[Path, ...]:
    """Write the folder; returns the files that were copied. A file that is already in its place stays as it is. Raises
    RefusedError: the folder has a recipe, or another file of a name that would be copied, or is not this user's alone;
    all may write where the program lies; OSError: the folder cannot be written.
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
    if place := next(filter(ownership.is_open, dict.fromkeys((start / file).parent for file in to_copy)), None):
        what = "all may write here: modules that others put here would become yours"
        raise RefusedError(what, where=str(place), fix="copy your program into a directory of your own first")
    directory.mkdir(parents=True, exist_ok=True)
    if whose := ownership.exchangeable_by(directory):
        what = f"the folder is {whose}: another user could exchange what would run as you"
        fix = f"name another folder; {ownership.way_out(directory, whose)}"
        raise RefusedError(what, where=str(directory), fix=fix)
    for file in to_copy:
        copy = directory / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        with atomic.open_below(start, str(file)) as source:  # no link that has taken its place since
            atomic.write(copy, source.read(), mode=os.fstat(source.fileno()).st_mode & 0o755)
    atomic.write(target, new.text.encode())
    return tuple(to_copy)


def _refuse_missing(words: Sequence[str], start: Path) -> None:
    """A script by a relative path is looked for in the recipe's folder alone, never in the image."""
    is_python = words[0].rpartition("/")[2].startswith("python")
    if not (is_python or starter(words)) or "-m" in words or "-c" in words:
        return
    script = next((word for word in words[1:] if word.endswith(".py")), None)
    if script is not None and not Path(script).is_absolute() and not is_file(start / script):
        fix = "call `recipe new` in the program's directory"
        raise UsageError(f"there is no file {script} in this directory", where=str(start), fix=fix)


def _relative(word: str, start: Path) -> str:
    """An argument as it reads from within the folder: a file below ``start`` by its relative path."""
    path = Path(word)
    if word and "\0" not in word and path.is_absolute() and start in path.parents:
        return str(path.relative_to(start))
    if word.endswith(".py") and word.startswith("..") and is_file(start / word):
        fix = "call `recipe new` in the program's directory"
        raise UsageError("the program is outside of this directory", where=word, fix=fix)
    return word


def _arguments(words: Sequence[str], start: Path) -> tuple[tuple[Path, ...], tuple[tuple[str, str], ...]]:
    """Files and directories of this machine that the arguments name: those to copy, and those to leave out."""
    files, left_out = [], []
    for word in words if "/" in words[0] else words[1:]:  # PATH has the program
        text = word.partition("=")[2] if word.startswith("--") and "=" in word else word
        path = start / text
        if not text or text.startswith("-") or not _exists(path) or path.resolve() == start:
            continue
        if start not in path.resolve().parents:
            is_program = os.access(path, os.X_OK) and is_file(path)
            if Path(text).is_absolute() and not is_program:
                left_out.append((text, "it is not below this directory"))
        elif not is_file(path):
            left_out.append((text, "it is a directory"))
        elif path.stat().st_size > MOST_BYTES:
            left_out.append((text, f"{path.stat().st_size / 1e6:.0f} MB"))
        else:
            files.append(path.resolve().relative_to(start))
    return tuple(files), tuple(left_out)


def _options(start: Path, file: Path) -> tuple[ProgramOption, ...]:
    options = program_options(atomic.read_below(start, str(file)).decode("utf-8", "replace"))
    return tuple(option for option in options if _KEY.fullmatch(option.name))


def _is_same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return one.samefile(other)
    return False


def _exists(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.exists()
    return False


# What a recipe file may hold without quotes: it is a string in every version of YAML.
_PLAIN = re.compile(r"[A-Za-z0-9._/=-]*[A-Za-z_/][A-Za-z0-9._/=-]*\Z", re.ASCII)
_NUMBER_LIKE = re.compile(r"[-+.0-9][-+.0-9a-zA-Z_]*\Z", re.ASCII)
_CONSTANTS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n", ".inf", ".nan", "-.inf"))


def draft(recipe: Recipe, options: Sequence[ProgramOption]) -> str:
    """The file for a recipe, with the options of its program."""
    lines = [
        f"name: {quoted(recipe.name)}",
        f"description: {quoted(recipe.description)}",
        "# The image that the job runs in, unless it is native; `submit --image` overrides it.",
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
        lines.append(
            "# Options of the program, for `submit --set KEY=VALUE`; null: as above, or the program's own default."
        )
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
