"""The directories of environments: one for each, with its record written last."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from runner.core.errors import RefusedError, UsageError
from runner.core.invocation import PROGRAM
from runner.environments import own
from runner.model.environment import Environment
from runner.model.names import PLAIN_NAME, PLAIN_NAME_FIX

RECORD = "environment.json"
SCRIPT, LOG = "create.sh", "create.log"
IN_HOME = "environment-in-home"  # what --force takes
# Characters that need no quoting: activation scripts of virtual environments quote nothing before Python 3.13, and no
# kernel accepts a blank in a script's first line (PEP 405, execve(2)).
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_@%+=:,./-]+\Z", re.ASCII)
_OURS = frozenset((RECORD, SCRIPT, "lock", "building"))


def user_directory(scratch: str) -> Path:
    """The directory of one user's environments at a site.

    Raises:
        RefusedError: the user's scratch directory is unknown.
    """
    if not scratch:
        raise RefusedError(
            "environments lie on scratch, and your scratch directory is unknown",
            where="scratch",
            fix="--scratch DIR, `scratch:` in ~/.config/gpu-runner/config.yaml, or the environment's own directory",
        )
    return Path(scratch).absolute() / "gpu-runner" / "environments"


def directory_of(name: str, at: Path) -> Path:
    """The directory of the environment ``name`` below ``at``.

    Raises:
        UsageError: it cannot be a name.
    """
    if not PLAIN_NAME.match(name) or name in (".", ".."):
        raise UsageError(f"{name!r} cannot be an environment's name", fix=PLAIN_NAME_FIX)
    return at.absolute() / name


def check_path(root: Path) -> None:
    """Check that an environment can work there.

    Raises:
        UsageError: the path has a character that the scripts in an environment would have to quote.
    """
    if not _PLAIN_PATH.match(str(root)):
        raise UsageError(
            "an environment cannot work below this path: its own scripts do not quote it",
            where=repr(str(root)),
            fix="--at a directory with only letters, digits and _@%+=:,./-",
        )


def read(root: Path) -> Environment | None:
    """The environment there; None if there is none, or it is not finished."""
    try:
        environment = msgspec.json.decode((root / RECORD).read_bytes(), type=Environment)
    except (OSError, msgspec.DecodeError):
        return None
    whole = not environment.directory or os.access(Path(environment.directory) / "bin/python3", os.X_OK)
    return environment if whole else None


def find(name_or_directory: str, scratch: str, site: str) -> Environment:
    """The environment of a name or directory; of a directory also a virtual or conda environment that the user made.

    Raises:
        RefusedError: it is not there or not finished, or as ``user_directory``. UsageError: as ``directory_of``.
    """
    by_path = "/" in name_or_directory
    root = Path(name_or_directory).absolute() if by_path else directory_of(name_or_directory, user_directory(scratch))
    environment = read(root)
    if environment is None and by_path and not (root / SCRIPT).exists():
        environment = own.of_directory(root)
    if environment is None:
        begun = (root / SCRIPT).exists()
        broken = own.fault(root) if by_path and not begun else ""
        if broken:
            fix = "make it anew, or name another one: --env-name DIR"
            raise RefusedError(f"{root.name} cannot be used: {broken}", where=str(root), fix=fix)
        at = f" --at {root.parent}" if by_path else ""
        raise RefusedError(
            f"the environment {root.name} is {'not finished, or has lost its Python' if begun else 'not there'}",
            where=str(root),
            fix=f"{PROGRAM} env create {root.name} --site {site}{at}",
        )
    return environment


def all_environments(at: Path) -> Iterator[tuple[Path, Environment | None]]:
    """Every environment below a directory, with None for one that is not finished."""
    for root in sorted(at.iterdir()) if at.is_dir() else ():
        if root.is_dir() and (root / SCRIPT).exists():
            yield root, read(root)


def is_free(root: Path) -> bool:
    """Whether an environment may be made there: there is nothing yet, or an environment made by this program."""
    return not root.exists() or (root.is_dir() and (not any(root.iterdir()) or any((root / n).exists() for n in _OURS)))


def home_above(directory: Path) -> Path | None:
    """The home directory that holds this one, by its path or with links resolved; None if none does."""
    homes = {Path.home()}
    with suppress(KeyError):  # a user id without a name
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    for home in homes - {Path("/")}:
        for called, above in ((directory, home), (Path(os.path.realpath(directory)), Path(os.path.realpath(home)))):
            if above == called or above in called.parents:
                return home
    return None
