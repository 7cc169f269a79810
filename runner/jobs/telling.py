"""Which logs of a run tell most of how it went: those of the rank that failed first."""

from __future__ import annotations

import re

from runner.core import file_system
from runner.core.errors import RunnerError
from runner.jobs.logs import LogFile, Selection, one_rank, read
from runner.jobs.run import Run
from runner.model.verdict import Verdict

_QUOTED = re.compile(r"logs/([^/:]+):")
_OF_RANK = re.compile(r"rank-(\d+)\.")


def first_failed(run: Run) -> tuple[Selection, int | None]:
    """The logs of the rank that failed first, or of rank 0 where none has or that is unknown; that rank, or None.

    With them the log of the batch script or of a node that the verdict quotes.
    """
    verdict = run.verdict or _judged_so_far(run)
    quoted = _QUOTED.match(verdict.log) if verdict is not None else None
    name = quoted[1] if quoted else ""
    rank = verdict.rank if verdict is not None else None
    if rank is None and (of_rank := _OF_RANK.match(name)):
        rank = int(of_rank[1])
    script = frozenset({name} if name and not _OF_RANK.match(name) else ())
    return one_rank(rank or 0, script=script), rank


def host_of(run: Run, rank: int) -> str:
    """Where a rank runs, by its own record; empty where it has left none (yet)."""
    start = run.records.start(rank)
    return start.host if start is not None else ""


def ends_with_lost_image(run: Run, log: LogFile) -> bool:
    """Whether a rank's log ends as one does whose container lost its image when the job ended, and the verdict quotes
    another line: then that end tells nothing of the cause.
    """
    verdict = run.verdict
    if verdict is None or log.rank is None or log.path.suffix != ".err":
        return False
    from runner.diagnosis.log_patterns import IMAGE_LOST  # of no use for most logs

    last = b"".join(read(log, 1)).decode("utf-8", "replace").strip()
    return IMAGE_LOST.search(last) is not None and last not in verdict.log


def _judged_so_far(run: Run) -> Verdict | None:
    """The verdict by what is there now; None where no rank has ended yet, or where it cannot be judged."""
    if not any(name.endswith(".exit.json") for name in file_system.names_in(run.ranks)):
        return None
    from runner.jobs.verdict import judge

    try:
        return judge(run.evidence)
    except (RunnerError, OSError):
        return None
