"""Options into ``#SBATCH`` directives.

The grammar is not the shell's: ``sbatch`` splits the line at blanks, takes single and double quotes and
backslashes, and an unquoted ``#`` drops the rest of the line (Slurm 22.05, ``src/sbatch/opt.c``).
"""

from __future__ import annotations

import re

from runner.core.errors import UsageError
from runner.render.directives import one_line

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./&\[\]-]+\Z", re.ASCII)
_OPTION = re.compile(r"[a-z][a-z0-9-]*\Z", re.ASCII)


def directive(option: str, value: str | None = None) -> str:
    """One directive line.

    Args:
        option: long option name without dashes.
        value: None for an option that takes none.

    Raises:
        UsageError: the option's name or value cannot stand in a directive (says which character).
    """
    if not _OPTION.match(option):
        raise UsageError(f"{option!r} is no name of an sbatch option", where="directives")
    if value is None:
        return f"#SBATCH --{option}"
    one_line(value, f"--{option}={value!r}")
    if _PLAIN.match(value):
        return f"#SBATCH --{option}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{option}="{escaped}"'
