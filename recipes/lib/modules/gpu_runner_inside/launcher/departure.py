"""The end of a rank that its neighbours still need: some runtimes serve a node's image from one rank's process."""

from __future__ import annotations

import os
import signal
import time
from typing import NoReturn

from gpu_runner_inside import records
from gpu_runner_inside.launcher import world

_POLL_S = 0.05


def run_in_parallel(run_dir: str, here: world.World, longest_s: float) -> NoReturn:
    """End with status 0 when every rank of this node has left its exit record, at the latest after longest_s,
    which is as long as the task starter waits for the others itself (``srun --wait``).

    Ranks are taken to lie block by block on the nodes; where they do not, and on SIGTERM, it ends at once. It never
    returns: from here on nothing may be read from the image, which can go away with any neighbour.
    """
    first = sum(here.local_sizes[: here.node_rank])
    if here.rank == first + here.local_rank:
        signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))
        left = [records.rank_record(run_dir, rank, "exit") for rank in range(first, first + here.local_size)]
        until = time.monotonic() + longest_s
        while left and time.monotonic() < until:
            left = [path for path in left if not os.path.exists(path)]
            time.sleep(_POLL_S)
    os._exit(0)
