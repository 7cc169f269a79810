"""What no scheduler's directives can contain."""

from __future__ import annotations

import re

from runner.core.errors import UsageError


def one_line(value: str, where: str) -> None:
    """Raises UsageError where the value holds a character that would end the directive's line; says which."""
    for character, name in (("\n", "newline"), ("\0", "NUL"), ("\r", "carriage return")):
        if character in value:
            raise UsageError(
                f"a {name} cannot stand in a scheduler directive", where=where, fix=f"leave the {name} out"
            )


_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]+\Z", re.ASCII)
_OPTION = re.compile(r"[A-Za-z]\Z", re.ASCII)
_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z", re.ASCII)


def pbs_directive(option: str, value: str) -> str:
    """One directive line: ``option`` is one letter, or the name of a resource, which becomes ``-l NAME=VALUE``.

    Raises:
        UsageError: the name or value cannot stand in a directive (says which character).
    """
    if not _RESOURCE.match(option):
        raise UsageError(f"{option!r} is no option of qsub and no resource", where="directives")
    one_line(value, f"{option}={value!r}")
    if _OPTION.match(option):
        return f"#PBS -{option} {_word(value)}"
    return f"#PBS -l {_word(f'{option}={value}')}"


def _word(value: str) -> str:
    if _PLAIN.match(value):
        return value
    return '"\'"'.join(f"'{part}'" for part in value.split("'"))


_SBATCH_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./&\[\]-]+\Z", re.ASCII)
_SBATCH_OPTION = re.compile(r"[a-z][a-z0-9-]*\Z", re.ASCII)


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
    one_line(value, f"--{option}={value!r}")
    if _SBATCH_PLAIN.match(value):
        return f"#SBATCH --{option}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{option}="{escaped}"'
