"""The places of a job's files, looked at: never longer than a few seconds, whatever a network file system does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from runner.checks import storage
from runner.errors import RefusedError
from runner.images.store import store
from runner.model.plan import PlannedImage
from runner.model.site import Site
from runner.sites.workspaces import workspaces

PATIENCE_S = 5.0


def refuse_silent(paths: Iterable[str | Path], patience_s: float = PATIENCE_S) -> None:
    """Look at all paths at once, and go on when each has answered, be it that there is no such thing.

    A path of a dead server may answer never: what waits for it is a thread that ends with this process.

    Raises:
        RefusedError: one has not answered within ``patience_s`` seconds in all.
    """
    asked = {str(path): threading.Event() for path in paths}
    for path, answered in asked.items():
        threading.Thread(target=_look, args=(path, answered), daemon=True).start()
    deadline = time.monotonic() + patience_s
    for path, answered in asked.items():
        if not answered.wait(max(0.0, deadline - time.monotonic())):
            raise RefusedError(
                f"the file system of {path} has not answered for {patience_s:g} s",
                where=path,
                fix="wait until it does (`df`), or use another place; nothing was submitted",
            )


def involved(runs: Path, mounts: Iterable[str], image: str) -> tuple[str | Path, ...]:
    """The places that planning and checking look at."""
    named = (image,) if image.startswith(("/", ".", "~")) else ()
    return (runs.absolute(), home(), store.directory(), *mounts, *named)


def home() -> Path:
    """The user's home directory; the root for a user id without one."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def seen(site: Site, image: PlannedImage, runs: tuple[str, ...], scratch: str) -> storage.Seen:
    """What the rules for storage look at."""
    idle_s = None
    with suppress(OSError, ValueError):
        found = Path(image.path).stat() if image.path else None
        idle_s = time.time() - max(found.st_atime, found.st_mtime) if found else None
    return storage.Seen(
        home=names(home()),
        runs=runs,
        scratch=scratch,
        image_idle_s=idle_s,
        workspaces=workspaces() if site.scratch.workspaces else (),
    )


def names(path: Path) -> tuple[str, ...]:
    """A path as it is called, and as links lead where that is another."""
    called = os.path.normpath(path.absolute())
    try:
        return tuple(dict.fromkeys((called, str(path.resolve()))))
    except (OSError, RuntimeError):  # a loop of links, or a name too long: said where the path is used
        return (called,)


def _look(path: str, answered: threading.Event) -> None:
    with suppress(OSError, ValueError):
        Path(path).stat()
    answered.set()
