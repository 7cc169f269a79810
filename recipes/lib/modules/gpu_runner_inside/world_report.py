"""The report of a program that measures nothing: the world as its framework sees it.

The verdict compares it with the plan. Without it a Horovod that fell back to worlds of one would count as "ran".
"""

from __future__ import annotations

import os
import platform
from typing import Any, Mapping

from gpu_runner_inside import records


def leave(framework: str, world: tuple[int, int, int], device_kind: str, elapsed_s: float, **more: Any) -> None:
    """Write ``ranks/N.report.json``; nothing where no launcher named a run directory.

    Args:
        framework: ``horovod`` or ``torch``.
        world: rank, size and local rank as the framework says.
        device_kind: ``cpu`` or ``cuda``.
        elapsed_s: of what the program did together with the other ranks, seconds.
        more: further fields of the record (schema.json, ``report``).
    """
    run_dir = os.environ.get("RUNNER_RUN_DIR")
    if run_dir is None:
        return
    rank, size, local_rank = world
    # The launcher's rank: a Horovod that fell back to size 1 calls every process rank 0.
    own = launcher_rank(os.environ, rank)
    fields: dict[str, Any] = {
        "rank": own,
        "framework": framework,
        "host": os.environ.get("RUNNER_HOST") or os.uname().nodename,
        "python_version": platform.python_version(),
        "world_rank": rank,
        "world_size": size,
        "world_local_rank": local_rank,
        "device_kind": device_kind,
        "elapsed_s": elapsed_s,
        **more,
    }
    records.write(records.rank_record(run_dir, own, "report"), "report", fields)


def launcher_rank(environment: Mapping[str, str], rank: int) -> int:
    """This process's rank as its launcher says; ``rank`` where there is no launcher."""
    return int(environment.get("RUNNER_RANK") or rank)
