"""No stage hangs on a dead file system: every place that a job's preparation looks at must answer first. And a script
that is certainly not there is no job.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from runner.core.errors import RefusedError, UsageError
from runner.core.paths import home
from runner.images.store import store
from runner.model.plan import WORKSPACE
from runner.model.request import Mount, Request
from runner.preparation.horovod_use import is_source

PATIENCE_S = 5.0


def check_answers(request: Request) -> None:
    """Check that the file systems of a job's files answer.

    Raises:
        RefusedError: one does not.
    """
    image = request.image or ""
    image_file = (image,) if image.startswith(("/", ".", "~")) else ()
    mounts = (mount.source for mount in request.mounts)
    program = (word for word in request.program if is_source(word))
    refuse_silent((request.runs, home(), store.directory(), *mounts, *image_file, *program))


def refuse_silent(paths: Iterable[str | Path], patience_s: float = PATIENCE_S) -> None:
    """Look at all paths at once and return when each has answered, even if only that nothing is there.

    A path on a dead server may never answer: the thread that waits for it ends with this process.

    Raises:
        RefusedError: one has not answered within ``patience_s`` seconds in all.
    """
    events = {str(path): threading.Event() for path in paths}
    for path, answered in events.items():
        threading.Thread(target=_look, args=(path, answered), daemon=True).start()
    deadline = time.monotonic() + patience_s
    for path, answered in events.items():
        if not answered.wait(max(0.0, deadline - time.monotonic())):
            raise RefusedError(
                f"the file system of {path} has not answered for {patience_s:g} s",
                where=path,
                fix="wait until it does (`df`), or use another directory; nothing was submitted",
            )


def refuse_missing_script(
    program: Sequence[str], directory: Path, mounts: Iterable[Mount], runs: Path, *, runs_here: bool
) -> None:
    """Refuse ``python trian.py`` where no such file can be in the job, before the job waits in a queue.

    Only where that is certain: Python's own argument, relative, below the directory that the program starts in, which
    is on the file system of the run directory (that every rank sees) and has nothing else mounted over it.

    Raises:
        UsageError: the script is not there.
    """
    script = _script(program)
    if script is None or ".." in Path(script).parts:
        return
    over = [mount for mount in mounts if f"{mount.target}/".startswith(f"{WORKSPACE}/")]
    if any(mount.target != WORKSPACE or Path(mount.source) != directory for mount in over):
        return
    try:
        if not runs_here and directory.stat().st_dev != _nearest(runs).stat().st_dev:
            return
        (directory / script).lstat()
    except FileNotFoundError:
        fix = "correct its name, or call submit in the script's directory"
        raise UsageError(f"there is no file {script} in this directory", where=str(directory), fix=fix) from None
    except (OSError, ValueError):
        return


def _script(program: Sequence[str]) -> str | None:
    """The file that Python is given; None where there is none, or it is absolute or no ``.py``."""
    words = iter(program)
    if not re.fullmatch(r"python[\d.]*", next(words, "").rpartition("/")[2], re.ASCII):
        return None
    for word in words:
        if word in ("-W", "-X"):
            next(words, "")
        elif not word.startswith("-"):
            return word if word.endswith(".py") and not word.startswith("/") else None
        elif word.startswith(("-m", "-c")) or word == "-":
            return None
    return None


def _nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def _look(path: str, answered: threading.Event) -> None:
    with suppress(OSError, ValueError):
        Path(path).stat()
    answered.set()
