"""A stand-in for NVIDIA's management library, with its ABI, compiled where a test needs it."""

from __future__ import annotations

import subprocess
from pathlib import Path


def build(directory: Path) -> Path:
    """The library of fake_nvml.c: two GPUs."""
    return compiled(Path(__file__).with_suffix(".c").read_text(), directory)


def compiled(source: str, directory: Path) -> Path:
    """A library of this C source."""
    file, library = directory / "nvml.c", directory / "libnvidia-ml.so.1"
    file.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(file)], check=True)
    return library
