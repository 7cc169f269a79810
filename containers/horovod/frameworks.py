"""What differs between the frameworks that Horovod is built for: one entry each, nothing else knows their names.

Standard library only, Python 3.8 or later: this runs inside base images.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Framework(NamedTuple):
    """A framework that Horovod can be built for.

    ``version`` and ``cuda`` are Python expressions evaluated in a child process after ``import module``;
    ``mends`` are the patch files (without suffix) of ``mends/`` that it needs.
    """

    name: str
    module: str
    horovod_module: str
    build_switch: str
    version: str
    cuda: str
    nccl: str
    mends: list[str]


FRAMEWORKS = {
    "pytorch": Framework(
        name="pytorch",
        module="torch",
        horovod_module="horovod.torch",
        build_switch="HOROVOD_WITH_PYTORCH",
        version="torch.__version__",
        cuda="torch.version.cuda",
        nccl="'.'.join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None",
        mends=["cxx-standard"],
    ),
}


def ask_framework(framework: Framework) -> dict[str, str | None]:
    """Version, CUDA version and NCCL version of the framework as installed; CUDA and NCCL may be None.

    Raises:
        SystemExit: the framework cannot be imported; the message holds the import's own words.
    """
    answer = f"[str({framework.version}), {framework.cuda}, {framework.nccl}]"
    program = f"import json, {framework.module}; print(json.dumps({answer}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the base image has no working {framework.name}: {done.stderr.strip().splitlines()[-1:]}")
    version, cuda, nccl = json.loads(done.stdout.strip().splitlines()[-1])
    return {"version": version, "cuda": cuda, "nccl": nccl}


def _says(words: list[str]) -> str:
    """The first line a program prints, empty where it is absent or fails."""
    if shutil.which(words[0]) is None:
        return ""
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, check=False
    )
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def mpi_flavour() -> dict[str, str]:
    """MPI of the base: ``flavour`` (openmpi, mpich, other, or empty where mpicxx is absent) and ``version``."""
    if shutil.which("mpicxx") is None:
        return {"flavour": "", "version": ""}
    line = _says(["mpirun", "--version"])
    number = re.search(r"\d+(\.\d+)+\w*", line)
    if "Open MPI" in line or "OpenRTE" in line:
        flavour = "openmpi"
    elif "HYDRA" in line or "MPICH" in line or _says(["mpichversion"]):
        flavour = "mpich"
    else:
        flavour = "other"
    return {"flavour": flavour, "version": number.group(0) if number else ""}


def base_facts(framework: Framework) -> dict[str, object]:
    """What decides how Horovod is built in this base, and whether a wheel built elsewhere fits it."""
    found = ask_framework(framework)
    headers = ["/usr/include/nccl.h", "/usr/local/include/nccl.h", "/usr/local/cuda/include/nccl.h"]
    return {
        "framework": framework.name,
        "framework_version": found["version"],
        "cuda": found["cuda"],
        "nccl": found["nccl"],
        "nccl_headers": any(Path(header).exists() for header in headers),
        "python": platform.python_version(),
        "arch": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "compiler": _says(["g++", "-dumpfullversion"]),
        "mpi": mpi_flavour(),
    }
