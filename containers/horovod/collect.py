"""Download what Horovod's build and installation need, every file checked by its hash, for machines without a network.

    collect.py --framework pytorch --into DIR --write about.json [--beside FRAMEWORK_DIR]
    collect.py --framework pytorch --into DIR --write about.json --pythons 3.8,3.12 --machine x86_64

The first form collects for the Python that runs it; the second for images, whose Pythons are others. Horovod's source
comes by pip, which runs its setup.py: so what that imports is installed into this Python, a temporary environment's.
Standard library and pip only, Python 3.8 or later.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from pathlib import Path

import build
import install
from frameworks import FRAMEWORKS, release

HERE = Path(__file__).resolve().parent
NAMES = (*install.REQUIRED, *install.BUILD_TOOLS)
# Of one architecture, oldest last: an image's glibc may be older than this machine's.
TAGS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010", "manylinux_2_5")


def for_python(text: str, version: str) -> str:
    """The lines of requirements that hold for a CPython of this version, without their markers.

    pip compares markers with the Python that runs it, also where it is asked for another one's packages.
    """
    from pip._vendor.packaging.markers import Marker  # type: ignore[import-not-found,import-untyped,unused-ignore]

    about = {"python_full_version": f"{version}.0", "python_version": version, "implementation_name": "cpython"}
    chosen = []
    for block in re.findall(r"(?m)^\S+==.*(?:\n\s+--hash=.*)*\n?", text):
        head, _, hashes = block.partition("\\\n")
        name, _, marker = head.partition(";")
        if not marker.strip() or Marker(marker.strip()).evaluate(about):
            chosen.append(f"{name.strip()} \\\n{hashes}")
    return "".join(chosen)


def keras_lines(versions: list[str]) -> list[str]:
    """The requirements of the Keras 2 that TensorFlow needs besides: of these versions, or of all that are known."""
    if versions:
        return [install.keras_of(version) for version in versions if release(version) >= (2, 16)]
    return re.findall(r"(?m)^tf_keras==.*(?:\n\s+--hash=.*)*\n?", (HERE / "keras.txt").read_text())


def tensorflow_versions(beside: Path) -> list[str]:
    """The versions of TensorFlow whose wheels lie there."""
    names = (path.name.split("-") for path in sorted(beside.glob("*.whl")))
    return [name[1] for name in names if name[0] in ("tensorflow", "tensorflow_cpu")]


def tools(beside: Path | None) -> str:
    """The requirements of CMake, and of NVIDIA's compiler where the framework's own packages are of its CUDA."""
    cuda = beside is not None and any(beside.glob("nvidia_cuda_runtime-13.*.whl"))
    return "".join((HERE / name).read_text() for name in ("cmake.txt", *(("cuda.txt",) if cuda else ())))


def collect(framework: str, into: Path, beside: Path | None, pythons: list[str], machine: str) -> None:
    """Put Horovod's source and all that is pinned into a directory.

    Args:
        beside: where the framework's wheels lie; None: any version of it.
        pythons: versions; none: this Python's.
    """
    into.mkdir(parents=True, exist_ok=True)
    target = ("--dest", str(into))
    text = install.pinned((HERE / "requirements.txt").read_text(), list(NAMES))
    for version in pythons:
        platforms = [word for tag in TAGS for word in ("--platform", f"{tag}_{machine}")]
        words = ("--only-binary", ":all:", "--python-version", version, "--implementation", "cp", *platforms)
        lines = for_python(text, version) + (tools(None) if version == pythons[-1] else "")  # the same for all
        install.by_hash("download", lines, *words, *target)
    if not pythons:
        install.by_hash("download", text + tools(beside), *target)
    if framework == "tensorflow":
        for line in keras_lines(tensorflow_versions(beside) if beside else []):
            install.by_hash("download", line, *target)
    install.by_hash("install", text)
    install.by_hash("download", f"{build.PINNED}\n", "--no-binary", "horovod", *target)


def main() -> None:
    parser = argparse.ArgumentParser(description="Download what Horovod's build and installation need.")
    parser.add_argument("--framework", required=True, choices=sorted(FRAMEWORKS))
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--write", type=Path, required=True, help="where to write what it is for, as JSON")
    parser.add_argument("--beside", type=Path, help="directory of the framework's wheels")
    parser.add_argument("--pythons", default="", help="versions of Python, with commas, instead of this one's")
    parser.add_argument("--machine", default=platform.machine())
    chosen = parser.parse_args()
    pythons = [version for version in chosen.pythons.split(",") if version]
    collect(chosen.framework, chosen.into, chosen.beside, pythons, chosen.machine)
    about = {
        "pythons": pythons or [f"{sys.version_info[0]}.{sys.version_info[1]}"],
        "machine": chosen.machine,
        "glibc": platform.libc_ver()[1],
        "horovod": build.VERSION,
    }
    chosen.write.write_text(json.dumps(about), encoding="utf-8")


if __name__ == "__main__":
    main()
