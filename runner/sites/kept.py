"""Site files that were detected because a command named no site; each is kept under the name of its cluster."""

from __future__ import annotations

import re
from pathlib import Path

from runner import paths
from runner.files import atomic
from runner.model.names import PLAIN_NAME


def directory() -> Path:
    """Where they are kept; it may not exist yet."""
    return paths.state_dir() / "sites"


def path_of(name: str) -> Path:
    """The file of that name; it may not exist."""
    return directory() / f"{name}.yaml"


def names() -> tuple[str, ...]:
    """Of all that are kept."""
    return tuple(sorted(path.stem for path in directory().glob("*.yaml") if PLAIN_NAME.match(path.stem)))


def keep(name: str, text: str) -> None:
    """Keep a detected site file, whole; only its owner may read it.

    Raises:
        OSError: the state directory may not be written to, or is full.
    """
    directory().mkdir(parents=True, exist_ok=True)
    atomic.write_private(path_of(name), text)


def origin(text: str) -> str:
    """Of which scheduler and day the file is, as its first line has it; empty if that line has been changed."""
    found = re.match(r"# Written by `site detect` on (\S+), from what (.+?) and its hosts say", text)
    return f"{found[2]} on {found[1]}" if found else ""
