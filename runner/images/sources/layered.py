"""Images as their layers: out of a registry, an OCI layout or an archive, converted with no engine.

What the packer gets is the same root as the engine's export of the same image gives, file by file; the order of the
files' data differs, so these squashfs files have a key of their own.
"""

from __future__ import annotations

import gzip
import io
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import IO, cast

from runner.core.errors import InfrastructureError, RefusedError
from runner.core.files import open_regular, sha256
from runner.core.progress import Progress
from runner.images.packing import merged_layers, mksquashfs, rootfs
from runner.images.packing.merged_layers import Layer
from runner.images.packing.mksquashfs import Change, PackJob, Source
from runner.images.packing.tarstream import tapped
from runner.images.reference import Reference
from runner.images.sources import blobs, layer_index, manifests
from runner.images.sources.blobs import run_in_parallel
from runner.images.sources.manifests import Configuration, Descriptor, Manifest, Platform
from runner.images.sources.registry import Registry

_CHUNK = 1 << 20
_MOST_INDEXES = 3  # one inside another
_GZIP = b"\x1f\x8b"
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # RFC 8878: a frame, or one to skip, as pzstd's first
# Compressions that no specification of images has, by the bytes that such data begin with.
_FOREIGN = {"xz": b"\xfd7zXZ\0", "bzip2": b"BZh", "lz4": b"\x04\x22\x4d\x18", "compress": b"\x1f\x9d"}
Opened = Callable[[], IO[bytes]]
Fetch = Callable[[Progress, Sequence[int]], tuple[Opened, ...]]


class _Reading:
    """How much of the stored layers all threads have read, and whether they are to stop."""

    def __init__(self) -> None:
        self.bytes = 0
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def more(self, count: int) -> None:
        """Count that many bytes more. Raises InfrastructureError: the reading is to stop."""
        if self.stop.is_set():
            raise InfrastructureError("stopped, as another layer failed")
        with self._lock:
            self.bytes += count


class _Image:
    """An image by its layers, the lowest first: none is fetched twice, nor before it is needed."""

    def __init__(
        self, name: str, workdir: str, diff_ids: Sequence[str], fetch: Fetch, damaged: Callable[[], int]
    ) -> None:
        self._name, self._workdir, self._diff_ids, self._fetch, self._damaged = name, workdir, diff_ids, fetch, damaged
        self._titles = [f"layer {diff_id.removeprefix('sha256:')[:12]} of {name}" for diff_id in diff_ids]
        self._fetched: dict[int, Opened] = {}
        self._held = cache(layer_index.find)

    def packed(self, job: PackJob) -> rootfs.Passed:
        """Pack the whole root."""
        return self._stream(self._root(job.progress), job)

    def change(self, others: Sequence[str], workdir: str, job: PackJob) -> Change | None:
        """As ``Source.change``."""
        kept = [(other, entries) for other in others if (entries := self._held(other)) is not None]
        if len(kept) < len(others):
            return None
        old, new = merged_layers.Root(kept, [workdir]), self._root(job.progress)

        def pack(names: Mapping[str, bool], job: PackJob) -> rootfs.Passed:
            passed = self._stream(new, job, names.keys())
            passed.devices |= new.devices()
            return passed

        tree = partial(new.tree, job.added.mtime, job.added.timed)
        return Change(new.differing(self._diff_ids, old, others), pack, tree)

    def _root(self, progress: Progress) -> merged_layers.Root:
        """Every layer that is read for it is compared with the configuration."""
        known = {each: entries for each in self._diff_ids if (entries := self._held(each)) is not None}
        unknown = {each: number for number, each in enumerate(self._diff_ids) if each not in known}
        if unknown:
            self._get(progress, unknown.values())
            progress.step(f"reading {len(unknown)} layers")
            seen = _Reading()
            works = [partial(merged_layers.indexed, self._layer(each, seen)) for each in unknown.values()]
            with self._explained():
                found = run_in_parallel(
                    works, workers=None, tick=lambda: progress.moved(seen.bytes, None), stop=seen.stop
                )
            read = dict(zip(unknown, found, strict=True))
            layer_index.keep(read)
            known |= read
        layers = zip(self._titles, map(known.__getitem__, self._diff_ids), strict=True)
        return merged_layers.Root(layers, [self._workdir])

    def _stream(self, root: merged_layers.Root, job: PackJob, names: Set[str] | None = None) -> rootfs.Passed:
        """Pack the whole root, or what is wanted of it; the bytes of each layer that is read are checked."""
        files = root.files(names)
        self._get(job.progress, (number for number, held in enumerate(files) if held))
        whole = f"squashing {self._name}: {len(files)} layers, as a stream"
        job.progress.step(whole if names is None else "packing what differs")
        layers = [self._layer(number, _Reading()) for number in range(len(files))]

        def blocks() -> Iterator[bytes]:
            with self._explained():
                yield from merged_layers.merged(layers, root, files, mtime=job.added.mtime, only=names)

        return mksquashfs.packed_stream(blocks(), job, size=root.size if names is None else None)

    def _get(self, progress: Progress, places: Iterable[int]) -> None:
        if missing := [place for place in places if place not in self._fetched]:
            self._fetched.update(zip(missing, self._fetch(progress, missing), strict=True))

    def _layer(self, number: int, seen: _Reading) -> Layer:
        return Layer(self._titles[number], lambda: _unpacked(self._fetched[number], seen), self._diff_ids[number])

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except InfrastructureError as error:
            for diff_id in self._diff_ids:
                layer_index.drop(diff_id)
            if (count := self._damaged()) == 0:
                raise
            what = f"{count} kept layers of {self._name} were damaged on this machine's disk, and are removed"
            raise InfrastructureError(what, fix="convert again: they are fetched anew; check the disk") from error


def layered_source(
    name: str,
    digest: str,
    configuration: Configuration,
    fetch: Fetch,
    *,
    names: tuple[str, ...] = (),
    damaged: Callable[[], int] = lambda: 0,
) -> Source:
    """An image that is known, its layers not fetched yet.

    Args:
        digest: of its configuration; what engines call its id.
        fetch: makes layers readable, of these places from the lowest on: each opens as it is stored.
        names: all digests that stand for it: of the index that led to it, and at last of the manifest.
        damaged: checks kept layers; returns how many were damaged since they were fetched, which it removes.
    """
    config = (configuration.config or manifests.StartUp()).of_container(name)
    image = _Image(name, config.workdir, configuration.rootfs.diff_ids, fetch, damaged)
    return Source(
        name=name,
        digest=digest,
        created=configuration.created or "",
        architecture=configuration.architecture,
        config=config,
        packed=image.packed,
        origin=names[-1] if names else "",
        names=tuple(dict.fromkeys(names)),
        data_order="layers",
        layers=tuple(configuration.rootfs.diff_ids),
        change=image.change,
    )


def from_registry(reference: Reference, wanted: Platform, progress: Progress) -> Source:
    """What a reference stands for in its registry now, for one platform; no layer is fetched yet."""
    registry = Registry(reference, progress.line)

    def fetch(manifest: Manifest, progress: Progress, places: Sequence[int]) -> tuple[Opened, ...]:
        wanted = tuple(manifest.layers[place] for place in places)
        fetched = registry.layers(wanted, progress)
        return tuple(opener(fetched[layer.digest]) for layer in wanted)

    first = reference.digest or registry.resolve(reference.tag)
    return for_platform(
        str(reference),
        registry.manifest(first),
        wanted,
        manifest=lambda descriptor: registry.manifest(descriptor.digest),
        document=registry.document,
        fetch=fetch,
        damaged=lambda manifest: blobs.drop_damaged(layer.digest for layer in manifest.layers),
    )


def for_platform(
    name: str,
    first: bytes,
    wanted: Platform,
    *,
    manifest: Callable[[Descriptor], bytes],
    document: Callable[[Descriptor], bytes],
    fetch: Callable[[Manifest, Progress, Sequence[int]], tuple[Opened, ...]],
    damaged: Callable[[Manifest], int] = lambda _: 0,
) -> Source:
    """From a first manifest or index to the image for a platform; RefusedError: it is not made for it. manifest,
    document: read what a descriptor names, its digest checked.
    """
    raw = first
    names = [manifests.digest_of(raw)]
    for _ in range(_MOST_INDEXES):
        parsed = manifests.parse(raw, name)
        if isinstance(parsed, Manifest):
            configuration = manifests.configuration(document(parsed.config), len(parsed.layers), wanted, name)
            return layered_source(
                name,
                parsed.config.digest,
                configuration,
                partial(fetch, parsed),
                names=tuple(names),
                damaged=partial(damaged, parsed),
            )
        raw = manifest(manifests.choose(parsed, wanted, name))
        names.append(manifests.digest_of(raw))
    raise InfrastructureError("too many indexes, one inside another", where=name)


@contextmanager
def _unpacked(opened: Opened, seen: _Reading) -> Iterator[IO[bytes]]:
    """A layer as a plain tar archive, however it is compressed: its first bytes decide, not its media type. ``seen``
    counts what is read, and can stop it.
    """
    import zstandard

    with opened() as stored:
        buffered = tapped(stored, lambda block: seen.more(len(block)))
        head = buffered.peek(8)[:8]
        source: IO[bytes] = buffered
        if head.startswith(_GZIP):
            source = cast("IO[bytes]", io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=buffered)), _CHUNK))
        elif _ZSTD.match(head):
            reader = zstandard.ZstdDecompressor().stream_reader(buffered, read_across_frames=True)
            source = cast("IO[bytes]", io.BufferedReader(cast("io.RawIOBase", reader), _CHUNK))
        for foreign, magic in _FOREIGN.items():
            if head.startswith(magic):
                raise RefusedError(
                    f"a layer is compressed by {foreign}; layers of images are gzip, zstd or uncompressed",
                    fix="load the image into an engine and push or save it from there",
                )
        try:
            yield source
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise InfrastructureError(
                f"a layer cannot be unpacked: {error}", fix="convert again; if that fails too, push or save it again"
            ) from error


def checked_digest(content: bytes, descriptor: Descriptor, where: str) -> bytes:
    """The content, if it is what the descriptor names; else InfrastructureError."""
    got = f"sha256:{sha256(content)}"
    if got != descriptor.digest:
        raise InfrastructureError(f"{descriptor.digest} has other bytes ({got})", where=where, fix="save it again")
    return content


def opener(path: Path) -> Opened:
    """Opens a file that is a layer."""
    return lambda: open_regular(path)
