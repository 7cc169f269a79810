"""Build a Horovod wheel inside a base image or an environment, or print the key under which such a wheel is kept.

    build.py key   --framework pytorch [--cxx-standard 17] [--cuda-archs auto]
    build.py wheel --framework pytorch --out DIR [--horovod auto|build|shipped|KEY] ...

A Horovod that the base ships is kept where it passes the proof (``prove.py``): nothing is built then. Otherwise the
source is Horovod's last release from the package index, checked by its hash, with the fixes that the base needs
(``fixes/*.patch``, each names the error it removes). A wheel that lies on the shelf (``<key>/``; ``wheels`` beside
this file, or ``--shelf``) is taken instead of compiling, and one that is compiled is put there. Standard library only,
Python 3.8 or later.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import cuda
import fixes
import install
import wheel_record
from frameworks import (
    FRAMEWORKS,
    Framework,
    Variant,
    ask_framework,
    base_facts,
    captured,
    headers_problem,
    nccl_header,
    nccl_home,
    nccl_problem,
    nccl_version,
    release,
    variant_of,
    variant_options,
)  # fmt: skip

HERE = Path(__file__).resolve().parent
VERSION = "0.28.1"
SDIST = f"horovod-{VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PINNED = f"horovod=={VERSION} --hash=sha256:{SDIST_SHA256}"
SHIPPED = "shipped"  # the key of a Horovod that is the base's own
NCCL_OF_PIP = "nvidia/nccl"  # where pip's package of NCCL lies in the directory of packages


def cxx_standard(framework: Framework, version: str, asked: str) -> str:
    """The C++ standard to compile with: as asked, or for ``auto`` what the framework's headers want."""
    return asked if asked != "auto" else "17" if release(version) >= framework.cxx17_from else "14"


def switches(
    framework: Framework, facts: dict[str, Any], standard: str, architectures: list[int], nccl: str = ""
) -> dict[str, str]:
    """The environment that tells Horovod's CMake what to build: what is promised is required, never probed.

    Args:
        architectures: of GPUs to compile for; empty without CUDA.
        nccl: NCCL's own directory, where compilers would not find it; relative for one that lies in the directory of
            Python's packages, as Horovod will: it is found wherever that directory is.
    """
    chosen = {
        framework.build_switch: "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_CXX_STANDARD": cxx_standard(framework, str(facts["framework_version"]), standard),
        # A library of a few MB and not 75. -g0 in CXXFLAGS alone does not do it: CMake appends its own -g.
        "CXXFLAGS": "-g0",
        "LDFLAGS": "-Wl,--strip-debug",
        # CMake >= 4 refuses the minimum that Horovod's bundled Gloo asks for; older ones ignore this.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
    }
    for other in ("TENSORFLOW", "PYTORCH", "MXNET"):
        if "HOROVOD_WITH_" + other not in chosen:
            chosen["HOROVOD_WITHOUT_" + other] = "1"
    chosen["HOROVOD_WITH_MPI" if facts["mpi"]["flavour"] else "HOROVOD_WITHOUT_MPI"] = "1"
    if architectures:
        chosen["HOROVOD_BUILD_CUDA_CC_LIST"] = ",".join(map(str, architectures))
    if facts["cuda"] and facts["nccl_headers"]:
        # SHARED: Horovod's default links a second, static NCCL beside the framework's own.
        chosen.update(HOROVOD_GPU="CUDA", HOROVOD_GPU_OPERATIONS="NCCL", HOROVOD_NCCL_LINK="SHARED")
        if nccl.startswith("/"):
            chosen["HOROVOD_NCCL_HOME"] = nccl
        elif nccl:  # Horovod's libraries lie two directories below the packages
            chosen["LDFLAGS"] += f" -Wl,-rpath,$ORIGIN/../../{nccl}/lib"
    return chosen


def wheel_key(facts: dict[str, Any], chosen: dict[str, str], nvcc: str = "") -> str:
    """Hash of everything that goes into the wheel: source, fixes, switches, base. 24 hex digits.

    ``nvcc``: its version; empty without CUDA.
    """
    applied = {fix: hashlib.sha256(fixes.file_of(fix).read_bytes()).hexdigest() for fix in fixes.needed(facts)}
    parts = {"sdist": SDIST_SHA256, "facts": facts, "switches": chosen, "fixes": applied}
    if nvcc:
        parts["nvcc"] = nvcc
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def why_not_shipped(framework: Framework, variant: Variant) -> str:
    """Why the base's own Horovod is not enough; empty where it passes the whole proof."""
    if importlib.util.find_spec("horovod") is None:
        return "the base ships no Horovod"
    install.keras(framework.name)
    words = [sys.executable, str(HERE / "prove.py"), "--framework", framework.name]
    words += ["--mpi", variant.mpi, "--nccl", variant.nccl, "--place", variant.place]
    done = captured(words)
    if done.returncode == 0:
        return ""
    return "the base's own Horovod does not pass: " + "\n".join(done.stdout.strip().splitlines()[-8:])


def ensure_tools(place: str, work: str) -> dict[str, str]:
    """Get a compiler and CMake where the base has none; returns variables by which Horovod's setup.py finds them.

    In an image, Debian's packages are installed: this stage of its build is thrown away afterwards. CMake comes from
    the package index, into ``work``, where that is not possible.

    Raises:
        SystemExit: one is missing, and nothing may be installed on this machine.
    """
    absent = [name for name in ("g++", "cmake", "make") if shutil.which(name) is None]
    compilers = [name for name in absent if name != "cmake"]
    if compilers and place != "image":
        raise SystemExit(f"to compile Horovod, PATH lacks {', '.join(compilers)}; fix: load modules that have them")
    if absent and place == "image" and shutil.which("apt-get"):
        quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        updated = install.succeeds(["apt-get", "update", "-qq"], env=quiet)
        needed = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
        if not (updated and install.succeeds([*needed, *absent], env=quiet)) and compilers:
            raise SystemExit(
                f"the base has no {', '.join(compilers)}, and its packages cannot be installed (see above); fix: take "
                "a base with a compiler, or build where its package mirror can be reached"
            )
    if shutil.which("cmake") is not None:
        return {}
    install.by_hash("install", (HERE / "cmake.txt").read_text(encoding="utf-8"), "--target", f"{work}/cmake")
    return {"HOROVOD_CMAKE": f"{work}/cmake/cmake/data/bin/cmake"}


def fetch(target: Path) -> Path:
    """The release's source, unpacked below ``target``; refused unless its hash is the pinned one.

    pip runs the setup.py of a source that it downloads, so pip itself must know the hash.
    """
    install.by_hash("download", f"{PINNED}\n", "--no-binary", "horovod", "--dest", str(target))
    path = target / SDIST
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SDIST_SHA256:
        raise SystemExit(f"{SDIST} has sha256 {digest}, expected {SDIST_SHA256}: not built")
    with tarfile.open(path) as archive:
        archive.extractall(target)
    return target / f"horovod-{VERSION}"


def take_kept(key: str, out: Path, shelf: Path, *, with_nccl: bool = False) -> bool:
    """Whether a whole wheel is kept under this key, which is then put into ``out``.

    Args:
        with_nccl: one whose libraries do not load NCCL is not taken, whatever its key promises.
    """
    kept = [wheel for wheel in sorted((shelf / key).glob("*.whl")) if is_whole(wheel)]
    for wheel in [wheel for wheel in kept if with_nccl and wheel_record.without_nccl(wheel)]:
        print(f"horovod: the kept wheel {wheel} does not load NCCL: it is not taken", flush=True)
        kept.remove(wheel)
    if kept:
        print("horovod: taking the wheel kept under " + key, flush=True)
        shutil.copy(str(kept[0]), str(out))
    return bool(kept)


def is_whole(wheel: Path) -> bool:
    """Whether the checksums in a kept wheel are right."""
    try:
        with zipfile.ZipFile(str(wheel)) as archive:
            damaged = archive.testzip() is not None
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError):
        damaged = True
    if damaged:
        print(f"horovod: the kept wheel {wheel} is damaged: it is not taken", flush=True)
    return not damaged


def keep(wheel: Path, directory: Path) -> None:
    """Keep a wheel in the directory of its key; it is on disk before it gets its name."""
    directory.mkdir(parents=True, exist_ok=True)
    part = directory / f".{wheel.name}.{os.getpid()}"
    shutil.copy(str(wheel), str(part))
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(directory / wheel.name)


class Gpu(NamedTuple):
    """What Horovod's GPU code is compiled with, and for what.

    Attributes:
        framework_cuda: its version. toolkit: to compile with. architectures: to compile for, ascending.
        nccl: directory of the NCCL to link, empty where it lies where every compiler looks. nccl_version: of its
            header. beside: whether it lies in the directory that Horovod is installed into.
        with_nccl: False where none is wanted: Horovod's kernels are compiled all the same.
    """

    framework_cuda: str
    toolkit: cuda.Toolkit
    architectures: list[int]
    nccl: str
    nccl_version: str
    beside: bool
    with_nccl: bool = True

    def record(self) -> dict[str, object]:
        """What image.json and an environment's record say of it."""
        chosen = {"cuda_architectures": self.architectures, "ptx": self.architectures[-1]}
        return {**chosen, "nvcc": self.toolkit.version, "nccl": self.nccl_version}


def gpu_of(framework: Framework, answer: dict[str, Any], variant: Variant, archs: str) -> Gpu | None:
    """What to compile the GPU code with; None where there will be none.

    Without NCCL, torch's kind of Horovod has GPU code all the same wherever torch finds an nvcc: it must fit, too.

    Args:
        answer: what ask_framework answered. archs: ``auto``, or as the user gave them.

    Raises:
        SystemExit: NCCL or the toolkit is not there, is of another CUDA, or lacks a part.
    """
    version = str(answer["cuda"] or "")
    bare = variant.nccl == "none"
    if not version or (bare and (framework.name != "pytorch" or not any(cuda.compilers(os.environ)))):
        return None
    own = str(answer.get("nccl_file") or "")
    problem = nccl_problem(variant.nccl, own)
    if problem:
        major = version.partition(".")[0]
        raise SystemExit(
            f"{framework.name} {answer['version']} is of CUDA {version}, and there is no whole NCCL for Horovod: "
            f"{problem}; fix: load NCCL's module, install nvidia-nccl-cu{major} with pip (in an image libnccl-dev), or "
            "name its directory with --nccl; --nccl none builds for CPUs alone"
        )
    toolkit = cuda.toolkit(version, variant.place, os.environ)
    chosen = cuda.architectures(archs, answer["archs"], toolkit.architectures, toolkit.version)
    header = nccl_header(variant.nccl, own)
    text = header.read_text(errors="replace") if header else ""
    home = nccl_home(variant.nccl, own)
    beside = Path(home) == install.packages() / NCCL_OF_PIP
    return Gpu(version, toolkit, chosen, home, nccl_version(text) or "", beside, not bare)


def build_wheel(
    framework: Framework,
    include: list[str],
    facts: dict[str, Any],
    chosen: dict[str, str],
    key: str,
    out: Path,
    *,
    gpu: Gpu | None,
    shelf: Path,
    place: str,
) -> None:
    """Put the wheel into ``out``: an earlier one with this key, or a new one, which is kept on the shelf, too.

    Args:
        include: the framework's directories of headers.
        shelf: where wheels are kept, by their keys. place: as of Variant.
    """
    if take_kept(key, out, shelf, with_nccl=gpu is not None and gpu.with_nccl):
        return
    print(f"horovod: compiling with {json.dumps(chosen, sort_keys=True)}", flush=True)
    started = time.monotonic()
    with ExitStack() as after:
        work = after.enter_context(tempfile.TemporaryDirectory())
        tools = ensure_tools(place, work)
        lacking = headers_problem(framework, include)
        if lacking:  # reported now, not after minutes of compiling
            raise SystemExit(f"nothing can be compiled against the base's {framework.name}: {lacking}")
        # Horovod's setup.py wants what it requires importable before it builds, and wheel and setuptools with it.
        install.dependencies(build=True)
        if gpu is not None:
            root = gpu.toolkit.root
            if root == cuda.INDEX:
                toolkit, remove = cuda.installed(gpu.framework_cuda)
                after.callback(remove)
                root = toolkit.root
            print(f"horovod: nvcc {gpu.toolkit.version} in {root}, GPUs of {gpu.architectures}, NCCL: "
                  f"{gpu.nccl_version or 'none'} {gpu.nccl}", flush=True)  # fmt: skip
            tools.update(cuda.variables(root, os.environ))
            if gpu.nccl:
                tools["HOROVOD_NCCL_HOME"] = gpu.nccl
        source = fetch(Path(work))
        for fix in fixes.needed(facts):
            changed = fixes.apply(fixes.file_of(fix).read_text(encoding="utf-8"), source)
            print(f"horovod: fix {fix} ({changed} lines)", flush=True)
        # MAKEFLAGS set: Horovod's setup.py takes -j8 otherwise, whatever the machine.
        jobs = f"-j{len(os.sched_getaffinity(0))}"
        words = ["wheel", "--verbose", "--no-cache-dir", "--no-deps", "--no-build-isolation"]
        words = [*words, "--wheel-dir", str(out), str(source)]
        # The source is the only thing that pip chooses here, and a base may pin another Horovod.
        environment = {**os.environ, **install.UNCONSTRAINED, "MAKEFLAGS": jobs, **chosen, **tools}
        said = install.compile_with(install.pip_words(*words), environment)
        for wheel in out.glob("*.whl"):
            examine(wheel, said, gpu, [work])
    print(f"horovod: compiled in {time.monotonic() - started:.0f} s", flush=True)
    for wheel in out.glob("*.whl"):
        keep(wheel, shelf / key)


def examine(wheel: Path, said: str, gpu: Gpu | None, work: list[str]) -> None:
    """Ensure that a new wheel outlives its build and has the GPU code that was wanted, and put its record into it.

    Args:
        said: the line in which Horovod's CMake shows nvcc's flags.

    Raises:
        SystemExit: it is not so.
    """
    lost = wheel_record.lost_directories(wheel, work)
    if lost:
        raise SystemExit(f"Horovod's libraries look into directories of the build, which are gone afterwards: {lost}")
    if gpu is None:
        return
    absent = [each for each in gpu.architectures if f"code=sm_{each}" not in said and f"sm_{each}," not in said]
    if absent:  # CMake goes on where Horovod's helper for these flags fails
        raise SystemExit(f"nvcc was not given the architectures {absent}; Horovod's CMake shows: {said or 'no flags'}")
    lacking = wheel_record.without_nccl(wheel) if gpu.with_nccl else []
    if lacking:
        raise SystemExit(
            f"Horovod was compiled, and does not load NCCL as a shared library: {', '.join(lacking)}; fix: name the "
            "directory of a whole NCCL with --nccl DIR, or --nccl none where none is wanted"
        )
    wheel_record.add_record(wheel, gpu.record())


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a Horovod wheel in a base image or an environment.")
    parser.add_argument("verb", choices=["key", "wheel"])
    parser.add_argument("--framework", required=True, choices=sorted(FRAMEWORKS))
    parser.add_argument("--cxx-standard", default="auto")
    parser.add_argument("--cuda-archs", default="auto", help="auto (the framework's own), or numbers such as 80,90")
    parser.add_argument("--horovod", default="auto", help="auto, build, shipped, or the key of a kept wheel")
    parser.add_argument("--out", type=Path, default=Path("wheel"))
    parser.add_argument("--shelf", type=Path, default=HERE / "wheels", help="where wheels are kept, by their keys")
    variant_options(parser)
    asked = parser.parse_args()
    install.allow_system_packages(asked.place)
    install.without_network()
    if asked.verb == "wheel":
        asked.out.mkdir(parents=True, exist_ok=True)
        install.hand_on(asked.out)
        if asked.horovod not in ("auto", "build"):
            # The caller got the key from this base before: the framework is not imported again.
            if asked.horovod != SHIPPED and not take_kept(asked.horovod, asked.out, asked.shelf):
                raise SystemExit(f"no wheel is kept under {asked.horovod}")
            (asked.out / "key").write_text(f"{asked.horovod}\n")
            return
    framework = FRAMEWORKS[asked.framework]
    variant = variant_of(asked)
    answer = ask_framework(framework)
    facts = base_facts(framework, answer, variant)
    why = why_not_shipped(framework, variant) if asked.horovod == "auto" else "a build was asked for"
    gpu = gpu_of(framework, answer, variant, asked.cuda_archs) if why else None
    nccl = "" if gpu is None else NCCL_OF_PIP if gpu.beside else gpu.nccl
    chosen = switches(framework, facts, asked.cxx_standard, gpu.architectures if gpu else [], nccl)
    key = wheel_key(facts, chosen, gpu.toolkit.version if gpu else "") if why else SHIPPED
    if asked.verb == "key":
        print(json.dumps({"key": key, "why": why, "facts": facts, "fixes": fixes.needed(facts) if why else []}))
        return
    (asked.out / "key").write_text(f"{key}\n")
    if not why:
        print("horovod: the base's own is taken", flush=True)
        return
    print(f"horovod: {why}", flush=True)
    wheel = (facts, chosen, key, asked.out)
    build_wheel(framework, answer["include"], *wheel, gpu=gpu, shelf=asked.shelf, place=variant.place)


if __name__ == "__main__":
    main()
