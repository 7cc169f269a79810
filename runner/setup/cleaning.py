"""Stop and remove everything that gpu-runner keeps on this machine, but for images that jobs need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path

import msgspec

from runner import box
from runner.core import paths, process
from runner.core.errors import RefusedError
from runner.images import engine as private_engine
from runner.images.store import stored_image
from runner.jobs.image_usage import image_uses


class Removed(msgspec.Struct, frozen=True):
    """What was removed: a file or a directory, with the files in it."""

    path: str
    bytes: int
    files: int


class Cleaned(msgspec.Struct, frozen=True):
    """What ``clean`` did.

    Attributes:
        cache: the cache directory. boxes: names of those that were stopped. engine: a private one was stopped.
        left: what lies in the cache directory and is not ours. kept: images that a job needs, or may need.
    """

    cache: str
    boxes: tuple[str, ...]
    engine: bool
    removed: tuple[Removed, ...]
    left: tuple[str, ...]
    kept: tuple[str, ...] = ()


def clean(report: Callable[[str], None], *, keep_cache: bool = False) -> Cleaned:
    """Stop boxes and the private engine; remove what the verbs keep in the cache directory, but for the images of jobs
    that have not ended. Those of a box end with it.

    Args:
        report: called with a line for each thing that was stopped, removed or left.
        keep_cache: only stop.
    """
    cache = paths.cache_dir()
    _check_ours(cache)
    needed = {} if keep_cache else _needed(cache)
    stopped: list[str] = []
    for name in box.names():
        if box.down(name):
            stopped.append(name)
            report(f"box {name} stopped")
    engine = private_engine.stop_private(private_engine.private_state())
    if engine:
        report("private engine stopped")
    removed: tuple[Removed, ...] = ()
    left: tuple[str, ...] = ()
    if keep_cache:
        report(f"kept: {cache}")
    elif cache.is_dir():
        private_engine.remove_private(private_engine.private_state())
        removed, left = _empty(cache, needed, report)
    else:
        report(f"nothing to remove: no {cache}")
    return Cleaned(str(cache), tuple(stopped), engine, removed, left, tuple(map(str, needed)))


def _needed(cache: Path) -> dict[Path, str]:
    """The images in the cache directory that a job needs, or may need, each with the id of a run."""
    boxes = cache / "boxes"
    uses = (use for use in image_uses() if use.image and use.needed and boxes not in Path(use.clients).parents)
    images = ((Path(use.image), use.run) for use in uses)
    return {
        image: run for image, run in images
        if image.exists() and (cache in image.parents or cache.resolve() in image.resolve().parents)
    }  # fmt: skip


def _empty(
    cache: Path, needed: Mapping[Path, str], report: Callable[[str], None]
) -> tuple[tuple[Removed, ...], tuple[str, ...]]:
    """Remove what is ours and not needed, and the directory if it is empty then; returns the removed, and the left."""
    files = (path for image in needed for path in (image, stored_image.sidecar_path(image)))
    keep = {path for file in files for each in (file, file.resolve()) for path in (each, *each.parents)}
    removed: list[Removed] = []
    left: list[str] = []
    for entry in sorted(cache.iterdir()):
        if entry.name in paths.CACHES:
            before = _size(entry)
            _remove_but(entry, keep)
            size, count = (old - new for old, new in zip(before, _size(entry), strict=True))
            removed.append(Removed(str(entry), size, count))
            report(f"removed {entry} ({size / 1e6:.1f} MB, {count} files)")
        elif entry.name != paths.MARKER:
            left.append(str(entry))
            report(f"left {entry}: not ours")
    for image, run in needed.items():
        report(f"kept {image}: run {run} needs it, or may need it")
    if all(entry.name == paths.MARKER for entry in cache.iterdir()):
        (cache / paths.MARKER).unlink(missing_ok=True)
        cache.rmdir()
    return tuple(removed), tuple(left)


def _check_ours(cache: Path) -> None:
    """RUNNER_CACHE may name any directory: only one that we made, and marked so, is touched.

    Raises:
        RefusedError: it holds something, and not our marker.
    """
    if cache.is_dir() and any(cache.iterdir()) and not paths.is_ours(cache):
        what = f"this directory was there before gpu-runner used it: it has no {paths.MARKER} of ours"
        fix = "unset RUNNER_CACHE, or name a directory that gpu-runner made; in this one remove by hand what is"
        fix += f" gpu-runner's, out of {', '.join(sorted(paths.CACHES))}"
        raise RefusedError(what, where=str(cache), fix=fix)


def _remove_but(entry: Path, keep: Set[Path]) -> None:
    """Remove ``entry`` unless it is among ``keep``; of a directory that is, what is not."""
    if not {entry, entry.resolve()} & keep:
        _remove(entry)
    elif entry.is_dir() and not entry.is_symlink():
        for below in entry.iterdir():
            _remove_but(below, keep)


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
    if os.path.lexists(entry):
        yield entry
    for folder, folders, files in os.walk(entry):
        yield from (Path(folder, name) for name in (*folders, *files))
