"""The files that a program begins with: those that its command names, what the scripts of a shell among these name, and
all of its recipe. What a Python reads beside them, it says itself (``gpu_runner_inside.inputs``).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import deque
from typing import Iterator, Sequence

_SOURCES = (".py", ".sh", ".pl", ".R", ".jl")
_NOTES = (".md", ".rst", ".txt", ".log")
_BETWEEN = re.compile(rb"[\s\"'`=:;,|&()<>\[\]{}$]+")
_MOST_BYTES, _MOST_FILES = 1 << 20, 1000


def digest(argv: Sequence[str], run_dir: str) -> str | None:
    """SHA-256 of the names and contents of these files, as they are now; None without any. What is larger than 1 MiB is
    data.
    """
    recipe = os.path.normpath(os.path.join(run_dir, "recipe"))
    left = deque([*_named(argv), *_below(recipe)])
    files: dict[str, str] = {}
    while left and len(files) < _MOST_FILES:
        path = os.path.normpath(left.popleft())
        if path in files or (content := _read(path)) is None:
            continue
        files[path] = hashlib.sha256(content).hexdigest()
        if path.endswith(".sh") or (content.startswith(b"#!") and b"sh" in content.partition(b"\n")[0]):
            left.extend(
                os.path.join(place, name.lstrip(place and "/"))  # "${here}/common.sh"
                for name in _in_text(content)
                for place in ("", os.path.dirname(path))
            )
    lines = sorted(f"{own}  {_name(path, run_dir)}\n" for path, own in files.items())
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest() if lines else None


def _name(path: str, run_dir: str) -> str:
    return os.path.relpath(path, run_dir) if path.startswith(os.path.normpath(run_dir) + "/") else os.path.relpath(path)


def _read(path: str) -> bytes | None:
    """Its content; None where it is none."""
    try:
        state = os.stat(path)
        if stat.S_ISREG(state.st_mode) and state.st_size <= _MOST_BYTES:
            with open(path, "rb") as file:
                return file.read()
    except (OSError, ValueError):
        pass
    return None


def _named(argv: Sequence[str]) -> Iterator[str]:
    """The program; words and values of options that name a source, the names in them (``bash -c``), and the files of
    ``-m MODULE``.
    """
    yield from argv[:1]
    for before, word in zip(("", *argv), argv):
        module = word if before == "-m" else word[2:] if word.startswith("-m") else ""
        place = module.replace(".", "/")
        yield from (f"{place}.py", f"{place}/__init__.py", f"{place}/__main__.py") if place else ()
        yield from _in_text(os.fsencode(word))
        if os.path.basename(before) in ("bash", "sh"):
            yield word


def _in_text(content: bytes) -> Iterator[str]:
    """Names of sources."""
    for word in dict.fromkeys(each for each in _BETWEEN.split(content) if b"." in each):
        if (name := os.fsdecode(word)).endswith(_SOURCES):
            yield name


def _below(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith((".", "__")))
        yield from (os.path.join(place, name) for name in sorted(names) if name[0] != "." and not name.endswith(_NOTES))
