"""What the batch script's exit code tells, and the run directory that it writes to."""

from __future__ import annotations

from runner.diagnosis.failure import Failure, Who
from runner.model.exit_codes import NO_RUN_DIRECTORY, NODE_NOT_READY, NOT_LOADED, RECORD_NOT_WRITTEN, WRONG_NODES, codes


def _stopped(number: int, fix: str, who: Who) -> Failure:
    """The script stopped itself before the ranks, with one of its own codes."""
    entry = codes("batch script")[number]
    return Failure(entry.name, "batch script", rf"^{number}$", entry.meaning, fix, who, "infrastructure")


FAILURES = (
    _stopped(NODE_NOT_READY, "see the container runtime's line in the logs, and the space on the nodes", "site"),
    _stopped(NO_RUN_DIRECTORY, "name a run directory that every node sees (--runs)", "user"),
    _stopped(WRONG_NODES, "submit again; report it to the site if it happens again", "infrastructure"),
    _stopped(
        NOT_LOADED,
        "correct the setup in the site file (`module avail` lists what there is); an environment of your own must lie "
        "where every node sees it; submit again where logs/batch.err names a file of lib/",
        "user",
    ),
    Failure(
        code="run-directory-not-written",
        source="job exit code",
        pattern=rf"^{RECORD_NOT_WRITTEN}$",
        cause="the job could not write to its run directory (exit code {code})",
        fix="name a run directory that every node sees and you may write to (--runs)",
        who="user",
        outcome="infrastructure",
    ),
    Failure(
        code="disk-full",
        source="run directory",
        pattern=r"^full$",
        cause="the disk of the run directory is full",
        fix="remove what you no longer need there, or name another directory (--runs)",
        who="user",
        outcome="infrastructure",
    ),
    Failure(
        code="job-exit-code",
        source="job exit code",
        pattern=r"",
        cause="the job ended with exit code {code}",
        fix="see logs/batch.err and the ranks' logs",
        who="user",
        outcome="failed",
    ),
)
