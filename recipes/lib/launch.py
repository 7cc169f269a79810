"""The launcher, which starts each rank: ``launch.py [OPTIONS] -- PROGRAM ARGUMENTS...``

It finds out its rank and world, compares them with the plan, meets the other ranks, binds itself to the processors near
its GPU, and runs PROGRAM as its child with the variables that Horovod and torch.distributed read. However the program
ends, ``ranks/N.start.json`` and ``ranks/N.exit.json`` record it (schema.json). PROGRAM need not import anything of this
package.

Environment read: the task starter's variables (world.py); RUNNER_RDV_HOST and RUNNER_RDV_PORT, where rank 0 serves
the rendezvous (default port: 12000 + job id % 16000); RUNNER_RDV_TIMEOUT_S, optional, seconds to wait there for the
other ranks; RUNNER_DRIVER_TIMEOUT_S, optional, seconds that NVIDIA's driver may take to answer (default 60; 0: it is
not looked at); RUNNER_RDV_KEY, random and secret, by which its ranks are known there; RUNNER_RUN_ID and
RUNNER_JOB_ID, optional, part of the job's token; RUNNER_JOB_ID is also the job's id in the records.

Environment set for PROGRAM: HOROVOD_*, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
RUNNER_RANK, RUNNER_WORLD, RUNNER_LOCAL_RANK, RUNNER_HOST, RUNNER_RUN_DIR, RUNNER_LIB (modules/),
RUNNER_RENDEZVOUS (ADDRESS:PORT/TOKEN); for the user's program, PYTHONPATH with ``runner_meter`` in it.

Exit status: the program's own; 128 + N if signal N ended it; 2 usage; else, with its name in the exit record:
1 launcher-fault (an unforeseen error), 111 world-mismatch, 112 world-unknown, 113 rendezvous-timeout,
114 rendezvous-port-taken, 115 rendezvous-address, 116 record-not-written, 117 horovod-without-gloo,
118 cuda-driver-missing, 119 cuda-driver-unusable, 120 cuda-driver-too-old, 121 gpus-missing, 122 environment-differs,
123 start-exchanged, 126 program-not-executable, 127 program-not-found, 128 + N stopped-before-start.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "modules"))

from gpu_runner_inside.launcher.launch import Launch
from gpu_runner_inside.launcher.options import options_of


def main() -> int:
    """Entry point; see the module's text."""
    return Launch(options_of(sys.argv[1:]), os.environ).run()


if __name__ == "__main__":
    sys.exit(main())
