"""Packs a root file system into a squashfs: mksquashfs's options, its run, and packing from a stream.

mksquashfs writes the same bytes for the same tree on any number of processors (squashfs-tools 4.4 and later); what
would otherwise depend on the machine, times and owners, is set here.
"""

from __future__ import annotations

import io
import os
import signal
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runner.core import process
from runner.core.errors import InfrastructureError
from runner.core.progress import Progress
from runner.images.packing import rootfs
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
