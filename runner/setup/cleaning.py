"""Stop and remove everything that gpu-runner keeps on this machine, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from runner import box, paths, process
from runner.errors import RefusedError
from runner.images.engine import private_engine


def clean(report: Callable[[str], None], *, keep_cache: bool = False) -> None:
    """Stop boxes and the private engine; remove what the verbs keep in the cache directory.

    Args:
        report: called with a line for each thing that was stopped, removed or left.
        keep_cache: only stop.

    Raises:
        RefusedError: the cache directory is not one that gpu-runner made.
    """
    cache = paths.cache_dir()
    _check_ours(cache)
    for name in box.names():
        if box.down(name):
            report(f"box {name} stopped")
    if private_engine.stop(private_engine.default_state()):
        report("private engine stopped")
    if keep_cache:
        report(f"kept: {cache}")
    elif cache.is_dir():
        private_engine.remove(private_engine.default_state())
        _empty(cache, report)
    else:
        report(f"nothing to remove: no {cache}")


def _empty(cache: Path, report: Callable[[str], None]) -> None:
    """Remove what is ours, and the directory if nothing else is in it."""
    for entry in sorted(cache.iterdir()):
        if entry.name in paths.CACHES:
            size, count = _size(entry)
            _remove(entry)
            report(f"removed {entry} ({size / 1e6:.1f} MB, {count} files)")
        elif entry.name != paths.MARKER:
            report(f"left {entry}: not ours")
    if all(entry.name == paths.MARKER for entry in cache.iterdir()):
        (cache / paths.MARKER).unlink(missing_ok=True)
        cache.rmdir()


def _check_ours(cache: Path) -> None:
    """RUNNER_CACHE may name any directory: only one that we made, and marked so, is touched.

    Raises:
        RefusedError: it holds something, and not our marker.
    """
    if cache.is_dir() and any(cache.iterdir()) and not paths.is_ours(cache):
        raise RefusedError(
            f"this directory was there before gpu-runner used it: it has no {paths.MARKER} of ours",
            where=str(cache),
            fix="unset RUNNER_CACHE, or name a directory that gpu-runner made; in this one remove by hand what is"
            f" gpu-runner's, out of {', '.join(sorted(paths.CACHES))}",
        )


def _remove(entry: Path) -> None:
    """With rights to do so: an engine that ran through sudo leaves files of root."""
    needs_root = os.geteuid() != 0 and any(path.lstat().st_uid != os.geteuid() for path in _below(entry))
    become = ["sudo", "-n"] if needs_root else []
    process.run([*become, "rm", "-rf", "--one-file-system", "--", entry], timeout_s=600)


def _size(entry: Path) -> tuple[int, int]:
    """Bytes on disk (hard links once) and the number of files."""
    stats = {(stat.st_dev, stat.st_ino): stat.st_blocks * 512 for stat in (path.lstat() for path in _below(entry))}
    return sum(stats.values()), len(stats)


def _below(entry: Path) -> Iterator[Path]:
    yield entry
    for folder, folders, files in os.walk(entry):
        yield from (Path(folder, name) for name in (*folders, *files))
