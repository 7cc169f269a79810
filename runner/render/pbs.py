"""Options into ``#PBS`` directives.

The grammar is not the shell's: ``qsub`` splits the line at blanks, takes all between two quotes of one kind as it
stands, and a backslash outside quotes for an escape (OpenPBS 23.06, ``make_argv`` of ``src/cmds/qsub.c``).
"""

from __future__ import annotations

import re

from runner.core.errors import UsageError
from runner.render.directives import one_line

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]+\Z", re.ASCII)
_OPTION = re.compile(r"[A-Za-z]\Z", re.ASCII)
_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z", re.ASCII)


def directive(option: str, value: str) -> str:
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
