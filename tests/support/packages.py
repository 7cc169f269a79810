"""Programs of Debian's packages, unpacked into the cache: nothing is installed, nothing is started."""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from runner.core import paths


def unpacked(name: str, *others: str) -> Path:
    """The root into which the package ``name``, and ``others`` that it needs, are unpacked."""
    tools = paths.ensure_directory(paths.cache("test-tools"))
    root = tools / name
    if not root.exists():
        with tempfile.TemporaryDirectory(dir=tools) as scratch:
            # apt's own lists may be empty, and only root may fill them: these are ours.
            own = (f"Dir::State={scratch}/state", f"Dir::Cache={scratch}/cache")
            options = [word for option in (*own, "Dir::State::status=/var/lib/dpkg/status") for word in ("-o", option)]
            Path(scratch, "state/lists/partial").mkdir(parents=True)
            for words in (["update"], ["download", name, *others]):
                subprocess.run(["apt-get", *options, *words], cwd=scratch, check=True, capture_output=True, timeout=300)
            for package in Path(scratch).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, f"{scratch}/root"], check=True)
            with suppress(OSError):  # another test run was first
                Path(scratch, "root").rename(root)
    return root


def compile_library(source: str, out: Path) -> Path:
    """A shared library of this source, which uses no header; what it calls of libc it declares itself."""
    tcc = unpacked("tcc") / "usr" / "bin" / "tcc"
    text = out.with_suffix(".c")
    text.write_text(source)
    subprocess.run([tcc, "-shared", "-nostdlib", "-nostdinc", "-o", out, text], check=True, timeout=60)
    return out


def fake_cuda(directory: Path) -> Path:
    """The library of fake_cuda.c; what it answers stands in variables named there."""
    return compile_library(Path(__file__).with_name("fake_cuda.c").read_text(), directory / "libcuda.so.1")


def fake_nvml(directory: Path, source: str | None = None) -> Path:
    """NVIDIA's management library: that of fake_nvml.c, with two GPUs, or of another source."""
    text = source or Path(__file__).with_name("fake_nvml.c").read_text()
    return compile_library(text, directory / "libnvidia-ml.so.1")


_OTHERS = ("charliecloud-common", "libsquashfuse0", "libfuse3-3")  # what it loads


def ch_run_tools(directory: Path) -> dict[str, str]:
    """Variables under which ch-run is found; ``directory`` gets it, for any user."""
    root, programs = directory / "charliecloud", directory / "bin"
    shutil.copytree(unpacked("charliecloud-runtime", *_OTHERS), root, symlinks=True)
    programs.mkdir()
    libraries = ":".join(f"{root}/{place}/{os.uname().machine}-linux-gnu" for place in ("usr/lib", "lib"))
    loader = "/lib64/ld-linux-x86-64.so.2"
    (programs / "ch-run").write_text(
        f'#!/bin/sh\nexec {loader} --library-path {libraries} {root}/usr/bin/ch-run "$@"\n'
    )
    (programs / "ch-run").chmod(0o755)
    return {"PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin", "USER": "builder"}
