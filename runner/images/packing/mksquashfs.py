"""Packs a root file system into a squashfs: mksquashfs's options, its run, and packing from a stream.

mksquashfs writes the same bytes for the same tree on any number of processors (squashfs-tools 4.4 and later); what
would otherwise depend on the machine, times and owners, is set here.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from runner.core import paths, process
from runner.core.errors import InfrastructureError
from runner.core.progress import Progress
from runner.images.packing import mount_program, rootfs
from runner.images.packing.tarstream import ChunkReader

# By these it ends through a fault of its own. Any other was sent to it: SIGKILL mostly by a kernel short of memory.
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS))


class CrashError(InfrastructureError):
    """mksquashfs has crashed; packing again, in another way, may succeed."""


@dataclass(frozen=True)
class Packing:
    """How a tree is packed.

    Attributes:
        level: of zstd, 1 to 22; 3 by the measurement in docs/conversion.md. block: as mksquashfs takes it.
        processors: used at once; None means all. It changes no byte.
    """

    level: int = 3
    block: str = "1M"
    processors: int | None = None

    def options(self) -> tuple[str, ...]:
        """The options that decide what is written."""
        compression = ("-comp", "zstd", "-Xcompression-level", str(self.level), "-b", self.block)
        # What -tar implies is named, for trees.
        return (*compression, "-all-root", "-root-mode", "755", "-no-exports", "-always-use-fragments")

    def command(self, source: Path | None, out: Path, epoch: int) -> list[str]:
        """The command: packs a directory, or a tar from standard input. ``epoch``: see ``running``."""
        program = str(process.find("mksquashfs") or "mksquashfs")
        command = [program, str(source) if source else "-", str(out), *([] if source else ["-tar"]), *self.options()]
        # Without -exit-on-error a file that cannot be read becomes an empty one, and the exit code is 0.
        command += ["-noappend", "-no-progress", "-quiet", "-exit-on-error"]
        # Holes of a tree depend on its file system. In a stream, -no-sparse lets each empty file put back a buffer that
        # never got its place in a table (4.5.1, 4.6.1: tar.c, put_file_buffer; mksquashfs.c, deflator;
        # caches-queues-lists.c, cache_freelist): mksquashfs crashes, or misses blocks that it has not written yet.
        command += ["-no-sparse"] if source else []
        command += [] if epoch else ["-mkfs-time", "0"]
        return command + (["-processors", str(self.processors)] if self.processors else [])


def packed_stream(
    source: Iterable[bytes],
    added: rootfs.Additions,
    out: Path,
    packing: Packing,
    progress: Progress,
    *,
    size: int | None = None,
    capture: Collection[str] = (),
) -> rootfs.Passed:
    """Pack the tree that a tar stream holds, with what is put in; returns what went through.

    Args:
        source: the tar's bytes. out: replaced. size: about how many bytes will come, for the progress.
        capture: names of small files whose contents are wanted.

    Raises:
        InfrastructureError: the stream is no whole tar, or mksquashfs failed. RefusedError: see rootfs.filtered.
    """
    passed = rootfs.Passed()
    done = 0
    with running(packing.command(None, out, added.mtime), out, added.mtime, stdin=process.PIPE) as child:
        assert child.stdin is not None
        stream = io.BufferedReader(ChunkReader(source), 1 << 20)
        with suppress(BrokenPipeError), child.stdin as pipe:
            for block in rootfs.filtered(stream, added, passed, capture=capture):
                pipe.write(block)
                done += len(block)
                progress.moved(done, size)
    return passed


@contextmanager
def running(
    command: list[str], out: Path, epoch: int, *, stdin: int, stdout: int = process.DEVNULL
) -> Iterator[process.Child]:
    """mksquashfs for the length of a ``with`` block, which waits for its end; an exception in the block kills it.

    Args:
        epoch: the time that the squashfs carries, seconds; times after it become it. 0 (unknown): only the first.

    Raises:
        CrashError: a signal of its own fault has ended it.
        InfrastructureError: it failed; the end of its output is in the message.
    """
    ours = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    with tempfile.TemporaryFile() as output:
        child = process.start(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=output.fileno(),
            env={**ours, "SOURCE_DATE_EPOCH": str(epoch)} if epoch else ours,
        )
        try:
            yield child
            code = child.wait()
        finally:
            if child.poll() is None:
                process.kill_group(child)
        if code != 0:
            raise _failed(code, output, out)


def _failed(code: int, output: IO[bytes], out: Path) -> InfrastructureError:
    output.seek(0)
    text = output.read().decode("utf-8", "replace").strip()
    if code < 0:
        name = signal.Signals(-code).name
        if -code in _CRASHES:
            fix = "try again; if that fails too, install another release of squashfs-tools"
            return CrashError(f"mksquashfs has crashed ({name})", where=str(out.parent), fix=fix)
        fix = "free memory, or use less of it: --processors 1" if -code == signal.SIGKILL else ""
        return InfrastructureError(f"mksquashfs was ended by {name}", where=str(out.parent), fix=fix)
    full = "No space left" in text
    return InfrastructureError(
        f"mksquashfs failed with exit code {code}: " + "\n".join(text.splitlines()[-8:]),
        where=str(out.parent),
        fix="free space there, or name another store with --store DIR" if full else "",
    )


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
