"""The GPUs of this node over the window: states at its ends, and what the samples between them say."""

from __future__ import annotations

import os
from typing import Any

from gpu_runner_inside.node.nvml import REASONS, Nvml, NvmlError

_RANGES = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "gpu_celsius")


class Gpus:
    """None of them where NVML is not there; why stands in ``faults``.

    Attributes:
        driver: NVIDIA's version; empty without one. xids: errors that the driver reported while it was watched.
    """

    def __init__(self, faults: list[str]) -> None:
        self._faults = faults
        self.driver = ""
        self.xids: list[int] = []
        self._nvml: Nvml | None = None
        self._identities: list[dict[str, Any]] = []
        try:
            self._nvml = Nvml()
            self.driver = self._nvml.driver
            self._identities = [self._nvml.identity(device) for device in self._nvml.devices]
        except (NvmlError, OSError, ValueError) as error:
            faults.append(f"GPUs: {error}")
        self._samples: list[list[dict[str, Any]]] = [[] for _ in self._identities]
        self._loads: list[list[dict[str, Any]]] = [[] for _ in self._identities]
        self._arm = ""
        self._arm_clocks: dict[str, list[list[float]]] = {}

    def restart(self) -> None:
        """Forget the samples: the window begins."""
        self._samples = [[] for _ in self._identities]

    def sample(self) -> None:
        """Once a second."""
        if self._nvml is not None:
            for device, samples in zip(self._nvml.devices, self._samples):
                samples.append(self._nvml.sample(device))
            self.xids = (self.xids + self._nvml.new_xids())[:100]

    def sample_load(self) -> None:
        """Once a second, in a window or not."""
        if self._nvml is not None:
            for device, loads in zip(self._nvml.devices, self._loads):
                loads.append(self._nvml.load(device))

    def load(self) -> list[dict[str, Any]]:
        """Of each GPU the mean load since the last call, and its memory now; None: not visible."""
        found = []
        for identity, loads in zip(self._identities, self._loads):
            mean = {
                name: _mean([each[name] for each in loads if each[name] is not None])
                for name in ("busy_percent", "power_w")
            }
            found.append(dict(loads[-1] if loads else {}, uuid=identity["uuid"], **mean))
            loads.clear()
        return found

    def of_arm(self, place: str) -> None:
        """The samples from now on are of this further window; empty: of none."""
        self._arm = place
        if place:
            self._arm_clocks[place] = [[] for _ in self._identities]

    def sample_arm(self) -> None:
        """Once a second: the SM clocks, in a further window."""
        if self._nvml is not None and self._arm:
            for device, clocks in zip(self._nvml.devices, self._arm_clocks[self._arm]):
                clock = self._nvml.sample(device)["sm_clock_mhz"]
                if clock is not None:
                    clocks.append(clock)

    def arm_clocks(self) -> dict[str, list[float | None]]:
        """The mean SM clock of each GPU in each further window, MHz; None where it was not read."""
        return {place: [_mean(clocks) for clocks in each] for place, each in self._arm_clocks.items()}

    def states(self, run_dir: str) -> list[dict[str, Any]]:
        """Every GPU now. Processes: of this run, of others, and those that are not visible from here."""
        if self._nvml is None:
            return []
        found = []
        for device, identity in zip(self._nvml.devices, self._identities):
            state = self._nvml.state(device)
            pids = state.pop("pids")
            whose = None if pids is None else [_whose(pid, run_dir) for pid in pids]
            for kind in ("own", "foreign", "invisible"):
                state[f"processes_{kind}"] = None if whose is None else whose.count(kind)
            found.append(dict(state, uuid=identity["uuid"]))
        return found

    def summary(self) -> list[dict[str, Any]]:
        """What each GPU is, and the range of its samples; ``throttled``: reason -> samples that show it."""
        found = []
        for identity, samples in zip(self._identities, self._samples):
            summary: dict[str, Any] = dict(identity, samples=len(samples))
            for name in _RANGES:
                values = [sample[name] for sample in samples if sample[name] is not None]
                summary[f"{name}_min"] = min(values) if values else None
                summary[f"{name}_max"] = max(values) if values else None
                if name == "sm_clock_mhz":
                    summary[f"{name}_mean"] = _mean(values)
            reasons = [sample["throttle_reasons"] for sample in samples]
            summary["throttled"] = {
                text: count
                for bit, text in REASONS.items()
                if (count := sum(1 for reason in reasons if reason is not None and reason & bit))
            }
            summary["throttle_known"] = any(reason is not None for reason in reasons)
            found.append(summary)
        return found


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _whose(pid: int, run_dir: str) -> str:
    """``own``: of this run by its environment; ``foreign``; ``invisible``: in no process namespace of ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read().split(b"\0")
    except FileNotFoundError:
        return "invisible"
    except OSError:
        return "foreign"  # of another user
    return "own" if b"RUNNER_RUN_DIR=" + os.fsencode(run_dir) in environment else "foreign"
