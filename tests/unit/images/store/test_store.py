"""Stored images are found by name, digest and path, with no engine; and which ones pruning takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core import files, process_identity
from runner.core.errors import InfrastructureError, UsageError
from runner.core.files import key_of
from runner.images.store import owners, store
from runner.images.store.store import Candidate, Limits, to_remove
from runner.images.store.stored_image import BrokenSidecar, StoredImage, file_name

DIGEST = "sha256:" + "0123456789ab" + "c" * 52


def put(directory: Path, reference: str = "gpu-runner/x:standin", digest: str = DIGEST, key: str = "k1") -> StoredImage:
    directory.mkdir(exist_ok=True)
    made = directory / ".partial"
    made.write_bytes(b"hsqs")
    path = directory / file_name(reference, digest, key)
    image = StoredImage(
        path=path, reference=reference, digest=digest, key=key, environment={"A": "x y", "B": "ü\n"}, entries=3
    )
    return store.publish(made, image)


def test_found_by_every_name(tmp_path: Path) -> None:
    image = put(tmp_path)
    assert image.path.name == "gpu-runner+x+standin-0123456789ab-k1.sqsh"
    assert [path.name for path in tmp_path.glob(".*")] == []
    for name in ("gpu-runner/x:standin", "docker://gpu-runner/x:standin", DIGEST, str(image.path)):
        assert store.lookup(name, tmp_path) == image
    assert store.by_key("k1", tmp_path) == image
    assert store.lookup("gpu-runner/x:other", tmp_path) is None


def test_a_digest_says_all_whatever_stands_before_it(tmp_path: Path) -> None:
    image = put(tmp_path)
    for name in (f"gpu-runner/x@{DIGEST}", f"gpu-runner/x:standin@{DIGEST}", f"docker://other.io#mirror/x@{DIGEST}"):
        assert store.lookup(name, tmp_path) == image
    assert store.lookup(f"gpu-runner/x:standin@{DIGEST[:-1]}0", tmp_path) is None


def test_a_name_knows_when_its_source_last_confirmed_it(tmp_path: Path) -> None:
    image = put(tmp_path)
    long_ago = time.time() - 10_000
    for ref in (tmp_path / "refs").iterdir():
        os.utime(ref, (long_ago, long_ago))
    assert store.confirmed_at("gpu-runner/x:standin", tmp_path) == pytest.approx(long_ago)
    store.confirm("gpu-runner/x:standin", image)
    assert (store.confirmed_at("docker://gpu-runner/x:standin", tmp_path) or 0) > long_ago + 9_000
    assert store.confirmed_at(DIGEST, tmp_path) == pytest.approx(long_ago)
    assert store.confirmed_at("gpu-runner/x:other", tmp_path) is None
    assert store.confirmed_at(str(image.path), tmp_path) is None


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_sidecar_is_as_private_as_its_squashfs(tmp_path: Path, mode: int) -> None:
    made = tmp_path / ".partial"
    made.write_bytes(b"hsqs")
    made.chmod(mode)
    image = StoredImage(path=tmp_path / "x.sqsh", reference="x:1", environment={"TOKEN": "t"})
    store.publish(made, image)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("x.sqsh*")} == {mode}


def test_the_newest_conversion_of_a_name_is_meant(tmp_path: Path) -> None:
    old = put(tmp_path)
    new = put(tmp_path, digest="sha256:" + "f" * 64, key="k2")
    assert store.lookup("gpu-runner/x:standin", tmp_path) == new
    assert store.lookup(DIGEST, tmp_path) == old
    store.refer("gpu-runner/x:standin", old)  # the name moves back
    assert store.lookup("gpu-runner/x:standin", tmp_path) == old


def test_the_same_image_in_other_bytes_is_another_file(tmp_path: Path) -> None:
    """Two hosts with other tools that convert at once: each sidecar stays beside its own bytes."""
    names = {file_name("x:1", DIGEST, sha256) for sha256 in ("a" * 64, "b" * 64)}
    assert len(names) == 2
    assert len(file_name("x/" * 300, DIGEST, "a" * 64)) < 200


def test_a_sweep_takes_what_the_dead_left_and_nothing_else(tmp_path: Path) -> None:
    image = put(tmp_path)
    alive = process_identity.mark()
    dead = alive.rpartition(".")[0] + ".1"
    kept = [f".k2.partial~{alive}.0", f"refs/.abc~{alive}.0", ".k1.claim", ".strange", ".k2.claim"]
    swept = [f".k1.partial~{alive}.0", f".k2.partial~{dead}.0", f"refs/.abc~{dead}.0", ".k1.lock"]
    for name in (*kept, *swept):
        (tmp_path / name).touch()
    store.sweep("k1", tmp_path)
    assert {path.name for path in tmp_path.rglob(".*")} == {Path(name).name for name in kept}
    assert store.lookup(DIGEST, tmp_path) == image


def test_an_image_is_removed_with_all_its_names(tmp_path: Path) -> None:
    image, other = put(tmp_path), put(tmp_path, "y:1", digest="sha256:" + "f" * 64, key="k2")
    store.remove(image.path)
    assert store.everything(tmp_path) == (other,)
    assert set(store.names_of_store(tmp_path).values()) == {other.path.name}


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_what_others_put_in_a_files_place_gives_them_no_right_to_a_private_file(tmp_path: Path, link: str) -> None:
    shared, private = tmp_path / "store", tmp_path / "id_rsa"
    shared.mkdir()
    shared.chmod(0o2775)
    private.touch(0o600)
    planted = shared / "planted"
    planted.symlink_to(private) if link == "symbolic" else planted.hardlink_to(private)
    owners.share(planted, shared)
    assert private.stat().st_mode & 0o777 == 0o600
    (shared / "own").touch(0o600)
    owners.share(shared / "own", shared)
    assert (shared / "own").stat().st_mode & 0o777 == 0o644


def test_a_link_in_place_of_a_finished_file_is_not_published(tmp_path: Path) -> None:
    image = put(tmp_path)
    private = tmp_path / "private"
    private.touch(0o600)
    (tmp_path / ".partial").symlink_to(private)
    with pytest.raises(InfrastructureError, match="Too many levels of symbolic links"):
        store.publish(tmp_path / ".partial", image)
    assert not image.path.is_symlink()
    assert private.stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_written_says_where_to(tmp_path: Path) -> None:
    image = put(tmp_path)
    (tmp_path / "refs").rename(tmp_path / "away")
    (tmp_path / "refs").touch()
    with pytest.raises(InfrastructureError, match="cannot write to the image store") as caught:
        store.refer("x:2", image)
    assert "--store DIR" in caught.value.fix


def test_a_store_may_be_moved(tmp_path: Path) -> None:
    image = put(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    found = store.lookup(image.reference, tmp_path / "b")
    assert found is not None
    assert found.path == tmp_path / "b" / image.path.name


def test_a_deleted_image_is_not_found(tmp_path: Path) -> None:
    put(tmp_path).path.unlink()
    assert store.lookup(DIGEST, tmp_path) is None


def test_a_foreign_squashfs_is_taken_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "foreign.sqsh"
    assert store.lookup(str(path)) is None
    path.write_bytes(b"hsqs")
    assert store.lookup(str(path)) == StoredImage(path=path, reference=str(path), size_bytes=4)


@pytest.mark.parametrize("text", ["{", '{"x":' * 100_000], ids=["cut", "nested without end"])
def test_a_broken_sidecar_says_what_to_do(tmp_path: Path, text: str) -> None:
    image = put(tmp_path)
    Path(f"{image.path}.json").write_text(text)
    assert isinstance(store.everything(tmp_path)[0], BrokenSidecar)
    with pytest.raises(InfrastructureError, match="sidecar") as caught:
        store.lookup(DIGEST, tmp_path)
    assert "convert the image again" in caught.value.fix


def test_holes_of_terabytes_in_place_of_small_files_fill_no_memory(tmp_path: Path) -> None:
    image = put(tmp_path)
    planted = store.name_path("b:1", tmp_path, "squashfs")
    (tmp_path / "b.sqsh").touch()
    for path in (planted, tmp_path / "b.sqsh.json"):
        path.touch()
        os.truncate(path, 1 << 40)
    assert store.lookup("b:1", tmp_path) is None
    broken, whole = store.everything(tmp_path)
    assert isinstance(broken, BrokenSidecar)
    assert whole == image


def test_looking_up_imports_no_engine_client() -> None:
    heavy = "('docker', 'requests', 'rich', 'yaml')"
    program = f"import sys, runner.images.store.store; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_directory_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUNNER_STORE", str(tmp_path))
    assert store.directory() == tmp_path
    monkeypatch.delenv("RUNNER_STORE")
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    assert store.directory() == tmp_path / "cache" / "images"


def test_what_is_no_reference_is_passed_over(tmp_path: Path) -> None:
    image = put(tmp_path)
    ref = tmp_path / "refs" / key_of("gpu-runner/x:standin")
    outside = tmp_path.parent / "outside.sqsh"
    for content in (b"", b"\xff\xfe", b"a\0b", b"../outside.sqsh", str(outside).encode(), b"gone.sqsh", b"x" * 300):
        ref.write_bytes(content)
        assert store.lookup("gpu-runner/x:standin", tmp_path) is None
    ref.unlink()
    os.mkfifo(ref)
    assert store.lookup("gpu-runner/x:standin", tmp_path) is None
    (tmp_path / "refs" / "strange").mkdir()
    assert set(store.names_of_store(tmp_path).values()) == {image.path.name}
    store.remove(image.path)
    assert store.everything(tmp_path) == ()


def test_strange_files_in_the_store_are_listed_as_strangers(tmp_path: Path) -> None:
    image = put(tmp_path)
    (tmp_path / "directory.sqsh").mkdir()
    os.mkfifo(tmp_path / "fifo.sif")
    (tmp_path / "sidecar.sqsh").touch()
    os.mkfifo(tmp_path / "sidecar.sqsh.json")
    (tmp_path / "loop.sqsh").symlink_to("loop.sqsh")
    assert [found.path.name for found in store.everything(tmp_path) if isinstance(found, BrokenSidecar)] == [
        "directory.sqsh", "fifo.sif", "loop.sqsh", "sidecar.sqsh",
    ]  # fmt: skip
    assert image in store.everything(tmp_path)


def test_a_sidecar_that_may_not_be_read_hides_no_other_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, private = put(tmp_path), put(tmp_path, "y:1", digest="sha256:" + "f" * 64, key="k2")
    open_regular = files.open_regular

    def denied(path: Path) -> BinaryIO:
        if path.name.startswith(private.path.name):
            raise PermissionError(13, "Permission denied", str(path))
        return open_regular(path)

    monkeypatch.setattr(files, "open_regular", denied)
    assert store.everything(tmp_path) == (
        image,
        BrokenSidecar(private.path, "a file of the image store cannot be read: Permission denied"),
    )


def test_a_store_that_may_not_be_read_is_not_called_empty(tmp_path: Path) -> None:
    assert store.everything(tmp_path / "absent") == ()
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="cannot be read"):
        store.everything(tmp_path / "file")


def test_what_a_sweep_may_not_remove_does_not_stop_it(tmp_path: Path) -> None:
    put(tmp_path)
    dead = process_identity.mark().rpartition(".")[0] + ".1"
    (tmp_path / f".k1.partial~{dead}.0").mkdir()  # as an entry of another user's: it cannot be unlinked
    (tmp_path / f".k2.partial~{dead}.0").touch()
    store.sweep("k1", tmp_path)
    assert [path.name for path in tmp_path.glob(".*")] == [f".k1.partial~{dead}.0"]


def test_a_removal_that_is_cut_off_leaves_no_image_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = put(tmp_path)
    unlink = Path.unlink

    def cut_off(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if path.name.startswith(image.path.name):
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", cut_off)
    with pytest.raises(KeyboardInterrupt):
        store.remove(image.path)
    assert not image.path.exists()
    assert store.everything(tmp_path) == ()


def test_the_home_of_an_unknown_user_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no home directory"):
        store.lookup("~no-user-of-that-name/x.sqsh", tmp_path)
    monkeypatch.setenv("RUNNER_STORE", "~no-user-of-that-name/x")
    with pytest.raises(UsageError, match="no home directory"):
        store.directory()


DAY_S = 86400.0


def image(
    name: str, *, size: int = 10, age_d: float = 10, idle_d: float = 5, used: bool = True, needed: bool = False
) -> Candidate:
    return Candidate(Path(name), size, age_d * DAY_S, idle_d * DAY_S, used, needed)


def names(images: tuple[Candidate, ...]) -> list[str]:
    return [str(image.path) for image in images]


def test_all_limits_must_hold() -> None:
    images = [image("old", used=False), image("new", age_d=1, used=False), image("used"), image("held", needed=True)]
    assert names(to_remove(images, Limits(older_than_s=5 * DAY_S))) == ["old", "used"]
    assert names(to_remove(images, Limits(unused=True))) == ["new", "old"]
    assert names(to_remove(images, Limits(older_than_s=5 * DAY_S, unused=True))) == ["old"]


def test_the_longest_idle_go_until_the_rest_fits() -> None:
    images = [image("a", idle_d=1), image("b", idle_d=9), image("c", idle_d=3), image("d", idle_d=20, needed=True)]
    assert names(to_remove(images, Limits(max_bytes=40))) == []
    assert names(to_remove(images, Limits(max_bytes=39))) == ["b"]
    assert names(to_remove(images, Limits(max_bytes=15))) == ["b", "c", "a"]


def test_an_image_from_the_future_is_not_old() -> None:
    assert to_remove([image("future", age_d=-100)], Limits(older_than_s=0)) == ()


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        st.integers(0, 99).map(lambda number: Path(str(number))),
        st.integers(0, 100),
        st.floats(-1e6, 1e6),
        st.floats(0, 1e6),
        st.booleans(),
        st.booleans(),
    )
)


@given(CANDIDATES, st.none() | st.floats(0, 1e6), st.booleans(), st.none() | st.integers(0, 1000))
def test_what_is_needed_stays_whatever_the_options(
    images: list[Candidate], older_than_s: float | None, unused: bool, max_bytes: int | None
) -> None:
    going = to_remove(images, Limits(older_than_s, unused, max_bytes))
    assert not any(gone.needed for gone in going)
    assert not (unused and any(gone.used for gone in going))
    left = sum(image.size_bytes for image in images) - sum(gone.size_bytes for gone in going)
    if max_bytes is not None and going:
        assert left + going[-1].size_bytes > max_bytes
