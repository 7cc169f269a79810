"""Where environments lie, and what is known of each: one directory each, with its record written last."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from runner.errors import RefusedError, UsageError
from runner.model.environment import Environment
from runner.model.names import PLAIN_NAME, PLAIN_NAME_FIX

RECORD = "environment.json"
SCRIPT, LOG = "create.sh", "create.log"
IN_HOME = "environment-in-home"  # what --force takes
# What activation scripts and first lines of scripts take as it is: those of virtual environments quote nothing before
# Python 3.13, and no kernel takes a blank in a first line (PEP 405, execve(2)).
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z", re.ASCII)
_OURS = frozenset((RECORD, SCRIPT, "lock", "building"))


def user_directory(scratch: str) -> Path:
    """Where the environments of one user lie at a site.

    Raises:
        RefusedError: nobody has told the user's scratch directory.
    """
    if not scratch:
        raise RefusedError(
            "environments lie on scratch, and nobody has told where yours is",
            where="scratch",
            fix="--scratch DIR, `scratch:` in ~/.config/gpu-runner/config.yaml, or the directory itself",
        )
    return Path(scratch).absolute() / "gpu-runner" / "environments"


def directory_of(name: str, at: Path) -> Path:
    """The directory of the environment of that name among those of ``at``.

    Raises:
        UsageError: no possible name.
    """
    if not PLAIN_NAME.match(name) or name in (".", ".."):
        raise UsageError(f"{name!r} cannot be an environment's name", fix=PLAIN_NAME_FIX)
    return at.absolute() / name


def check_path(root: Path) -> None:
    """Whether an environment can work there.

    Raises:
        UsageError: a character that the scripts in an environment would not take as it is.
    """
    if not _PLAIN_PATH.match(str(root)):
        raise UsageError(
            "an environment cannot work below such a path: its own scripts do not quote it",
            where=repr(str(root)),
            fix="--at a directory with letters, digits and _@%+=:,./- alone",
        )


def read(root: Path) -> Environment | None:
    """What lies there, whole; None where nothing does, or what was begun has not come to its end."""
    try:
        found = msgspec.json.decode((root / RECORD).read_bytes(), type=Environment)
    except (OSError, msgspec.DecodeError):
        return None
    return found if not found.directory or os.access(Path(found.directory) / "bin/python3", os.X_OK) else None


def find(name_or_directory: str, scratch: str, site: str) -> Environment:
    """One that is there and whole.

    Raises:
        RefusedError: it is not, or as ``user_directory``. UsageError: as ``directory_of``.
    """
    by_path = "/" in name_or_directory
    root = Path(name_or_directory).absolute() if by_path else directory_of(name_or_directory, user_directory(scratch))
    found = read(root)
    if found is None:
        begun = (root / SCRIPT).exists()
        at = f" --at {root.parent}" if by_path else ""
        raise RefusedError(
            f"the environment {root.name} is {'not finished, or has lost its Python' if begun else 'not there'}",
            where=str(root),
            fix=f"python -m runner env create {root.name} --site {site}{at}",
        )
    return found


def all_environments(at: Path) -> Iterator[tuple[Path, Environment | None]]:
    """Every environment below a directory, and None for one that has not come to its end."""
    for root in sorted(at.iterdir()) if at.is_dir() else ():
        if root.is_dir() and (root / SCRIPT).exists():
            yield root, read(root)


def is_free(root: Path) -> bool:
    """Whether an environment may be made there: nothing lies there yet, or one of ours."""
    return not root.exists() or (root.is_dir() and (not any(root.iterdir()) or any((root / n).exists() for n in _OURS)))


def home_above(directory: Path) -> Path | None:
    """The home directory in which this one lies, by its name or as links lead; None where it lies in none."""
    homes = {Path.home()}
    with suppress(KeyError):  # a user id without a name
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    for home in homes - {Path("/")}:
        for called, above in ((directory, home), (Path(os.path.realpath(directory)), Path(os.path.realpath(home)))):
            if above == called or above in called.parents:
                return home
    return None
