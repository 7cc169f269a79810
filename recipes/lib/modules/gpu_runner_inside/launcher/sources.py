"""The files that a program begins with: those that its command names, what the scripts of a shell among these name, and
all of its recipe. What a Python reads beside them, it says itself (``gpu_runner_inside.inputs``).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import deque
from typing import Any, Dict, Iterator, Sequence, Tuple

from gpu_runner_inside.inputs import regular

_SOURCES = (".py", ".sh", ".pl", ".R", ".jl")
_SHELLS = ("bash", "sh", "dash", "zsh")
_NOTES = (".md", ".rst", ".txt", ".log")
_OF_MAKE = ("GNUmakefile", "makefile", "Makefile")
# What a shell reads, or make: ". ./params", "source "$here/params"", "$(cat args)", "include settings"; not what has a
# whole path.
_READ = re.compile(
    rb"(?:(?:^|[\s;&(])(?:\.|source|-?include)[ \t]+|\$\((?:cat[ \t]|<)[ \t]*)"
    rb"[\"']?(?:\$\{?\w+\}?/|\$\(dirname[^)]*\)/)?([\w.][\w./-]*)",
    re.MULTILINE,
)
_BETWEEN = re.compile(rb"[\s\"'`=:;,|&()<>\[\]{}$]+")
_MOST_BYTES, _MOST_FILES = 1 << 20, 1000
Sources = Dict[str, Tuple[str, int]]  # name -> digest of the content, time of change in ns


def files(argv: Sequence[str], run_dir: str, own: re.Pattern[str]) -> Sources:
    """These files as they are now, by names without what is the job's ``own``. What is larger than 1 MiB is data."""
    recipe = os.path.normpath(os.path.join(run_dir, "recipe"))
    left = deque([*_named(argv), *_below(recipe)])
    found: Sources = {}
    while left and len(found) < _MOST_FILES:
        path = os.path.normpath(left.popleft())
        if path in found or (read := _read(path)) is None:
            continue
        content, changed_ns = read
        found[path] = hashlib.sha256(content).hexdigest()[:16], changed_ns
        if path.endswith((".sh", *_OF_MAKE)) or (content.startswith(b"#!") and b"sh" in content.partition(b"\n")[0]):
            left.extend(
                os.path.join(place, name.lstrip(place and "/"))  # "${here}/common.sh"
                for name in _in_text(content)
                for place in ("", os.path.dirname(path))
            )
    return {own.sub("#", _name(path, run_dir)): each for path, each in found.items()}


def changes(began: Sources, ended: Sources) -> dict[str, Any]:
    """Name -> digest as it began, empty where it was not there, and whether it was written since."""
    return {name: [began.get(name, ("",))[0], began.get(name) != ended.get(name)] for name in sorted({*began, *ended})}


def _name(path: str, run_dir: str) -> str:
    return os.path.relpath(path, run_dir) if path.startswith(os.path.normpath(run_dir) + "/") else os.path.relpath(path)


def _read(path: str) -> tuple[bytes, int] | None:
    """Its content and time of change; None where it is none."""
    try:
        if stat.S_ISREG(os.stat(path).st_mode):  # no device is opened
            with regular(path) as file:
                state = os.fstat(file.fileno())
                return (file.read(), state.st_mtime_ns) if state.st_size <= _MOST_BYTES else None
    except (OSError, ValueError):
        pass
    return None


def _named(argv: Sequence[str]) -> Iterator[str]:
    """The program; words and values of options that name a source, the names in them (``bash -c``), and the files of
    ``-m MODULE``.
    """
    yield from argv[:1]
    yield from _OF_MAKE if "make" in map(os.path.basename, argv[:3]) else ()
    for before, word in zip(("", *argv), argv):
        module = word if before == "-m" else word[2:] if word.startswith("-m") else ""
        place = module.replace(".", "/")
        yield from (f"{place}.py", f"{place}/__init__.py", f"{place}/__main__.py") if place else ()
        yield from _in_text(os.fsencode(word))
        if "/" in word and os.access(word, os.X_OK):  # timeout 9 ./run
            yield word
    words = [each for each in argv if not each.startswith("-")]
    yield from (word for shell, word in zip(words, words[1:]) if os.path.basename(shell) in _SHELLS)


def _in_text(content: bytes) -> Iterator[str]:
    """Names of sources, and of what is read there."""
    for word in dict.fromkeys(each for each in _BETWEEN.split(content) if b"." in each):
        if (name := os.fsdecode(word)).endswith(_SOURCES):
            yield name
    yield from map(os.fsdecode, _READ.findall(content))


def _below(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith((".", "__")))
        yield from (os.path.join(place, name) for name in sorted(names) if name[0] != "." and not name.endswith(_NOTES))
