"""A stand-in for training: steps are sleeps, gradients are a few numbers that are really averaged between ranks.

It is measured by the benchmarks' own code and leaves their records, so that the proof is real and the times are chosen:
a step is input, computing, gradient hooks, then communication. Python's standard library only.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import random
import resource
import struct
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(HERE.parents[2] / "recipes" / "lib" / "modules"))

from gpu_runner_inside.benchmark import benchmark, proof  # noqa: E402
from gpu_runner_inside.benchmark.options import options_of  # noqa: E402
from small_world import World  # noqa: E402

PARAMETERS = 8
RATE = 0.001


def own_options(parser: argparse.ArgumentParser) -> None:
    seconds = "seconds of a step: "
    parser.add_argument("--compute-seconds", type=float, default=0.02, help=seconds + "computing")
    parser.add_argument("--jitter", type=float, default=0.0, help="standard deviation of a step's computing, a share")
    parser.add_argument("--hooks-at-one", action="store_true", help="a single rank has gradient hooks, too")
    parser.add_argument("--hooks-seconds", type=float, default=0.0, help=seconds + "gradient hooks (not of one rank)")
    parser.add_argument(
        "--input-seconds", type=float, default=0.0, help=seconds + "input, for each other rank of a node"
    )
    parser.add_argument("--slow-rank", type=int, help="whose computing takes slow-factor times as long")
    parser.add_argument("--slow-node", type=int, help="whose ranks' computing does")
    parser.add_argument("--slow-factor", type=float, default=1.25)
    parser.add_argument("--ranks-per-node", type=int, help="for slow-node; where it is not that of the machine")
    parser.add_argument("--solo-rank", type=int, default=0, help="the rank whose device a world of one has")
    parser.add_argument("--shared-factor", type=float, default=1.0, help="of computing where a node has several ranks")
    parser.add_argument("--coordination-seconds", type=float, default=0.0, help=seconds + "times log2(ranks)")
    parser.add_argument("--communication-seconds", type=float, default=0.0, help=seconds + "times 2 (N - 1) / N")
    parser.add_argument("--overlap-factor", type=float, default=1.0, help="of computing while gradients travel")
    parser.add_argument("--payload-bytes", type=int, default=0, help="that really travel with the gradients")
    parser.add_argument(
        "--arms",
        choices=("full", "coordination", "uncoupled", "uncoupled,full", "uncoupled,coordination,full"),
        default="full",
        help="that take turns, the main one last",
    )
    parser.add_argument("--wrong", choices=("diverge", "same-data", "exit"), help="what is done wrong on purpose")


class Training:
    """The model, its data, and one step of it (benchmark.Training)."""

    gradients_device: str | None = None
    instrumentation_s = 0.0

    def __init__(self, options: argparse.Namespace, world: World) -> None:
        self.world, self._options, self._arm = world, options, "full"
        self.device = benchmark.Device("cpu", platform.machine(), f"cpu-{os.getpid()}", None)
        self.allreduce_bytes = PARAMETERS * 8 + options.payload_bytes
        self.hooks = world.size > 1 or options.hooks_at_one
        self.versions: dict[str, Any] = {
            "framework": "torch", "framework_version": "none", "python_version": platform.python_version(),
            "horovod_version": None, "cuda_version": None, "nccl_version": None, "nccl_built": False,
            "gloo_enabled": False, "mpi_enabled": False,
        }  # fmt: skip
        seed = options.seed if options.wrong == "same-data" else options.seed + world.rank
        self._data = random.Random(seed)
        self._noise = random.Random(seed + 7919)
        self._parameters = [0.5] * PARAMETERS
        self._computed_s: list[float] = []
        self._padding = bytes(options.payload_bytes)
        self.local_gradients = proof.checksum([_raw(self._gradients())])

    def use(self, arm: str) -> None:
        self._arm = arm
        if arm == "full":
            raw = self.world.exchange(_raw(self._parameters))[0]
            self._parameters = list(struct.unpack(f"<{PARAMETERS}d", raw))

    def step(self) -> None:
        began = time.monotonic()
        self._compute()
        self._computed_s.append(time.monotonic() - began)
        if self._arm != "uncoupled":
            self._coordinate()
        if self._arm == "full" and self._options.wrong != "diverge":
            self._communicate()
        else:
            self._apply(self._gradients())

    def synchronize(self) -> list[float]:
        done, self._computed_s = self._computed_s, []
        return done

    def loss(self) -> float:
        return sum(each * each for each in self._parameters)

    def parameters_checksum(self) -> str:
        return proof.checksum([_raw(self._parameters)])

    def peak_memory_bytes(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _compute(self) -> None:
        """Input, computing, hooks: what a rank does on its own."""
        options, world = self._options, self.world
        place = options.solo_rank if world.size == 1 else world.rank
        node = place // (options.ranks_per_node or world.local_size)
        slow = options.slow_rank == place or options.slow_node == node
        factor = options.slow_factor if slow else 1.0
        factor *= options.shared_factor if world.local_size > 1 else 1.0
        factor *= options.overlap_factor if world.size > 1 and self._arm == "full" else 1.0
        if options.jitter:
            factor *= math.exp(self._noise.gauss(0.0, options.jitter))
        hooks_s = options.hooks_seconds if self.hooks else 0.0
        time.sleep(options.compute_seconds * factor + options.input_seconds * (world.local_size - 1) + hooks_s)

    def _coordinate(self) -> None:
        """Every rank says that it is ready, in a few bytes."""
        if self.world.size > 1:
            self.world.mean([0.0])
            time.sleep(self._options.coordination_seconds * math.log2(self.world.size))

    def _communicate(self) -> None:
        size = self.world.size
        mean = self.world.mean(self._gradients(), self._padding)
        if size > 1:
            time.sleep(self._options.communication_seconds * 2.0 * (size - 1) / size)
        self._apply(mean)

    def _gradients(self) -> list[float]:
        return [each + self._data.gauss(0.0, 0.1) for each in self._parameters]

    def _apply(self, gradients: list[float]) -> None:
        self._parameters = [self._parameters[at] - RATE * gradients[at] for at in range(PARAMETERS)]


def _raw(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def main() -> int:
    options = options_of(sys.argv[1:], ("sleep",), __doc__, own_options)
    # What the benchmarks of a framework have, and their result names.
    for name in ("channels_last", "compile", "fp16_allreduce"):
        setattr(options, name, False)
    world = World()
    if options.wrong == "exit" and world.rank == world.size - 1:
        return 3
    code = benchmark.run("timed", options, Training(options, world))
    world.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
