"""A stand-in for NVIDIA's management library, with its ABI, compiled where a test needs it."""

from __future__ import annotations

from pathlib import Path

from tests.support.shared_library import compile_library


def build(directory: Path) -> Path:
    """The library of fake_nvml.c: two GPUs."""
    return compiled(Path(__file__).with_suffix(".c").read_text(), directory)


def compiled(source: str, directory: Path) -> Path:
    """A library of this C source."""
    return compile_library(source, directory / "libnvidia-ml.so.1")
