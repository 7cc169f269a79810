"""The files that a program starts with: those of source and configuration that its command names or its recipe has, and
what these name, or import from beside them.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import deque
from itertools import accumulate
from typing import Iterator, Mapping, NamedTuple, Sequence

_SOURCES = (".py", ".sh", ".pl", ".R", ".jl")
# JSON may also be what a program writes: only configurations count.
_CONFIGURATION = re.compile(r"\.(ya?ml|toml|ini|cfg)\Z|conf[^/]*\.json\Z")
_IMPORT = re.compile(rb"^[ \t]*(from|import)[ \t]+((?:[^#\n(\\]|\\\n|\([^)]*\))+)", re.MULTILINE)
_WORD = re.compile(rb"[.\w]+")
_BETWEEN = re.compile(rb"[\s\"'`=:;,|&()<>\[\]{}$]+")
_MOST_BYTES, _MOST_FILES = 1 << 20, 1000


class File(NamedTuple):
    """A file as it was. ``sha256``: of its content."""

    sha256: str
    mtime_ns: int


def files_of(argv: Sequence[str], run_dir: str) -> dict[str, File]:
    """They by their paths, as they are now. What is larger than 1 MiB is data."""
    named = list(_named(argv))
    roots = {os.path.dirname(each) for each in named} | {""}
    roots |= {os.path.join(root, *beside) for root in roots for beside in (("src",), ("..", "src"))}
    recipe = os.path.normpath(os.path.join(run_dir, "recipe"))
    left = deque([*named, *_below(recipe)])
    seen: set[str] = set()
    files: dict[str, File] = {}
    folders: dict[str, bool] = {}
    while left and len(files) < _MOST_FILES:
        path = os.path.normpath(left.popleft())
        if path in seen:
            continue
        seen.add(path)
        content = _read(path, files)
        beside = os.path.dirname(path)
        if content and path.endswith(_SOURCES):
            names = _in_text(content, is_shell=path.endswith(".sh"))
            left.extend(os.path.join(place, name) for name in names for place in ("", beside))
        if content and path.endswith(".py") and not path.startswith(recipe + "/"):  # that was taken whole
            left.extend(_imported(content, roots | {beside, os.path.join(beside, "..")}, folders))
    return files


def digest(files: Mapping[str, File]) -> str | None:
    """SHA-256 of the names and contents of the sources among them; None without any."""
    lines = [f"{own.sha256}  {os.path.basename(path)}\n" for path, own in files.items() if path.endswith(_SOURCES)]
    return hashlib.sha256("".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest() if lines else None


def configuration(files: Mapping[str, File], run_dir: str) -> dict[str, str]:
    """The others by their names, those of the run directory below it: the first 16 digits of their SHA-256 then, with
    `` written`` if they were since, also with what they had.
    """
    others = {path: own for path, own in files.items() if not path.endswith(_SOURCES)}
    now: dict[str, File] = {}
    for path in others:
        _read(path, now)
    return {
        _name(path, run_dir): own.sha256[:16] + ("" if now.get(path) == own else " written")
        for path, own in others.items()
    }


def _name(path: str, run_dir: str) -> str:
    return os.path.relpath(path, run_dir) if path.startswith(os.path.normpath(run_dir) + "/") else path


def _read(path: str, files: dict[str, File]) -> bytes:
    """Its content, and the file among those that there are; empty where it is none."""
    try:
        state = os.stat(path)
        if stat.S_ISREG(state.st_mode) and state.st_size <= _MOST_BYTES:
            with open(path, "rb") as file:
                content = file.read()
            files[path] = File(hashlib.sha256(content).hexdigest(), state.st_mtime_ns)
            return content
    except OSError:
        pass
    return b""


def _named(argv: Sequence[str]) -> Iterator[str]:
    """Words and values of options (``--config=FILE``) that name such a file, the names in them (``bash -c``), and the
    file of ``-m MODULE``.
    """
    for before, word in zip(("", *argv), argv):
        if before == "-m":
            place = word.replace(".", "/")
            yield from (f"{place}.py", f"{place}/__main__.py")
        yield from filter(_is_wanted, (word, word.partition("=")[2]))
        yield from _in_text(os.fsencode(word), is_shell=True)


def _in_text(content: bytes, *, is_shell: bool) -> Iterator[str]:
    """Such files that a text names; of sources only where that runs them."""
    for word in dict.fromkeys(each for each in _BETWEEN.split(content) if b"." in each):
        name = os.fsdecode(word)
        if _is_wanted(name) and (is_shell or not name.endswith(_SOURCES)):
            yield name


def _is_wanted(name: str) -> bool:
    return (name.endswith(_SOURCES) or _CONFIGURATION.search(name) is not None) and "\0" not in name


def _imported(content: bytes, roots: set[str], folders: dict[str, bool]) -> Iterator[str]:
    """Where the modules that a file imports may be. ``folders``: whether paths are, as far as that was looked at."""
    for keyword, line in _IMPORT.findall(content):
        first, *others = [word for word in _WORD.findall(line) if word not in (b"import", b"as")] or [b""]
        for module in (first, *others) if keyword == b"import" else (first, *(first + b"." + each for each in others)):
            parts = os.fsdecode(module).strip(".").split(".")
            for root in sorted(roots):
                for place in accumulate((root, *parts), os.path.join):
                    yield from (f"{place}.py", os.path.join(place, "__init__.py"))
                    if place not in folders:
                        folders[place] = os.path.isdir(place or ".")
                    if not folders[place]:
                        break


def _below(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith((".", "__")))
        yield from (os.path.join(place, name) for name in sorted(names) if _is_wanted(name) and name[0] != ".")
