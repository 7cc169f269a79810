"""What differs between the frameworks that Horovod is built for: one entry each, and what is read from a base.

Standard library only, Python 3.8 or later: this runs inside base images, and where ``env create`` makes an environment.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple


class Framework(NamedTuple):
    """A framework that Horovod can be built for.

    Attributes:
        module, horovod_module: to import. build_switch: Horovod's own, set to 1.
        ask: lines of a child process that leave ``version``, ``cuda`` (None on CPUs), ``nccl`` (None where the
            framework does not say), ``archs`` (of its kernels) and ``include`` (directories of its headers).
        cxx17_from: the first version whose headers want C++17 of everyone who includes them.
        header: of all that Horovod includes of it; empty where the framework never lacks any. headers_fix: how a
            base gets what is missing.
    """

    name: str
    module: str
    horovod_module: str
    build_switch: str
    ask: str
    cxx17_from: tuple[int, int]
    header: str
    headers_fix: str


FRAMEWORKS = {
    "pytorch": Framework(
        name="pytorch",
        module="torch",
        horovod_module="horovod.torch",
        build_switch="HOROVOD_WITH_PYTORCH",
        ask="""
import torch, torch.utils
version, cuda = torch.__version__, torch.version.cuda
nccl = ".".join(map(str, torch.cuda.nccl.version())) if cuda else None
archs = (torch._C._cuda_getArchFlags() or "").split() if cuda else []
top = torch.utils.__path__[0] + "/../include"
include = [top, top + "/torch/csrc/api/include"]
""",
        cxx17_from=(2, 1),
        header="torch/extension.h",
        headers_fix="for Debian's own torch they are in the packages libtorch-dev and pybind11-dev",
    ),
    "tensorflow": Framework(
        name="tensorflow",
        module="tensorflow",
        horovod_module="horovod.tensorflow",
        build_switch="HOROVOD_WITH_TENSORFLOW",
        ask="""
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow
version = tensorflow.__version__
info = getattr(tensorflow.sysconfig, "get_build_info", dict)()
cuda = info.get("cuda_version")
if cuda is None and tensorflow.test.is_built_with_cuda():  # before 2.3 it does not say which
    cuda = ".".join(os.environ.get("CUDA_VERSION", "").split(".")[:2])
nccl, archs = None, list(info.get("cuda_compute_capabilities", []))
include = [tensorflow.sysconfig.get_include()]
""",
        cxx17_from=(2, 10),
        header="",
        headers_fix="",
    ),
}

_TELL = """
import json
lines = [line.split(None, 5) for line in open("/proc/self/maps")]
mapped = sorted({line[5].strip() for line in lines if len(line) == 6 and "/libnccl.so" in line[5]})
facts = {"version": str(version), "cuda": cuda or None, "nccl": nccl, "archs": archs, "include": include}
print(json.dumps(dict(facts, nccl_file=mapped[0] if mapped else "")))
"""
_NCCL_LIBRARIES = ("lib", "lib64", "lib/*-linux-gnu")
_NCCL_HEADERS = ("/usr/include/nccl.h", "/usr/local/include/nccl.h", "/usr/local/cuda/include/nccl.h")
_NCCL_HOMES = ("HOROVOD_NCCL_HOME", "NCCL_HOME", "NCCL_ROOT", "EBROOTNCCL", "CONDA_PREFIX")  # as modules and conda say
# Where Horovod 0.28.1 looks for it; TensorFlow has moved XLA's headers since.
_XLA_HEADER = "tensorflow/compiler/xla/client/xla_builder.h"


class Variant(NamedTuple):
    """What of a base is used.

    Attributes:
        mpi: ``auto`` for the one whose mpicxx is found, ``none``, or the flavour that it must be.
        nccl: ``auto`` for the one whose header is found, ``none``, or the directory that holds ``include/nccl.h``.
        place: ``image``, where the base's own system may be added to, or ``environment``, outside of which nothing is.
    """

    mpi: str = "auto"
    nccl: str = "auto"
    place: str = "image"


AS_FOUND = Variant()


def variant_options(parser: argparse.ArgumentParser) -> None:
    """The options of a variant, for every program that asks a base."""
    parser.add_argument("--mpi", default="auto", choices=("auto", "none", "openmpi", "mpich"))
    parser.add_argument("--nccl", default="auto", help="auto, none, or the directory that holds include/nccl.h")
    parser.add_argument("--place", default="image", choices=("image", "environment"))


def variant_of(asked: argparse.Namespace) -> Variant:
    return Variant(asked.mpi, asked.nccl, asked.place)


def ask_framework(framework: Framework) -> dict[str, Any]:
    """Facts about the installed framework (see Framework.ask).

    Raises:
        SystemExit: the framework cannot be imported; the message holds the import's own words.
    """
    done = subprocess.run([sys.executable, "-c", framework.ask + _TELL], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"there is no working {framework.name} here: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def headers_problem(framework: Framework, include: list[str]) -> str:
    """Why Horovod can't be compiled against the framework; empty where the compiler finds every header of it.

    Args:
        include: the framework's directories of headers.
    """
    if not framework.header:
        return ""
    words = ["g++", "-E", "-x", "c++", "-std=c++17", "-"]
    words += [f"-I{each}" for each in (*include, sysconfig.get_paths()["include"])]
    done = subprocess.run(words, input=f"#include <{framework.header}>\n", stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, check=False)  # fmt: skip
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()
    return f"{said[0] if said else framework.header}; {framework.headers_fix}"


def captured(words: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, its output and errors in one text."""
    return subprocess.run(  # type: ignore[no-any-return, unused-ignore]
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more
    )


def says(words: list[str]) -> str:
    """What a program prints, empty where it is absent or fails."""
    if shutil.which(words[0]) is None:
        return ""
    done = captured(words, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else ""


def mpi_flavour() -> dict[str, str]:
    """MPI of the base: ``flavour`` (openmpi, mpich, other, or empty where mpicxx is absent) and ``version``."""
    if shutil.which("mpicxx") is None:
        return {"flavour": "", "version": ""}
    line = says(["mpirun", "--version"]).partition("\n")[0]
    number = re.search(r"\d+(\.\d+)+\w*", line)
    is_mpich = "HYDRA" in line or "MPICH" in line or says(["mpichversion"])
    flavour = "openmpi" if "Open MPI" in line or "OpenRTE" in line else "mpich" if is_mpich else "other"
    return {"flavour": flavour, "version": number.group(0) if number else ""}


def chosen_mpi(asked: str) -> dict[str, str]:
    """The MPI to build with, as ``mpi_flavour``.

    Raises:
        SystemExit: one was asked for by name, and is not what mpicxx belongs to.
    """
    if asked == "none":
        return {"flavour": "", "version": ""}
    mpi = mpi_flavour()
    if asked not in ("auto", mpi["flavour"]):
        raise SystemExit(f"{asked} was asked for, and the mpicxx of PATH is of: {mpi['flavour'] or 'there is none'}")
    return mpi


def nccl_home(asked: str, own: str = "") -> str:
    """The directory of the NCCL to build with; empty where it lies where every compiler looks, or there is none.

    Args:
        own: the library that the framework has loaded (``nccl_file``), or empty. Its directory comes first, as this
            NCCL serves Horovod, too: there can be only one of that name in a process.

    Raises:
        SystemExit: a directory was given, and holds no header.
    """
    if asked not in ("auto", "none"):
        if not (Path(asked) / "include/nccl.h").exists():
            raise SystemExit(f"there is no {asked}/include/nccl.h")
        return asked
    if asked == "none":
        return ""
    loaded = str(Path(own).parents[1]) if own else ""
    if loaded and (Path(loaded) / "include/nccl.h").exists():
        return loaded
    if any(map(os.path.exists, _NCCL_HEADERS)):
        return ""
    homes = [os.environ[name] for name in _NCCL_HOMES if os.environ.get(name)] + packaged_nccl()
    return next((home for home in homes if (Path(home) / "include/nccl.h").exists()), "")


def packaged_nccl() -> list[str]:
    """Directories of NCCL out of pip's packages (``nvidia-nccl-cu13``), which hold header and libnccl.so.2."""
    spec = importlib.util.find_spec("nvidia")
    return [str(Path(each) / "nccl") for each in (spec.submodule_search_locations or () if spec else ())]


def nccl_header(asked: str, own: str = "") -> Path | None:
    """The header of the NCCL to build with; None where there is none, or none is wanted. ``own``: as of nccl_home."""
    home = nccl_home(asked, own)
    places = (home + "/include/nccl.h",) if home else () if asked == "none" else _NCCL_HEADERS
    return next((Path(place) for place in places if Path(place).exists()), None)


def nccl_problem(asked: str, own: str = "") -> str:
    """What is missing of the NCCL to build with; empty where header and library are there, or none is wanted."""
    if asked == "none":
        return ""
    header = nccl_header(asked, own)
    if header is None:
        places = ", ".join(str(Path(place).parent) for place in _NCCL_HEADERS)
        return f"no nccl.h in {places}, nor below {', '.join(_NCCL_HOMES)}, nor in a package of pip"
    roots = (header.parents[1], Path("/usr"), Path("/usr/local"))  # a system's header may lie apart from its library
    names = [f"{each}/{name}" for each in _NCCL_LIBRARIES for name in ("libnccl.so", "libnccl.so.2")]
    is_there = any(path.exists() for root in roots for name in names for path in root.glob(name))
    return "" if is_there else f"{header} is there, and no libnccl.so or libnccl.so.2 beside it"


def nccl_version(header: str) -> str | None:
    """``2.25.1`` out of the text of nccl.h; None where it does not say."""
    parts = [re.search(rf"#define NCCL_{name} (\d+)", header) for name in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part.group(1) for part in parts if part) if all(parts) else None


def has_gpu_stream_value(include: list[str]) -> bool:
    """Whether Horovod finds the function of TensorFlow's libraries that tells a GPU stream's handle.

    Horovod declares it by itself, so that its absence shows only at import. TensorFlow 2.17 has it, 2.21 has not.

    Args:
        include: TensorFlow's directories of headers.
    """
    headers = [Path(each) / "tensorflow/compiler/xla/stream_executor/stream.h" for each in include]
    texts = [header.read_text(errors="replace") for header in headers if header.exists()]
    if not any("platform_specific_handle" in text for text in texts):
        return True  # older: there is no other way to the handle
    libraries = sorted(path for each in include for path in Path(each).parent.glob("libtensorflow_*.so.*"))
    return any(map(_names_gpu_stream_value, sorted(libraries, key=lambda path: path.stat().st_size)))


def _names_gpu_stream_value(library: Path) -> bool:
    """A library has up to 1.1 GB: it is not read into memory."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"\0_ZN15stream_executor3gpu16AsGpuStreamValueEPNS_6StreamE\0") >= 0


def base_facts(framework: Framework, answer: dict[str, Any], variant: Variant = AS_FOUND) -> dict[str, Any]:
    """What decides how Horovod is built in this base, and whether a wheel built elsewhere fits it.

    Args:
        answer: what ask_framework answered.
    """
    include = [str(each) for each in answer["include"]]
    header = nccl_header(variant.nccl, str(answer.get("nccl_file") or ""))
    told = nccl_version(header.read_text(errors="replace")) if header and answer["cuda"] else None
    more: dict[str, Any] = {}
    if framework.name == "tensorflow" and answer["cuda"]:
        more["gpu_stream_value"] = has_gpu_stream_value(include)
    return {
        **more,
        "framework": framework.name,
        "framework_version": answer["version"],
        "cuda": answer["cuda"],
        "nccl": answer["nccl"] or told,
        "nccl_headers": header is not None,
        "xla_headers": any((Path(each) / _XLA_HEADER).exists() for each in include),
        "python": platform.python_version(),
        "arch": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "compiler": says(["g++", "-dumpfullversion"]),
        "mpi": chosen_mpi(variant.mpi),
    }


def release(version: str) -> tuple[int, int]:
    """(2, 13) of ``2.13.0+cpu``; (0, 0) of what is no version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)
