"""Further packages of an image, as ``build --requirement`` and ``--requirements`` name them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from runner.core.errors import UsageError

_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?P<extras>\[[A-Za-z0-9._,\- ]+\])?\s*==\s*"
    r"(?P<version>[0-9][A-Za-z0-9.!+_-]*)\s*(?:;\s*(?P<marker>[^;#\\]+))?"
)


def requirement(text: str, where: str) -> str:
    """``NAME==VERSION``, as pip takes it, perhaps with extras and a marker.

    Raises:
        UsageError: it is something else; ``where`` says which option, or which line of which file.
    """
    found = _LINE.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{text.strip()!r} is no package with its version",
            where=where,
            fix="NAME==VERSION, such as einops==0.8.1; options of pip, paths and addresses are not taken",
        )
    marker = f" ; {found['marker'].strip()}" if found["marker"] else ""
    return f"{found['name']}{(found['extras'] or '').replace(' ', '')}=={found['version']}{marker}"


def of_file(text: str, path: str) -> list[str]:
    """The requirements of a file: one a line, with comments.

    Raises:
        UsageError: a line is something else; names file and line.
    """
    lines = ((number, re.sub(r"(^|\s)#.*", "", line).strip()) for number, line in enumerate(text.splitlines(), 1))
    return [requirement(line, f"{path}:{number}") for number, line in lines if line]


def together(lines: Iterable[str]) -> tuple[str, ...]:
    """All of them, sorted, each once.

    Raises:
        UsageError: a package is asked for in two versions.
    """
    chosen: dict[str, str] = {}
    for line in sorted(set(lines)):
        name, _, marker = line.partition(";")
        key = re.sub(r"[-_.]+", "-", re.split(r"[\[=]", name)[0]).lower() + marker
        if key in chosen:
            raise UsageError(
                f"{chosen[key]} and {line} are both asked for", where="--requirement", fix="leave out one of them"
            )
        chosen[key] = line
    return tuple(chosen.values())
