"""The logs of a run: its files, and how they grow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from runner.errors import UnknownStateError
from runner.jobs.directory import RunDirectory
from runner.jobs.submission import scheduler_of
from runner.jobs.watch import SILENCE_S

_RANK = re.compile(r"rank-(\d+)\.(out|err)\Z")
_POLL_S = 0.5  # files
_QUERY_S = 2.0  # the scheduler


def log_files(run: RunDirectory, *, rank: int | None, every: bool) -> tuple[Path, ...]:
    """The non-empty logs, the batch script's first, then by rank: of one rank, of all, or of rank 0."""
    chosen = []
    for path in run.logs.glob("*"):
        match = _RANK.match(path.name)
        number = int(match[1]) if match else -1
        wanted = number == rank if rank is not None else every or number <= 0
        if wanted and path.stat().st_size > 0:
            chosen.append((number, path.suffix != ".out", path))
    return tuple(path for _, _, path in sorted(chosen))


def follow_files(
    run: RunDirectory, on_content: Callable[[Path, bytes, bool], None], *, rank: int | None, every: bool
) -> None:
    """Pass on what is added to the logs, whole lines at a time, until the job has ended and the files stop growing.

    ``on_content`` gets the file, the new bytes, and whether the source has changed since the last call.

    Raises:
        UnknownStateError: the scheduler did not answer for SILENCE_S.
    """
    scheduler, job_id = scheduler_of(run)
    at: dict[Path, int] = {}
    last: Path | None = None
    ended = False
    queried = answered = time.monotonic()
    while True:
        gained = False
        for path in log_files(run, rank=rank, every=every):
            with path.open("rb") as file:
                file.seek(at.get(path, 0))
                content = file.read()
            whole = content if ended else content[: content.rfind(b"\n") + 1]
            if whole:
                on_content(path, whole, path != last)
                at[path] = at.get(path, 0) + len(whole)
                last = path
                gained = True
        if ended and not gained:
            return
        if gained:
            continue
        if time.monotonic() - queried > _QUERY_S:
            queried = time.monotonic()
            try:
                ended = scheduler.state(job_id, run.path).phase in ("ended", "unknown")
                answered = queried
            except UnknownStateError:
                if queried - answered > SILENCE_S:
                    raise
        time.sleep(_POLL_S)
