"""The files that a program starts with: those of source and configuration that its command names or its recipe has, and
what these import from beside them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from typing import Iterator, Sequence

# JSON may also be what a program writes: only configurations count.
_NAMES = re.compile(r"\.(py|sh|pl|R|jl|ya?ml|toml|ini|cfg)\Z|conf[^/]*\.json\Z")
_IMPORT = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([^#\n]+)", re.MULTILINE)
_WORD = re.compile(rb"[.\w]+")
_MOST_BYTES, _MOST_FILES = 1 << 20, 1000


def digest(argv: Sequence[str], run_dir: str) -> str | None:
    """SHA-256 of their names and contents; None without any. What is larger than 1 MiB is data."""
    named = list(_named(argv))
    roots = {os.path.dirname(each) for each in named} | {""}
    left = deque([*named, *_below(os.path.join(run_dir, "recipe"))])
    seen: set[str] = set()
    contents: dict[str, bytes] = {}
    while left and len(contents) < _MOST_FILES:
        path = left.popleft()
        content = None if path in seen else _content(path)
        seen.add(path)
        if content is not None:
            contents[path] = content
            left.extend(_imported(path, content, roots) if path.endswith(".py") else ())
    lines = (f"{hashlib.sha256(each).hexdigest()}  {os.path.basename(path)}\n" for path, each in contents.items())
    text = "".join(sorted(lines)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest() if contents else None


def _content(path: str) -> bytes | None:
    try:
        if os.path.isfile(path) and os.path.getsize(path) <= _MOST_BYTES:
            with open(path, "rb") as file:
                return file.read()
    except OSError:
        pass
    return None


def _named(argv: Sequence[str]) -> Iterator[str]:
    """Words and values of options (``--config=FILE``) that name such a file, and the file of ``-m MODULE``."""
    for before, word in zip(("", *argv), argv):
        if before == "-m":
            place = word.replace(".", "/")
            yield from (f"{place}.py", f"{place}/__main__.py")
        name = word.partition("=")[2] if word.startswith("-") else word
        if _NAMES.search(name) and "\0" not in name:
            yield name


def _imported(path: str, content: bytes, roots: set[str]) -> Iterator[str]:
    """Where the modules that a file imports may be: beside a file of the command, or beside itself."""
    for line in _IMPORT.findall(content):
        first, *others = [word for word in _WORD.findall(line) if word not in (b"import", b"as")] or [b""]
        for module in (first, *others, *(first + b"." + each for each in others)):
            parts = os.fsdecode(module).strip(".").split(".")
            for root in sorted({*roots, os.path.dirname(path)}):
                place = root
                for part in parts:
                    place = os.path.join(place, part)
                    yield from (f"{place}.py", os.path.join(place, "__init__.py"))
                    if not os.path.isdir(place):
                        break


def _below(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith((".", "__")))
        yield from (os.path.join(place, name) for name in sorted(names) if _NAMES.search(name) and name[0] != ".")
