"""Arguments into shell code for bash."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from runner.core.errors import UsageError
from runner.model.step import Argument, Export, Load, Run, Statement, Text, Unset

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_OF_THE_PROFILE = ((Text("module"),), (Text("ml"),))  # functions that a login shell defines
_WIDTH = 118  # of a job's commands, which people read
_CONDA = (Text("conda"),)
# What a program of that name in PATH, as a module leaves it, cannot do: change the shell that calls it.
_CONDA_HOOK = '[ "$(type -t conda)" = function ] || eval "$(conda shell.bash hook)"'


def quote(value: str) -> str:
    """``value`` quoted for the shell; any character but NUL arrives unchanged."""
    if "\0" in value:
        raise UsageError("a NUL character cannot be passed to a program", where=repr(value))
    if _PLAIN.match(value):
        return value
    return "'" + value.replace("'", "'\\''") + "'"


def quote_always(value: str) -> str:
    """As ``quote``, in quotes even where none are needed: the right-hand side of an assignment."""
    return quote(value) if not _PLAIN.match(value) else f"'{value}'"


def quoted_argument(parts: Argument) -> str:
    """One argument of literal text and variables, quoted for the shell."""
    rendered = []
    for part in parts:
        if isinstance(part, Text):
            rendered.append(quote(part.value))
        else:
            rendered.append(f'"${_variable(part.name)}"')
    return "".join(rendered) or "''"


def quoted_arguments(argv: Iterable[Argument]) -> str:
    """An argument list on one line."""
    return " ".join(quoted_argument(parts) for parts in argv)


def folded(argv: Sequence[Argument], *, width: int = 100, indent: str = "  ") -> str:
    """An argument list over several lines with continuations, none longer than ``width`` where the arguments allow."""
    lines: list[str] = []
    current = ""
    for parts in argv:
        rendered = quoted_argument(parts)
        if current and len(current) + 1 + len(rendered) > width:
            lines.append(current)
            current = indent + rendered
        else:
            current = f"{current} {rendered}" if current else rendered
    return " \\\n".join([*lines, current])


def command(*groups: Sequence[Argument], indent: str = "") -> str:
    """An argument list over several lines: each group begins one of its own."""
    inner = f"{indent}  "
    first, *others = (group for group in groups if group)
    lines = [folded(first, width=_WIDTH, indent=inner)]
    lines += [inner + folded(group, width=_WIDTH, indent=f"{inner}  ") for group in others]
    return " \\\n".join(lines)


def assignment(name: str, value: Argument) -> str:
    """``NAME=value``, for export."""
    if len(value) == 1 and isinstance(value[0], Text):
        return f"{_variable(name)}={quote_always(value[0].value)}"
    return f"{_variable(name)}={quoted_argument(value)}"


def statement(entry: Statement) -> str:
    """One statement of a batch script."""
    if isinstance(entry, Export):
        return f"export {assignment(entry.name, entry.value)}"
    if isinstance(entry, Unset):
        return f"unset -v {' '.join(_variable(name) for name in entry.names)}"
    if isinstance(entry, Load):
        return _load(entry)
    assert isinstance(entry, Run)
    return f"{folded(entry.argv)} || exit {entry.exit_code}"


def _load(entry: Load) -> str:
    lines = ["set +u   # what follows reads names that are not set"]
    if any(argv[0] in _OF_THE_PROFILE for argv in entry.commands):
        lines.append("type module &>/dev/null || . /etc/profile   # without the user's own start-up files")
    for argv in entry.commands:
        if argv[0] == _CONDA and _CONDA_HOOK not in lines:
            lines.append(_CONDA_HOOK)
        lines.append(f"{folded(argv)} || exit {entry.exit_code}")
    return "\n".join([*lines, "set -u"])


def _variable(name: str) -> str:
    if not _NAME.match(name):
        raise UsageError(
            f"{name!r} is no name of a shell variable",
            where="environment",
            fix="use letters, digits and '_', not starting with a digit",
        )
    return name
