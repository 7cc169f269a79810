"""Packs a root file system into a squashfs: mksquashfs's options and its run, from a stream or from mounted layers.

mksquashfs writes the same bytes for the same tree on any number of processors (squashfs-tools 4.4 and later); what
would otherwise depend on the machine, times and owners, is set here.

The fast way from an engine's image: its layers as they lie on this machine's disk, mounted. No byte is exported and no
tree is written. It takes root, an engine on this machine, and a storage driver whose layers are directories for
overlayfs (Docker's and Podman's overlay2). What it gives is the same root as the engine's export packed as a stream.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from runner.core import paths, process
from runner.core.errors import InfrastructureError
from runner.core.progress import Progress
from runner.images.packing import mount_program, rootfs
from runner.images.packing.tarstream import ChunkReader
from runner.images.packing.tree_listing import Tree

# By these it ends through a fault of its own. Any other was sent to it: SIGKILL mostly by a kernel short of memory.
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS))
_PAUSE_S = 0.2


class CrashError(InfrastructureError):
    """mksquashfs has crashed; packing again, in another way, may succeed."""


class Unavailable(Exception):
    """Layers cannot be packed here; the message is the reason, and the export as a stream is used instead."""


@dataclass(frozen=True)
class Packing:
    """How a tree is packed.

    Attributes:
        level: of zstd, 1 to 22; 3 makes files 10 % smaller than 1 (``make bench-convert``).
        block: as mksquashfs takes it.
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
        """The command: packs a directory, or a tar from standard input. ``epoch``: see ``_running``."""
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


@dataclass(frozen=True)
class PackJob:
    """What any source's root is packed with, and where to. added: what is put in. out: the squashfs, replaced. capture:
    names of small files whose contents are wanted.
    """

    added: rootfs.Additions
    out: Path
    packing: Packing
    progress: Progress
    capture: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """What differs from another image. names: whether with all that is below. pack: packs these, and more that it
    needs. tree: lists all of the image.
    """

    names: Mapping[str, bool]
    pack: Callable[[Mapping[str, bool], PackJob], rootfs.Passed]
    tree: Callable[[], Tree]


@dataclass(frozen=True)
class Source:
    """An image as the store is to know it, wherever its files lie.

    Attributes:
        name: in the store: a reference, or its id. digest: its id. architecture: as Go names it.
        created: when it was made, ISO 8601, UTC; empty where unknown. config: how a container of it starts.
        packed: packs its root with what is put in; returns what that holds. otherwise: likewise in another way.
        origin: digest by which registries know it; empty where none does. names: all such digests of it.
        data_order: of the files' data in what is packed: "walk" for that of a sorted walk, or another name.
        layers: digests of their archives, lowest first; none where they are not known. change: from an image with such
            layers and working directory; None where it is not known what these layers hold.
    """

    name: str
    digest: str
    created: str
    architecture: str
    config: rootfs.Config
    packed: Callable[[PackJob], rootfs.Passed]
    otherwise: Callable[[PackJob], rootfs.Passed] | None = None
    origin: str = ""
    names: tuple[str, ...] = ()
    data_order: str = "walk"
    layers: tuple[str, ...] = ()
    change: Callable[[Sequence[str], str, PackJob], Change | None] = lambda *_: None


def packed_stream(source: Iterable[bytes], job: PackJob, *, size: int | None = None) -> rootfs.Passed:
    """Pack the tree that a tar stream holds, with what is put in; returns what went through. ``size``: about how many
    bytes will come, for the progress.
    """
    passed = rootfs.Passed()
    done = 0
    with _running(job.packing.command(None, job.out, job.added.mtime), job, stdout=process.DEVNULL) as child:
        assert child.stdin is not None
        stream = io.BufferedReader(ChunkReader(source), 1 << 20)
        with suppress(BrokenPipeError), child.stdin as pipe:
            for block in rootfs.filtered(stream, job.added, passed, capture=job.capture):
                pipe.write(block)
                done += len(block)
                job.progress.moved(done, size)
    return passed


@contextmanager
def _running(command: list[str], job: PackJob, *, stdout: int) -> Iterator[process.Child]:
    """mksquashfs for the length of a ``with`` block, which waits for its end; an exception in the block kills it. The
    squashfs carries the time of what is put in, and times after it become it; if it is 0 (unknown), only the first.
    """
    env = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    if epoch := job.added.mtime:
        env["SOURCE_DATE_EPOCH"] = str(epoch)
    with tempfile.TemporaryFile() as output:
        child = process.start(command, stdin=process.PIPE, stdout=stdout, stderr=output.fileno(), env=env)
        try:
            yield child
            code = child.wait()
        finally:
            if child.poll() is None:
                process.kill_group(child)
        if code != 0:
            raise _failed(code, output, str(job.out.parent))


def _failed(code: int, output: IO[bytes], where: str) -> InfrastructureError:
    output.seek(0)
    text = output.read().decode("utf-8", "replace").strip()
    if code < 0:
        name = signal.Signals(-code).name
        if -code in _CRASHES:
            fix = "try again; if that fails too, install another release of squashfs-tools"
            return CrashError(f"mksquashfs has crashed ({name})", where=where, fix=fix)
        fix = "free memory, or use less of it: --processors 1" if -code == signal.SIGKILL else ""
        return InfrastructureError(f"mksquashfs was ended by {name}", where=where, fix=fix)
    return InfrastructureError(
        f"mksquashfs failed with exit code {code}: " + "\n".join(text.splitlines()[-8:]),
        where=where,
        fix="free space there, or name another store with --store DIR" if "No space left" in text else "",
    )


def directories(attrs: Mapping[str, Any], *, local: bool) -> tuple[Path, ...]:
    """The layer directories of a container, topmost first, from the engine's description of it. Unavailable: they are
    not on this machine, are no overlay, or may not be read.
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


def packed_layers(layers: Collection[Path], job: PackJob) -> rootfs.Passed:
    """Pack the tree that ``layers`` (topmost first) make, with what is put in; returns what it holds.

    Raises:
        Unavailable: this machine does not mount them, or files have attributes that an export would leave out.
        RefusedError: the image has something in the way of what is put in. InfrastructureError: mksquashfs failed.
    """
    added = job.added
    spec = {
        "files": [[file.name, base64.b64encode(file.content).decode(), file.mode] for file in added.files],
        "directories": added.directories,
        "links": added.links,
        "mtime": added.mtime,
        "dropped": sorted(rootfs.DROPPED),
        "capture": job.capture,
        "command": job.packing.command(paths.cache("mount") / "root", job.out, added.mtime),
    }
    with _mounting(layers, job, spec) as (child, answer):
        kind, *parts = answer.read().split(b"\0")[:-1] or [b""]
        if kind == b"obstructed":
            raise rootfs.obstructed(os.fsdecode(parts[0]))
        if kind == b"no":
            raise Unavailable(os.fsdecode(parts[0]))
        if kind == b"ok":
            _watch(child, int(parts[1]), job.progress)
    captured, devices = json.loads(parts[0])
    return rootfs.Passed(
        names={os.fsdecode(name) for name in parts[2:]},
        captured={name: base64.b64decode(text) for name, text in captured.items()},
        devices=set(devices),
    )


def packed_names(layers: Collection[Path], names: Mapping[str, bool], job: PackJob) -> rootfs.Passed:
    """Pack of the tree that ``layers`` make these names only, with those above them and what is put in. names: whether
    what is below a directory is meant, too. Raises as ``packed_layers``.
    """
    with _mounting(layers, job, {"names": names}) as (_, answer):
        if answer.read(3) != b"ok\0":
            raise Unavailable(os.fsdecode(answer.read().rstrip(b"\0")))
        return packed_stream(iter(partial(answer.read, 1 << 20), b""), job)


@contextmanager
def _mounting(
    layers: Collection[Path], job: PackJob, more: Mapping[str, Any]
) -> Iterator[tuple[process.Child, IO[bytes]]]:
    """``mount_program`` on these layers for the length of a ``with`` block, as ``_running``; and what it answers."""
    spec = {
        "parent": os.getpid(),
        "mount_point": str(paths.ensure_directory(paths.cache("mount"))),
        "layers": list(map(str, layers)),
        "timed": sorted(job.added.timed, key=rootfs.walk_order),
        **more,
    }
    # What is put in may hold secrets of the image's environment: it goes through a pipe, not in the arguments.
    with _running([sys.executable, "-I", "-S", str(Path(mount_program.__file__))], job, stdout=process.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError), child.stdin as pipe:
            pipe.write(json.dumps(spec).encode())
        yield child, child.stdout


def _watch(child: process.Child, size: int, progress: Progress) -> None:
    """Report how much mksquashfs has read (proc(5): rchar), until it ends."""

    def read_bytes() -> int:
        with suppress(OSError):
            return int(Path(f"/proc/{child.pid}/io").read_text().split(None, 2)[1])
        return 0

    before = read_bytes()
    while True:
        with suppress(process.TimeoutExpired):
            child.wait(_PAUSE_S)
            return
        progress.moved(min(size, read_bytes() - before), size)
