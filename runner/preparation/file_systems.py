"""No stage hangs on a dead file system: every place that a job's preparation looks at must answer first."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from runner.errors import RefusedError
from runner.images.store import store
from runner.paths import home
from runner.preparation.horovod_use import is_source
from runner.preparation.request import JobOptions

PATIENCE_S = 5.0


def check_answers(options: JobOptions) -> None:
    """Check that the file systems of a job's files answer.

    Raises:
        RefusedError: one does not.
    """
    image = options.request.image or ""
    image_file = (image,) if image.startswith(("/", ".", "~")) else ()
    mounts = (mount.source for mount in options.request.mounts)
    program = (word for word in options.program if is_source(word))
    refuse_silent((options.runs.absolute(), home(), store.directory(), *mounts, *image_file, *program))


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


def _look(path: str, answered: threading.Event) -> None:
    with suppress(OSError, ValueError):
        Path(path).stat()
    answered.set()
