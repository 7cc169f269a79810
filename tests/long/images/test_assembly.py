"""An assembled squashfs has what one from scratch has, entry for entry: random images, each over those before.

``RUNNER_ASSEMBLY_SEEDS=FIRST-LAST`` takes others than the suite's.
"""

import os
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import chain, count, product
from pathlib import Path
from types import SimpleNamespace

import docker
import pytest
from docker.models.images import Image

from runner.core.errors import InfrastructureError, RefusedError
from runner.core.files import sha256
from runner.core.progress import Silent
from runner.images import editing
from runner.images.conversion import assembly
from runner.images.conversion.publishing import Conversion
from runner.images.conversion.squashfs import Options, convert, convert_engine_image, created_at
from runner.images.packing.mksquashfs import Packing
from runner.images.writable_root import Tool
from tests.support import random_images
from tests.support.heard import Heard
from tests.support.odd_image import CREATED, Layer, archive, content_lines, of_no_file
from tests.support.users import AS_ROOT

pytestmark = [pytest.mark.integration, AS_ROOT]
_FIRST, _LAST = map(int, os.environ.get("RUNNER_ASSEMBLY_SEEDS", "1-5").split("-"))


class OfAssemblies(Heard):
    """Its lines are those about assemblies."""

    def line(self, text: str) -> None:
        self.lines += [text] * ("assembled" in text)


@pytest.fixture
def load(engine_client: docker.DockerClient) -> Iterator[Callable[[bytes], Image]]:
    """Loads an image; all are removed at the end."""
    known: dict[str, None] = {}

    def call(archive: bytes) -> Image:
        (image,) = engine_client.images.load(archive)
        known[str(image.id)] = None
        return image

    yield call
    for name in reversed(known):
        with suppress(docker.errors.ImageNotFound):
            engine_client.images.remove(name, force=True)


@pytest.mark.parametrize("seed", range(_FIRST, _LAST + 1))
def test_assembled_is_as_from_scratch(
    seed: int, engine_client: docker.DockerClient, load: Callable[[bytes], Image], tmp_path: Path
) -> None:
    tag, heard = f"gpu-runner/test-assembly-{os.getpid()}:{seed}", OfAssemblies()
    archive, packing, blocked = tmp_path / "archive", Packing(block="128K"), "is in the way of the start-up files"

    def of_archive(*, store_dir: Path, assemble: bool = False) -> Conversion:
        options = Options(store=store_dir.with_suffix(".layers"), packing=packing, assemble=assemble)
        return convert(f"docker-archive:{archive}", options, heard)

    for raw, way in product(random_images.archives(seed, tag, 5), ("engine", "archive")):
        archive.write_bytes(raw)
        image = load(raw)
        of_engine = partial(convert_engine_image, str(image.id), engine_client, heard, packing=packing)
        packed = of_engine if way == "engine" else of_archive
        try:
            made = [packed(store_dir=tmp_path / "scratch").image]
        except (RefusedError, InfrastructureError) as error:  # no container of it starts, as with a file at /etc
            assert any(each in error.what for each in (blocked, "the engine failed", "into a loop of links"))
            continue
        made.append(packed(store_dir=tmp_path / "assembled", assemble=True).image)
        mounts = [random_images.KERNEL, *[("squashfuse",)] * bool(shutil.which("squashfuse"))]
        mounted = [[random_images.as_mounted(each.path, tmp_path / "mount", by) for by in mounts] for each in made]
        lines = [content_lines(each.path) for each in made]
        if not created_at(image.attrs["Created"]):  # mksquashfs gives the root of an archive a time of its own
            lines = [{line for line in each if not line.startswith(b"/ D ")} for each in lines]
        assert lines[0] == lines[1]
        assert mounted[0] == mounted[1]
        assert not of_no_file(made[1].path)
        assert [each.sha256 for each in made] == [sha256(each.path) for each in made]
        assert len({(each.entries, str(each.about), each.environment["N"]) for each in made}) == 1
    assert not [line for line in heard.lines if "was not packed" in line or "would not be" in line]
    print(f"assembled {sum(line.startswith('assembled in ') for line in heard.lines)} of 8")


@pytest.mark.parametrize("seed", range(_FIRST, _LAST + 1))
def test_an_edit_assembled_is_as_packed_anew(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each over the one before."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    draw, heard = random.Random(seed), OfAssemblies()
    store, archive = tmp_path / "store", tmp_path / "archive"
    for raw in chain.from_iterable(random_images.archives(each, "edited", 5) for each in count(seed, 10_000)):
        archive.write_bytes(raw)
        with suppress(RefusedError, InfrastructureError):  # no container of it starts
            image = convert(
                f"docker-archive:{archive}", Options(store=store, packing=Packing(block="128K")), heard
            ).image
            break
    heard.lines.clear()
    for number in range(4):
        with editing.writable_copy(image, heard, assemble=True) as copy:
            random_images.change(copy.root, draw)
            now = datetime.now(timezone.utc)  # of both
            monkeypatch.setattr(editing, "datetime", SimpleNamespace(now=lambda _zone, now=now: now))
            made = [
                editing.stored(image, each, Tool("ch-run", "ch-run", "1"), ["x"], f"e:{number}", store, heard).image
                for each in (replace(copy, before={}), copy)
            ]
        lines, mounted = (
            [of(each.path) for each in made]
            for of in (content_lines, partial(random_images.as_mounted, mount_point=tmp_path / "mount"))
        )
        assert lines[0] == lines[1]
        assert mounted[0] == mounted[1]
        assert not of_no_file(made[1].path)
        assert len({(each.entries, str(each.about), str(each.environment)) for each in made}) == 1
        image = made[1]
    assert not [line for line in heard.lines if "would not be" in line]
    print(f"assembled {sum(line.startswith('assembled in ') for line in heard.lines)} of 4")


@pytest.mark.parametrize(
    ("created", "said"),
    [
        (CREATED, "assembled in "),
        ("2100-01-01T00:00:00Z", "not assembled: the result would not be "),
        ("0001-01-01T00:00:00Z", "not assembled: the result would not be "),
    ],
)
def test_where_the_engine_made_a_working_directory_nothing_of_it_is_left(
    created: str, said: str, engine_client: docker.DockerClient, load: Callable[[bytes], Image], tmp_path: Path
) -> None:
    """It lies where links lead, and has the time of the conversion, which no image's time tells."""
    layer = Layer()
    layer.directory("srv", "real", "real/data")
    layer.special("srv/link", tarfile.SYMTYPE, linkname="/real/data")
    first, second = (
        load(archive(f"gpu-runner/test-assembly-{os.getpid()}:{number}", [layer.bytes()], start, created))
        for number, start in enumerate([dict[str, object](WorkingDir="/srv/link/app"), {}])
    )
    assert_same(first, second, engine_client, tmp_path, said)


def test_a_link_on_the_way_to_the_working_directory_is_no_other_names_too(
    engine_client: docker.DockerClient, load: Callable[[bytes], Image], tmp_path: Path
) -> None:
    lower, upper, tag = Layer(), Layer(), f"gpu-runner/test-assembly-{os.getpid()}"
    lower.directory("real", "opt")
    upper.special("opt/one", tarfile.SYMTYPE, linkname="/real")
    for name in ("opt/two", "opt/three"):
        upper.special(name, tarfile.LNKTYPE, linkname="opt/one")
    first = load(archive(f"{tag}:1", [lower.bytes()], {}))
    second = load(archive(f"{tag}:2", [lower.bytes(), upper.bytes()], {"WorkingDir": "/opt/one/app"}))
    assert_same(first, second, engine_client, tmp_path, "assembled in ")


def test_a_start_up_file_with_another_link_to_it_is_no_reason_to_refuse(
    engine_client: docker.DockerClient, load: Callable[[bytes], Image], tmp_path: Path
) -> None:
    layer, upper = Layer(), Layer()
    layer.file("etc/environment", b"A=1\n")
    layer.special("opt/same", tarfile.LNKTYPE, linkname="etc/environment")
    upper.file("opt/new", b"new")
    layers = [layer.bytes(), upper.bytes()]
    tag = f"gpu-runner/test-assembly-{os.getpid()}"
    first, second = (load(archive(f"{tag}:{count}", layers[:count], {})) for count in (1, 2))
    assert_same(first, second, engine_client, tmp_path, "not assembled: the image's /etc/environment is in the way")


@pytest.mark.parametrize("missed", ["new", "longer", "replaced", "gone", "directory", "first"])
def test_a_name_that_was_missed_is_noticed(
    missed: str,
    engine_client: docker.DockerClient,
    load: Callable[[bytes], Image],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine's own mounts of the two images are compared: also where size and time are as before."""
    differing = assembly.differing

    def short(layers: Sequence[Path], others: Sequence[Path]) -> dict[str, bool]:
        names = differing(layers, others)
        del names[f"opt/{missed}"]
        return names

    monkeypatch.setattr(assembly, "differing", short)
    said = f"not assembled: /opt/{missed} differs from the relative's, and was not packed"
    assert_same(*two_images(load), engine_client, tmp_path, said)


def two_images(load: Callable[[bytes], Image]) -> tuple[Image, Image]:
    """Over one layer, another of each; the second's has each kind of change, the first's a file."""
    lower, first, second = (Layer() for _ in range(3))
    lower.directory("opt", "opt/directory")
    for name in ("kept", "longer", "replaced", "gone", "first"):
        lower.file(f"opt/{name}", b"as it was")
    first.file("opt/first", b"once more")
    second.file("opt/new", b"new")
    second.file("opt/longer", b"as it was not")
    second.file("opt/replaced", b"as it is.")
    second.file("opt/.wh.gone", b"")
    second.directory("opt/directory", mode=0o700)
    tag = f"gpu-runner/test-assembly-{os.getpid()}"
    raw = [archive(f"{tag}:{at}", [lower.bytes(), each.bytes()], {}) for at, each in enumerate((first, second))]
    return load(raw[0]), load(raw[1])


def test_what_layer_archives_gave_is_no_relative(
    engine_client: docker.DockerClient, load: Callable[[bytes], Image], tmp_path: Path
) -> None:
    """A file below another layer's link: there it is where the link leads, in an engine the link is gone."""
    lower, upper, tag = Layer(), Layer(), f"gpu-runner/test-assembly-{os.getpid()}"
    lower.directory("usr", "usr/lib")
    lower.special("lib", tarfile.SYMTYPE, linkname="usr/lib")
    upper.file("lib/file", b"")
    raw = [archive(f"{tag}:{number}", [lower.bytes(), upper.bytes()], {"Env": [f"N={number}"]}) for number in (1, 2)]
    first, second = map(load, raw)
    (tmp_path / "first").write_bytes(raw[0])
    stored = convert(f"docker-archive:{tmp_path / 'first'}", Options(store=tmp_path / "both"), Silent()).image
    assert stored.digest == first.id
    assert_same(first, second, engine_client, tmp_path)


def test_layers_that_are_removed_while_they_are_read_are_not_believed(
    engine_client: docker.DockerClient,
    load: Callable[[bytes], Image],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = (load(raw) for raw in random_images.archives(3, f"gpu-runner/test-assembly-{os.getpid()}:gone", 2))

    def late(layers: Sequence[Path], others: Sequence[Path]) -> dict[str, bool]:
        engine_client.images.remove(str(first.id), force=True)
        return differing(layers, [path for path in others if path.exists()])

    differing = assembly.differing
    monkeypatch.setattr(assembly, "differing", late)
    assert_same(first, second, engine_client, tmp_path, "not assembled: 404 ")


def assert_same(first: Image, second: Image, client: docker.DockerClient, store: Path, said: str = "") -> None:
    """The second image is as from scratch, though the store has the first. said: how what is heard of the assembly
    begins; empty: nothing is.
    """
    heard = OfAssemblies()
    made_of = partial(convert_engine_image, client=client, progress=heard)
    made_of(str(first.id), store_dir=store / "both")
    made = made_of(str(second.id), store_dir=store / "both", assemble=True).image
    assert content_lines(made.path) == content_lines(made_of(str(second.id), store_dir=store / "new").image.path)
    assert [line for line in heard.lines if not line.startswith(said)] == []
    assert bool(heard.lines) == bool(said)
    assert made.converter.endswith(", assembled") == said.startswith("assembled")
