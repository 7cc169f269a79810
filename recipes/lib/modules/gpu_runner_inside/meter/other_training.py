"""What the meter sees of a training in TensorFlow, or in no framework that it knows: world and device.

It sees no gradients and compares no parameters, so that such a run only "ran".
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from dataclasses import dataclass
from typing import Any, Callable, Mapping

from gpu_runner_inside.benchmark.benchmark import Device
from gpu_runner_inside.benchmark.cuda_uuid import device_uuid
from gpu_runner_inside.meter.counting import NONE, Step

_HOROVOD = ("horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras", "horovod.torch")


@dataclass(frozen=True)
class World:
    """This rank as its framework knows it; of one rank where none has formed a world."""

    framework: str
    rank: int
    size: int
    local_rank: int


class OtherTraining:
    """As torch_training.TorchTraining, as far as it can be seen."""

    parameters: tuple[Any, ...] = ()
    sharded = ""
    name = ""
    gradients: str | None = None
    inputs: str | None = None
    accumulated: int | None = None
    data_parallel = is_part = is_gone = sees_time = False
    trained: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._tensorflow = sys.modules.get("tensorflow")
        self.reduction: dict[str, Any] = {}
        self.trained_beside = self.steps_beside = 0

    def watch_forward(self, _began: Callable[[], None], *, tokens: bool) -> None:
        """Nothing shows where a forward pass begins."""

    def take(self) -> Step:
        """A step has ended: nothing shows how many samples it took."""
        return NONE

    def end_of_look(self) -> None:
        """The warm-up is over."""

    def close(self) -> None:
        """Nothing was opened."""

    def world(self) -> World:
        """The world that Horovod has formed; else the ranks as they were started: nothing shows whether they train
        together, and nothing is claimed of it.
        """
        for name in _HOROVOD:
            horovod = sys.modules.get(name)
            if horovod is not None and horovod.is_initialized():
                return World("horovod", horovod.rank(), horovod.size(), horovod.local_rank())
        env = os.environ
        if env.get("RUNNER_METER_UNWATCHED") or not env.get("RUNNER_WORLD"):
            return World("none", 0, 1, 0)
        return World(
            "none", int(env.get("RUNNER_RANK") or 0), int(env["RUNNER_WORLD"]), int(env.get("LOCAL_RANK") or 0)
        )

    def device(self) -> Device:
        """The one GPU that TensorFlow uses; the processor where it uses none."""
        seen = [] if self._tensorflow is None else self._tensorflow.config.get_visible_devices("GPU")
        if not seen:
            return Device("cpu", platform.processor() or platform.machine(), f"cpu-{os.getpid()}", None)
        number = seen[0].name.rpartition(":")[2]
        index = int(number) if number.isdigit() else 0
        return Device("cuda", "", device_uuid(index) or f"index-{index}", index)

    def synchronize(self) -> None:
        """Wait for TensorFlow's devices."""
        sync = getattr(getattr(getattr(self._tensorflow, "test", None), "experimental", None), "sync_devices", None)
        if sync is not None:
            sync()

    def parameters_checksum(self) -> str | None:
        """Parameters are not known."""
        return None

    last_checksum = parameters_checksum

    def gathered_checksum(self) -> str | None:
        """Nothing is divided that is known."""
        return None

    def all_finite(self) -> bool:
        """Nothing is known that is not."""
        return True

    def onehot_holds(self, here: World) -> bool:
        """No collective is done."""
        return here.size == 1

    def versions(self, here: World) -> dict[str, Any]:
        """Of what computed."""
        horovod = sys.modules.get("horovod")
        return {
            "framework": "horovod"
            if here.framework == "horovod"
            else "none"
            if self._tensorflow is None
            else "tensorflow",
            "framework_version": getattr(self._tensorflow, "__version__", ""),
            "horovod_version": getattr(horovod, "__version__", None),
            "python_version": platform.python_version(),
        }

    def peak_memory_bytes(self) -> int:
        """Of the process."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
