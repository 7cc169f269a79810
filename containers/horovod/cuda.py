"""The CUDA toolkit that Horovod is compiled with, and for which GPUs: found and examined before anything is compiled.

A toolkit of another major version than the framework's compiles and links, too, and puts two CUDA runtimes into one
process. So nvcc's version is compared, and what a toolkit lacks is reported with what brings it.
Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from pathlib import Path
from typing import Callable, Iterator, Mapping, NamedTuple

import install
from frameworks import says

HERE = Path(__file__).resolve().parent
_HOMES = ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "EBROOTCUDA", "CUDATOOLKIT_HOME", "CONDA_PREFIX")
_USUAL = "/usr/local/cuda"
# Where a toolkit's libraries lie below its root: NVIDIA's, the package index's, conda's, Debian's.
_LIBRARIES = ("lib64", "lib", "targets/*/lib", "lib/*-linux-gnu")
_HEADERS = ("include", "targets/*/include")
# Where a framework does not say which GPUs it has kernels for: A100 and H100.
USUAL_ARCHITECTURES = ("sm_80", "sm_90")
INDEX = "package index"  # the root of a toolkit that is not installed yet
# Of the nvcc in cuda.txt: the CUDA that it belongs to, and what `nvcc --list-gpu-arch` of 13.0.88 prints.
_INDEX_MAJOR = "13"
_INDEX_ARCHITECTURES = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)


class Toolkit(NamedTuple):
    """What CUDA files are compiled with.

    Attributes:
        root: its directory, with ``bin/nvcc``; INDEX where it comes from the package index.
        version: of nvcc, ``13.0.88``.
        architectures: for which this nvcc compiles.
    """

    root: str
    version: str
    architectures: tuple[int, ...]


def version_of(nvcc: str) -> str:
    """``13.0.88``; empty where this is no nvcc that runs."""
    match = re.search(r"\bV(\d+(?:\.\d+)+)", says([nvcc, "--version"]))
    return match.group(1) if match else ""


def architectures_of(nvcc: str) -> tuple[int, ...]:
    """Architectures for which an nvcc compiles, without those that only one GPU has (``90a``)."""
    answer = says([nvcc, "--list-gpu-arch"]) or says([nvcc, "--help"])  # before CUDA 11, only its help lists them
    return tuple(sorted({int(number) for number in re.findall(r"\b(?:compute|sm)_(\d+)\b", answer)}))


def compilers(environment: Mapping[str, str]) -> Iterator[str]:
    """Every nvcc here: of the variables that modules set, of PATH, and where NVIDIA's packages put it."""
    homes = [environment[name] for name in _HOMES if environment.get(name)]
    places = [f"{home}/bin/nvcc" for home in homes]
    places += [shutil.which("nvcc", path=environment.get("PATH", "")) or "", f"{_USUAL}/bin/nvcc"]
    seen = set()
    for place in places:
        if place and place not in seen and os.access(place, os.X_OK):
            seen.add(place)
            yield place


def roots_of(nvcc: str) -> list[str]:
    """Directories that may be the toolkit's root, nearest first.

    nvcc can be a link, or a script that starts another one: the real one says where its toolkit is (``TOP``).
    """
    real = os.path.realpath(nvcc)
    told = re.search(r"(?m)^#\$ TOP=(.+)$", says([real, "--dryrun", "-E", "-x", "cu", "/dev/null"]))
    tops = [os.path.normpath(told.group(1).strip())] if told else []
    return list(dict.fromkeys([str(Path(nvcc).parents[1]), str(Path(real).parents[1]), *tops]))


def lacks(root: str) -> list[str]:
    """What a toolkit's root does not have of what the compile needs."""
    parts = {"bin/nvcc": ("bin",), "cuda_runtime.h": _HEADERS, "libcudart.so": _LIBRARIES}
    below = Path(root)
    return [
        part
        for part, places in parts.items()
        if not any(path.exists() for place in places for path in below.glob(f"{place}/{Path(part).name}"))
    ]


def toolkit(cuda: str, place: str, environment: Mapping[str, str]) -> Toolkit:
    """The toolkit of the framework's CUDA.

    Args:
        cuda: the framework's, ``13.0``. place: as of Variant.

    Raises:
        SystemExit: there is none; the message names each nvcc, why it is not the one, and what to load or install.
    """
    major = cuda.partition(".")[0]
    refused = []
    for nvcc in compilers(environment):
        version = version_of(nvcc)
        if version.partition(".")[0] != major:
            refused.append(f"{nvcc} " + (f"is of CUDA {version}" if version else "does not say its version"))
            continue
        roots = roots_of(nvcc)
        whole = next((root for root in roots if not lacks(root)), None)
        if whole is not None:
            return Toolkit(whole, version, architectures_of(f"{whole}/bin/nvcc"))
        refused.append(
            f"{roots[-1]}, where {nvcc} (CUDA {version}) belongs, has no {' and no '.join(lacks(roots[-1]))}"
        )
    if index_fits(cuda):
        for line in refused:
            print(f"horovod: {line}: nvcc comes from the package index", flush=True)
        return Toolkit(INDEX, pinned_version(), _INDEX_ARCHITECTURES)
    found = "; ".join(refused) or "there is no nvcc in PATH, CUDA_HOME or /usr/local/cuda"
    raise SystemExit(f"the framework is of CUDA {cuda}, and no toolkit of CUDA {major} is here to compile Horovod: "
                     f"{found}; fix: {_hint(major, place)}")  # fmt: skip


def _hint(major: str, place: str) -> str:
    if place == "image":
        return (
            f"take a base that has the toolkit of CUDA {major} (NVIDIA's framework images have it; of nvidia/cuda, "
            f"the -devel tags), or install its packages cuda-nvcc-{major}-* and cuda-cudart-dev-{major}-* into it"
        )
    return f"load the module of CUDA {major} (`module avail cuda`; --module NAME, or `modules` in the site file)"


def pinned_version() -> str:
    """The version of the nvcc that comes from the package index."""
    match = re.search(r"(?m)^nvidia-cuda-nvcc==(\S+)", (HERE / "cuda.txt").read_text(encoding="utf-8"))
    assert match is not None
    return match.group(1)


def own_root() -> Path:
    """Where the packages of CUDA 13 lie in the Python that packages are installed into."""
    return Path(sysconfig.get_paths()["platlib"], "nvidia/cu13")


def index_fits(cuda: str) -> bool:
    """Whether the package index has the framework's nvcc, and it can be put beside the framework's own libraries."""
    runtime = own_root() / "lib/libcudart.so.13"
    return cuda.partition(".")[0] == _INDEX_MAJOR and runtime.exists() and os.access(str(own_root()), os.W_OK)


def installed(cuda: str) -> tuple[Toolkit, Callable[[], None]]:
    """The toolkit out of the package index, beside the framework's own libraries, and what removes it again.

    It must lie there: the directory of libcudart is written into Horovod's library, as ``lib64``. So the links stay.

    Raises:
        SystemExit: it cannot be fetched.
    """
    root = own_root()
    text = (HERE / "cuda.txt").read_text(encoding="utf-8")
    names = tuple(re.findall(r"(?m)^(\S+)==", text))
    absent = install.lacking(names)
    if absent:
        install.by_hash("install", install.pinned(text, absent))
    for link, target in ((root / "lib64", "lib"), (root / "lib/libcudart.so", "libcudart.so.13")):
        if not link.exists():
            link.symlink_to(target)

    def remove() -> None:
        if absent:
            install.pip("uninstall", "--yes", "--quiet", *absent)

    nvcc = str(root / "bin/nvcc")
    version = version_of(nvcc)
    missing = lacks(str(root))
    if missing or version != pinned_version():
        remove()
        problem = (
            f"{root} has no {' and no '.join(missing)}" if missing else f"{nvcc} is not it ({version or 'it fails'})"
        )
        raise SystemExit(f"nvcc {pinned_version()} of the package index was installed, and {problem}; "
                         f"fix: {_hint(cuda.partition('.')[0], 'environment')}")  # fmt: skip
    return Toolkit(str(root), version, architectures_of(nvcc)), remove


def variables(root: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which CMake, torch and Horovod's own helper find this toolkit, and no other."""
    path = f"{root}/bin:{environment.get('PATH', os.defpath)}"
    return {"CUDA_HOME": root, "HOROVOD_CUDA_HOME": root, "PATH": path}


def number(name: str) -> int | None:
    """80 of ``80``, ``8.0``, ``sm_80`` or ``compute_80``, and 90 of ``90a``: Horovod's kernels use nothing that only
    one GPU has. None of what names no architecture."""
    match = re.fullmatch(r"(?:sm_|compute_)?(\d{2,3}|\d{1,2}\.\d)[af]?", name.strip())
    return int(match.group(1).replace(".", "")) if match else None


def architectures(requested: str, own: list[str], possible: tuple[int, ...], version: str) -> list[int]:
    """Architectures to compile Horovod's kernels for, ascending; code for newer GPUs (PTX) is made of the last one.

    Args:
        requested: ``auto``, or numbers such as ``80,90``.
        own: those of the framework's kernels; empty where it does not say.
        possible: what nvcc compiles for. version: of nvcc.

    Raises:
        SystemExit: one is none, or this nvcc does not know it, or none of the framework's is left.
    """
    automatic = requested == "auto"
    names = (own or USUAL_ARCHITECTURES) if automatic else [name for name in requested.split(",") if name.strip()]
    numbers = {name: number(name) for name in names}
    wrong = [name for name, value in numbers.items() if value is None]
    if wrong and not automatic:
        raise SystemExit(f"--cuda-archs: {wrong[0]!r} is no CUDA architecture; fix: numbers such as 80,90, or auto")
    wanted = sorted({value for value in numbers.values() if value is not None})
    chosen = [value for value in wanted if value in possible]
    known = ", ".join(map(str, possible))
    if not automatic and chosen != wanted:
        others = ", ".join(str(value) for value in wanted if value not in possible)
        raise SystemExit(
            f"--cuda-archs: nvcc {version} compiles for no GPU of architecture {others} (it knows {known}); fix: leave "
            "it out, or take a framework and a toolkit of another CUDA version"
        )
    if not chosen:
        raise SystemExit(f"nvcc {version} compiles for none of the framework's architectures ({', '.join(names)}; it "
                         f"knows {known}); fix: name those of your GPUs with --cuda-archs")  # fmt: skip
    return chosen
