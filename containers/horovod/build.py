"""Build a Horovod wheel inside a base image, or say the key under which such a wheel may be kept.

    build.py key   --framework pytorch [--cxx-standard 17] [--cuda-archs 80,90]
    build.py wheel --framework pytorch --out DIR ...

The source is Horovod's last release from the package index, checked by its hash, with the mends that the
framework needs (``mends/*.patch``, each names the error it removes). A wheel that lies in ``wheels/<key>/``
beside this file is taken instead of compiling. Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from frameworks import FRAMEWORKS, Framework, base_facts

HERE = Path(__file__).resolve().parent
VERSION = "0.28.1"
SDIST = f"horovod-{VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
# Horovod's setup.py wants these importable before it builds (setup_requires), and again when it runs.
REQUIREMENTS = ["cloudpickle", "psutil", "pyyaml", "packaging", "cffi>=1.4.0"]


def switches(framework: Framework, facts: dict[str, object], cxx_standard: str, cuda_archs: str) -> dict[str, str]:
    """The environment that tells Horovod's CMake what to build: what is promised is required, never probed."""
    chosen = {
        framework.build_switch: "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_CXX_STANDARD": cxx_standard,
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
        )
    return chosen


def wheel_key(framework: Framework, facts: dict[str, object], chosen: dict[str, str]) -> str:
    """Hash of everything that goes into the wheel: source, mends, switches, base. 24 hex digits."""
    mends = {mend: hashlib.sha256(mend_file(mend).read_bytes()).hexdigest() for mend in framework.mends}
    parts = {"sdist": SDIST_SHA256, "facts": facts, "switches": chosen, "mends": mends}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def mend_file(name: str) -> Path:
    return HERE / "mends" / f"{name}.patch"


def apply_patch(text: str, root: Path) -> int:
    """Apply a unified diff exactly (no fuzz, no offset guessing beyond a unique match); returns changed lines.

    Raises:
        SystemExit: a hunk's old lines are not found exactly once.
    """
    changed = 0
    for section in re.split(r"(?m)^(?=--- a/)", text)[1:]:
        name = section.split("\n", 1)[0][len("--- a/") :].strip()
        path = root / name
        content = path.read_text(encoding="utf-8")
        for hunk in re.split(r"(?m)^@@.*@@.*\n", section)[1:]:
            lines = [line for line in hunk.splitlines() if line[:1] in (" ", "-", "+")]
            old = "".join(line[1:] + "\n" for line in lines if line[0] != "+")
            new = "".join(line[1:] + "\n" for line in lines if line[0] != "-")
            if content.count(old) != 1:
                raise SystemExit(f"a mend does not fit {name}: expected once, found {content.count(old)} times:\n{old}")
            content = content.replace(old, new)
            changed += sum(line[0] == "+" for line in lines)
        path.write_text(content, encoding="utf-8")
    return changed


def call(words: list[str], **more: object) -> None:
    """Run a program with its output in the build's log; its failure fails the build."""
    print("+ " + " ".join(words), flush=True)
    code = subprocess.call(words, **more)  # type: ignore[arg-type]
    if code != 0:
        raise SystemExit(f"{words[0]} failed with exit code {code}")


def pip(*words: str, **more: object) -> None:
    """pip of this Python; the base's own constraint file (PIP_CONSTRAINT) holds as pip reads it itself."""
    call([sys.executable, "-m", "pip", *words, "--disable-pip-version-check"], **more)


def ensure_tools() -> None:
    """Install a compiler and CMake where the base has none: this stage of the build is thrown away afterwards."""
    absent = [
        package
        for program, package in (("g++", "g++"), ("cmake", "cmake"), ("make", "make"))
        if shutil.which(program) is None
    ]
    if absent:
        quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        call(["apt-get", "update", "-qq"], env=quiet)
        call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *absent], env=quiet)


def fetch(target: Path) -> Path:
    """The release's source, unpacked below ``target``; refused unless its hash is the pinned one."""
    pip(
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        "horovod",
        "--no-build-isolation",
        "--dest",
        str(target),
        "horovod==" + VERSION,
    )
    path = target / SDIST
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SDIST_SHA256:
        raise SystemExit(f"{SDIST} has sha256 {found}, expected {SDIST_SHA256}: not built")
    with tarfile.open(path) as archive:
        archive.extractall(target)
    return target / f"horovod-{VERSION}"


def build_wheel(framework: Framework, chosen: dict[str, str], key: str, out: Path) -> None:
    """Put the wheel into ``out``: an earlier one with this key, or a new one."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "key").write_text(f"{key}\n")
    earlier = sorted((HERE / "wheels" / key).glob("*.whl"))
    if earlier:
        print("horovod: taking the wheel kept under " + key, flush=True)
        shutil.copy(str(earlier[0]), str(out))
        return
    print(f"horovod: compiling with {json.dumps(chosen, sort_keys=True)}", flush=True)
    started = time.monotonic()
    ensure_tools()
    pip("install", "--quiet", "wheel", *REQUIREMENTS)
    with tempfile.TemporaryDirectory() as work:
        source = fetch(Path(work))
        for mend in framework.mends:
            changed = apply_patch(mend_file(mend).read_text(encoding="utf-8"), source)
            print(f"horovod: mend {mend} ({changed} lines)", flush=True)
        # MAKEFLAGS set: Horovod's setup.py takes -j8 otherwise, whatever the machine.
        jobs = f"-j{len(os.sched_getaffinity(0))}"
        pip(
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a Horovod wheel in a base image.")
    parser.add_argument("verb", choices=["key", "wheel"])
    parser.add_argument("--framework", required=True, choices=sorted(FRAMEWORKS))
    parser.add_argument("--cxx-standard", default="17")
    parser.add_argument("--cuda-archs", default="80,90")
    parser.add_argument("--out", type=Path, default=Path("wheel"))
    asked = parser.parse_args()
    framework = FRAMEWORKS[asked.framework]
    facts = base_facts(framework)
    chosen = switches(framework, facts, asked.cxx_standard, asked.cuda_archs)
    key = wheel_key(framework, facts, chosen)
    if asked.verb == "key":
        print(json.dumps({"key": key, "facts": facts}))
    else:
        build_wheel(framework, chosen, key, asked.out)


if __name__ == "__main__":
    main()
