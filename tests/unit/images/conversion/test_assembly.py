"""A relative that is damaged, changes while it is read, or is left alone: nothing of it is passed off as another."""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path

import pytest

from runner.core.errors import InfrastructureError
from runner.core.files import sha256
from runner.core.progress import Progress, Silent
from runner.images.conversion import assembly
from runner.images.conversion.squashfs import Options, convert, convert_source
from runner.images.packing import rootfs, squashfs_tables, tarstream, tree_listing
from runner.images.packing.mksquashfs import Packing, PackJob, packed_stream
from runner.images.packing.squashfs_tables import SUPERBLOCK, Squashfs, UnfitError
from runner.images.sources import blobs, layer_index
from runner.images.sources.layered import Opened, layered_source
from runner.images.sources.manifests import Configuration, RootFs
from runner.images.store.stored_image import StoredImage
from tests.support import random_images
from tests.support.heard import Heard
from tests.support.layers import header
from tests.support.odd_image import CREATED, EPOCH, Layer, archive, content_lines, of_no_file

pytestmark = pytest.mark.skipif(not shutil.which("mksquashfs"), reason="squashfs-tools are not installed")


@pytest.fixture
def job(tmp_path: Path) -> PackJob:
    return PackJob(rootfs.additions(rootfs.Config(), (), EPOCH), tmp_path / "out", Packing(block="4K"), Silent())


@pytest.fixture
def relative(job: PackJob) -> StoredImage:
    layer, draw, path = Layer(), random.Random(1), job.out.with_name("relative")
    layer.directory("d")
    for number in range(400):
        layer.file(f"d/{number}", draw.randbytes(number * 7))
    layer.special("d/link", tarfile.SYMTYPE, linkname="1")
    packed_stream(iter([layer.bytes()]), job)
    job.out.rename(path)
    return StoredImage(path=path, reference="a:1", size_bytes=path.stat().st_size, sha256=sha256(path))


@pytest.fixture
def tree(relative: StoredImage) -> Callable[[], tree_listing.Tree]:
    """What the relative holds, unpacked."""
    root = relative.path.with_name("tree")
    subprocess.run(["unsquashfs", "-q", "-n", "-d", root, relative.path], check=True)
    return partial(tree_listing.of_directory, root)


def only_what_is_put_in(_names: Mapping[str, bool], job: PackJob) -> rootfs.Passed:
    return packed_stream(iter([Layer().bytes()]), job)


def damaged(whole: bytes) -> Iterator[bytes]:
    """The file with other bytes in a block of data, with each byte of its head as another, with bits of its tables
    turned, and cut off.
    """
    draw, tables = random.Random(2), SUPERBLOCK.unpack_from(whole)[15]
    yield whole[:5000] + b"other bytes of a block of data" + whole[5030:]
    for at in range(4, SUPERBLOCK.size):
        yield whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
    for at in (draw.randrange(tables, len(whole)) for _ in range(150)):
        yield whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :]
    for _ in range(20):
        yield whole[: draw.randrange(len(whole))]


def test_of_a_damaged_relative_nothing_is_taken(
    job: PackJob, relative: StoredImage, tree: Callable[[], tree_listing.Tree]
) -> None:
    passed = only_what_is_put_in({}, job)
    packed = job.out.read_bytes()

    def packed_again(_names: Mapping[str, bool], job: PackJob) -> rootfs.Passed:
        job.out.write_bytes(packed)
        return copy(passed)

    assert assembly.assembled({}, packed_again, relative, job, tree).sha256 == sha256(job.out)
    for raw in damaged(relative.path.read_bytes()):
        relative.path.write_bytes(raw)
        with pytest.raises((UnfitError, OSError)):
            assembly.assembled({}, packed_again, relative, job, tree)


@pytest.mark.parametrize("seed", range(1, 5))
def test_over_layers_archives_it_is_as_from_scratch(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a layer holds is read once, by whoever has the right to say so."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    heard, archive = Heard(), tmp_path / "archive"
    options = partial(Options, packing=Packing(block="128K"))
    for raw in random_images.archives(seed, "a/b:1", 4):
        archive.write_bytes(raw)
        made = [
            convert(f"docker-archive:{archive}", options(store=tmp_path / name, assemble=name == "assembled"), heard)
            for name in ("scratch", "assembled")
        ]
        # Where the image has no time, mksquashfs gives the root one of its own.
        scratch, assembled = ({line for line in content_lines(each.image.path) if line[:4] != b"/ D "} for each in made)
        assert scratch == assembled
        assert not of_no_file(made[1].image.path)
    assert [line[:13] for line in heard.lines] == ["assembled in "] * 3


def test_of_layers_that_are_known_only_the_new_one_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known by what is damaged, stands under another layer's name, or is another user's."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    lower, upper, other = Layer(), Layer(), Layer()
    lower.file("opt/lower", b"l" * 10_000)
    upper.file("opt/upper", b"u")
    other.file("opt/other", b"o")
    fetched: list[list[int]] = []

    def converted(*layers: Layer) -> StoredImage:
        raw = [layer.bytes() for layer in layers]
        diff_ids = tuple(f"sha256:{sha256(each)}" for each in raw)

        def fetch(_: Progress, places: Sequence[int]) -> tuple[Opened, ...]:
            fetched.append([*places])
            if any(b"missing" in raw[at] for at in places):
                raise InfrastructureError("the registry has it no more")
            return tuple(partial(io.BytesIO, raw[at]) for at in places)

        about = Configuration(created="2026-03-04T05:06:07Z", rootfs=RootFs(diff_ids))
        source = layered_source("a/b:1", f"sha256:{sha256(''.join(diff_ids).encode())}", about, fetch)
        return convert_source(source, Silent(), store_dir=tmp_path / "store", assemble=True).image

    first, second = converted(lower, upper), converted(lower, other)
    assert fetched == [[0, 1], [1]]
    gone = Layer()
    gone.file("opt/missing", b"")
    with pytest.raises(InfrastructureError, match="the registry has it no more"):
        converted(lower, gone)
    assert fetched == [[0, 1], [1], [1]]
    assert second.converter.endswith("assembled")
    assert first.layers[0] == second.layers[0]
    indexes = {each: blobs.find(f"{each}.index") for each in (*first.layers, second.layers[1])}
    kept = {each: path.read_bytes() for each, path in indexes.items() if path is not None}
    upper_s = first.layers[1]
    for damage in (b"", kept[upper_s][:-1], kept[upper_s][:9] + b"x" + kept[upper_s][10:], kept[second.layers[1]]):
        blobs.keep(f"{upper_s}.index", damage)
        assert layer_index.find(upper_s) is None
        assert layer_index.find(first.layers[0]) is not None


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StoredImage]:
    """Converts an image of these layers' archives, over what the store has; else from scratch, into another."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))

    def call(*layers: bytes, assemble: bool = True, created: str = CREATED, **start: object) -> StoredImage:
        path = tmp_path / "archive"
        path.write_bytes(archive("a/b:1", list(layers), start, created))
        options = Options(store=tmp_path / f"{assemble}", assemble=assemble, packing=Packing(block="4K"))
        return convert(f"docker-archive:{path}", options, Silent()).image

    return call


def pax(*records: tuple[bytes, bytes]) -> bytes:
    body = b"".join(map(tarstream._pax_record, records))
    return header(b"x", len(body)) + body + bytes(-len(body) % 512)


EVIL = b"evil" * 128
HOSTILE = {
    "a slash at the end": header(b"0", 1024, name=b"x/") + header(b"0", 512, name=b"opt/tool") + EVIL,
    "two names": pax((b"path", b"other")) + header(b"L", 9) + b"opt/tool\0" + bytes(503) + header(b"0", 512) + EVIL,
    "a name that ends in a zero": pax((b"path\0", b"opt/tool")) + header(b"0", 512, name=b"other") + EVIL,
    "a blank before a name": pax((b" path", b"opt/tool")) + header(b"0", 512, name=b"other") + EVIL,
    "the next member as data": pax((b"size\0", b"1024")) + header(b"0", 0, name=b"other"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_mksquashfs_reads_otherwise_is_in_no_other_image(case: str, stored: Callable[..., StoredImage]) -> None:
    """An image of a stranger's, over a layer that a good one has: what is in the place of this layer's file?"""
    good, upper = Layer(), Layer()
    good.directory("opt")
    good.file("opt/tool", b"good" * 128)
    for number in range(60):
        good.file(f"opt/{number}", bytes([number]) * 3000)
    upper.file("new", b"")
    for layers in ((HOSTILE[case], good.bytes()), (good.bytes(), upper.bytes())):
        image = stored(*layers)
        assert subprocess.check_output(["unsquashfs", "-cat", image.path, "opt/tool"])[:4] == b"good"
    assert image.converter.endswith("assembled")


def test_a_layer_that_an_image_has_twice_counts_twice(stored: Callable[..., StoredImage]) -> None:
    lower, upper = Layer(), Layer()
    for number in range(60):
        lower.file(f"d/{number}", bytes([number]) * 3000)
    upper.special("d/link", tarfile.LNKTYPE, linkname="d/1")
    once, twice = (lower.bytes(), upper.bytes()), (lower.bytes(), upper.bytes(), lower.bytes())
    for before, after in ((once, twice), (twice, once)):
        stored(*before)
        made = stored(*after, Env=[f"N={len(before)}"])
        assert made.converter.endswith("assembled")
        scratch = stored(*after, Env=[f"N={len(before)}"], assemble=False)
        assert content_lines(made.path) == content_lines(scratch.path)


def test_of_an_image_without_a_time_no_time_that_was_changed_is_taken(stored: Callable[..., StoredImage]) -> None:
    layer, never = Layer(), "0001-01-01T00:00:00Z"
    layer.file("kept", bytes(3000))
    layer.special("work", tarfile.DIRTYPE, mtime=30)
    stored(layer.bytes(), created=never, WorkingDir="/work")
    made = [stored(layer.bytes(), created=never, assemble=each, WorkingDir="/x") for each in (True, False)]
    assembled, scratch = ({line for line in content_lines(each.path) if line[:4] != b"/ D "} for each in made)
    assert assembled == scratch


def test_what_is_kept_of_a_layer_is_compared_with_it_where_it_is_read(stored: Callable[..., StoredImage]) -> None:
    layer = Layer()
    layer.file("one", b"1")
    layer.file("two", b"2")
    raw, diff_id = layer.bytes(), f"sha256:{sha256(layer.bytes())}"
    stored(raw)
    layer_index.keep({diff_id: (layer_index.find(diff_id) or [])[:1]})
    with pytest.raises(InfrastructureError, match=r"what is kept of layer .* is of another one"):
        stored(raw, assemble=False)
    assert stored(raw, assemble=False).entries == stored(raw).entries


def test_of_one_that_changes_after_it_was_hashed_nothing_is_taken(
    job: PackJob, relative: StoredImage, tree: Callable[[], tree_listing.Tree], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = squashfs_tables.write

    def late(*arguments: object) -> tuple[list[int], str]:
        time.sleep(0.3)  # so small a file is hashed by then
        with relative.path.open("r+b") as file:
            file.seek(5000)
            file.write(b"other bytes of a block that is not compressed")
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(squashfs_tables, "write", late)
    with pytest.raises(UnfitError, match="changed meanwhile"):
        assembly.assembled({}, only_what_is_put_in, relative, job, tree)


def test_an_interrupt_does_not_wait_for_the_hash(
    job: PackJob, relative: StoredImage, tree: Callable[[], tree_listing.Tree]
) -> None:
    os.truncate(relative.path, 100 << 30)  # a hole: minutes

    def pack(_names: Mapping[str, bool], _job: PackJob) -> rootfs.Passed:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        assembly.assembled({}, pack, relative, job, tree)
    assert time.monotonic() - began < 10


def test_a_directory_in_two_places_is_refused(job: PackJob, relative: StoredImage) -> None:
    """Forty of them, each in the next one twice, are more paths than can be walked."""
    with relative.path.open("rb") as file:
        old = Squashfs(file)
        old.root.entries[b"e"] = old.root.entries[b"d"]
        squashfs_tables.write(job.out, old.root, [old], 3, EPOCH, lambda: None)
    with job.out.open("rb") as file, pytest.raises(UnfitError, match="a directory is in two places"):
        Squashfs(file)
