"""A directory of packages: every file is what was collected, or is named."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from runner.core import package_directory
from runner.core.errors import RefusedError, UsageError
from runner.core.package_directory import CONTENT, MANIFEST, PackageFile, check, is_free, misfit, read
from runner.core.progress import Silent
from tests.support.package_directories import collected


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    directory = tmp_path / "it's a $HOME `id`\nwheéls"
    collected(directory)
    return directory


def flip(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


WHEEL = "framework/torchlike-1.0-py3-none-any.whl"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda at: flip(at / WHEEL), f"damaged: {WHEEL}"),
    "cut": (lambda at: (at / WHEEL).write_bytes(b""), f"damaged: {WHEEL}"),
    "requirements": (lambda at: flip(at / "framework.txt"), "damaged: framework.txt"),
    "gone": (lambda at: (at / WHEEL).unlink(), f"missing: {WHEEL}"),
    "a directory in its place": (lambda at: replace_by_directory(at / WHEEL), f"missing: {WHEEL}"),
    "one more": (lambda at: (at / "horovod/evil.whl").write_text(""), "not of the collection: horovod/evil.whl"),
    "one beside": (lambda at: (at / "notes.txt").write_text(""), "not of the collection: notes.txt"),
    "a linked directory": (lambda at: (at / "horovod/more").symlink_to("/etc"), "not of the collection: horovod/more"),
    "a pipe": (lambda at: replace_by_pipe(at / WHEEL), f"damaged: {WHEEL}"),
}


def test_what_was_collected_is_taken_also_through_a_link_and_from_another_place(packages: Path, tmp_path: Path) -> None:
    check(packages, read(packages), Silent())
    (tmp_path / "link").symlink_to(packages)
    check(tmp_path / "link", read(tmp_path / "link"), Silent())
    moved = packages.rename(tmp_path / "moved")
    (moved / package_directory.WORK).mkdir()  # of a later collection that was killed
    (moved / package_directory.LOCK).touch()
    check(moved, read(moved), Silent())


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_not_what_was_collected_is_named(damage: str, packages: Path) -> None:
    change, says = DAMAGE[damage]
    change(packages)
    with pytest.raises(RefusedError) as caught:
        check(packages, read(packages), Silent())
    assert says in caught.value.what
    assert f"gpu-runner env wheels {shlex.quote(str(packages))};" in caught.value.fix
    assert ("remove what is not" in caught.value.fix) == says.startswith("not of")


def test_only_the_parts_that_are_used_are_compared(packages: Path) -> None:
    flip(packages / WHEEL)
    check(packages, read(packages), Silent(), parts=("horovod",))
    assert "framework" in CONTENT


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "not finished: there is no manifest"), (b"", "damaged"), (b'{"framework": 3}', "damaged"),
     (b"\xff\xfe", "damaged"), (b'{"framework": "\xff"}', "damaged")],
)  # fmt: skip
def test_a_collection_without_its_manifest_is_not_finished(tmp_path: Path, content: bytes | None, says: str) -> None:
    collected(tmp_path / "p")
    (tmp_path / "p" / MANIFEST).unlink()
    if content is not None:
        (tmp_path / "p" / MANIFEST).write_bytes(content)
    with pytest.raises(RefusedError, match=says):
        read(tmp_path / "p")


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "framework/../../x", "other/x", "framework//x", "", "compiled/x.whl",
     "compiled/a/b/c/x.whl", "compiled/a-b/x.whl"],
)  # fmt: skip
def test_a_manifest_never_leads_out_of_its_directory(tmp_path: Path, name: str) -> None:
    collected(tmp_path / "p", files=(PackageFile(name, "0" * 64, 0),))
    with pytest.raises(RefusedError, match="the manifest of these packages names"):
        read(tmp_path / "p")


def test_a_later_format_and_a_directory_that_is_not_there_are_refused(tmp_path: Path) -> None:
    collected(tmp_path / "p", format=2)
    with pytest.raises(RefusedError, match="has format 2, and this program reads 1"):
        read(tmp_path / "p")
    with pytest.raises(UsageError, match="no such directory of packages"):
        read(tmp_path / "none")


@pytest.mark.parametrize(
    ("python", "machine", "says"),
    [("3.11.7", "x86_64", ""), ("3.12", "x86_64", "Python 3.11"), ("3.11", "aarch64", "this machine is aarch64")],
)
def test_another_python_or_processor_is_noticed(tmp_path: Path, python: str, machine: str, says: str) -> None:
    said = misfit(collected(tmp_path / "p", pythons=("3.11",), machine="x86_64"), python, machine)
    assert says in said
    assert bool(says) == bool(said)


def test_the_identity_is_that_of_the_files(tmp_path: Path) -> None:
    one, again = collected(tmp_path / "a"), collected(tmp_path / "b", made="later")
    assert one.identity == again.identity
    assert msgspec.structs.replace(one, files=one.files[1:]).identity != one.identity


@pytest.mark.parametrize(
    ("names", "oldest"),
    [
        ((), "2.5"),
        (("a-1-py3-none-any.whl", "horovod-0.28.1.tar.gz"), "2.5"),
        (("a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",), "2.17"),
        (("a-1-cp36-abi3-manylinux2010_x86_64.manylinux_2_12_x86_64.manylinux_2_28_x86_64.whl",), "2.12"),
        (("t-1-cp311-cp311-manylinux_2_28_aarch64.whl", "n-1-cp311-cp311-manylinux_2_5_aarch64.whl"), "2.28"),
    ],
)
def test_the_oldest_glibc_is_read_from_the_names(names: tuple[str, ...], oldest: str) -> None:
    assert package_directory.glibc_of(names) == oldest


def test_packages_are_collected_beside_nothing_else(tmp_path: Path) -> None:
    assert is_free(tmp_path / "new")
    assert is_free(tmp_path)
    (tmp_path / "mine").write_text("x")
    assert not is_free(tmp_path)
    assert not is_free(tmp_path / "mine")
    collected(tmp_path / "p")
    assert is_free(tmp_path / "p")
