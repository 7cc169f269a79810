"""Stop and remove everything that gpu-runner keeps on this machine, but for what jobs need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path

import msgspec

from runner import box
from runner.core import ownership, paths, process
from runner.core.errors import RefusedError
from runner.core.invocation import PROGRAM
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
        kept_boxes: boxes with a job that has not ended. dry_run: it is what would be done.
    """

    cache: str
    boxes: tuple[str, ...]
    engine: bool
    removed: tuple[Removed, ...]
    left: tuple[str, ...]
    kept: tuple[str, ...] = ()
    kept_boxes: tuple[str, ...] = ()
    dry_run: bool = False


def clean(report: Callable[[str], None], *, keep_cache: bool = False, dry_run: bool = False) -> Cleaned:
    """Stop boxes and the private engine; remove what the verbs keep in the cache directory, but for what jobs that have
    not ended need: their images, and the box that they are in.

    Args:
        report: called with a line for each thing that was stopped, removed or left.
        keep_cache: only stop. dry_run: only report.
    """
    cache = paths.cache_dir()
    _check_ours(cache)
    busy, needed = _needed(cache)[0], dict[Path, str]()
    would = "would be " if dry_run else ""
    stopped: list[str] = []
    for name in box.names():
        if name in busy:
            report(f"kept box {name}: run {busy[name]} in it has not ended; `{PROGRAM} cancel {busy[name]}` ends it")
        elif box.find(name) is not None if dry_run else box.down(name):
            stopped.append(name)
            report(f"box {name} {would}stopped")
    state = private_engine.private_state()
    engine = private_engine.is_running(state) if dry_run else private_engine.stop_private(state)
    if engine:
        report(f"private engine {would}stopped")
    removed: tuple[Removed, ...] = ()
    left: tuple[str, ...] = ()
    if keep_cache:
        report(f"kept: {cache}")
    elif cache.is_dir():
        if not dry_run:
            private_engine.remove_private(state)
        now_busy, needed = _needed(cache)  # to stop takes a while: a job that was submitted meanwhile counts
        busy |= now_busy
        kept = {*(cache / "boxes" / name for name in busy), *((cache / "box-roots",) if busy else ())}
        removed, left = _empty(cache, needed, kept, report, dry_run=dry_run)
    else:
        report(f"nothing to remove: no {cache}")
    return Cleaned(str(cache), tuple(stopped), engine, removed, left, tuple(map(str, needed)), tuple(busy), dry_run)


def _needed(cache: Path) -> tuple[dict[str, str], dict[Path, str]]:
    """What jobs that have not ended need, or may need, each with the id of a run: boxes that are up, by name; images in
    the cache directory. A job of a box that is not up is over.
    """
    boxes, busy, images = cache / "boxes", dict[str, str](), dict[Path, str]()
    for use in image_uses():
        clients = Path(use.clients)
        name = clients.relative_to(boxes).parts[0] if boxes in clients.parents else ""
        if not use.needed or (name and box.find(name) is None):
            continue
        if name:
            busy[name] = use.run
        image = Path(use.image)
        if use.image and image.exists() and (cache in image.parents or cache.resolve() in image.resolve().parents):
            images[image] = use.run
    return busy, images


def _empty(
    cache: Path, needed: Mapping[Path, str], whole: Set[Path], report: Callable[[str], None], *, dry_run: bool
) -> tuple[tuple[Removed, ...], tuple[str, ...]]:
    """Remove what is ours and not needed, and the directory if it is empty then; returns the removed, and the left.

    Args:
        needed: images that stay. whole: directories that stay with all that is in them.
    """
    files = (path for image in needed for path in (image, stored_image.sidecar_path(image)))
    keep = {path for file in (*files, *whole) for each in (file, file.resolve()) for path in (each, *each.parents)}
    removed: list[Removed] = []
    left: list[str] = []
    for entry in sorted(cache.iterdir()):
        if entry.name in paths.CACHES:
            going = tuple(_going(entry, keep, whole))
            if not going:
                report(f"kept {entry}: jobs that have not ended need it")
                continue
            size, count = _size(going)
            if not dry_run:
                for path in going:
                    _remove(path)
            removed.append(Removed(str(entry), size, count))
            report(f"{'would remove' if dry_run else 'removed'} {entry} ({size / 1e6:.1f} MB, {count} files)")
        elif entry.name != paths.MARKER:
            left.append(str(entry))
            report(f"left {entry}: not ours")
    for image, run in needed.items():
        report(f"kept {image}: run {run} needs it, or may need it")
    if not dry_run and all(entry.name == paths.MARKER for entry in cache.iterdir()):
        (cache / paths.MARKER).unlink(missing_ok=True)
        cache.rmdir()
    return tuple(removed), tuple(left)


def _check_ours(cache: Path) -> None:
    """RUNNER_CACHE may name any directory: only one that we made, and marked so, is touched.

    Raises:
        RefusedError: it holds something, and not our marker; others may put theirs in its place.
    """
    if ownership.may_be_strangers(cache):
        what, fix = "others may put a directory of theirs, or a link, in this place", "remove what is yours by hand"
        raise RefusedError(what, where=str(cache), fix=fix)
    if cache.is_dir() and any(cache.iterdir()) and not paths.is_ours(cache):
        what = f"this directory was there before gpu-runner used it: it has no {paths.MARKER} of ours"
        fix = "unset RUNNER_CACHE, or name a directory that gpu-runner made; in this one remove by hand what is"
        fix += f" gpu-runner's, out of {', '.join(sorted(paths.CACHES))}"
        raise RefusedError(what, where=str(cache), fix=fix)


def _going(entry: Path, keep: Set[Path], whole: Set[Path]) -> Iterator[Path]:
    """``entry`` unless it is among ``keep``; of a directory that is, what is not."""
    if not {entry, entry.resolve()} & keep:
        yield entry
    elif entry.is_dir() and not entry.is_symlink() and entry not in whole:
        for below in entry.iterdir():
            yield from _going(below, keep, whole)


def _remove(entry: Path) -> None:
    """With rights to do so: an engine that ran through sudo leaves files of root."""
    needs_root = os.geteuid() != 0 and any(path.lstat().st_uid != os.geteuid() for path in _below(entry))
    become = ["sudo", "-n"] if needs_root else []
    process.run([*become, "rm", "-rf", "--one-file-system", "--", entry], timeout_s=600)


def _size(entries: Iterable[Path]) -> tuple[int, int]:
    """Bytes on disk (hard links once) and the number of files."""
    every = (path.lstat() for entry in entries for path in _below(entry))
    stats = {(stat.st_dev, stat.st_ino): stat.st_blocks * 512 for stat in every}
    return sum(stats.values()), len(stats)


def _below(entry: Path) -> Iterator[Path]:
    if os.path.lexists(entry):
        yield entry
    for folder, folders, names in os.walk(entry):
        yield from (Path(folder, name) for name in (*folders, *names))
