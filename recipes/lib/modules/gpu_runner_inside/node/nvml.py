"""NVIDIA's management library by ctypes: the few calls that describe a GPU's state. No package is needed.

The ABI is that of nvml.h (CUDA 11 and later; functions that a driver lacks are reported as not visible). The library
comes with the driver; ``RUNNER_NVML`` names another file of it.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
_UNKNOWN = "no answer"
# nvmlClockType_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlTemperatureSensors_t, nvmlEventTypeXidCriticalError
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_GPU_SENSOR = 0
_XID = 8
_MEMORY_TEMPERATURE = 82  # NVML_FI_DEV_MEMORY_TEMP
_SUCCESS, _INSUFFICIENT_SIZE = 0, 7
_MOST_LINKS = 18  # NVML_NVLINK_MAX_LINKS
# nvmlClocksThrottleReasons*; what a healthy GPU under load never shows, and the two that it may.
REASONS = {
    0x1: "idle",
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "clocks set for a display",
}


class _Field(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("kind", ctypes.c_int),
        ("status", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    ]


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of the calls with _v2 and _v3."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the driver's last sample."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = [("legacy", ctypes.c_char * 16), ("numbers", ctypes.c_uint * 5), ("id", ctypes.c_char * 32)]


class _Event(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = [
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class NvmlError(Exception):
    """The library is not there, or does not start."""


class Nvml:
    """The library, started.

    Attributes:
        devices: handles, by NVML's index.
        driver: its version; empty where it is unknown.

    Raises:
        NvmlError: no library, or it does not start.
    """

    def __init__(self) -> None:
        self._library = _load()
        self._call("nvmlInit_v2")
        self.driver = self._text("nvmlSystemGetDriverVersion", 80)
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self.devices = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._status("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)) == _SUCCESS:
                self.devices.append(handle)
        self._events = self._watch_xids()

    def place(self, device: Any) -> dict[str, Any]:
        """Its PCI address as the kernel writes it, empty where unknown; its UUID; N of /dev/nvidiaN."""
        pci = _Pci()
        known = self._status("nvmlDeviceGetPciInfo_v3", device, ctypes.byref(pci)) == _SUCCESS
        return {
            "bus": "{:04x}:{:02x}:{:02x}.0".format(*pci.numbers) if known else "",
            "uuid": self._text("nvmlDeviceGetUUID", 96, device) or None,
            "minor": self._uint("nvmlDeviceGetMinorNumber", device),
        }

    def identity(self, device: Any) -> dict[str, Any]:
        """What does not change: UUID, name, the largest clocks and links, MIG."""
        mig, pending = ctypes.c_uint(), ctypes.c_uint()
        known = self._status("nvmlDeviceGetMigMode", device, ctypes.byref(mig), ctypes.byref(pending)) == _SUCCESS
        return {
            "uuid": self._text("nvmlDeviceGetUUID", 96, device) or None,
            "name": self._text("nvmlDeviceGetName", 96, device) or None,
            "sm_clock_max_mhz": self._uint("nvmlDeviceGetMaxClockInfo", device, ctypes.c_int(_CLOCK_SM)),
            "power_limit_default_w": _watts(self._uint("nvmlDeviceGetPowerManagementDefaultLimit", device)),
            "pcie_generation_max": self._uint("nvmlDeviceGetMaxPcieLinkGeneration", device),
            "pcie_width_max": self._uint("nvmlDeviceGetMaxPcieLinkWidth", device),
            "mig": bool(mig.value) if known else None,
        }

    def sample(self, device: Any) -> dict[str, Any]:
        """What changes from second to second."""
        reasons = self._ulonglong("nvmlDeviceGetCurrentClocksThrottleReasons", device)
        if reasons is None:
            reasons = self._ulonglong("nvmlDeviceGetCurrentClocksEventReasons", device)  # its name from driver 535 on
        return {
            "sm_clock_mhz": self._uint("nvmlDeviceGetClockInfo", device, ctypes.c_int(_CLOCK_SM)),
            "memory_clock_mhz": self._uint("nvmlDeviceGetClockInfo", device, ctypes.c_int(_CLOCK_MEMORY)),
            "power_w": _watts(self._uint("nvmlDeviceGetPowerUsage", device)),
            "gpu_celsius": self._uint("nvmlDeviceGetTemperature", device, ctypes.c_int(_GPU_SENSOR)),
            "throttle_reasons": reasons,
        }

    def load(self, device: Any) -> dict[str, Any]:
        """How busy it is, percent; its memory; its power. None: not visible."""
        busy, memory = _Utilization(), _Memory()
        is_busy = self._status("nvmlDeviceGetUtilizationRates", device, ctypes.byref(busy)) == _SUCCESS
        has_memory = self._status("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory)) == _SUCCESS
        return {
            "busy_percent": busy.gpu if is_busy else None,
            "memory_used_bytes": memory.used if has_memory else None,
            "memory_bytes": memory.total if has_memory else None,
            "power_w": _watts(self._uint("nvmlDeviceGetPowerUsage", device)),
        }

    def state(self, device: Any) -> dict[str, Any]:
        """Everything that is read at an end of the window."""
        energy_mj = self._ulonglong("nvmlDeviceGetTotalEnergyConsumption", device)
        remapped = [ctypes.c_uint() for _ in range(4)]  # corrected, uncorrected, pending, failed
        rows = self._status("nvmlDeviceGetRemappedRows", device, *map(ctypes.byref, remapped)) == _SUCCESS
        return dict(
            self.sample(device),
            power_limit_w=_watts(self._uint("nvmlDeviceGetEnforcedPowerLimit", device)),
            memory_celsius=self._memory_celsius(device),
            energy_j=None if energy_mj is None else energy_mj / 1000.0,
            ecc_corrected=self._ecc(device, _CORRECTED),
            ecc_uncorrected=self._ecc(device, _UNCORRECTED),
            remapped_rows=remapped[0].value + remapped[1].value if rows else None,
            remapped_rows_pending=bool(remapped[2].value) if rows else None,
            pcie_generation=self._uint("nvmlDeviceGetCurrPcieLinkGeneration", device),
            pcie_width=self._uint("nvmlDeviceGetCurrPcieLinkWidth", device),
            nvlinks=self._nvlinks(device),
            pids=self._pids(device),
        )

    def new_xids(self) -> list[int]:
        """XID errors since the last call, of all devices; none where they are not visible."""
        found: list[int] = []
        event = _Event()
        while self._events is not None and len(found) < 100:
            if self._status("nvmlEventSetWait_v2", self._events, ctypes.byref(event), ctypes.c_uint(0)) != _SUCCESS:
                break
            found.append(int(event.data))
        return found

    def _watch_xids(self) -> ctypes.c_void_p | None:
        events = ctypes.c_void_p()
        if self._status("nvmlEventSetCreate", ctypes.byref(events)) != _SUCCESS:
            return None
        accepted = [
            self._status("nvmlDeviceRegisterEvents", device, ctypes.c_ulonglong(_XID), events) == _SUCCESS
            for device in self.devices
        ]
        return events if any(accepted) else None

    def _memory_celsius(self, device: Any) -> int | None:
        field = _Field(field=_MEMORY_TEMPERATURE)
        status = self._status("nvmlDeviceGetFieldValues", device, ctypes.c_int(1), ctypes.byref(field))
        # Of the union, the lower half: the value is an unsigned int (little endian).
        return int(field.value & 0xFFFFFFFF) if status == _SUCCESS and field.status == _SUCCESS else None

    def _ecc(self, device: Any, kind: int) -> int | None:
        return self._ulonglong("nvmlDeviceGetTotalEccErrors", device, ctypes.c_int(kind), ctypes.c_int(_VOLATILE))

    def _nvlinks(self, device: Any) -> list[bool] | None:
        """Whether each NVLink is up; None where there is none."""
        links = []
        for link in range(_MOST_LINKS):
            active = self._uint("nvmlDeviceGetNvLinkState", device, ctypes.c_uint(link))
            if active is None:
                break
            links.append(bool(active))
        return links or None

    def _pids(self, device: Any) -> list[int] | None:
        """Processes that compute there, as the driver numbers them; None where they are not visible."""
        for _ in range(3):
            count = ctypes.c_uint(0)
            status = self._status("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), None)
            if status == _SUCCESS and count.value == 0:
                return []
            if status not in (_SUCCESS, _INSUFFICIENT_SIZE):
                return None
            room = (_Process * (count.value + 8))()
            count = ctypes.c_uint(len(room))
            status = self._status("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), room)
            if status == _SUCCESS:
                return [int(each.pid) for each in room[: count.value]]
        return None

    def _uint(self, name: str, *arguments: Any) -> int | None:
        value = ctypes.c_uint()
        return value.value if self._status(name, *arguments, ctypes.byref(value)) == _SUCCESS else None

    def _ulonglong(self, name: str, *arguments: Any) -> int | None:
        value = ctypes.c_ulonglong()
        return value.value if self._status(name, *arguments, ctypes.byref(value)) == _SUCCESS else None

    def _text(self, name: str, size: int, *arguments: Any) -> str:
        text = ctypes.create_string_buffer(size)
        status = self._status(name, *arguments, text, ctypes.c_uint(size))
        return text.value.decode("ascii", "replace") if status == _SUCCESS else ""

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._status(name, *arguments)
        if status != _SUCCESS:
            raise NvmlError(f"{name} gives {_UNKNOWN if status is None else f'error {status}'}")

    def _status(self, name: str, *arguments: Any) -> int | None:
        """nvmlReturn_t; None where the library has no such function."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return None
        function.restype = ctypes.c_int
        return int(function(*arguments))


def _load() -> ctypes.CDLL:
    named = os.environ.get("RUNNER_NVML")
    for name in (named,) if named else _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NvmlError(f"{named or _NAMES[0]} cannot be loaded")


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000.0
