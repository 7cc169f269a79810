"""The fast way from an engine's image to a squashfs: its layers as they lie on this machine's disk, mounted.

No byte is exported and no tree is written. It takes root, an engine on this machine, and a storage driver whose
layers are directories for overlayfs (Docker's and Podman's overlay2). What it gives is the same root as the
engine's export packed as a stream.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.core import paths, process
from runner.core.progress import Progress
from runner.images.packing import mount_program, rootfs
from runner.images.packing.mksquashfs import Packing, running

_PAUSE_S = 0.2


class Unavailable(Exception):
    """Layers cannot be packed here; the message is the reason, and the export as a stream is used instead."""


def directories(attrs: Mapping[str, Any], *, local: bool) -> tuple[Path, ...]:
    """The layer directories of a container, topmost first, from the engine's description of it.

    Raises:
        Unavailable: they are not on this machine, are no overlay, or may not be read.
    """
    if not local:
        raise Unavailable("the engine is on another machine")
    if os.geteuid() != 0:
        raise Unavailable("mounting layers takes root")
    driver = attrs.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    if driver.get("Name") not in ("overlay", "overlay2") or not data.get("UpperDir"):
        raise Unavailable(f"the engine's storage driver is {driver.get('Name') or 'not known'}, not overlay2")
    layers = tuple(Path(text) for text in (data["UpperDir"], *filter(None, (data.get("LowerDir") or "").split(":"))))
    for path in layers:
        if not path.is_dir():
            raise Unavailable(f"the engine's layer {path} is not on this machine")
    return layers


def packed_layers(
    layers: Collection[Path],
    added: rootfs.Additions,
    out: Path,
    packing: Packing,
    progress: Progress,
    *,
    capture: Collection[str] = (),
) -> rootfs.Passed:
    """Pack the tree that ``layers`` (topmost first) make, with what is put in; returns what it holds.

    Raises:
        Unavailable: this machine does not mount them, or files have attributes that an export would leave out.
        RefusedError: the image has something in the way of what is put in. InfrastructureError: mksquashfs failed.
    """
    mount_point = paths.ensure_directory(paths.cache("mount"))
    spec = {
        "parent": os.getpid(),
        "mount_point": str(mount_point),
        "layers": [str(path) for path in layers],
        "files": [[file.name, base64.b64encode(file.content).decode(), file.mode] for file in added.files],
        "directories": added.directories,
        "links": added.links,
        "timed": sorted(added.timed, key=rootfs.walk_order),
        "mtime": added.mtime,
        "dropped": sorted(rootfs.DROPPED),
        "capture": list(capture),
        "command": packing.command(mount_point / "root", out, added.mtime),
    }
    # What is put in may hold secrets of the image's environment: it goes through a pipe, not in the arguments.
    command = [sys.executable, "-I", "-S", str(Path(mount_program.__file__))]
    with running(command, out, added.mtime, stdin=process.PIPE, stdout=process.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError), child.stdin as pipe:
            pipe.write(json.dumps(spec).encode())
        kind, *parts = child.stdout.read().split(b"\0")[:-1] or [b""]
        if kind == b"obstructed":
            raise rootfs.obstructed(os.fsdecode(parts[0]))
        if kind == b"no":
            raise Unavailable(os.fsdecode(parts[0]))
        if kind == b"ok":
            _watch(child, int(parts[1]), progress)
    return rootfs.Passed(
        names={os.fsdecode(name) for name in parts[2:]},
        captured={name: base64.b64decode(text) for name, text in json.loads(parts[0]).items()},
    )


def _watch(child: process.Child, size: int, progress: Progress) -> None:
    """Report how much mksquashfs has read (proc(5): rchar), until it ends."""
    before = _read_bytes(child.pid)
    while not _ended(child):
        progress.moved(min(size, _read_bytes(child.pid) - before), size)


def _ended(child: process.Child) -> bool:
    with suppress(process.TimeoutExpired):
        child.wait(_PAUSE_S)
        return True
    return False


def _read_bytes(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/io").read_text().split(None, 2)[1])
    return 0
