"""The last thing that a run has written: whether it still moves."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.jobs.run import Run

_TAIL_BYTES = 4096
_LONGEST_LINE = 200


@dataclass(frozen=True)
class LastOutput:
    """The newest output of a run.

    Attributes:
        file: below the run directory. line: its last line that is not empty, cut off after 200 characters.
        age_s: seconds since it was written, by the clock of this machine.
    """

    file: str
    line: str
    age_s: float


def last_output(run: Run) -> LastOutput | None:
    """From the log that was written last; None if there is no output yet."""
    newest: tuple[float, os.DirEntry[str]] | None = None
    with suppress(OSError), os.scandir(run.logs) as entries:
        for entry in entries:
            with suppress(OSError):  # it was replaced while it was looked at
                status = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False) and status.st_size > 0:
                    newest = max(newest or (0.0, entry), (status.st_mtime, entry), key=lambda each: each[0])
    if newest is None:
        return None
    written_s, entry = newest
    return LastOutput(f"logs/{entry.name}", _last_line(entry.path), max(0.0, time.time() - written_s))


def _last_line(path: str) -> str:
    """A bar that a program draws anew after a carriage return counts as a line."""
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:_LONGEST_LINE] for line in reversed(lines) if line.strip()), "")
