"""The UUID of a GPU, or of a part of one (MIG), asked of the CUDA driver: TensorFlow does not report it."""

from __future__ import annotations

import ctypes
import os
import uuid

DRIVER = "libcuda.so.1"


def device_uuid(index: int, driver: str = DRIVER) -> str | None:
    """``GPU-...`` or ``MIG-...`` of device number ``index`` among those that this process sees; None if unknown.

    CUDA Driver API: cuInit, cuDeviceGet, cuDeviceGetUuid_v2 (CUDA 11.4 and later; for a MIG device its own UUID).
    """
    try:
        cuda = ctypes.CDLL(driver)
        ask = cuda.cuDeviceGetUuid_v2
    except (OSError, AttributeError):
        return None
    device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index)) or ask(raw, device):
        return None
    # CUDA shows parts of GPUs only where its variable, or that of the container runtime, names them so.
    named = os.environ.get("CUDA_VISIBLE_DEVICES", os.environ.get("NVIDIA_VISIBLE_DEVICES", ""))
    prefix = "MIG" if "MIG-" in named else "GPU"
    return f"{prefix}-{uuid.UUID(bytes=bytes(raw))}"
