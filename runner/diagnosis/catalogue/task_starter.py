"""What srun reports of a rank that left no exit record."""

from __future__ import annotations

from runner.diagnosis.failure import Failure

_REPORTED = "{who} left no exit record; srun reports: {end}"

FAILURES = (
    Failure(
        code="logs-not-writable",
        source="task starter",
        pattern=r"could not connect IO",
        cause=_REPORTED + " (its node may not write to logs/ in the run directory)",
        fix="name a run directory that every node may write to (--runs)",
        who="user",
        outcome="infrastructure",
    ),
    # Of the node's slurmd; srun then waits for the other nodes' ranks.
    Failure(
        code="plugin-not-loaded",
        source="task starter",
        pattern=r"Plugin initialization failed",
        cause=_REPORTED + " (a plugin of Slurm could not be loaded on its node)",
        fix="ask the site: slurmd's log of that node names the plugin; with Pyxis it is often its runtime_path",
        who="site",
        outcome="infrastructure",
    ),
    # By the kernel, which takes the launcher along; or by srun, after another rank or at the end of the job.
    Failure(
        code="rank-killed",
        source="task starter",
        pattern=r"^Killed$",
        cause=_REPORTED,
        detail="often out of memory{limit}",
        fix="find what stopped first, another rank or the job; where nothing did, compare the memory that it used "
        "({maxrss}) with what the job had",
        who="user",
        outcome="failed",
        consequence="yes",
    ),
    Failure(
        code="rank-stopped",
        source="task starter",
        pattern=r"^Terminated$",
        cause=_REPORTED,
        fix="find what stopped first, another rank or the job: its log has the cause",
        who="user",
        outcome="failed",
        consequence="yes",
    ),
    # A bus error may well come from the image's going away with another rank.
    Failure(
        code="rank-bus-error",
        source="task starter",
        pattern=r"^Bus error$",
        cause=_REPORTED,
        fix="see what ended first, and whether /dev/shm or the disk is full",
        who="user",
        outcome="failed",
        consequence="perhaps",
    ),
    # A rank that another one's end took the image from before its launcher had begun: bash finds no library (ENOTCONN),
    # or the container that it joins is gone.
    Failure(
        code="rank-lost-its-image",
        source="task starter",
        pattern=r"^Exited with exit code",
        context=r"Error 107$|Transport endpoint is not connected|ch-run\[\d+\]: error: join: no PID \d",
        cause=_REPORTED + " (its image went away)",
        fix="find what ended first, another rank of its node or the job: its log has the cause",
        who="user",
        outcome="failed",
        consequence="perhaps",
    ),
    Failure(
        code="rank-left-no-record",
        source="task starter",
        pattern=r"",
        cause=_REPORTED,
        fix="see the rank's log, which `logs` prints",
        who="user",
        outcome="failed",
    ),
)
