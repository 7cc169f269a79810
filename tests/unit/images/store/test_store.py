"""Stored images are found by name, digest and path, with no engine; and which ones pruning takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pytest

from runner.cli.importer import command as importer
from runner.core import files, ownership, process_identity
from runner.core.errors import InfrastructureError, UsageError
from runner.core.files import key_of
from runner.images.store import owners, store, stored_image
from runner.images.store.store import Candidate, Limits, to_remove
from runner.images.store.stored_image import BrokenSidecar, StoredImage, file_name
from runner.preparation.choices import pin
from tests.support.squashfs import SUPERBLOCK, published
from tests.support.users import ALICE, AS_ROOT, BOB, CAROL, GROUP, open_directory, outcome_as, run_as

NAME, DIGEST = "gpu-runner/x:standin", "sha256:" + "c" * 64


def put(directory: Path, reference: str = NAME, letter: str = "c") -> StoredImage:
    return published(b"hsqs", directory, reference, letter)


def test_an_image_is_known_by_every_name_until_it_is_deleted(tmp_path: Path) -> None:
    image = put(tmp_path)
    assert image.path.name == f"gpu-runner+x+standin-cccccccccccc-{image.sha256[:8]}.sqsh"
    assert [path.name for path in tmp_path.glob(".*")] == []
    with_digest = (f"gpu-runner/x@{DIGEST}", f"{NAME}@{DIGEST}", f"docker://other.io#mirror/x@{DIGEST}")
    for name in (NAME, f"docker://{NAME}", DIGEST, str(image.path), *with_digest):
        assert store.lookup(name, tmp_path) == image
    assert store.by_key(image.key, tmp_path) == image
    assert store.lookup("gpu-runner/x:other", tmp_path) is None
    assert store.lookup(f"{NAME}@{DIGEST[:-1]}0", tmp_path) is None
    image.path.unlink()
    assert store.lookup(DIGEST, tmp_path) is None


def test_a_name_knows_when_its_source_last_confirmed_it(tmp_path: Path) -> None:
    image = put(tmp_path)
    long_ago = time.time() - 10_000
    for ref in (tmp_path / "refs").iterdir():
        os.utime(ref, (long_ago, long_ago))
    assert store.confirmed_at(NAME, tmp_path) == pytest.approx(long_ago)
    store.confirm(NAME, image)
    assert (store.confirmed_at(f"docker://{NAME}", tmp_path) or 0) > long_ago + 9_000
    assert store.confirmed_at(DIGEST, tmp_path) == pytest.approx(long_ago)
    assert store.confirmed_at("gpu-runner/x:other", tmp_path) is None
    assert store.confirmed_at(str(image.path), tmp_path) is None


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_sidecar_is_as_private_as_its_squashfs_and_holds_all_that_is_known(tmp_path: Path, mode: int) -> None:
    made = tmp_path / ".partial"
    made.write_bytes(b"hsqs")
    made.chmod(mode)
    image = StoredImage(path=tmp_path / "x.sqsh", reference="x:1", environment={"A": "x y", "B": "ü\n"}, entries=3)
    assert store.lookup("x:1", tmp_path) is None
    assert store.publish(made, image) == store.lookup("x:1", tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("x.sqsh*")} == {mode}


def test_the_newest_conversion_of_a_name_is_meant(tmp_path: Path) -> None:
    old, new = put(tmp_path), put(tmp_path, letter="f")
    assert store.lookup(NAME, tmp_path) == new
    assert store.lookup(DIGEST, tmp_path) == old
    store.refer(NAME, old)  # the name moves back
    assert store.lookup(NAME, tmp_path) == old


def test_the_same_image_in_other_bytes_is_another_file() -> None:
    """Two hosts with other tools that convert at once: each sidecar stays beside its own bytes."""
    assert file_name("x:1", DIGEST, "a" * 64) != file_name("x:1", DIGEST, "b" * 64)
    assert len(file_name("x/" * 300, DIGEST, "a" * 64)) < 200


def test_a_sweep_takes_what_the_dead_left_and_nothing_else(tmp_path: Path) -> None:
    image = put(tmp_path)
    alive = process_identity.mark()
    dead = alive.rpartition(".")[0] + ".1"
    kept = [
        f".k1.partial~{alive}.0",
        f".k2.partial~{alive}.0",
        f"refs/.abc~{alive}.0",
        ".k1.claim",
        ".strange",
        ".k2.claim",
    ]
    swept = [f".k1.partial~node9{alive}.0", f".k2.partial~{dead}.0", f"refs/.abc~{dead}.0", ".k1.lock"]
    for name in (*kept, *swept):
        (tmp_path / name).touch()
    renamed = f".k3.partial~{dead}.0"
    (tmp_path / renamed).mkdir(mode=0o755)
    (tmp_path / renamed / "results").touch()
    fixed = f".k1.partial~{dead}.0"
    (tmp_path / fixed).mkdir(mode=0o700)
    (tmp_path / fixed / "image").touch()
    (tmp_path / fixed / f".abc~{dead}.1").touch()
    emptied = f".k4.partial~{dead}.0"
    (tmp_path / emptied / "image").mkdir(parents=True)
    (tmp_path / emptied).chmod(0o700)
    private = f".k5.partial~{dead}.0"
    (tmp_path / private).mkdir(mode=0o700)
    (tmp_path / private / "paper~draft").touch()
    store.sweep("k1", tmp_path)
    assert {path.name for path in tmp_path.rglob(".*")} == {renamed, private, *(Path(name).name for name in kept)}
    assert (tmp_path / private / "paper~draft").exists(), "another user may rename what this one has there"
    assert (tmp_path / renamed / "results").exists(), "what others may enter was not made under this name"
    assert store.lookup(DIGEST, tmp_path) == image


def test_names_that_were_moved_here_from_another_store_stand_for_no_other_image(tmp_path: Path) -> None:
    """As a stranger can move what this user has in a store of theirs: it is still this user's."""
    good, evil = put(tmp_path), published(b"hsqs-evil", tmp_path, "x:evil", "f")
    index = "sha256:" + "1" * 64  # of several platforms: only the name's file has it
    store.confirm(index, good)
    names = (NAME, DIGEST, index)
    assert [store.lookup(name, tmp_path) for name in names] == [good] * 3
    (tmp_path / "refs" / key_of(index)).write_text(f"{good.path.name}\n{index}\n")
    assert store.lookup(index, tmp_path) is None, "an earlier version's says not which bytes it means"
    store.confirm(index, good)
    for path in (evil.path, stored_image.sidecar_path(evil.path)):
        path.rename(tmp_path / path.name.replace(evil.path.name, good.path.name))
    assert store.lookup(str(good.path)) == msgspec.structs.replace(evil, path=good.path)
    assert [store.lookup(name, tmp_path) for name in names] == [None] * 3
    assert store.by_key(good.key, tmp_path) is None


def test_an_image_is_removed_with_all_its_names(tmp_path: Path) -> None:
    image, other = put(tmp_path), put(tmp_path, "y:1", "f")
    store.remove(image.path)
    assert store.everything(tmp_path) == (other,)
    assert set(store.names_of_store(tmp_path).values()) == {other.path.name}


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


def test_what_is_in_the_making_is_written_past_a_directory_that_another_member_put_in_its_place(tmp_path: Path) -> None:
    shared, private = tmp_path / "store", tmp_path / "id_rsa"
    shared.mkdir()
    shared.chmod(0o2775)
    private.write_text("private")
    with store.partial("k", shared) as made:
        [directory] = shared.glob(".k.partial*")
        directory.rename(shared / "kept")
        directory.mkdir()
        (directory / "image").symlink_to(private)
        subprocess.run(["tee", made], input=b"hsqs", stdout=subprocess.DEVNULL, check=True)
        image = store.publish(made, StoredImage(path=shared / "x.sqsh", reference="x:1"))
    assert private.read_text() == "private"
    assert image.path.read_bytes() == b"hsqs"


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_what_others_put_in_a_files_place_gives_them_no_right_to_a_private_file(tmp_path: Path, link: str) -> None:
    shared, private = tmp_path / "store", tmp_path / "id_rsa"
    shared.mkdir()
    shared.chmod(0o2775)
    private.touch(0o600)
    planted = shared / "planted"
    planted.symlink_to(private) if link == "symbolic" else planted.hardlink_to(private)
    (shared / "own").touch(0o600)
    for path in (planted, shared / "own"):
        owners.share(path, shared)
    assert private.stat().st_mode & 0o777 == 0o600
    assert (shared / "own").stat().st_mode & 0o777 == 0o644
    if link == "symbolic":
        image = StoredImage(path=tmp_path / "x.sqsh", reference="x:1")
        with pytest.raises(InfrastructureError, match="Too many levels of symbolic links"):
            store.publish(planted, image)
        assert not os.path.lexists(image.path)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A group's store of root, where each member replaces and removes what is that member's own."""
    with open_directory() as place:
        directory = place / "store"
        directory.mkdir()
        os.chown(directory, 0, GROUP)
        directory.chmod(0o3775)
        yield directory


def member(uid: int, call: Callable[..., Any], *arguments: Any) -> Any:
    return run_as(uid, call, *arguments, groups=(GROUP,))


@AS_ROOT
@pytest.mark.parametrize("mode", [0o1777, 0o3775])
def test_a_strangers_name_for_an_image_that_is_believed_is_a_strangers(
    shared: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_STORE", str(shared))
    shared.chmod(mode)
    published(SUPERBLOCK, shared, "lab/own:1")
    image = member(ALICE, published, SUPERBLOCK, shared, "lab/old:1", "b")
    for directory, name in (("refs", "x:named"), (f"refs.{BOB}", "x:elsewhere")):
        if directory != "refs":
            member(BOB, (shared / directory).mkdir)
        member(BOB, (shared / directory / key_of(name)).write_text, f"{image.path.name}\n{name}\n")
        pinned = member(ALICE, pin, name, "squashfs")
        assert (pinned.planned.path, pinned.problem, pinned.owner) == (str(image.path), "", f"user {BOB}")
        get = partial(importer.main, ["--store", str(shared), "get", f"docker://{name}"], standalone_mode=False)
        assert f"user {BOB} put it there" in outcome_as(ALICE, get).what
    assert [member(ALICE, pin, name, "squashfs").owner for name in ("lab/own:1", "lab/old:1")] == ["", ""]


@AS_ROOT
def test_a_strangers_closed_sidecar_takes_no_name_away(shared: Path) -> None:
    image = member(ALICE, put, shared)
    stored_image.sidecar_path(image.path).chmod(0)
    assert member(BOB, store.lookup, NAME, shared) is None
    assert "cannot be read" in outcome_as(ALICE, store.lookup, NAME, shared).what, "it is her own"


@AS_ROOT
def test_what_is_not_there_while_its_owner_is_looked_at_is_believed_of_no_one(tmp_path: Path) -> None:
    """A stranger takes a file away for that moment, or what a link of theirs leads to."""
    image = put(tmp_path)
    assert store.stranger(image) == ""
    away = tmp_path / "away"
    for gone in (image.path, stored_image.sidecar_path(image.path)):
        gone.rename(away)
        assert store.stranger(image) == "another user"
        gone.symlink_to("nothing")
        os.chown(gone, BOB, BOB, follow_symlinks=False)
        assert store.stranger(image) == f"user {BOB}"
        gone.unlink()
        away.rename(gone)
    foreign = tmp_path / "plain.sqsh"
    foreign.write_bytes(SUPERBLOCK)
    assert store.stranger(StoredImage(path=foreign, reference=str(foreign))) == "", "it has no sidecar"


@AS_ROOT
def test_who_made_a_groups_directory_of_names_gives_no_name_another_meaning(shared: Path) -> None:
    member(BOB, (shared / "refs").mkdir)
    (shared / "refs").chmod(0o2775)
    image = member(ALICE, put, shared)
    other = member(ALICE, put, shared, "x:other", "f")
    for path in (shared / "refs").iterdir():
        member(BOB, path.unlink)
    member(BOB, (shared / "refs" / key_of(NAME)).write_text, f"{other.path.name}\n{NAME}\n")
    assert member(ALICE, store.lookup, NAME, shared) == image
    assert member(CAROL, store.lookup, "x:other", shared) == other, "all members' names are found"


@AS_ROOT
def test_a_link_in_place_of_the_names_leads_into_no_directory_of_this_users(shared: Path) -> None:
    private = shared.parent / "private"
    private.mkdir()
    os.chown(private, ALICE, ALICE)
    member(BOB, (shared / "refs").symlink_to, private)
    image = member(ALICE, put, shared)
    assert [*private.iterdir()] == []
    assert member(ALICE, store.lookup, NAME, shared) == image
    results = private / "results"
    member(ALICE, results.write_text, f"{image.path.name}\n")
    member(BOB, (shared / "refs.b").mkdir)
    (shared / "refs.b").chmod(0o777)
    member(BOB, (shared / "refs.b/results").write_text, f"{image.path.name}\n")
    member(ALICE, store.remove, image.path)
    assert results.exists()
    assert (shared / "refs.b/results").exists(), "by now it could be a link to hers"


@AS_ROOT
@pytest.mark.parametrize("left", ["directory", "link"])
def test_a_store_that_is_closed_again_keeps_its_names_in_no_directory_that_a_stranger_left(
    shared: Path, left: str
) -> None:
    os.chown(shared, ALICE, ALICE)
    shared.chmod(0o1777)
    hers = shared.parent / "hers"
    hers.mkdir()
    os.chown(hers, CAROL, CAROL)
    run_as(CAROL, (shared / "refs").mkdir) if left == "directory" else run_as(CAROL, (shared / "refs").symlink_to, hers)
    first = run_as(ALICE, put, shared)
    shared.chmod(0o755)
    assert run_as(ALICE, store.lookup, DIGEST, shared) == first, "by the names of that time"
    run_as(ALICE, store.check_writable, shared)
    image = run_as(ALICE, put, shared, NAME, "f")
    assert not list((shared / "refs").iterdir())
    assert [run_as(user, store.lookup_and_stranger, NAME, shared) for user in (ALICE, BOB)] == [(image, "")] * 2


@AS_ROOT
def test_a_closed_store_keeps_names_of_its_owner_of_who_is_trusted_and_of_who_is_unknown(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS without names, and in a container, where root may look so."""
    shared.chmod(0o755)
    for of_store, of_names, trust, unmapped, kept in (
        (CAROL, CAROL, "", None, True),
        (ALICE, CAROL, "", None, False),
        (ALICE, CAROL, str(CAROL), None, True),
        (ALICE, 65534, "", 65534, True),
        (65534, 65534, "", None, True),
    ):
        names = shared / "refs"
        names.mkdir(exist_ok=True)
        os.chown(shared, of_store, of_store)
        os.chown(names, of_names, of_names)
        monkeypatch.setenv("RUNNER_TRUST", trust)
        monkeypatch.setattr(ownership, "unmapped_user", lambda unmapped=unmapped: unmapped)
        assert run_as(ALICE, store._is_kept, names, shared) == kept, (of_store, of_names)


@AS_ROOT
def test_a_store_in_which_all_can_exchange_files_is_refused_or_not_believed(shared: Path) -> None:
    image = put(shared)
    os.chown(shared, ALICE, ALICE)
    shared.chmod(0o777)
    refused = outcome_as(ALICE, store.lookup, DIGEST, shared)
    assert "the image store is everybody's to write to (no sticky bit)" in refused.what
    assert f"chmod +t {shared}" in refused.fix
    assert run_as(BOB, store.lookup, DIGEST, shared) is None
    shared.chmod(0o1777)
    assert [run_as(user, store.lookup, DIGEST, shared) for user in (ALICE, BOB)] == [image] * 2


@AS_ROOT
@pytest.mark.parametrize("appears", ["directory", "link"])
def test_a_directory_of_names_that_a_stranger_makes_at_the_same_time_gets_none(
    shared: Path, appears: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, private, lexists = shared / "refs", shared.parent / "private", os.path.lexists
    private.mkdir()

    def stranger_is_quick(path: Path) -> bool:
        there = lexists(path)
        if path == names and not there:
            names.mkdir() if appears == "directory" else names.symlink_to(private)
            os.chown(names, BOB, BOB, follow_symlinks=False)
            (private if appears == "link" else names).joinpath("his").touch()
        return there

    monkeypatch.setattr(os.path, "lexists", stranger_is_quick)
    image = put(shared)
    assert [path.name for path in names.iterdir()] == ["his"]
    assert store.lookup(DIGEST, shared) == image


@AS_ROOT
def test_a_name_is_written_again_where_another_members_directory_took_the_place_of_an_empty_one(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, write = shared / "refs", files.write

    def member_is_quick(path: Path, content: bytes, *, mode: int | None = None) -> None:
        if names.exists() and names.stat().st_uid != BOB:
            names.rmdir()
            names.mkdir()
            os.chown(names, BOB, BOB)
        write(path, content, mode=mode)

    monkeypatch.setattr(files, "write", member_is_quick)
    image = put(shared)
    assert store.lookup_and_stranger(NAME, shared) == (image, "")


def test_what_another_member_exchanges_for_a_new_file_is_not_opened_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, share, opened = tmp_path, owners.share, []
    (shared / "private").mkdir(mode=0o700)
    (shared / "id_rsa").touch(0o600)
    shared.chmod(0o2775)

    def exchanged(path: Path, directory: Path) -> None:
        mine = shared / ("private" if path.is_dir() else "id_rsa")
        exchanges = bool(path.parent.stat().st_mode & 0o020) and mine.exists()
        if exchanges:
            path.rename(shared / f"away-{path.name}")
            mine.rename(path)
        share(path, directory)
        if exchanges and path.stat().st_mode & 0o077:
            opened.append(mine.name)

    monkeypatch.setattr(owners, "share", exchanged)
    with store.partial("k", shared) as made:
        made.write_bytes(b"hsqs")
        made.chmod(0o666)  # as by a default ACL
        image = store.publish(made, StoredImage(path=shared / "x.sqsh", reference=NAME, digest=DIGEST))
    assert opened == []
    assert store.lookup(NAME, shared) == image
    assert (shared / "refs").stat().st_mode & 0o7777 == 0o2775
    assert {path.stat().st_mode & 0o777 for path in (*shared.glob("refs/*"), *shared.glob("x.sqsh*"))} == {0o644}


def test_what_another_member_puts_in_place_of_the_directory_in_the_making_is_not_removed(tmp_path: Path) -> None:
    shared, results = tmp_path / "store", tmp_path / "store/results"
    (results / "thesis").mkdir(parents=True)
    shared.chmod(0o2775)
    with store.partial("k", shared) as made:
        made.touch()
        [directory] = shared.glob(".k.partial*")
        directory.rename(shared / "kept")
        results.rename(directory)
    assert (directory / "thesis").exists()
    assert [*(shared / "kept").iterdir()] == []


def test_what_cannot_be_written_says_where_to(tmp_path: Path) -> None:
    image = put(tmp_path)
    (tmp_path / "refs").rename(tmp_path / "away")
    (tmp_path / "refs").touch()
    with pytest.raises(InfrastructureError, match="cannot write to the image store") as caught:
        store.refer("x:2", image)
    assert "--store DIR" in caught.value.fix


def test_a_store_may_be_moved(tmp_path: Path) -> None:
    name = put(tmp_path / "a").path.name
    (tmp_path / "a").rename(tmp_path / "b")
    image = store.lookup(NAME, tmp_path / "b")
    assert image is not None
    assert image.path == tmp_path / "b" / name


def test_a_foreign_squashfs_is_taken_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "foreign.sqsh"
    assert store.lookup(str(path)) is None
    path.write_bytes(b"hsqs")
    assert store.lookup(str(path)) == StoredImage(path=path, reference=str(path), size_bytes=4)


ENDLESS = f'{{"path": "x", "reference": "x", "size_bytes": {10**400}}}'


@pytest.mark.parametrize("text", ["{", '{"x":' * 100_000, ENDLESS], ids=["cut", "nested without end", "large"])
def test_a_broken_sidecar_says_what_to_do(tmp_path: Path, text: str) -> None:
    Path(f"{put(tmp_path).path}.json").write_text(text)
    assert isinstance(store.everything(tmp_path)[0], BrokenSidecar)
    with pytest.raises(InfrastructureError, match="sidecar") as caught:
        store.lookup(DIGEST, tmp_path)
    assert "convert the image again" in caught.value.fix


def test_holes_of_terabytes_in_place_of_small_files_fill_no_memory(tmp_path: Path) -> None:
    image = put(tmp_path)
    (tmp_path / "b.sqsh").touch()
    for path in (tmp_path / "refs" / key_of("b:1"), tmp_path / "b.sqsh.json"):
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
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RUNNER_STORE", raising=False)
    assert store.directory() == tmp_path / "cache" / "images"
    monkeypatch.setenv("RUNNER_STORE", str(tmp_path))
    assert store.directory() == tmp_path
    monkeypatch.setenv("RUNNER_STORE", "~no-user-of-that-name/x")
    for look in (store.directory, lambda: store.lookup("~no-user-of-that-name/x.sqsh", tmp_path)):
        with pytest.raises(UsageError, match="no home directory"):
            look()


def test_what_is_no_reference_is_passed_over(tmp_path: Path) -> None:
    image = put(tmp_path)
    ref = tmp_path / "refs" / key_of(NAME)
    outside = tmp_path.parent / "outside.sqsh"
    for content in (b"", b"\xff\xfe", b"a\0b", b"../outside.sqsh", str(outside).encode(), b"gone.sqsh", b"x" * 300):
        ref.write_bytes(content)
        assert store.lookup(NAME, tmp_path) is None
    ref.unlink()
    os.mkfifo(ref)
    assert store.lookup(NAME, tmp_path) is None
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
    strangers = [each.path.name for each in store.everything(tmp_path) if isinstance(each, BrokenSidecar)]
    assert strangers == ["directory.sqsh", "fifo.sif", "loop.sqsh", "sidecar.sqsh"]
    assert image in store.everything(tmp_path)


def test_what_may_not_be_read_hides_no_other_image_and_is_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, private = put(tmp_path / "s"), put(tmp_path / "s", "y:1", "f")
    open_named = files.open_named

    def denied(path: Path) -> BinaryIO:
        if path.name.startswith(private.path.name):
            raise PermissionError(13, "Permission denied", str(path))
        return open_named(path)

    monkeypatch.setattr(files, "open_named", denied)
    why = "a file of the image store cannot be read: Permission denied"
    assert store.everything(tmp_path / "s") == (image, BrokenSidecar(private.path, why))
    assert store.everything(tmp_path / "absent") == ()
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="cannot be read"):
        store.everything(tmp_path / "file")


DAY_S = 86400.0


def candidate(name: str, *, age_d: float = 10, idle_d: float = 5, used: bool = True, needed: bool = False) -> Candidate:
    return Candidate(Path(name), 10, age_d * DAY_S, idle_d * DAY_S, used, needed)


BY_AGE = (candidate("old", used=False), candidate("new", age_d=1, used=False), candidate("used"),
          candidate("held", needed=True), candidate("future", age_d=-100))  # fmt: skip
BY_SIZE = (candidate("a", idle_d=1), candidate("b", idle_d=9), candidate("c", idle_d=3),
           candidate("d", idle_d=20, needed=True))  # fmt: skip


@pytest.mark.parametrize(
    ("images", "limits", "removed"),
    [
        (BY_AGE, Limits(older_than_s=0), "new old used"),
        (BY_AGE, Limits(older_than_s=5 * DAY_S), "old used"),
        (BY_AGE, Limits(unused=True), "new old"),
        (BY_AGE, Limits(older_than_s=5 * DAY_S, unused=True), "old"),
        (BY_SIZE, Limits(max_bytes=40), ""),
        (BY_SIZE, Limits(max_bytes=39), "b"),
        (BY_SIZE, Limits(max_bytes=15), "b c a"),
        (BY_SIZE, Limits(max_bytes=0), "b c a"),
        (BY_AGE, Limits(unused=True, max_bytes=0), "new old"),
    ],
)
def test_all_limits_must_hold_and_the_longest_idle_go_first(
    images: tuple[Candidate, ...], limits: Limits, removed: str
) -> None:
    assert " ".join(str(image.path) for image in to_remove(images, limits)) == removed
