"""A program under NVIDIA's Nsight Systems: one report for each profiled rank, ``RUN/nsys/rank-N.nsys-rep``."""

from __future__ import annotations

import os

# No sampling of processors and no context switches: both want privileges that nodes seldom give (perf_event_paranoid).
_OPTIONS = (
    "--trace=cuda,nvtx,osrt,cudnn,cublas",
    "--sample=none",
    "--cpuctxsw=none",
    "--force-overwrite=true",
    "--stats=false",
)


def wrapped(argv: tuple[str, ...], ranks: str, rank: int, run_dir: str | None) -> tuple[str, ...]:
    """The words that run ``argv`` on this rank: under nsys where it is one of ``ranks`` (``0,8``, ``all``, or empty).

    nsys ends with the program's own status.
    """
    if not ranks or (ranks != "all" and str(rank) not in ranks.split(",")):
        return argv
    directory = os.path.join(run_dir or os.getcwd(), "nsys")
    os.makedirs(directory, exist_ok=True)
    return ("nsys", "profile", *_OPTIONS, f"--output={directory}/rank-{rank}", *argv)
