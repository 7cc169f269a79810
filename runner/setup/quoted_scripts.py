"""Quotes the path of a virtual environment in its own scripts. Started by ``venv.sh`` with the environment's Python.

A Python from before the fix of CVE-2024-9287 writes the path into ``activate`` between double quotes, as pip does into
the commands that it installs: a shell replaces a ``$name`` in it.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

SPECIAL = frozenset('$`"\\')  # what a shell reads between double quotes
_EXEC = "#!/bin/sh\n'''exec' "  # pip's first lines, before the path, where that is too long or has a blank


def quote(prefix: Path) -> None:
    """Rewrite the scripts of the environment in ``prefix``, if its path needs it.

    Raises:
        OSError: they cannot be written.
    """
    if SPECIAL.isdisjoint(str(prefix)):
        return
    for script in (prefix / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes().decode("utf-8", "surrogateescape")
        if script.name == "activate":
            new = text.replace(f'VIRTUAL_ENV="{prefix}"', f"VIRTUAL_ENV={shlex.quote(str(prefix))}")
        elif text.startswith(f'{_EXEC}"'):  # else it was rewritten before
            program, _, rest = text.removeprefix(_EXEC).partition('" "$0"')
            new = f'{_EXEC}{shlex.quote(program[1:])} "$0"{rest}'
        else:
            continue
        script.write_bytes(new.encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    quote(Path(sys.prefix))
