"""The files that a program starts with: those of source and configuration that its command names or its recipe has."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Iterator, Sequence

# JSON may also be what a program writes: only configurations count.
_NAMES = re.compile(r"\.(py|sh|pl|R|jl|ya?ml|toml|ini|cfg)\Z|conf[^/]*\.json\Z")
_MOST_BYTES, _MOST_FILES = 1 << 20, 1000


def digest(argv: Sequence[str], run_dir: str) -> str | None:
    """SHA-256 of their names and contents; None without any. What is larger than 1 MiB is data."""
    lines = []
    for path in [*_named(argv), *_below(os.path.join(run_dir, "recipe"))][:_MOST_FILES]:
        try:
            if os.path.isfile(path) and os.path.getsize(path) <= _MOST_BYTES:
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
                lines.append(f"{content}  {os.path.basename(path)}\n")
        except OSError:
            continue
    text = "".join(sorted(lines))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest() if lines else None


def _named(argv: Sequence[str]) -> Iterator[str]:
    """Words and values of options (``--config=FILE``) that name such a file, and the file of ``-m MODULE``."""
    for before, word in zip(("", *argv), argv):
        if before == "-m":
            place = word.replace(".", "/")
            yield from (f"{place}.py", f"{place}/__main__.py")
        name = word.partition("=")[2] if word.startswith("-") else word
        if _NAMES.search(name) and "\0" not in name:
            yield name


def _below(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith((".", "__")))
        yield from (os.path.join(place, name) for name in sorted(names) if _NAMES.search(name) and name[0] != ".")
