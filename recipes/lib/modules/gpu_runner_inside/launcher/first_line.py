"""Why a script that is there could not be started: what its first line says of its interpreter."""

from __future__ import annotations

import os
import shutil

_LONGEST = 4096  # bytes of a first line that are read


def problem(program: str, path: str | None) -> str:
    """What is wrong with the first line of ``program``, which the kernel refused; empty where nothing is known.

    Args:
        path: PATH or None, in which a name without a slash is looked for.
    """
    place = program if "/" in program else shutil.which(program, path=path)
    try:
        with open(place or "", "rb") as file:
            line = file.readline(_LONGEST)
    except OSError:
        return ""
    if not line.startswith(b"#!"):
        return "" if line.startswith(b"\x7fELF") or not _is_text(line) else "its first line names no interpreter (#!)"
    if line.rstrip(b"\n").endswith(b"\r"):
        return "it has Windows line ends (CRLF): its first line names an interpreter that ends with a carriage return"
    words = os.fsdecode(line[2:]).split()
    if words and not os.path.exists(words[0]):
        return f"its interpreter is not there: its first line names {words[0]}"
    return ""


def _is_text(line: bytes) -> bool:
    return b"\0" not in line
