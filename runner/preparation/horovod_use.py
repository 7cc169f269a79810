"""Does a job's program use Horovod? Read from its source: its file, and what that imports from beside it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from runner.model.plan import WORKSPACE
from runner.model.request import Mount, Recipe

_MOST_FILES, _MOST_BYTES = 200, 1 << 20
_WORD = re.compile(r"[^\s'\"]+")  # of a shell's script, near enough
# As it stands in a file that this Python cannot parse.
_IMPORT = re.compile(r"^\s*(?:from|import)\s+horovod\b", re.MULTILINE)


def horovod_use(recipe: Recipe, directory: Path | None, arguments: tuple[str, ...], mounts: tuple[Mount, ...]) -> str:
    """Where the program is seen to use Horovod: ``train.py, line 3``; empty where it is not.

    What it imports of packages that are installed is not followed: it may use Horovod all the same.

    Args:
        directory: where the program starts: of the user's program, or of the recipe; None where there is none.
        arguments: the program's argument list.
    """
    if recipe.framework == "horovod" or "horovod" in recipe.needs:
        return f"the recipe {recipe.name}"
    if directory is None:
        return ""
    for file, line in sources(arguments, directory, mounts):
        if line:
            return f"{file.name}, line {line},"
    return ""


def sources(arguments: tuple[str, ...], directory: Path, mounts: tuple[Mount, ...] = ()) -> Iterator[tuple[Path, int]]:
    """The files of a program's source, each with the line that imports Horovod, 0 for none.

    They are those among its arguments, and what these import from beside them, at most 200.
    """
    seen: set[Path] = set()
    queue = list(_files(arguments, directory, mounts))
    while queue and len(seen) < _MOST_FILES:
        file = queue.pop(0)
        if file in seen:
            continue
        seen.add(file)
        text = _text(file)
        if file.suffix == ".sh":
            yield file, 0
            queue += _files(tuple(_WORD.findall(text)), directory, mounts)
            continue
        line, imported = _imports(text)
        yield file, line
        # The directory of the program's file comes first in sys.path, that of `-m` is where it starts.
        above = {file.parent, directory}
        queue += [found for name in imported for top in sorted(above) for found in _modules(top, name)]


def is_source(word: str) -> bool:
    """Whether an argument looks like a file of the program's source."""
    return word.endswith((".py", ".sh")) and not word.startswith("-")


def _files(arguments: tuple[str, ...], directory: Path, mounts: tuple[Mount, ...]) -> Iterator[Path]:
    """The program's own files among its arguments, as this machine names them."""
    for place, word in enumerate(arguments):
        if place and arguments[place - 1] == "-m":
            yield from _modules(directory, f"{word}.__main__")
            yield from _modules(directory, word)
        file = directory / _on_host(word, directory, mounts)
        if is_source(word) and _is_file(file):
            yield file


def _on_host(path: str, directory: Path, mounts: tuple[Mount, ...]) -> str:
    shown = [*((mount.target, mount.source) for mount in mounts), (WORKSPACE, str(directory))]
    for target, source in shown:
        if path.startswith(f"{target.rstrip('/')}/"):
            return source.rstrip("/") + path[len(target.rstrip("/")) :]
    return path


def _modules(top: Path, name: str) -> Iterator[Path]:
    """Files of a module below a directory, those of the packages that hold it first."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        path = top.joinpath(*parts[:depth])
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if _is_file(file):
                yield file


def _imports(text: str) -> tuple[int, tuple[str, ...]]:
    """The line that imports Horovod, 0 for none; and the modules that a source imports."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the program's own, of no matter here
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # no Python, or a newer one
        match = _IMPORT.search(text)
        return (text.count("\n", 0, match.end()) + 1 if match else 0), ()
    line, names = 0, list[str]()
    for node in ast.walk(tree):
        relative = False
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package, relative = node.module or "", node.level > 0
            found = [package, *(f"{package}.{alias.name}".strip(".") for alias in node.names)]
        else:
            continue
        if not line and not relative and any(name.split(".")[0] == "horovod" for name in found):
            line = node.lineno
        names += [name for name in found if name and "*" not in name]
    return line, tuple(dict.fromkeys(names))


def _text(file: Path) -> str:
    try:
        with file.open("rb") as source:
            return source.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
