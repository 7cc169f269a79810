"""Build a Horovod wheel inside a base image or an environment, or print the key under which such a wheel is kept.

    build.py key   --framework pytorch [--cxx-standard 17] [--cuda-archs 80,90]
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
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

import fixes
import install
from frameworks import (
    FRAMEWORKS,
    Framework,
    Variant,
    ask_framework,
    base_facts,
    headers_problem,
    nccl_home,
    release,
    variant_of,
    variant_options,
)

HERE = Path(__file__).resolve().parent
VERSION = "0.28.1"
SDIST = f"horovod-{VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PINNED = f"horovod=={VERSION} --hash=sha256:{SDIST_SHA256}"
SHIPPED = "shipped"  # the key of a Horovod that is the base's own


def cxx_standard(framework: Framework, version: str, asked: str) -> str:
    """The C++ standard to compile with: as asked, or for ``auto`` what the framework's headers want."""
    return asked if asked != "auto" else "17" if release(version) >= framework.cxx17_from else "14"


def switches(
    framework: Framework, facts: dict[str, object], standard: str, cuda_archs: str, nccl: str = ""
) -> dict[str, str]:
    """The environment that tells Horovod's CMake what to build: what is promised is required, never probed.

    ``nccl``: NCCL's own directory, where compilers would not find it.
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
    mpi = facts["mpi"]
    assert isinstance(mpi, dict)
    chosen["HOROVOD_WITH_MPI" if mpi["flavour"] else "HOROVOD_WITHOUT_MPI"] = "1"
    if facts["cuda"] and facts["nccl_headers"]:
        # SHARED: Horovod's default links a second, static NCCL beside the framework's own.
        chosen.update(
            HOROVOD_GPU="CUDA",
            HOROVOD_GPU_OPERATIONS="NCCL",
            HOROVOD_NCCL_LINK="SHARED",
            HOROVOD_BUILD_CUDA_CC_LIST=cuda_archs,
            **({"HOROVOD_NCCL_HOME": nccl} if nccl else {}),
        )
    return chosen


def wheel_key(facts: dict[str, object], chosen: dict[str, str]) -> str:
    """Hash of everything that goes into the wheel: source, fixes, switches, base. 24 hex digits."""
    applied = {fix: hashlib.sha256(fixes.file_of(fix).read_bytes()).hexdigest() for fix in fixes.needed(facts)}
    parts = {"sdist": SDIST_SHA256, "facts": facts, "switches": chosen, "fixes": applied}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def why_not_shipped(framework: Framework, variant: Variant) -> str:
    """Why the base's own Horovod is not enough; empty where it passes the whole proof."""
    if importlib.util.find_spec("horovod") is None:
        return "the base ships no Horovod"
    install.keras(framework.name)
    words = [sys.executable, str(HERE / "prove.py"), "--framework", framework.name]
    words += ["--mpi", variant.mpi, "--nccl", variant.nccl, "--place", variant.place]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode == 0:
        return ""
    return "the base's own Horovod does not pass: " + "\n".join(done.stdout.strip().splitlines()[-8:])


def ensure_tools(place: str) -> None:
    """Install a compiler and CMake where the base has none: this stage of an image's build is thrown away afterwards.

    Raises:
        SystemExit: one is missing, and nothing may be installed on this machine.
    """
    absent = [
        package
        for program, package in (("g++", "g++"), ("cmake", "cmake"), ("make", "make"))
        if shutil.which(program) is None
    ]
    if absent and place != "image":
        fix = "load modules that have them; cmake is a package of pip and conda, too"
        raise SystemExit(f"to compile Horovod, PATH lacks {', '.join(absent)}: {fix}")
    if absent:
        quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        install.call(["apt-get", "update", "-qq"], env=quiet)
        install.call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *absent], env=quiet)


def fetch(target: Path) -> Path:
    """The release's source, unpacked below ``target``; refused unless its hash is the pinned one.

    pip runs the setup.py of a source that it downloads, so pip itself must know the hash.
    """
    install.by_hash("download", f"{PINNED}\n", "--no-binary", "horovod", "--dest", str(target))
    path = target / SDIST
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SDIST_SHA256:
        raise SystemExit(f"{SDIST} has sha256 {found}, expected {SDIST_SHA256}: not built")
    with tarfile.open(path) as archive:
        archive.extractall(target)
    return target / f"horovod-{VERSION}"


def take_kept(key: str, out: Path, shelf: Path) -> bool:
    """Whether a whole wheel is kept under this key, which is then put into ``out``."""
    kept = [wheel for wheel in sorted((shelf / key).glob("*.whl")) if is_whole(wheel)]
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


def build_wheel(
    framework: Framework,
    include: list[str],
    facts: dict[str, object],
    chosen: dict[str, str],
    key: str,
    out: Path,
    *,
    shelf: Path,
    place: str,
) -> None:
    """Put the wheel into ``out``: an earlier one with this key, or a new one, which is kept on the shelf, too.

    Args:
        include: the framework's directories of headers.
        shelf: where wheels are kept, by their keys. place: as of Variant.
    """
    if take_kept(key, out, shelf):
        return
    print(f"horovod: compiling with {json.dumps(chosen, sort_keys=True)}", flush=True)
    started = time.monotonic()
    ensure_tools(place)
    lacking = headers_problem(framework, include)
    if lacking:  # reported now, not after minutes of compiling
        raise SystemExit(f"nothing can be compiled against the base's {framework.name}: {lacking}")
    # Horovod's setup.py wants what it requires importable before it builds, and wheel and setuptools with it.
    install.dependencies(build=True)
    with tempfile.TemporaryDirectory() as work:
        source = fetch(Path(work))
        for fix in fixes.needed(facts):
            changed = fixes.apply(fixes.file_of(fix).read_text(encoding="utf-8"), source)
            print(f"horovod: fix {fix} ({changed} lines)", flush=True)
        # MAKEFLAGS set: Horovod's setup.py takes -j8 otherwise, whatever the machine.
        jobs = f"-j{len(os.sched_getaffinity(0))}"
        install.pip(
            "wheel",
            "--verbose",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            str(out),
            str(source),
            env=dict(os.environ, MAKEFLAGS=jobs, **chosen),
        )
    print(f"horovod: compiled in {time.monotonic() - started:.0f} s", flush=True)
    for wheel in out.glob("*.whl"):
        keep(wheel, shelf / key)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a Horovod wheel in a base image or an environment.")
    parser.add_argument("verb", choices=["key", "wheel"])
    parser.add_argument("--framework", required=True, choices=sorted(FRAMEWORKS))
    parser.add_argument("--cxx-standard", default="auto")
    parser.add_argument("--cuda-archs", default="80,90")
    parser.add_argument("--horovod", default="auto", help="auto, build, shipped, or the key of a kept wheel")
    parser.add_argument("--out", type=Path, default=Path("wheel"))
    parser.add_argument("--shelf", type=Path, default=HERE / "wheels", help="where wheels are kept, by their keys")
    variant_options(parser)
    asked = parser.parse_args()
    if asked.verb == "wheel":
        asked.out.mkdir(parents=True, exist_ok=True)
        if asked.horovod not in ("auto", "build"):
            # The caller got the key from this base before: the framework is not imported again.
            if asked.horovod != SHIPPED and not take_kept(asked.horovod, asked.out, asked.shelf):
                raise SystemExit(f"no wheel is kept under {asked.horovod}")
            (asked.out / "key").write_text(f"{asked.horovod}\n")
            return
    framework = FRAMEWORKS[asked.framework]
    variant = variant_of(asked)
    found = ask_framework(framework)
    facts = base_facts(framework, found, variant)
    chosen = switches(framework, facts, asked.cxx_standard, asked.cuda_archs, nccl_home(variant.nccl))
    why = why_not_shipped(framework, variant) if asked.horovod == "auto" else "a build was asked for"
    key = wheel_key(facts, chosen) if why else SHIPPED
    if asked.verb == "key":
        print(json.dumps({"key": key, "why": why, "facts": facts, "fixes": fixes.needed(facts) if why else []}))
        return
    (asked.out / "key").write_text(f"{key}\n")
    if not why:
        print("horovod: the base's own is taken", flush=True)
        return
    print(f"horovod: {why}", flush=True)
    include = found["include"]
    assert isinstance(include, list)
    build_wheel(framework, include, facts, chosen, key, asked.out, shelf=asked.shelf, place=variant.place)


if __name__ == "__main__":
    main()
