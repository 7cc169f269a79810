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
    out = tmp_path / ".partial"
    subprocess.run(["mksquashfs", tree, out, "-noappend", "-quiet", "-no-progress"], check=True)
    return out


@pytest.fixture
def image(squashfs: Path, tmp_path: Path) -> StoredImage:
    """The same in a store."""
    return published(squashfs, tmp_path / "store")


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_good_one_is_good(image: StoredImage) -> None:
    assert integrity.problem(image) == ""
    assert integrity.verified(image) == image
    foreign = StoredImage(path=image.path, reference=str(image.path))
    assert integrity.problem(foreign) == integrity.verified(foreign).broken == ""


@pytest.mark.parametrize("left", [0, 7, 96, 4096])
def test_a_file_that_is_cut_off_is_seen_at_a_glance(image: StoredImage, left: int) -> None:
    os.truncate(image.path, left)
    assert f"{left} bytes" in integrity.problem(image)
    assert f"{left} bytes" in integrity.problem(StoredImage(path=image.path, reference="foreign"))
    assert integrity.verified(image).broken


@pytest.mark.parametrize(("at", "says"), [(0, "squashfs"), (100, "SHA-256"), (50_000, "SHA-256"), (-5, "SHA-256")])
def test_one_bit_is_found_and_remembered(image: StoredImage, at: int, says: str) -> None:
    times = image.path.stat()
    flip(image.path, at % image.size_bytes)
    os.utime(image.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert integrity.verified(image).broken
    known = store.lookup("x:1", image.path.parent)
    assert known is not None
    assert says in integrity.problem(known)


def test_what_was_written_to_is_seen_at_a_glance_and_what_was_copied_is_good_again_after_a_check(
    image: StoredImage,
) -> None:
    os.utime(image.path, (1, 1))
    assert "written to" in integrity.problem(image)
    assert integrity.problem(integrity.verified(image)) == ""
    known = store.lookup("x:1", image.path.parent)
    assert known is not None
    assert integrity.problem(known) == ""


@pytest.mark.parametrize("years", [-50, 50])
def test_no_clock_makes_an_image_bad(image: StoredImage, years: int) -> None:
    """Neither a sidecar from the future, nor a file server whose clock is far off."""
    then = int(image.mtime_ns + years * 365 * 86400 * 1e9)
    os.utime(image.path, ns=(then, then))
    skewed = msgspec.structs.replace(image, mtime_ns=then, created="2099-01-01T00:00:00+00:00")
    stored_image.write_sidecar(skewed)
    assert store.lookup("x:1", image.path.parent) == skewed
    assert integrity.problem(skewed) == ""


def test_what_cannot_be_read_is_not_called_broken(image: StoredImage) -> None:
    image.path.unlink()
    assert "cannot be read" in integrity.problem(image)
    with pytest.raises(FileNotFoundError):
        integrity.verified(image)


def test_the_listing_is_compared_with_what_went_in(squashfs: Path) -> None:
    names = [os.fsdecode(name) for name in ODD]
    image_files.check_listing(squashfs, names)
    for wrong in (names[1:], [*names, "more"], [*names[1:], "other"]):
        with pytest.raises(InfrastructureError, match="not its image"):
            image_files.check_listing(squashfs, wrong)
    with pytest.raises(InfrastructureError, match=r"unsquashfs failed|not its image"):
        os.truncate(squashfs, 5000)
        image_files.check_listing(squashfs, names)


def test_a_large_file_in_an_image_is_not_read_as_a_small_one(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/small").write_text("1")
    with (tmp_path / "tree/hole").open("wb") as file:
        file.truncate(1 << 28)
    out = tmp_path / "out.sqsh"
    subprocess.run(["mksquashfs", tmp_path / "tree", out, "-quiet", "-no-progress"], check=True)
    assert image_files.squashfs_content(out, "small") == "1"
    assert image_files.squashfs_content(out, "none") == ""
    assert image_files.squashfs_content(out, "hole") == ""
