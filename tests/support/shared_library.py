"""Stand-ins for libraries that only a GPU's driver brings: C source, compiled by a small compiler of Debian's."""

from __future__ import annotations

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
