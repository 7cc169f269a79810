"""A damaged image is found: most at a glance, all by a full check; a good one is never accused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from runner.core.errors import InfrastructureError
from runner.images.store import image_files, integrity, store, stored_image
from runner.images.store.stored_image import StoredImage
from tests.support.squashfs import published

pytestmark = pytest.mark.skipif(not shutil.which("mksquashfs"), reason="squashfs-tools are not installed")
ODD = (b"new\nline", b"bad\xff", b"back\\slash", b"tab\there", b"gr\xc3\xbc\xc3\x9fe", b"end\n", b" ", b"d/e/f")


@pytest.fixture
def squashfs(tmp_path: Path) -> Path:
    """A squashfs of a tree with odd names, and some data."""
    tree = tmp_path / "tree"
    for name in ODD:
        path = tree / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(20_000))
    (tree / "hole").touch()
    os.truncate(tree / "hole", (1 << 20) + 1)
    subprocess.run(["mksquashfs", tree, tmp_path / "x", "-quiet", "-no-progress"], check=True)
    return tmp_path / "x"


@pytest.fixture
def image(squashfs: Path, tmp_path: Path) -> StoredImage:
    """The same in a store."""
    return published(squashfs, tmp_path / "store")


def known(image: StoredImage) -> StoredImage:
    """As the store has it now."""
    stored = store.lookup("x:1", image.path.parent)
    assert stored is not None
    return stored


def test_a_good_one_is_good(image: StoredImage) -> None:
    assert integrity.problem(image) == ""
    assert integrity.verified(image) == image
    foreign = StoredImage(path=image.path, reference=str(image.path))
    assert integrity.problem(foreign) == integrity.verified(foreign).broken == ""


def test_a_sidecar_of_another_user_is_not_written_again_as_ones_own(image: StoredImage) -> None:
    """That one lay here when it was read, and ours was put back during the check."""
    read = msgspec.structs.replace(image, digest="sha256:" + "e" * 64, mtime_ns=1)
    assert integrity.verified(read).mtime_ns != 1
    assert known(image) == image


@pytest.mark.parametrize("left", [0, 7, 96, 4096])
def test_a_file_that_is_cut_off_is_seen_at_a_glance(image: StoredImage, left: int) -> None:
    os.truncate(image.path, left)
    assert f"{left} bytes" in integrity.problem(image)
    assert f"{left} bytes" in integrity.problem(StoredImage(path=image.path, reference="foreign"))
    assert integrity.verified(image).broken


@pytest.mark.parametrize(("at", "says"), [(0, "squashfs"), (100, "SHA-256"), (50_000, "SHA-256"), (-5, "SHA-256")])
def test_one_bit_is_found_and_remembered(image: StoredImage, at: int, says: str) -> None:
    times, raw = image.path.stat(), bytearray(image.path.read_bytes())
    raw[at] ^= 1
    image.path.write_bytes(raw)
    os.utime(image.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert integrity.verified(image).broken
    assert says in integrity.problem(known(image))


def test_what_was_written_to_is_seen_at_a_glance_and_what_was_copied_is_good_again_after_a_check(
    image: StoredImage,
) -> None:
    os.utime(image.path, (1, 1))
    assert "written to" in integrity.problem(image)
    assert integrity.problem(integrity.verified(image)) == integrity.problem(known(image)) == ""


@pytest.mark.parametrize("years", [-50, 50])
def test_no_clock_makes_an_image_bad(image: StoredImage, years: int) -> None:
    """Neither a sidecar from the future, nor a file server whose clock is far off."""
    then = int(image.mtime_ns + years * 365 * 86400 * 1e9)
    os.utime(image.path, ns=(then, then))
    skewed = msgspec.structs.replace(image, mtime_ns=then, created="2099-01-01T00:00:00+00:00")
    stored_image.write_sidecar(skewed)
    assert known(image) == skewed
    assert integrity.problem(skewed) == ""


def test_what_cannot_be_read_is_not_called_broken(image: StoredImage) -> None:
    image.path.unlink()
    assert "cannot be read" in integrity.problem(image)
    with pytest.raises(FileNotFoundError):
        integrity.verified(image)


def test_the_listing_is_compared_with_what_went_in(squashfs: Path) -> None:
    names = ["hole", *(os.fsdecode(name) for name in ODD)]
    image_files.check_listing(squashfs, names)
    for wrong in (names[1:], [*names, "more"], [*names[1:], "other"]):
        with pytest.raises(InfrastructureError, match="not its image"):
            image_files.check_listing(squashfs, wrong)
    assert len(image_files.content(squashfs, "d/e/f", "squashfs")) > 1000
    assert image_files.content(squashfs, "none", "squashfs") == ""
    assert image_files.content(squashfs, "hole", "squashfs") == "", "it is larger than a small file may be"
    os.truncate(squashfs, 5000)
    with pytest.raises(InfrastructureError, match=r"unsquashfs failed|not its image"):
        image_files.check_listing(squashfs, names)
