"""A stand-in for the library of NVIDIA's driver, with its ABI, compiled where a test needs it."""

from __future__ import annotations

from pathlib import Path

from tests.support.shared_library import compile_library


def build(directory: Path) -> Path:
    """The library of fake_cuda.c, as ``libcuda.so.1``; what it answers stands in variables named there."""
    return compile_library(Path(__file__).with_suffix(".c").read_text(), directory / "libcuda.so.1")
