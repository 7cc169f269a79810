"""The least that is taken for a squashfs image where only its first 96 bytes are read."""

import shutil
import struct
from pathlib import Path

from runner.core.files import sha256
from runner.images.store import store
from runner.images.store.stored_image import Form, StoredImage, file_name

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


def published(
    file: Path | bytes, directory: Path, reference: str = "x:1", letter: str = "a", form: Form = "squashfs"
) -> StoredImage:
    """A copy of an image file, or one of these bytes, in a store there, under a digest and key of this letter."""
    directory.mkdir(exist_ok=True)
    partial = directory / ".partial"
    partial.write_bytes(file if isinstance(file, bytes) else file.read_bytes())
    digest, sum_ = f"sha256:{letter * 64}", sha256(partial)
    path = directory / file_name(reference, digest, sum_, form)
    size = partial.stat().st_size
    image = StoredImage(path=path, reference=reference, digest=digest, key=digest, size_bytes=size, sha256=sum_)
    return store.publish(partial, image)


def sif_of(squashfs: Path, path: Path) -> None:
    """A SIF file around a squashfs, laid out as Apptainer 1.4.5 does: one of 48 descriptors is in use."""
    table, data, size = 4096, 4096 + 48 * 585, squashfs.stat().st_size
    launch = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0")
    head = launch + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(16)
    head += struct.pack("<8q", 1, 1, 47, 48, table, 48 * 585, data, size)
    kind = struct.pack("<i?3I3q", 0x4004, True, 1, 1, 0, data, size, size) + struct.pack("<4q", 1, 1, 0, 0)
    used = kind + b"root".ljust(128, b"\0") + struct.pack("<ii", 1, 2) + b"02\0" + bytes(373)
    path.write_bytes(head.ljust(table, b"\0") + used.ljust(48 * 585, b"\0") + squashfs.read_bytes())
