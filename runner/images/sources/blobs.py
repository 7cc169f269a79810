"""Layers and documents of images, kept by digest in the cache, and several of them fetched or read at once."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from runner.core import files, paths
from runner.core.errors import InfrastructureError
from runner.core.files import sha256 as sha256_of
from runner.core.lock import locked

_TICK_S = 0.5
_END_S = 1.0
_KEPT_S = 14 * 86400
_CHUNK = 1 << 20
Result = TypeVar("Result")
Fetch = Callable[[int], tuple[int, Iterator[bytes]]]
"""From an offset in bytes: the offset at which the content begins (that one, or 0), and the content."""


def run_in_parallel(
    works: Sequence[Callable[[], Result]], *, workers: int | None, tick: Callable[[], None], stop: threading.Event
) -> list[Result]:
    """Results in the order of ``works``; all stop when one fails, whose error is raised, or the user interrupts.

    Args:
        workers: threads; None means as many as suit the machine's processors.
        tick: called by this thread every half second, and whenever all has ended.
        stop: set when all work is to stop; each piece must check it. One that does not within a second, as it waits for
            a network, is left to itself: it ends with the process.
    """
    if stop.is_set():
        raise InfrastructureError("stopped, as something before it failed", fix="try again")
    running: list[tuple[Future[Result], Callable[[], Result]]] = [(Future(), work) for work in works]
    queue = deque(running)

    def serve() -> None:
        with suppress(IndexError):
            while not stop.is_set():
                future, work = queue.popleft()
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)

    count = min(len(works), workers or min(32, (os.cpu_count() or 1) + 4))
    threads = [threading.Thread(target=serve, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        left = {future for future, _ in running}
        while left:
            ended, left = wait(left, timeout=_TICK_S)
            tick()
            for one in ended:
                one.result()
        return [future.result() for future, _ in running]
    except BaseException:
        stop.set()
        until = time.monotonic() + _END_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        raise


def directory() -> Path:
    """Where they are kept; not necessarily existing."""
    return paths.cache("blobs")


def find(digest: str) -> Path | None:
    """The verified file of this digest, marked as used; None where it is not kept. InfrastructureError: it is another
    user's.
    """
    path = _path(digest)
    try:
        os.utime(path)
        path.chmod(files.PRIVATE)
    except FileNotFoundError:
        return None
    except OSError as error:  # a cache that is read only serves as well
        if not os.access(path, os.R_OK):
            raise InfrastructureError(
                f"a kept layer cannot be read: {error.strerror}",
                where=str(path),
                fix="set RUNNER_CACHE to a directory of your own",
            ) from error
    return path


def read(digest: str) -> bytes | None:
    """Contents of a small one, checked; None where it is not kept."""
    drop_damaged([digest])
    path = find(digest)
    return path.read_bytes() if path else None


def keep(digest: str, content: bytes) -> None:
    """Keep a small one whose digest was checked."""
    paths.ensure_directory(directory())
    files.write(_path(digest), content, mode=files.PRIVATE)


def obtain(digest: str, size: int, fetch: Fetch, moved: Callable[[int], None], say: Callable[[str], None]) -> Path:
    """The file of this digest: the kept one, or what ``fetch`` brings, verified before it gets its name, and else not
    kept.

    Args:
        size: bytes that it must have.
        moved: receives each number of bytes that has arrived; negative where a download starts again.
    """
    path = _path(digest)
    lock, partial = (path.with_name(f".{path.name}.{suffix}") for suffix in ("lock", "partial"))
    paths.ensure_directory(path.parent)
    with locked(lock, say):
        kept = find(digest)
        if kept is not None:
            moved(size)
            return kept
        if _arrived(partial, size, fetch, moved) != path.name:
            # The partial file may have been damaged here: try once from the start; a second failure is the sender's.
            moved(-partial.stat().st_size)
            partial.unlink()
            got = _arrived(partial, size, fetch, moved)
            if got != path.name:
                partial.unlink()
                raise InfrastructureError(
                    f"{digest} arrived with other bytes, twice (their digest is sha256:{got})",
                    fix="try again; if that fails too, the registry or something on the way to it is broken",
                )
        partial.rename(path)
        return path


def drop_damaged(digests: Iterable[str]) -> int:
    """Remove those that no longer match their digests, so that they are fetched anew; returns how many."""
    dropped = 0
    for digest in digests:
        path = _path(digest)
        with suppress(FileNotFoundError):
            if sha256_of(path) != path.name:
                path.unlink()
                dropped += 1
    return dropped


def sweep(now: float | None = None) -> None:
    """Remove what was not used for two weeks, and what was left unfinished as long ago."""
    oldest = (time.time() if now is None else now) - _KEPT_S
    with suppress(FileNotFoundError):
        for path in directory().iterdir():
            with suppress(OSError):  # another process swept it, or it is not ours
                if path.stat().st_mtime < oldest:
                    path.unlink()


def _arrived(partial: Path, size: int, fetch: Fetch, moved: Callable[[int], None]) -> str:
    """Go on with the partial file until it has ``size`` bytes or no more come; returns the hex digest of all of it."""
    with suppress(OSError):
        # Where others write, a link could lead anywhere.
        if partial.lstat().st_uid != os.geteuid() or partial.is_symlink():
            partial.unlink()
    begun = partial.stat().st_size if partial.exists() else 0
    begun = begun if begun < size else 0
    start, chunks = fetch(begun)
    digest = hashlib.sha256()
    handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, files.PRIVATE)
    with os.fdopen(handle, "r+b") as target:
        os.fchmod(handle, files.PRIVATE)
        left = start
        while left and (block := target.read(min(left, _CHUNK))):
            digest.update(block)
            left -= len(block)
        target.truncate(start)
        target.seek(start)
        moved(start)
        for chunk in chunks:
            target.write(chunk)
            digest.update(chunk)
            moved(len(chunk))
            if target.tell() > size:
                break  # not the requested content
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


def _path(digest: str) -> Path:
    return directory() / digest.removeprefix("sha256:")
