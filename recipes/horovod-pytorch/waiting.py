"""How a rank on a processor waits for the others."""

from __future__ import annotations

import time

from horovod.torch import mpi_ops

_PAUSE_S = 0.001


def sleep_while_waiting() -> None:
    """Let every wait for a collective sleep instead of spin; for ranks that share processors.

    Horovod waits in a loop of sched_yield (0.28.1, ``horovod/torch/mpi_ops_v2.cc``, WaitAndClear): with eight ranks on
    a core, that is what the cores are busy with (16 ranks on two cores: 2 s a step, 0.14 s when they sleep). Not for
    GPUs, where a core is the rank's own and a millisecond counts.
    """
    library = mpi_ops.mpi_lib
    wait_and_clear = library.horovod_torch_wait_and_clear

    def wait(handle: int) -> None:
        while not library.horovod_torch_poll(handle):
            time.sleep(_PAUSE_S)
        wait_and_clear(handle)

    library.horovod_torch_wait_and_clear = wait
