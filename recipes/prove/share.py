"""Which of a node's devices a rank looks at."""

from __future__ import annotations

from typing import Mapping


def of_rank(count: int, env: Mapping[str, str]) -> range:
    """Those of ``count`` devices that this rank uses: all ranks of the node together use each once.

    In the mode EXCLUSIVE_PROCESS a GPU serves one process at a time. One that sees a single device has it for itself.
    """
    if count <= 1:
        return range(count)
    return range(int(env.get("RUNNER_LOCAL_RANK", "0")), count, max(int(env.get("LOCAL_WORLD_SIZE", "1")), 1))
