"""The least that is taken for a squashfs image where only its first 96 bytes are read."""

from __future__ import annotations

import shutil
from pathlib import Path

SUPERBLOCK = b"hsqs" + bytes(24) + b"\4" + bytes(67)  # the magic number, and version 4 of the format


def crashing_mksquashfs(directory: Path, *, times: int, signal: str = "SEGV") -> Path:
    """A directory for PATH: its mksquashfs reads some input and dies by a signal, so many times, then is the real one.

    Its file ``calls`` has a line of arguments for each call.
    """
    real = shutil.which("mksquashfs")
    directory.mkdir()
    program = directory / "mksquashfs"
    lines = ["#!/bin/sh", f'printf "%s\\\\n" "$*" >>{directory}/calls']
    lines += [f'[ "$(wc -l <{directory}/calls)" -gt {times} ] || {{ head -c 100000 >/dev/null; kill -{signal} $$; }}']
    program.write_text("\n".join([*lines, f'exec {real} "$@"', ""]))
    program.chmod(0o755)
    return directory
