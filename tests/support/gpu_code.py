"""Which GPUs a library was compiled for, as NVIDIA's own program reads it: cuobjdump, from the package index."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.core import paths

# Newer than any CUDA here: it reads what older ones have compiled.
_PACKAGE = (
    "nvidia-cuda-cuobjdump==13.2.86 --hash=sha256:d332c2ffe78e703ca0a3894be927f83124244e2acf0d792b8c12b4362d44d837"
)


@dataclass(frozen=True)
class GpuCode:
    """What a library holds for GPUs.

    Attributes:
        compiled: architectures that it has machine code for, 80 for sm_80; sorted.
        ptx: architectures of its intermediate code, which a newer GPU's driver compiles; sorted.
    """

    compiled: tuple[int, ...]
    ptx: tuple[int, ...]


def gpu_code(library: Path) -> GpuCode:
    """What cuobjdump lists of a library."""
    return GpuCode(_architectures(library, "--list-elf"), _architectures(library, "--list-ptx"))


def _architectures(library: Path, option: str) -> tuple[int, ...]:
    listed = subprocess.run([_cuobjdump(), option, library], capture_output=True, text=True, check=True).stdout
    return tuple(sorted({int(each) for each in re.findall(r"sm_(\d+)\w*\.(?:cubin|ptx)", listed)}))


def _cuobjdump() -> Path:
    """The program, unpacked into the cache."""
    tools = paths.ensure_directory(paths.cache("test-tools"))
    place = tools / "cuobjdump-13.2.86"
    program = place / "nvidia/cu13/bin/cuobjdump"
    if not program.exists():
        with tempfile.TemporaryDirectory(dir=tools) as scratch:
            requirements = Path(scratch, "requirements.txt")
            requirements.write_text(_PACKAGE + "\n")
            words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
            subprocess.run([*words, "--dest", scratch, "-r", str(requirements)], check=True, timeout=300)
            (wheel,) = Path(scratch).glob("*.whl")
            subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, f"{scratch}/root"], check=True)
            Path(scratch, "root", program.relative_to(place)).chmod(0o755)
            with suppress(OSError):  # another test run was first
                Path(scratch, "root").rename(place)
    return program
