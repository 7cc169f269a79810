"""The only place where arguments become shell code and scheduler directives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from runner.core.errors import UsageError
from runner.core.files import sha256
from runner.model.exit_codes import NOT_LOADED
from runner.model.step import LIBRARY, Argument, Export, JobScript, Run, Statement, Text, Unset

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_OF_THE_PROFILE = ((Text("module"),), (Text("ml"),))  # functions that a login shell defines
_WIDTH = 118  # of a job's commands, which people read
_CONDA = (Text("conda"),)
# What a program of that name in PATH, as a module leaves it, cannot do: change the shell that calls it.
_CONDA_HOOK = '[ "$(type -t conda)" = function ] || eval "$(conda shell.bash hook)"'

_PLAIN_OF_PBS = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]+\Z", re.ASCII)
_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z", re.ASCII)
_PLAIN_OF_SBATCH = re.compile(r"[A-Za-z0-9_@%+=:,./&\[\]-]+\Z", re.ASCII)
_SBATCH_OPTION = re.compile(r"[a-z][a-z0-9-]*\Z", re.ASCII)


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
    rendered = (quote(part.value) if isinstance(part, Text) else f'"${_variable(part.name)}"' for part in parts)
    return "".join(rendered) or "''"


def quoted_arguments(argv: Iterable[Argument]) -> str:
    """An argument list on one line."""
    return " ".join(map(quoted_argument, argv))


def folded(argv: Sequence[Argument], *, width: int = 100, indent: str = "  ") -> str:
    """An argument list over several lines with continuations, none longer than ``width`` where the arguments allow."""
    lines: list[str] = []
    current = ""
    for rendered in map(quoted_argument, argv):
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


def statement(entry: Statement) -> str:
    """One statement of a batch script."""
    if isinstance(entry, Export):
        literal = entry.value[0].value if len(entry.value) == 1 and isinstance(entry.value[0], Text) else None
        value = quoted_argument(entry.value) if literal is None else quote_always(literal)
        return f"export {_variable(entry.name)}={value}"
    if isinstance(entry, Unset):
        return f"unset -v {' '.join(map(_variable, entry.names))}"
    if isinstance(entry, Run):
        return f"{folded(entry.argv)} || exit {entry.exit_code}"
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


def job_script(parts: Iterable[str], files: Iterable[Path]) -> JobScript:
    """A script of these parts, each one whole lines, that reads these files: they are copied beside it as they are."""
    return JobScript("\n".join(parts), {path.name: _library_text(path) for path in files})


def checked(files: Iterable[Path], *sourced: Path) -> str:
    """Shell code that ends with NOT_LOADED unless all files are there as they are now, and reads some of them."""
    sums = "\n".join(f"{sha256(_library_text(path).encode())}  {LIBRARY}/{path.name}" for path in dict.fromkeys(files))
    read = " && ".join(f". {LIBRARY}/{path.name}" for path in sourced)
    return f"""\
# What this script calls is in these files, with the reasons. If one was changed since, the job ends with {NOT_LOADED}.
sha256sum --check --quiet >&2 <<'END' || exit {NOT_LOADED}
{sums}
END
{read} || exit {NOT_LOADED}
"""


@cache
def _library_text(path: Path) -> str:
    return path.read_text("utf-8")


def pbs_directive(option: str, value: str) -> str:
    """One directive line: ``option`` is one letter, or the name of a resource, which becomes ``-l NAME=VALUE``. Raises
    UsageError: the name or value cannot stand in a directive (says which character).
    """
    if not _RESOURCE.match(option):
        raise UsageError(f"{option!r} is no option of qsub and no resource", where="directives")
    _check_one_line(value, f"{option}={value!r}")
    name, word = (option, value) if len(option) == 1 else ("l", f"{option}={value}")
    if not _PLAIN_OF_PBS.match(word):
        word = '"\'"'.join(f"'{part}'" for part in word.split("'"))
    return f"#PBS -{name} {word}"


def sbatch_directive(option: str, value: str | None = None) -> str:
    """One directive line.

    Args:
        option: long option name without dashes.
        value: None for an option that takes none.

    Raises:
        UsageError: the option's name or value cannot stand in a directive (says which character).
    """
    if not _SBATCH_OPTION.match(option):
        raise UsageError(f"{option!r} is no name of an sbatch option", where="directives")
    if value is None:
        return f"#SBATCH --{option}"
    _check_one_line(value, f"--{option}={value!r}")
    if not _PLAIN_OF_SBATCH.match(value):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{option}={value}"


def _check_one_line(value: str, where: str) -> None:
    for character, name in (("\n", "newline"), ("\0", "NUL"), ("\r", "carriage return")):
        if character in value:
            raise UsageError(
                f"a {name} cannot stand in a scheduler directive", where=where, fix=f"leave the {name} out"
            )
