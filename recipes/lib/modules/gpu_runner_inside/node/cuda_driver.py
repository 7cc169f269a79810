"""What CUDA's driver library says of itself and of this node, as JSON: a process of its own, which may hang or crash.

CUDA Driver API: cuInit, cuDriverGetVersion, cuDeviceGetCount. Frameworks open ``libcuda.so.1``, Horovod 0.28.1 opens
``libcuda.so`` (horovod/torch/cuda_util.cc).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

FRAMEWORKS_NAME, HOROVODS_NAME = "libcuda.so.1", "libcuda.so"


_OF_A_STEP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def main(calls: str, patience_s: str) -> None:
    """Print what ``look`` sees. ``calls``: ``yes`` to call the driver; after ``patience_s`` the process ends itself."""
    for number in _OF_A_STEP:  # what ends the step reaches every process: the launcher alone answers
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(int(float(patience_s)) + 1)  # an orphan of a killed launcher does not stay
    print(json.dumps(look(calls == "yes")), flush=True)
    os._exit(0)  # a driver's exit handlers may hang


def look(calls: bool) -> dict[str, Any]:
    """The libraries by name, and what the driver's calls give.

    Returns:
        ``libraries``: for each name its ``path``, or the loader's ``problem``; with ``calls`` also ``init``, what its
        cuInit returned. ``version`` and ``devices``: of the library that frameworks open.
    """
    libraries = {name: _opened(name) for name in (FRAMEWORKS_NAME, HOROVODS_NAME)}
    seen: dict[str, Any] = {"libraries": {name: about for name, (about, _library) in libraries.items()}}
    if not calls:
        return seen
    for about, library in libraries.values():
        if library is not None:
            about["init"] = _call(library, "cuInit", ctypes.c_uint(0))
    driver = libraries[FRAMEWORKS_NAME][1]
    if driver is not None:
        version, devices = ctypes.c_int(), ctypes.c_int()
        if _call(driver, "cuDriverGetVersion", ctypes.byref(version)) == 0:
            seen["version"] = version.value
        if _call(driver, "cuDeviceGetCount", ctypes.byref(devices)) == 0:
            seen["devices"] = devices.value
    return seen


def _opened(name: str) -> tuple[dict[str, Any], ctypes.CDLL | None]:
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        return {"path": None, "problem": str(error)}, None
    return {"path": _path(library) or name, "problem": None}, library


def _path(library: ctypes.CDLL) -> str:
    """The file that the loader took; empty where it does not say."""
    symbol = _Symbol()
    try:
        found = ctypes.CDLL(None).dladdr(ctypes.cast(library.cuInit, ctypes.c_void_p), ctypes.byref(symbol))
    except AttributeError:
        return ""
    return os.path.realpath(os.fsdecode(symbol.file)) if found and symbol.file else ""


def _call(library: ctypes.CDLL, name: str, argument: Any) -> int | None:
    """CUresult; None where the library has no such function."""
    try:
        function = getattr(library, name)
    except AttributeError:
        return None
    function.restype = ctypes.c_int
    return int(function(argument))


if __name__ == "__main__":
    main(*sys.argv[1:])
