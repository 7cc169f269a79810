"""The source of a script and of the modules beside it: read, bounded and parsed; never run or imported."""

from __future__ import annotations

import ast
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.core.errors import UsageError

MOST_BYTES = 2_000_000
MOST_MODULES = 40
_SHELLS = ("sh", "bash", "zsh", "ksh", "dash", "csh", "tcsh", "fish")


@dataclass(frozen=True)
class Source:
    """One file.

    Attributes:
        name: as it is shown in a report; empty for the script itself.
        cells: of a notebook: for each line its cell, from 1, and its line there; empty for a script.
    """

    path: Path
    tree: ast.Module
    name: str = ""
    cells: tuple[tuple[int, int], ...] = ()

    def place(self, line: int) -> str:
        """Where a line is, as a person finds it."""
        if self.cells:
            cell, inside = self.cells[min(line, len(self.cells)) - 1]
            return f"cell {cell}:{inside}"
        return f"{self.name}:{line}" if self.name else str(line)


@dataclass
class Folder:
    """The modules beside a script, read when they are first looked for.

    Attributes:
        unread: modules that are there and could not be read.
    """

    top: Path
    unread: list[str] = field(default_factory=list)
    _sources: dict[Path, Source | None] = field(default_factory=dict)

    def module(self, name: str) -> Source | None:
        """The module of that dotted name; None where no file has it, or it cannot be read."""
        base = self.top.joinpath(*name.split("."))
        for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
            if path in self._sources:
                return self._sources[path]
            if not _is_file(path):
                continue
            source = None
            if sum(each is not None for each in self._sources.values()) < MOST_MODULES:
                try:
                    source = Source(path, _tree(_text(path), str(path)), str(path.relative_to(self.top)))
                except UsageError:
                    source = None
            if source is None:
                self.unread.append(name)
            self._sources[path] = source
            return source
        return None

    def is_package(self, name: str) -> bool:
        """Whether a folder of that dotted name holds modules, with no ``__init__.py``."""
        folder = self.top.joinpath(*name.split("."))
        try:
            return folder.is_dir() and any(folder.glob("*.py"))
        except OSError:
            return False


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
    if path.suffix == ".sh" or (
        first.startswith("#!") and first.split("/")[-1].split()[-1:] != [] and _is_shell(first)
    ):
        fix = "give the Python file that it starts"
        raise UsageError("this is a shell script", where=str(path), fix=fix)
    return Source(path, _tree(text, str(path)))


def _is_shell(first: str) -> bool:
    return any(word.rpartition("/")[2] in _SHELLS for word in first[2:].split())


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            if path.is_dir():
                raise UsageError("this is a directory", where=str(path), fix="give the script's file")
            if not path.exists():
                raise UsageError("no such file", where=str(path), fix="give the script's path")
            raise UsageError("this is no file", where=str(path), fix="give the script's file")
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no path has a NUL"
        raise UsageError(f"cannot be read: {why}", where=ascii(str(path)), fix="give the script's path") from None
    if len(raw) > MOST_BYTES:
        fix = "give the training script itself"
        raise UsageError(f"larger than {MOST_BYTES // 1_000_000} MB: no script", where=str(path), fix=fix)
    if b"\0" in raw:
        raise UsageError("this is a binary file", where=str(path), fix="give the Python file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        what = f"not UTF-8: byte 0x{raw[error.start]:02x}"
        raise UsageError(what, where=f"{path}:{line}", fix="save the file as UTF-8") from None


def _tree(text: str, name: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own, of no matter here
            return ast.parse(text)
    except SyntaxError as error:
        what = f"not valid Python: {error.msg}"
        fix = "correct the line; Python 2 is not read"
        raise UsageError(what, where=f"{name}:{error.lineno or 1}", fix=fix) from None
    except (RecursionError, MemoryError, ValueError):
        raise UsageError("nested too deeply to be read", where=name, fix="give the training script itself") from None


def _notebook(path: Path, text: str) -> Source:
    """The code cells of a notebook as one script; lines that are no Python (``%``, ``!``) are left out."""
    try:
        cells: Any = json.loads(text)["cells"]
        codes = [
            (number, "".join(cell["source"]))
            for number, cell in enumerate(cells, 1)
            if cell["cell_type"] == "code"
        ]  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError("not a notebook that can be read", where=str(path), fix="export it as a script") from None
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for number, code in codes:
        if code.startswith("%%") and not code.startswith(("%%time", "%%capture")):
            continue
        for inside, line in enumerate(code.split("\n"), 1):
            lines.append("pass" if line.startswith(("%", "!")) else line)
            places.append((number, inside))
    try:
        tree = _tree("\n".join(lines), str(path))
    except UsageError as error:
        line = error.where.rpartition(":")[2]
        where = Source(path, ast.Module([], []), cells=tuple(places) or ((1, 1),)).place(
            int(line) if line.isdigit() else 1
        )
        raise UsageError(error.what, where=f"{path}, {where}", fix=error.fix) from None
    return Source(path, tree, cells=tuple(places) or ((1, 1),))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
