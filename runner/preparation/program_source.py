"""A program's source, read without running it: its files, whether they import Horovod, and the options it declares."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.model.plan import WORKSPACE
from runner.model.request import Mount
from runner.planning.shell_text import Read

_MOST_FILES, _MOST_BYTES = 200, 1 << 20
_WORD = re.compile(r"[^\s'\"]+")  # of a shell's script, near enough
# As it stands in a file that this Python cannot parse.
_IMPORT = re.compile(r"^\s*(?:from|import)\s+horovod\b", re.MULTILINE)
# By what `serve` starts (runner.jobs.service), the module without which its server is not there.
_SERVERS = {"notebook": "jupyter_server", "tensorboard": "tensorboard"}
_FLAGS = ("store_true", "store_false")


def sources(arguments: tuple[str, ...], directory: Path, mounts: tuple[Mount, ...] = ()) -> Iterator[tuple[Path, int]]:
    """The files of a program's source, each with the line that imports Horovod, 0 for none.

    They are those among its arguments, and what these import from beside them, at most 200. What is imported of
    packages that are installed is not followed: it may use Horovod all the same.
    """
    seen: set[Path] = set()
    queue = list(_files(arguments, directory, mounts))
    while queue and len(seen) < _MOST_FILES:
        file = queue.pop(0)
        if file in seen:
            continue
        seen.add(file)
        text = read_text(file)
        if file.suffix == ".sh":
            yield file, 0
            queue += _files(tuple(_WORD.findall(text)), directory, mounts)
            continue
        line, imported = _imports(text)
        yield file, line
        # The directory of the program's file comes first in sys.path, that of `-m` is where it starts.
        above = sorted({file.parent, directory})
        queue += [module for name in imported for top in above for module in _modules(top, name)]


def needed_modules(program: tuple[str, ...], directory: Path) -> tuple[str, ...]:
    """Modules without which a program of Python ends as it begins, and that are none of its own or of Python's. What is
    imported in a function, a condition or a ``try`` is not among them.

    >>> needed_modules(("python", "-m", "torch.distributed.run", "train.py"), Path("/nowhere"))
    ('torch',)
    """
    if program[1:2] == ("-c",) and "gpu_runner_inside.serve" in program[2]:
        return tuple(_SERVERS[word] for word in program[5:6] if word in _SERVERS)
    words = iter(program[1:])
    option = next((word for word in words if word == "-m" or not word.startswith("-")), "")
    name = next(words, "") if option == "-m" else ""
    script = directory / option
    queue = (
        [*_modules(directory, name), *_modules(directory, f"{name}.__main__")] if name else [script] * is_file(script)
    )
    needs = set() if queue or not name else {name}
    top = directory if name else script.parent
    seen: set[Path] = set()
    while queue and len(seen) < _MOST_FILES:
        file = queue.pop()
        tree = None if file in seen or file.suffix != ".py" else _parsed(read_text(file))
        seen.add(file)
        for each in _top_level_imports(tree):
            own = tuple(_modules(top, each))
            queue += own
            if not own and not (top / each.partition(".")[0]).is_dir():
                needs.add(each)
    first = {each.partition(".")[0] for each in needs}
    return tuple(sorted(first - {"gpu_runner_inside", "runner_meter", *sys.stdlib_module_names}))


def imports(arguments: tuple[str, ...], directory: Path, mounts: tuple[Mount, ...] = ()) -> frozenset[str]:
    """Top-level names of all that a program's source imports, wherever in it."""
    texts = (read_text(file) for file, _line in sources(arguments, directory, mounts))
    return frozenset(name.partition(".")[0] for text in texts for name in _imports(text)[1])


def _top_level_imports(tree: ast.Module | None) -> Iterator[str]:
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module


def _files(arguments: tuple[str, ...], directory: Path, mounts: tuple[Mount, ...]) -> Iterator[Path]:
    """The program's own files among its arguments, as this machine names them."""
    for before, word in zip(("", *arguments), arguments, strict=False):
        if before == "-m":
            yield from _modules(directory, f"{word}.__main__")
            yield from _modules(directory, word)
        file = _on_host(word, directory, mounts)
        if word.endswith((".py", ".sh")) and not word.startswith("-") and is_file(file):
            yield file


def _modules(top: Path, name: str) -> Iterator[Path]:
    """Files of a module below a directory, those of the packages that hold it first."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        path = top.joinpath(*parts[:depth])
        yield from filter(is_file, (path / "__init__.py", path.with_name(f"{path.name}.py")))


def _imports(text: str) -> tuple[int, tuple[str, ...]]:
    """The line that imports Horovod, 0 for none; and the modules that a source imports."""
    tree = _parsed(text)
    if tree is None:
        match = _IMPORT.search(text)
        return (text.count("\n", 0, match.end()) + 1 if match else 0), ()
    line, names = 0, list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = node.module or ""
            imported = [package, *(f"{package}.{alias.name}".strip(".") for alias in node.names)]
        else:
            continue
        relative = isinstance(node, ast.ImportFrom) and node.level > 0
        if not line and not relative and any(name.split(".")[0] == "horovod" for name in imported):
            line = node.lineno
        names += [name for name in imported if name and "*" not in name]
    return line, tuple(dict.fromkeys(names))


def _parsed(text: str) -> ast.Module | None:
    """The module; None where it is no Python, or that of a newer one."""
    with warnings.catch_warnings(), suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        warnings.simplefilter("ignore")  # the program's own, of no matter here
        return ast.parse(text)
    return None


def _on_host(word: str, directory: Path, mounts: tuple[Mount, ...]) -> Path:
    """A path of the job as this machine names it."""
    shown = [*((mount.target, mount.source) for mount in mounts), (WORKSPACE, str(directory))]
    tops = ((target.rstrip("/"), source.rstrip("/")) for target, source in shown)
    return directory / next((source + word[len(top) :] for top, source in tops if word.startswith(f"{top}/")), word)


def scripts(directory: Path, mounts: tuple[Mount, ...] = ()) -> Read:
    """Gives the text of a shell script by its name in the job; empty where it is not on this machine. It reads 50 at
    most.
    """
    left = iter(range(50))

    def read(name: str) -> str:
        file = _on_host(name, directory, mounts)
        return read_text(file) if is_file(file) and next(left, None) is not None else ""

    return read


def read_text(file: Path) -> str:
    """The beginning of a source, a mebibyte at most; empty where it cannot be read."""
    with suppress(OSError), file.open("rb") as source:
        return source.read(_MOST_BYTES).decode("utf-8", "replace")
    return ""


def is_file(path: Path) -> bool:
    """Whether it is one; a name that no file can have is none."""
    with suppress(OSError, ValueError):
        return path.is_file()
    return False


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
    """The options that ``add_argument`` declares, in the file's order, each name once; none where it is no Python."""
    tree = _parsed(source)
    if tree is None:
        return ()
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    options: dict[str, ProgramOption] = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            names = [_literal(argument, constants) for argument in call.args]
            name = next((name[2:] for name in names if isinstance(name, str) and name[:2] == "--" and name[2:]), None)
            values = {keyword.arg: _literal(keyword.value, constants) for keyword in call.keywords}
            default, choices = values.get("default"), values.get("choices")
            known = isinstance(choices, tuple | list | dict) and all(type(choice) in (str, int) for choice in choices)
            if name is not None and name not in options:
                options[name] = ProgramOption(
                    name,
                    is_flag=values.get("action") in _FLAGS,
                    default=default if isinstance(default, str | int | float | bool) else None,
                    choices=tuple(choices) if known and choices else (),
                )
    return tuple(options.values())


def _literal(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    """The value of an expression that is a literal, or the name of a constant that is one; else None."""
    if isinstance(node, ast.Name):
        node = constants.get(node.id, node)
    if isinstance(node, ast.Dict):  # choices=TABLE: its keys
        return [None if key is None else _literal(key, {}) for key in node.keys]
    with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(node)
    return None
