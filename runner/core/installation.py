"""What to say where a package that gpu-runner needs is not installed. Needs nothing but Python itself."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parents[2]


def report(module: str, checkout: Path = _HERE) -> str:
    """What is missing, and the command that brings it.

    Args:
        module: the one that was not found. checkout: where this package lies, or the site-packages that it is in.
    """
    what = f"error: {sys.executable} has no module {module}, which gpu-runner needs"
    if not (checkout / "Makefile").is_file():
        return f"{what}\n  fix:   install gpu-runner's release file again with pip, which brings what it needs"
    activate = shlex.quote(str(checkout / ".venv/bin/activate"))
    made = (checkout / ".venv/.ready").is_file()
    make = "" if made else f"make -C {shlex.quote(str(checkout))} venv && "
    return f"{what}\n  fix:   {make}. {activate}"
