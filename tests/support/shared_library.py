"""Stand-ins, with the real ABI, for libraries that only a GPU's driver brings: C, compiled by Debian's small tcc."""

import subprocess
from pathlib import Path

from tests.support.packages import unpacked


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
