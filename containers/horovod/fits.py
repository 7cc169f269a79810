"""Refuse a directory of packages that was collected for another Python or machine than this one.

    fits.py DIR

Standard library only, Python 3.8 or later: so an older Python is refused in words, too.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any


def misfit(manifest: dict[str, Any], python: str, machine: str, glibc: str) -> str:
    """Why the packages do not fit; empty where they do. ``glibc``: this machine's, empty where it is another libc."""
    pythons = manifest["pythons"]
    if python not in pythons:
        return f"they are for Python {', '.join(pythons)}, and this is Python {python} ({sys.executable})"
    if machine != manifest["machine"]:
        return f"they are for {manifest['machine']}, and this machine is {machine}"
    if not glibc or number(glibc) < number(str(manifest["glibc"])):
        return f"they need glibc {manifest['glibc']} or later, and this machine has {glibc or 'another C library'}"
    return ""


def number(version: str) -> tuple[int, ...]:
    """A version's numbers, to be compared."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def ensure(directory: Path) -> None:
    """Refuse packages that do not fit here.

    Raises:
        SystemExit: with the reason.
    """
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    library, version = platform.libc_ver()
    why = misfit(manifest, here, platform.machine(), version if library == "glibc" else "")
    if why:
        raise SystemExit(f"the packages in {directory} do not fit: {why}")


if __name__ == "__main__":
    ensure(Path(sys.argv[1]))
