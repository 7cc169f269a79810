"""NVIDIA's driver, before a program that computes on GPUs starts: is it there, does it run this CUDA, are the GPUs?

No framework is imported. The driver is called in a process of its own, once a node, by its first task: with many GPUs
its start takes time. The other tasks only open its library.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Mapping

from gpu_runner_inside.launcher import binding
from gpu_runner_inside.launcher.failure import LaunchError
from gpu_runner_inside.node import cuda_driver
from gpu_runner_inside.node.cuda_driver import FRAMEWORKS_NAME, HOROVODS_NAME

PATIENCE = "RUNNER_DRIVER_TIMEOUT_S"
# cuda.h, CUresult: its name and what it means for a job.
_RESULTS = {
    34: ("STUB_LIBRARY", "this is the CUDA toolkit's stub and no driver: take its directory out of LD_LIBRARY_PATH"),
    100: ("NO_DEVICE", "no GPU is visible"),
    802: ("SYSTEM_NOT_READY", "the node's NVSwitches are not ready (Fabric Manager)"),
    803: ("SYSTEM_DRIVER_MISMATCH", "the library is of another version than the driver in the kernel"),
    804: (
        "COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "the image's compat package, which stands in for an older driver, does not work with these GPUs",
    ),
    999: ("UNKNOWN", "the driver cannot use its devices; /dev/nvidia-uvm may be missing or closed to this user"),
}
_NO_DEVICE = 100
_NONE_GRANTED = "NoDevFiles"  # Slurm's gpu plugin, where a step has no GPU
_UNVERSIONED = 10  # up to this major version a program runs only on a driver of its minor version or a newer one


@dataclass(frozen=True)
class Needs:
    """What a job needs of a node's driver.

    Attributes:
        framework, cuda: of the image or environment; empty where unknown.
        gpus: those planned for this node.
        horovod: the program uses Horovod.
        own: the program starts the node's processes itself, so that all the GPUs are to be seen by it.
    """

    framework: str
    cuda: str
    gpus: int
    horovod: bool
    own: bool = False


def needs_of(plan: Mapping[str, Any], gpus: int, *, own: bool = False) -> Needs | None:
    """What a plan needs; None where it computes on CPUs, or has an image that is known to have no CUDA.

    ``own``: as of Needs.
    """
    if plan.get("device") != "cuda":
        return None
    about = (plan.get("image") or {}).get("about") or {}
    framework, cuda = about.get("framework") or "", about.get("cuda") or ""
    if framework and not cuda:
        return None  # submitted with --force image-without-cuda
    if "gpus-hidden" in plan.get("forced", ()):
        gpus = 1  # the user wants each task to see its own alone
    return Needs(framework, cuda, gpus, plan.get("framework") == "horovod", own)


def patience_s(env: Mapping[str, str]) -> float:
    """Seconds that the driver may take to answer; 0: it is not looked at.

    Raises:
        LaunchError: ``cuda-driver-unusable``, where the variable is no number.
    """
    text = env.get(PATIENCE)
    if not text:
        return cuda_driver.PATIENCE_S
    if not re.fullmatch(r"\d{1,6}(\.\d*)?", text, re.ASCII):
        raise LaunchError("cuda-driver-unusable", f"{PATIENCE} is no number of seconds: {text!r}")
    return float(text)


def ready(
    needs: Needs,
    env: Mapping[str, str],
    *,
    calls: bool,
    directory: Callable[[], str | None],
    say: Callable[[str], None],
) -> dict[str, str]:
    """Look at the driver, and return the variables that make it fit for Horovod, if it needs any.

    Args:
        env: the program's. calls: this task calls the driver, and does not only open its library.
        directory: makes a directory that is the user's own until the job ends; None where there can be none.
        say: shows a line to people.

    Raises:
        LaunchError: as ``look`` and ``check``; what only Horovod lacks is an error where the job is one of Horovod's.
    """
    patience = patience_s(env)
    if patience == 0:
        return {}
    seen = look(env, patience, calls=calls)
    check(seen, needs, env)
    about = seen["libraries"][HOROVODS_NAME]
    if about["problem"]:
        made = _with_horovods_name(seen["libraries"][FRAMEWORKS_NAME]["path"], env, directory())
        if made and not look({**env, **made}, patience, calls=False)["libraries"][HOROVODS_NAME]["problem"]:
            if calls:
                say(
                    f"note: {FRAMEWORKS_NAME} is here, but not {HOROVODS_NAME}, the name by which Horovod opens it: "
                    "LD_LIBRARY_PATH ends with a directory that has a link of this name until the job ends"
                )
            return made
        error = LaunchError("cuda-driver-missing", f"{FRAMEWORKS_NAME} is here, but Horovod's name: {about['problem']}")
    elif about.get("init", 0) != 0:
        what = f"{_failed(about['init'])} (Horovod opens {HOROVODS_NAME}, which is {about['path']})"
        error = LaunchError("cuda-driver-unusable", what)
    else:
        return {}
    if needs.horovod:
        raise error
    if calls:
        say(f"warning: Horovod would fail here: {error}")
    return {}


def look(env: Mapping[str, str], patience: float, *, calls: bool) -> Mapping[str, Any]:
    """What a process with this environment sees of the driver: see ``node.cuda_driver.look``.

    Args:
        patience: seconds. calls: call the driver, and do not only open its library.

    Raises:
        LaunchError: ``cuda-driver-unusable``, where it hangs or ends the process.
    """
    what = "the driver's cuInit" if calls else "libcuda.so.1"
    try:
        seen, status = cuda_driver.apart("call" if calls else "open", patience, env)
    except subprocess.TimeoutExpired:
        why = f"{what} did not return within {patience:g} s: the driver hangs, or takes longer ({PATIENCE})"
        raise LaunchError("cuda-driver-unusable", why) from None
    if seen is None:
        raise LaunchError("cuda-driver-unusable", f"{what} ended the process that called it: {_end_of(status)}")
    return seen


def check(seen: Mapping[str, Any], needs: Needs, env: Mapping[str, str]) -> None:
    """Compare what the driver says with what the job needs.

    Raises:
        LaunchError: ``cuda-driver-missing``, ``cuda-driver-unusable``, ``cuda-driver-too-old`` or ``gpus-missing``.
    """
    driver = seen["libraries"][FRAMEWORKS_NAME]
    if driver["problem"]:
        raise LaunchError("cuda-driver-missing", f"NVIDIA's driver library: {driver['problem']}")
    result = driver.get("init", 0)
    if result == _NO_DEVICE:
        raise LaunchError("gpus-missing", _too_few(0, needs.gpus, env))
    version = seen.get("version")
    if version is not None and not runs(version, needs.cuda):
        shown = f"{version // 1000}.{version % 1000 // 10}"
        what = f"the node's driver runs CUDA up to {shown}, and {needs.framework or 'the image'} has CUDA {needs.cuda}"
        raise LaunchError("cuda-driver-too-old", what)
    if result != 0:
        raise LaunchError("cuda-driver-unusable", f"{_failed(result)} ({FRAMEWORKS_NAME} is {driver['path']})")
    devices = seen.get("devices")
    if devices is not None and devices < expected(needs.gpus, env, own=needs.own):
        raise LaunchError("gpus-missing", _too_few(devices, needs.gpus, env))


def runs(version: int, cuda: str) -> bool:
    """Whether a driver runs programs of this CUDA, by their major versions (NVIDIA's "CUDA Compatibility", minor
    version compatibility, CUDA 11 and later); where the image has a compat package its version counts.

    Args:
        version: as cuDriverGetVersion gives it: 12040 for 12.4. cuda: ``12.8``; empty where unknown.
    """
    match = re.match(r"(\d+)(?:\.(\d+))?", cuda)
    if match is None:
        return True
    major, minor = int(match.group(1)), int(match.group(2) or 0)
    if major <= _UNVERSIONED:
        return version >= major * 1000 + minor * 10
    return version // 1000 >= major


def expected(gpus: int, env: Mapping[str, str], *, own: bool = False) -> int:
    """How many devices CUDA must show of those planned: one where the task starter gave this task its own, and of
    parts of GPUs (MIG), of which CUDA shows no more to a process. ``own``: as of Needs.
    """
    variable = env.get("CUDA_VISIBLE_DEVICES")
    if binding.part_of_gpu(env.get("NVIDIA_VISIBLE_DEVICES") if variable is None else variable):
        return 1
    entries = [entry.strip() for entry in (variable or "").split(",")]
    alone = len(entries) == 1 and re.fullmatch(r"\d+|GPU-\S+", entries[0]) is not None
    return 1 if alone and not own else gpus


def _with_horovods_name(path: str, env: Mapping[str, str], directory: str | None) -> dict[str, str]:
    """LD_LIBRARY_PATH with one more directory at its end, in which only a link from Horovod's name to ``path`` lies:
    what is found without it is found as before. Empty where none can be made, or the variable can't hold it (ld.so(8)).
    """
    place = "" if directory is None else os.path.join(directory, f"libcuda-{os.getpid()}")
    if not place or re.search(r"[:;$]", place) or not os.path.isabs(path):
        return {}
    try:
        os.mkdir(place, 0o700)
        os.symlink(path, os.path.join(place, HOROVODS_NAME))
    except OSError:
        return {}
    before = env.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": f"{before}:{place}" if before else place}


def _too_few(devices: int, planned: int, env: Mapping[str, str]) -> str:
    variables = [
        f"{name}={env[name]}"
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
        if env.get(name) is not None
    ]
    what = f"{planned} {'GPU is' if planned == 1 else 'GPUs are'} planned here, and CUDA shows {devices}"
    if env.get("CUDA_VISIBLE_DEVICES") == _NONE_GRANTED:
        what += "; Slurm gave this step none"
    return f"{what} ({', '.join(variables)})" if variables else what


def _failed(result: int | None) -> str:
    if result is None:
        return "it has no cuInit: this is no driver"
    name, meaning = _RESULTS.get(result, ("", ""))
    return f"cuInit gives {result}" + (f" (CUDA_ERROR_{name}): {meaning}" if name else "")


def _end_of(status: int) -> str:
    with suppress(ValueError):
        if status < 0:
            return f"signal {-status} ({signal.Signals(-status).name})"
    return f"exit code {status}"
