"""The source of a script and of the modules beside it: read, bounded and parsed; never run or imported."""

from __future__ import annotations

import errno
import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astroid import nodes
from astroid.builder import AstroidBuilder
from astroid.exceptions import AstroidSyntaxError
from astroid.manager import AstroidManager

from runner.core.errors import UsageError
from runner.core.files import read_bytes

MOST_BYTES, MOST_TEXT = 2_000_000, 200_000  # of a file, with the pictures of a notebook; of its Python
_SHELLS = ("sh", "bash", "zsh", "ksh", "dash", "csh", "tcsh", "fish")
_GIVE_THE_SCRIPT = "give the training script itself"
_UNREADABLE = {
    errno.ENOENT: "no such file",
    errno.EFBIG: f"larger than {MOST_BYTES // 1_000_000} MB: no script",
    errno.EINVAL: "this is no file",
}


@dataclass(frozen=True, eq=False)
class Source:
    """One file.

    Attributes:
        name: as it is shown in a report; empty for the script itself.
        cells: of a notebook: for each line its cell, from 1, and its line there; empty for a script.
    """

    tree: nodes.Module
    name: str = ""
    cells: tuple[tuple[int, int], ...] = ()

    @property
    def module(self) -> str:
        """The dotted name that it is imported by."""
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def place(self, line: int) -> str:
        """Where a line is, as a person finds it."""
        if self.cells:
            return "cell {}:{}".format(*self.cells[min(line, len(self.cells)) - 1])
        return f"{self.name}:{line}" if self.name else str(line)


def read_script(path: Path) -> Source:
    """A script or notebook.

    Raises:
        UsageError: it is no Python that can be read: missing, a directory, too large, no UTF-8, a shell script, or with
            an error of syntax; says the line.
    """
    text = _text(path)
    if path.suffix == ".ipynb":
        return _notebook(path, text)
    first = text.partition("\n")[0]
    by_shell = first.startswith("#!") and any(word.rpartition("/")[2] in _SHELLS for word in first[2:].split())
    if path.suffix == ".sh" or by_shell:
        raise UsageError("this is a shell script", where=str(path), fix="give the Python file that it starts")
    return Source(_tree(text, str(path)))


def read_module(path: Path, name: str) -> Source:
    """A module beside a script, shown by this name. Raises UsageError: as ``read_script``."""
    return Source(_tree(_text(path), str(path)), name)


def _text(path: Path) -> str:
    try:
        raw = read_bytes(path, MOST_BYTES)
    except OSError as error:
        what = _UNREADABLE.get(error.errno or 0, f"cannot be read: {error.strerror}")
        what = "this is a directory" if path.is_dir() else what
        raise UsageError(what, where=str(path), fix=_GIVE_THE_SCRIPT) from None
    if b"\0" in raw:
        raise UsageError("this is a binary file", where=str(path), fix=_GIVE_THE_SCRIPT)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{path}:{raw[: error.start].count(10) + 1}"
        what = f"not UTF-8: byte 0x{raw[error.start]:02x}"
        raise UsageError(what, where=where, fix="save the file as UTF-8") from None


class _Builder(AstroidBuilder):  # type: ignore[misc]
    """Builds the tree alone: astroid's own also looks for what is imported, and guesses whose attribute is set."""

    def __init__(self) -> None:
        """A builder with an empty module of builtins: to build Python's takes longer than to read a script."""
        manager = AstroidManager()
        manager.astroid_cache.setdefault("builtins", nodes.Module("builtins"))
        self._manager, self._apply_transforms = manager, False

    def add_from_names_to_locals(self, node: nodes.ImportFrom, *_global_names: object) -> None:
        """The names that it imports; those of ``*`` are not looked for."""
        for name, alias in node.names:
            if name != "*":
                node.parent.set_local(alias or name, node)

    def delayed_assattr(self, node: nodes.AssignAttr) -> None:
        """Nothing: attributes are known by their names."""


def _tree(text: str, name: str) -> nodes.Module:
    if len(text) > MOST_TEXT:
        raise UsageError(f"more than {MOST_TEXT // 1000} kB of Python", where=name, fix=_GIVE_THE_SCRIPT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own, of no matter here
            return _Builder().string_build(text)
    except AstroidSyntaxError as error:
        cause: Any = error.error
        if isinstance(cause, SyntaxError):
            where = f"{name}:{cause.lineno or 1}"
            fix = "correct the line; Python 2 is not read"
            raise UsageError(f"not valid Python: {cause.msg}", where=where, fix=fix) from None
    except (RecursionError, MemoryError, ValueError):
        pass
    raise UsageError("nested too deeply to be read", where=name, fix=_GIVE_THE_SCRIPT)


def _notebook(path: Path, text: str) -> Source:
    """The code cells of a notebook as one script; lines that are no Python (``%``, ``!``) are left out."""
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    try:
        for number, cell in enumerate(json.loads(text)["cells"], 1):
            code = "".join(cell["source"]) if cell["cell_type"] == "code" else "%%markdown"
            if not code.startswith("%%") or code.startswith(("%%time", "%%capture")):
                lines += ("pass" if line.startswith(("%", "!")) else line for line in code.split("\n"))
                places += ((number, line) for line in range(1, code.count("\n") + 2))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError("not a notebook that can be read", where=str(path), fix="export it as a script") from None
    source = Source(nodes.Module(""), cells=tuple(places) or ((1, 1),))
    try:
        return replace(source, tree=_tree("\n".join(lines), str(path)))
    except UsageError as error:
        line = error.where.rpartition(":")[2]
        where = f"{path}, {source.place(int(line))}" if line.isdigit() else str(path)
        raise UsageError(error.what, where=where, fix=error.fix) from None
