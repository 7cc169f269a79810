"""A squashfs in proportion to the change: a relative's compressed blocks are copied, and only what differs is packed.

A relative is a stored squashfs of an image that the engine still has, and whose lowest layers are the same directories.
What no other layer of the two names is the same in both images. All that these layers name is packed as the new image
has it; so is what a squashfs does not say in full (``_unclear``). Or it was made of layers' archives, and it is known
what each of them holds: then the same is what the same layer brings. Or it is the image that was unpacked for an edit.
"""

from __future__ import annotations

import gc
import hashlib
import os
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from runner.core.errors import RefusedError
from runner.core.files import open_named
from runner.images.packing import mksquashfs, rootfs, squashfs_tables, tree_listing
from runner.images.packing.mksquashfs import PackJob, Source
from runner.images.packing.squashfs_tables import NONE, Squashfs, UnfitError
from runner.images.packing.tree_listing import Tree
from runner.images.store import image_files, integrity, store
from runner.images.store.stored_image import StoredImage

_MOST_TRIED = 3  # relatives
# A directory with one of these hides what lower layers have there, or shows what they have elsewhere.
_HIDING = {f"{space}.overlay.{what}" for space in ("trusted", "user") for what in ("opaque", "redirect")}


def relatives(directory: Path, keys: Callable[[str], Collection[str]]) -> list[StoredImage]:
    """What the store holds under one of the keys that its digest has, the latest first."""
    images = [image for image in store.everything(directory) if isinstance(image, StoredImage)]
    images = [image for image in images if image.key in keys(image.digest)]
    images = [image for image in images if not (store.stranger(image) or integrity.problem(image))]
    return sorted(images, key=lambda image: image.created, reverse=True)


def shared(layers: Sequence[Path], others: Sequence[Path]) -> int:
    """How many layers two images have in common, from the lowest one up; topmost first."""
    pairs = list(zip(reversed(layers), reversed(others), strict=False))
    return next((number for number, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))


def differing(layers: Sequence[Path], others: Sequence[Path]) -> dict[str, bool]:
    """All paths that the layers of two images name which they have not in common; whether with all that is below."""
    same = shared(layers, others)
    return _named([*layers[: len(layers) - same], *others[: len(others) - same]])


def from_layers(
    layers: Sequence[Path], others: Sequence[Path], names: Mapping[str, bool], relative: StoredImage, job: PackJob
) -> rootfs.Passed:
    """As ``assembled``, from ``layers`` (topmost first). others: the relative's. Raises as that, and Unavailable."""
    apart = {*layers} ^ {*others}
    for name in (name for layer in apart for name in tree_listing.of_directory(layer) if name not in names):
        raise UnfitError(f"/{name} differs from the relative's, and was not packed")
    tree = partial(tree_listing.of_layers, layers)
    return assembled(names, partial(mksquashfs.packed_names, layers), relative, job, tree)


def from_archives(source: Source, others: Iterable[StoredImage], job: PackJob) -> rootfs.Passed | None:
    """As ``assembled``, over the relative that has most of the layers; None where none has one, or it is not known what
    its layers hold, or this is not possible.
    """

    def same(relative: StoredImage) -> int:
        return len({*source.layers} & {*relative.layers})

    with _without_collection():
        for relative in sorted(filter(same, others), key=same, reverse=True)[:_MOST_TRIED]:
            if (change := source.change(relative.layers, relative.workdir, job)) is not None:
                try:
                    return assembled(change.names, change.pack, relative, job, change.tree)
                except (UnfitError, RefusedError, OSError) as reason:
                    job.progress.line(f"not assembled: {reason}")
    return None


def assembled(
    names: Mapping[str, bool],
    pack: Callable[[Mapping[str, bool], PackJob], rootfs.Passed],
    relative: StoredImage,
    job: PackJob,
    tree: Callable[[], Tree],
) -> rootfs.Passed:
    """Pack over the squashfs of the relative what may differ from it, and what is put in. names: of that; whether with
    all that is below. pack: packs these of the new tree, and more that it needs. tree: lists all of that.

    Raises:
        UnfitError, InfrastructureError, OSError: this is not possible; to pack all of the tree may be.
        RefusedError: so it may be, too: of what is not packed nothing is known.
    """
    began = time.monotonic()
    job.progress.step(f"assembling from {relative.reference}")
    with _without_collection(), open_named(relative.path) as file, _intact(file, relative.sha256) as pool:
        wanted = pool.submit(lambda: tree_listing.packed(tree(), job.added))
        old = Squashfs(file)
        known = {*names, *_unclear(old), *job.capture, *job.added.timed} - {""}
        names = {name: names.get(name, False) for name in rootfs.with_parents(known)}
        if len(names) > 1000 + old.count // 2:
            raise UnfitError("little can be taken over: from scratch it takes no longer")
        passed = pack(names, job)
        image_files.check_listing(job.out, passed.names)
        with job.out.open("rb") as packed:
            new = Squashfs(packed)
            job.out.unlink()  # it stays open
            squashfs_tables.lay_over(old.root, new.root, {os.fsencode(name): whole for name, whole in names.items()})
            old.root.mtime = job.added.mtime  # which mksquashfs does not take from an archive
            level, epoch = job.packing.level, job.added.mtime

            def check() -> None:
                passed.names, lines = wanted.result()
                if line := tree_listing.difference(job.out, lines):
                    raise UnfitError(f"the result would not be what the image holds, such as {line!r}")

            copied, passed.sha256 = squashfs_tables.write(job.out, old.root, (old, new), level, epoch, check)
    share = copied[0] / max(1, sum(copied))
    source = f"{relative.reference}@{relative.digest}"
    job.progress.line(f"assembled in {time.monotonic() - began:.1f} s; {share:.0%} from {source}")
    return passed


@contextmanager
def _intact(file: IO[bytes], sha256: str) -> Iterator[ThreadPoolExecutor]:
    """The file is hashed while the block reads it, by what takes other work after that. UnfitError: it is another one,
    or was written to meanwhile; or what comes of tables that are damaged.
    """
    import zstandard

    began, over = os.fstat(file.fileno()).st_ctime_ns, threading.Event()

    def checksum() -> str:
        digest, at = hashlib.sha256(), 0
        while not over.is_set() and (block := os.pread(file.fileno(), 1 << 20, at)):
            digest.update(block)
            at += len(block)
        return digest.hexdigest()

    with ThreadPoolExecutor(1) as pool:
        known = pool.submit(checksum)
        try:
            yield pool
            if known.result() != sha256 or os.fstat(file.fileno()).st_ctime_ns != began:
                raise UnfitError("the relative's file is damaged, or was changed meanwhile")
        except (ArithmeticError, LookupError, MemoryError, ValueError, struct.error, zstandard.ZstdError) as error:
            raise UnfitError(f"the relative's tables make no sense ({error})") from error
        finally:
            over.set()
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _without_collection() -> Iterator[None]:
    """No search for cycles: with hundreds of thousands of inodes it takes a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _named(layers: Iterable[Path]) -> dict[str, bool]:
    """All paths that layers name; whether with all that is below it: what hides or replaces what is below."""
    names: dict[str, bool] = {}
    for layer in layers:
        waiting = [""]
        while waiting:
            above = waiting.pop()
            with os.scandir(layer / above) as entries:
                for entry in entries:
                    name = f"{above}{entry.name}"
                    is_directory = entry.is_dir(follow_symlinks=False)
                    waiting += [f"{name}/"] * is_directory
                    hides = not is_directory or _HIDING & {*os.listxattr(entry.path, follow_symlinks=False)}
                    names[name] = bool(hides) or names.get(name, False)
    return names


def _unclear(old: Squashfs) -> list[str]:
    """Paths whose time may be a later one that was cut to the file's, or with attributes, whose table is not taken
    over.
    """
    entries = squashfs_tables.walk(old.root)
    return [
        os.fsdecode(path) for path, each in entries
        if each.xattr != NONE or each.mtime == old.time or each.mtime > old.time > 0
    ]  # fmt: skip
