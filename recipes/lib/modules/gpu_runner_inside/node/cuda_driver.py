"""What NVIDIA's driver says of itself and of this node, as JSON: a process of its own, which may hang or crash.

CUDA Driver API: cuInit, cuDriverGetVersion, cuDeviceGetCount. Frameworks open ``libcuda.so.1``, Horovod 0.28.1 opens
``libcuda.so`` (horovod/torch/cuda_util.cc).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any, Mapping

from gpu_runner_inside import IMPORT_DIRECTORY
from gpu_runner_inside.benchmark.cuda_uuid import device_uuid
from gpu_runner_inside.node.nvml import Nvml, NvmlError

FRAMEWORKS_NAME, HOROVODS_NAME = "libcuda.so.1", "libcuda.so"
PATIENCE_S = 60.0  # without the driver's persistence mode each GPU takes seconds to start
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from gpu_runner_inside.node.cuda_driver import main; main(*sys.argv[2:])"
)

_OF_A_STEP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class _Symbol(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def apart(what: str, patience: float, env: Mapping[str, str]) -> tuple[dict[str, Any] | None, int]:
    """What a process with this environment prints, and its exit status; None if it printed nothing.

    Args:
        what: ``open`` the libraries, ``call`` the driver, too (``look``), or ``list`` its GPUs (``driver_gpus``).
        patience: seconds.

    Raises:
        subprocess.TimeoutExpired: the driver hangs.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _START, IMPORT_DIRECTORY, what, str(patience)],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        process.wait(patience)
        lines = _written(process)  # not to its end: what the driver may have started has the pipe, too
    finally:
        _end(process)
    with suppress(ValueError, IndexError):
        said = json.loads(lines[-1])
        if isinstance(said, dict):
            return said, process.returncode
    return None, process.returncode


def main(what: str, patience_s: str) -> None:
    """Print what ``apart`` asks for; after ``patience_s`` the process ends itself."""
    for number in _OF_A_STEP:  # what ends the step reaches every process: the launcher alone answers
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(int(float(patience_s)) + 1)  # an orphan of a killed launcher does not stay
    print(json.dumps(driver_gpus() if what == "list" else look(what == "call")), flush=True)
    os._exit(0)  # a driver's exit handlers may hang


def driver_gpus() -> dict[str, Any]:
    """All GPUs that the driver gives to this process, by its management library, else by CUDA.

    Returns:
        ``driver``: its version, empty where CUDA alone answers. ``gpus``: of each its PCI address ``bus`` (lower case),
        its ``uuid``, and N of /dev/nvidiaN as ``minor``, None where unknown.
    """
    with suppress(NvmlError):
        nvml = Nvml()
        return {"driver": nvml.driver, "gpus": [nvml.place(device) for device in nvml.devices]}
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    gpus = []
    for index in range(look(calls=True).get("devices", 0)):
        bus = ctypes.create_string_buffer(32)
        ctypes.CDLL(FRAMEWORKS_NAME).cuDeviceGetPCIBusId(bus, ctypes.c_int(len(bus)), ctypes.c_int(index))
        gpus.append({"bus": bus.value.decode("ascii").lower(), "uuid": device_uuid(index), "minor": None})
    return {"driver": "", "gpus": gpus}


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


def _written(process: subprocess.Popen[bytes]) -> list[bytes]:
    """The lines that a process which has ended left in its pipe."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    with suppress(BlockingIOError):
        return os.read(process.stdout.fileno(), 1 << 16).splitlines()
    return []


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # a process that hangs in a driver dies when that lets it
            process.wait(1.0)
    if process.stdout is not None:
        process.stdout.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
