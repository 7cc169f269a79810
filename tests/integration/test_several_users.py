"""Three users, by their real rights, and one image store: the second is served, and no one can speak for another."""

import grp
import io
import json
import os
import pwd
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from gpu_runner_inside import serve
from gpu_runner_inside.launcher import caches, places

from runner import api, cli
from runner.backends import LEFTOVERS
from runner.box import lifecycle
from runner.box.root import location
from runner.cli import remote
from runner.cli.batch_script import is_batch_script, run_script
from runner.cli.importer import command as importer
from runner.cli.rerun import _field
from runner.core import files, lock, ownership, paths, process_identity
from runner.core.errors import Exit
from runner.core.package_directory import PackageDirectory, PackageFile
from runner.core.progress import Silent
from runner.environments import collect, make
from runner.environments import directory as environments
from runner.environments.script import EnvironmentSpec, PackagesSpec
from runner.figures.bundle import making
from runner.figures.compare.references import default_file
from runner.figures.report import gather, writing
from runner.images import editing, engine
from runner.images import reference as references
from runner.images.building import apptainer, wheels
from runner.images.conversion import squashfs
from runner.images.conversion.squashfs import convert_source
from runner.images.packing.mksquashfs import Source
from runner.images.packing.rootfs import Config
from runner.images.sources import archives, blobs, credentials
from runner.images.sources.credentials import Login
from runner.images.sources.registry import Registry
from runner.images.store import integrity, owners, store, stored_image
from runner.images.store.store import Limits
from runner.images.store.stored_image import StoredImage
from runner.images.writable_root import tree_image
from runner.jobs import campaign, code_record, creation, directory, logs, lookup, mirror, scripts, seals, states
from runner.jobs import collect as collected
from runner.jobs.cost import last_sign_s
from runner.jobs.creation import check_place
from runner.jobs.directory import Run
from runner.jobs.expected import one_gpu_of
from runner.jobs.image_usage import prune_images
from runner.jobs.service import check_kernels
from runner.model.image import INPUTS_LABEL, Environment, ImageFacts, Setup
from runner.model.job import CodeRecord, CommandLine, JobState, SchedulerRecord, Submitted, Sweep
from runner.model.request import Mount, Request
from runner.preparation.choices import pin
from runner.preparation.environment import prepare_environment
from runner.preparation.expectation import expectation
from runner.preparation.job import prepare
from runner.preparation.new_recipe import new_recipe, write_recipe
from runner.preparation.request import check_directory, check_foreign, make_request, record_of
from runner.preparation.snapshot import snapshot_of
from runner.recipes import loader
from runner.recipes.loader import read_recipe
from runner.sites.loader import read_config, read_site, set_value
from runner.study import chain, readers, run
from runner.study import directory as studies
from tests.support import odd_image
from tests.support.daemons import Daemons
from tests.support.evidence import start
from tests.support.measured_runs import measured_run as measured_launch
from tests.support.ordinary_user import probe
from tests.support.package_directories import collected as collected_packages
from tests.support.reports import measured_run, whole_study
from tests.support.repositories import git, repository
from tests.support.shell_files import library, stand_in
from tests.support.squashfs import SUPERBLOCK, published
from tests.support.studies import left_run, measured, on_disk, study
from tests.support.users import ALICE, AS_ROOT, BOB, CAROL, GROUP, become, killed_as, open_directory, outcome_as, run_as

pytestmark = [
    pytest.mark.integration,
    AS_ROOT,
    pytest.mark.skipif(not shutil.which("mksquashfs"), reason="squashfs-tools are not installed"),
]
DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
LAUNCHER = Path(__file__).parents[2] / "recipes/lib"
SHELL = Path(remote.__file__).parents[1]
SHOW = "import os; print(os.environ['XDG_CACHE_HOME']); open(os.environ['XDG_CACHE_HOME'] + '/mine', 'w')"


@pytest.fixture
def place() -> Iterator[Path]:
    with open_directory() as directory:
        # Python's modules are read once by root: the others may not be able to read them.
        convert(image(directory), directory / "first")
        with lock.leased(directory / "first/lease", print):
            store.sweep("k", directory / "first")
        prune_images(directory / "first", Limits(max_bytes=0), dry_run=False)
        yield directory


def image(place: Path, name: str = "x/y:1", digest: str = DIGEST) -> Source:
    tree = place / f"tree-{digest[-1]}"
    tree.mkdir(exist_ok=True)
    (tree / "file").write_text(digest)
    return tree_image(tree, name, digest, "2026-01-01T00:00:00Z", Config(environment={"A": "1"}))


def convert(source: Source, target: Path) -> tuple[bool, Path, str]:
    done = convert_source(source, Silent(), store_dir=target)
    assert not integrity.problem(done.image)
    return done.made, done.image.path, done.moved_from


def verified(target: Path) -> list[str]:
    return [integrity.verified(each).broken for each in store.everything(target) if isinstance(each, StoredImage)]


def pruned(target: Path) -> list[Path]:
    os.environ.update(RUNNER_STATE=str(target.parent / "no-state"), HOME=str(target.parent))
    return [each.path for each in prune_images(target, Limits(max_bytes=0), dry_run=False).removed]


def looked_up(name: str, target: Path) -> tuple[Path, str] | None:
    """The image's file as this user finds and reads it, and whose it is where that is to be known."""
    known = store.lookup(name, target)
    if known is None:
        return None
    assert known.path.read_bytes()[:4] == b"hsqs"
    return known.path, store.stranger(known)


@pytest.mark.parametrize("mode", [0o2775, 0o3775])
def test_a_groups_store_serves_all_of_the_group(place: Path, mode: int) -> None:
    target = store_of(place, ALICE, mode, GROUP)
    first, second = image(place), image(place, "x/z:1", OTHER)
    made, path, _ = run_as(ALICE, convert, first, target, umask=0o077, groups=(GROUP,))
    assert made
    assert run_as(BOB, convert, first, target, groups=(GROUP,)) == (False, path, "")
    for user in (ALICE, BOB):
        assert [run_as(user, looked_up, name, target, groups=(GROUP,)) for name in NAMES] == [(path, "")] * 2
    made, other, _ = run_as(BOB, convert, second, target, umask=0o077, groups=(GROUP,))
    assert made
    assert run_as(ALICE, looked_up, "x/z:1", target, groups=(GROUP,)) == (other, f"user {BOB}")
    assert run_as(ALICE, looked_up, OTHER, target, groups=(GROUP,)) is None, "Bob does not vouch for a digest to others"
    assert run_as(BOB, looked_up, OTHER, target, groups=(GROUP,)) == (other, "")
    assert run_as(CAROL, looked_up, DIGEST, target) == (path, ""), "a reader needs no group"
    moved = image(place, "x/y:1", OTHER)
    assert run_as(BOB, convert, moved, target, groups=(GROUP,))[2] == DIGEST
    assert path.stat().st_uid == ALICE
    assert {each.stat().st_gid for each in target.rglob("*")} == {GROUP}


def test_a_store_that_anybody_could_make_has_no_owner_to_believe(place: Path) -> None:
    target, shared = store_of(place, CAROL, 0o755), owned(place / "shared", 0, 0o1777)
    path = run_as(CAROL, convert, image(place), target)[1]
    run_as(CAROL, os.symlink, target, shared / "link")

    def both(at: Path) -> list[object]:
        return [run_as(ALICE, looked_up, name, at, groups=(ALICE, GROUP)) for name in NAMES]

    others = f"user {CAROL}"
    assert both(target) == [(path, "")] * 2, "an administrator has given it to that user"
    assert both(shared / "link") == [(shared / "link" / path.name, others), None]
    place.chmod(0o1777)
    assert both(target) == [(path, others), None]
    hers = owned(place / "open to all", CAROL, 0o1777)
    source, lines = image(place), list[str]()
    progress: Any = SimpleNamespace(step=lambda *_: None, moved=lambda *_: None, line=lines.append)
    own, [line, *_] = run_as(ALICE, lambda: (convert_source(source, progress, store_dir=hers).image.path, lines))
    assert "no digest is believed" in line
    assert both(hers) == [(own, others), None], "who made the store may exchange it"
    os.chown(target, CAROL, GROUP)
    assert both(target) == [(path, others), None], "which may have its group from another place"
    for at in (owned(owned(place / "carols", CAROL, 0o777) / "alices", ALICE), shared / "link"):
        os.chown(target, ALICE, ALICE)
        assert "the image store is" in outcome_as(ALICE, convert, image(place), at).what, "it could be exchanged"
    assert "the image store is" in outcome_as(ALICE, looked_up, DIGEST, shared / "link").what
    for change in (pruned, verified):
        assert "the image store is" in outcome_as(ALICE, change, shared / "link").what
    assert run_as(ALICE, pruned, target) == [], "it is hers by its own name"


def test_a_store_that_a_user_beside_its_owner_may_exchange_is_not_used(place: Path) -> None:
    target, closed = store_of(place, BOB, 0o755), owned(place / "closed", CAROL)
    path = run_as(BOB, convert, image(place), target)[1]
    run_as(CAROL, os.symlink, target, closed / "link")
    assert [run_as(ALICE, looked_up, name, at) for at in (target, closed / "link") for name in NAMES] == [
        *[(path, "")] * 2, (closed / "link" / path.name, f"user {BOB}"), None,
    ], "she may lead it elsewhere"  # fmt: skip
    os.chown(target, ALICE, ALICE)
    for at in (closed / "link", owned(closed / "hers", ALICE, 0o777)):
        refused = outcome_as(ALICE, convert, image(place), at)
        assert f"below {closed}, which is user {CAROL}'s" in refused.what
        assert f"RUNNER_TRUST={CAROL}" in refused.fix
    assert "the image store is" in outcome_as(ALICE, verified, closed / "link").what


def test_an_archive_of_another_user_names_nothing_but_itself(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STORE", str(store_of(place, ALICE, 0o755)))

    def converted(reference: str) -> StoredImage:
        return squashfs.convert(reference, squashfs.Options(), Silent()).image

    file, reference = owned(place / "carols", CAROL) / "tool.tar", "nvcr.io/nvidia/pytorch:25.02-py3"
    file.write_bytes(odd_image.archive(DIGEST, [], {}))
    assert "is not an image reference" in outcome_as(ALICE, converted, f"docker-archive:{file}").what
    labels = {INPUTS_LABEL: "those of a build"}
    file.write_bytes(odd_image.archive(reference, [], {"Labels": {**labels, "a": "b"}}))
    os.chown(file, CAROL, CAROL)
    assert f"user {CAROL}'s" in outcome_as(ALICE, converted, f"docker-archive:{file}").what
    image = run_as(ALICE, converted, f"docker-archive:{file}:{reference}")
    assert (image.reference, image.labels) == (reference, {"a": "b"})


def test_no_strangers_link_gives_a_private_image_to_a_store(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one in a layout or a store; nor what takes an archive's place before another program reads it."""
    target, scratch = store_of(place), owned(place / "scratch", 0, 0o1777)
    home = owned(owned(place / "homes", 0, 0o711) / "alices", ALICE, 0o711)
    monkeypatch.setenv("RUNNER_STORE", str(target))
    monkeypatch.setenv("RUNNER_CACHE", str(home / "cache"))
    (archive := home / "saved.tar").write_bytes(odd_image.archive("my/own:1", [], {}))
    layout, private = owned(home / "layout", ALICE), run_as(ALICE, convert, image(place), home / "store")[1]
    blob = owned(owned(scratch / "hers", CAROL) / "blobs", CAROL) / "x"
    for name, at in (("index.json", layout), ("oci-layout", layout)):
        (at / name).write_text("{}")
    for each in (home, *home.rglob("*")):
        os.chown(each, ALICE, ALICE)
    for link, its in (
        (scratch / "link", layout), (scratch / "link.tar", archive), (blob, archive), (target / "x.sqsh", private),
    ):  # fmt: skip
        run_as(CAROL, os.symlink, its, link)

    packages = PackageDirectory(scratch / "hers", collected_packages(place / "packages"))

    def converted(reference: str) -> str:
        return squashfs.convert(reference, squashfs.Options(), Silent()).image.reference

    def edited(path: Path) -> None:
        with editing.writable_copy(StoredImage(path=path, reference="x/y:1"), Silent()):
            pass

    for call, given, link in (
        (converted, f"oci:{scratch}/link", scratch / "link"),
        (converted, f"oci-archive:{scratch}/link.tar", scratch / "link.tar"),
        (converted, f"docker-archive:{scratch}/link.tar:my/own:1", scratch / "link.tar"),
        (lambda name: archives._in_directory(scratch / "hers")(name)(), "blobs/x", blob),
        (lambda name: packages.content(PackageFile(name, "", 1)), "blobs/x", blob),
        (edited, target / "x.sqsh", target / "x.sqsh"),
    ):  # fmt: skip
        outcome = outcome_as(ALICE, call, given)
        assert (outcome.what, outcome.where) == ("this is another user's link", str(link))
    assert [*target.iterdir()] == [target / "x.sqsh"]
    run_as(ALICE, os.symlink, archive, scratch / "own.tar")
    run_as(ALICE, edited, private)
    assert run_as(ALICE, converted, f"docker-archive:{scratch}/own.tar") == "my/own:1"
    shutil.copy(archive, hers := scratch / "hers/its.tar")
    os.chown(hers, CAROL, CAROL)
    assert "Apptainer reads it later" in outcome_as(ALICE, apptainer.base, f"docker-archive:{hers}:my/own:1", None).what
    assert run_as(ALICE, apptainer.base, f"docker-archive:{archive}", None).path == archive


def test_what_is_beside_a_configuration_of_a_place_that_all_write_to_is_no_strangers(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CONFIG", str(owned(place / "here", 0, 0o1777) / "mine.yaml"))
    for owner in (CAROL, ALICE):
        (owned(place / "here/sites", owner) / "ours.yaml").touch()
        os.chown(place / "here/sites/ours.yaml", owner, owner)
        assert len(run_as(ALICE, paths.configured, "sites/*.yaml")) == (owner == ALICE)
        shutil.rmtree(place / "here/sites")
    (place / "here/mine.yaml").symlink_to(owned(place / "home", ALICE) / ".profile")  # not there
    os.lchown(place / "here/mine.yaml", CAROL, CAROL)
    assert "these settings are another user's" in outcome_as(ALICE, set_value, "account", "x").what
    assert not (place / "home/.profile").exists()


def test_no_stranger_who_listens_here_serves_an_image_or_takes_a_login(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = "HTTP/1.0 401 no\r\nWWW-Authenticate: Basic realm=x\r\n\r\n"
    serves = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
        f"while True:\n c = s.accept()[0]; print(c.recv(999), flush=True); c.sendall({answers.encode()!r}); c.close()"
    )
    monkeypatch.setattr(credentials, "find", lambda _: Login("alice", "her-password"))
    for user, said in ((CAROL, "no trusted user listens"), (ALICE, "login")):
        words = [*become(user), "/usr/bin/python3", "-c", serves]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            asked = references.parse(f"127.0.0.1:{port}/x/y:1")
            what = outcome_as(ALICE, lambda at=asked: Registry(at, print).resolve("1")).what
            child.terminate()
            asked_for = child.stdout.read()
            assert said in what
            assert ("Authorization" in asked_for, "manifests" in asked_for) == (user == ALICE,) * 2


def test_where_only_owners_replace_each_user_has_names_of_his_own(place: Path) -> None:
    target, source = store_of(place), image(place)
    made, hers, _ = run_as(ALICE, convert, source, target)
    assert made
    before = [(each, each.stat().st_ino, each.stat().st_mtime_ns) for each in target.rglob("*") if each.is_file()]
    assert run_as(BOB, looked_up, "x/y:1", target) == (hers, f"user {ALICE}")
    assert run_as(BOB, looked_up, DIGEST, target) is None
    made, his, _ = run_as(BOB, convert, source, target)
    assert made, "what only Alice vouches for is made again"
    assert (his.name, his.stat().st_uid) == (f"{hers.stem}-u{BOB}.sqsh", BOB)
    for user, path in ((ALICE, hers), (BOB, his)):
        assert [run_as(user, looked_up, name, target) for name in NAMES] == [(path, "")] * 2
        assert run_as(user, convert, source, target) == (False, path, "")
    for each, inode, mtime in before:
        assert each.stat().st_ino == inode
        assert each.stat().st_mtime_ns == mtime or each.parent.name == "refs"


def test_no_image_file_is_used_where_another_than_its_owner_could_exchange_it(place: Path) -> None:
    """Nor with a description beside it by who could; of another user's own it is said whose it is, or he is named."""
    hers = owned(place / "hers", CAROL, 0o1777)
    for name, owner in (("alices.sqsh", ALICE), ("carols.sqsh", CAROL)):
        (hers / name).write_bytes(SUPERBLOCK)
        os.chown(hers / name, owner, owner)
    beside = stored_image.sidecar_path(hers / "alices.sqsh")
    for _ in range(2):
        assert f"which is user {CAROL}'s" in run_as(ALICE, pin, str(hers / "alices.sqsh"), "squashfs").problem
        about = StoredImage(path=hers / "alices.sqsh", reference="x:1", size_bytes=len(SUPERBLOCK), sha256="a" * 64)
        beside.write_bytes(msgspec.json.encode(about, enc_hook=str))
        os.chown(beside, CAROL, CAROL)
    assert not run_as(ALICE, pin, str(hers / "carols.sqsh"), "squashfs").problem


def test_a_store_that_the_second_may_not_write_to_says_so_before_the_work(place: Path) -> None:
    target = store_of(place, ALICE, 0o755)
    _, path, _ = run_as(ALICE, convert, image(place), target)
    assert run_as(BOB, convert, image(place), target) == (False, path, ""), "what is there is good for all"
    for closed in (target, target / "refs"):
        if closed != target:
            target.chmod(0o1777)
        outcome = outcome_as(BOB, convert, image(place, "x/z:1", OTHER), target)
        assert "you may not write to this image store" in outcome.what
        assert f"belongs to user {ALICE} (mode 755)" in outcome.what
        assert outcome.where == str(closed)
        assert "--store DIR" in outcome.fix
        assert not list(target.glob(".*")), "nothing was begun"


def test_a_dead_claim_of_another_user_holds_up_no_one(place: Path) -> None:
    target = store_of(place)
    claim = target / ".k.claim"

    def die_holding(die: Callable[[], None]) -> None:
        with lock.leased(claim, print):
            die()

    killed_as(ALICE, die_holding)
    assert claim.stat().st_uid == ALICE

    def hold() -> tuple[list[str], float]:
        began = time.monotonic()
        with lock.leased(claim, print, limit_s=20):
            store.sweep("k", target)
            return sorted(each.name for each in target.glob(".k.claim*")), time.monotonic() - began

    held, seconds = run_as(BOB, hold)
    assert held == [".k.claim", f".k.claim.{BOB}"]
    assert seconds < 10
    assert [each.name for each in target.glob(".k.*")] == [".k.claim"]
    assert run_as(ALICE, hold)[0] == [".k.claim"], "its owner clears it away"
    assert not list(target.glob(".*"))


def test_no_user_vouches_for_a_digest_or_key_to_another(place: Path) -> None:
    target = store_of(place, ALICE, 0o1777)
    source = image(place)
    _, good, _ = run_as(ALICE, convert, source, target)
    key = (stored_image.read_sidecar(good) or StoredImage(path=good, reference="")).key

    def plant() -> None:
        evil = target / "evil.sqsh"
        shutil.copy(good, evil)
        known = stored_image.read_sidecar(good)
        assert known is not None
        stored_image.write_sidecar(msgspec.structs.replace(known, path=evil, digest=OTHER, origin=DIGEST, key="b" * 24))
        for name in (OTHER, DIGEST, "b" * 24, key, "x/y:1"):
            planted = target / "refs" / files.key_of(name)
            with suppress(OSError):
                planted.with_name(f"{planted.name}.{CAROL}").write_text(f"evil.sqsh\n{name}\n")
            with suppress(OSError):
                planted.write_text(f"evil.sqsh\n{name}\n")
            later = time.time() + 1e6
            os.utime(planted.with_name(f"{planted.name}.{CAROL}"), (later, later))

    run_as(CAROL, plant)
    for user in (0, ALICE, BOB):
        assert run_as(user, looked_up, OTHER, target) is None
        assert run_as(user, lambda: store.by_key("b" * 24, target)) is None
        assert run_as(user, looked_up, DIGEST, target) == (good, "")
        assert run_as(user, looked_up, "x/y:1", target) == (good, ""), "who is believed comes first"
        assert run_as(user, lambda: getattr(store.by_key(key, target), "path", None)) == good
    assert run_as(BOB, convert, source, target) == (False, good, "")


@pytest.mark.parametrize("taken", [False, True])
def test_who_made_the_directory_of_names_gives_no_name_back_to_an_earlier_image(place: Path, taken: bool) -> None:
    target = store_of(place, ALICE, 0o1777)

    def put(letter: str) -> Path:
        return published(b"hsqs", target, "x/y:1", letter).path

    def exchange(before: str, after: str) -> None:
        for path in target.glob(f"refs*/{before}*"):
            with suppress(PermissionError):
                path.rename(path.with_name(path.name.replace(before, after, 1)))

    for name in ("refs", *([f"refs.{BOB}"] if taken else [])):
        run_as(CAROL, (target / name).mkdir)
        (target / name).chmod(0o1777)
    first = run_as(BOB, put, "a")
    run_as(CAROL, exchange, "", "old-")
    last = run_as(BOB, put, "b")
    assert run_as(BOB, looked_up, "x/y:1", target) == (last, "") != (first, "")
    run_as(CAROL, exchange, "old-", "")
    assert run_as(BOB, looked_up, "x/y:1", target) == (last, "")
    assert run_as(ALICE, looked_up, "x/y:1", target)[0] == last, "others find it, with a warning"


def test_links_to_what_others_vouch_for_give_no_new_names(place: Path) -> None:
    target = store_of(place, ALICE, 0o1777)
    run_as(ALICE, convert, image(place), target)
    ref, new = (target / "refs" / files.key_of(name) for name in (DIGEST, OTHER))
    run_as(CAROL, os.symlink, ref, new)
    assert run_as(BOB, looked_up, OTHER, target) is None
    new.unlink()
    os.link(ref, new)  # as any user can where the kernel does not protect hard links (fs.protected_hardlinks)
    assert new.stat().st_uid == ALICE
    assert run_as(BOB, looked_up, OTHER, target) is None


def test_a_sidecar_that_another_user_puts_beside_a_file_says_nothing(place: Path) -> None:
    target = store_of(place)
    path = target / "mine.sqsh"

    def own_file() -> None:
        path.write_bytes(b"hsqs")

    def plant() -> None:
        known = StoredImage(path=path, reference="nvcr.io/nvidia/pytorch:1", digest=DIGEST, environment={"A": "evil"})
        stored_image.sidecar_path(path).write_bytes(msgspec.json.encode(known, enc_hook=str))

    run_as(BOB, own_file)
    run_as(CAROL, plant)
    known = run_as(BOB, store.lookup, str(path), target)
    assert known == StoredImage(path=path, reference=str(path), size_bytes=4)


def test_a_strangers_link_is_no_sidecar(place: Path) -> None:
    shared, hers = store_of(place), owned(place / "carols", CAROL)
    _, private, _ = run_as(ALICE, convert, image(place), owned(place / "private", ALICE, 0o700))
    for target in (shared, hers):
        path = target / "x.sqsh"
        path.write_bytes(b"hsqs")
        stored_image.sidecar_path(path).symlink_to(stored_image.sidecar_path(private))
        for owner, known in ((CAROL, ""), (ALICE, DIGEST)):
            for each in (path, stored_image.sidecar_path(path)):
                os.chown(each, owner, owner, follow_symlinks=False)
            (listed,) = run_as(ALICE, store.everything, target)
            assert getattr(listed, "digest", "") == known
            assert run_as(ALICE, store.lookup, str(path), target).digest == known


def test_what_belongs_to_others_is_neither_removed_nor_described_anew(place: Path) -> None:
    target = store_of(place)
    _, hers, _ = run_as(ALICE, convert, image(place), target)
    _, his, _ = run_as(BOB, convert, image(place, "x/z:1", OTHER), target)
    assert f"this image belongs to user {ALICE}" in outcome_as(BOB, store.remove, hers).what

    def verify() -> str:
        known = store.lookup(str(hers), target)
        assert known is not None
        return integrity.verified(msgspec.structs.replace(known, sha256="0" * 64)).broken

    assert "SHA-256" in run_as(BOB, verify)
    assert run_as(ALICE, looked_up, DIGEST, target) == (hers, "")

    target.chmod(0o777)  # also where he could
    shutil.copy(his, bare := target / "bare.sqsh")  # of which another user says what he likes
    os.chown(bare, BOB, BOB)
    shutil.copy(stored_image.sidecar_path(his), stored_image.sidecar_path(bare))
    os.chown(stored_image.sidecar_path(bare), ALICE, ALICE)
    assert run_as(BOB, pruned, target) == [his]
    bare.unlink()
    assert [each.name for each in target.glob("*.sqsh")] == [hers.name]


def test_what_a_stranger_puts_under_a_dead_processs_name_is_not_removed(place: Path) -> None:
    """It could hold what is this user's elsewhere, which the stranger may move, and not remove."""
    target = store_of(place)
    dead = f"{process_identity.mark().rsplit('.', 2)[0]}.{2**22}.1"
    for name, owner, mode in (("k", CAROL, 0o1777), ("l", ALICE, 0o777), ("m", ALICE, 0o700)):
        owned(target / f".{name}~{dead}", owner, mode)
        (owned(target / f".{name}~{dead}/results", ALICE, 0o700) / "thesis").touch()
        os.chown(target / f".{name}~{dead}/results/thesis", ALICE, ALICE)
    for key in (None, "k"):
        run_as(ALICE, store.sweep, key, target)
        assert sorted(each.name[:2] for each in target.glob(".*")) == [".k", ".l", ".m"]
    assert len([*target.rglob("thesis")]) == 3


@pytest.fixture
def tmp(place: Path) -> Path:
    """A node's /tmp that all users see."""
    path = place / "tmp"
    path.mkdir()
    path.chmod(0o1777)
    return path


def test_the_importer_serves_no_image_of_a_stranger(place: Path) -> None:
    target = store_of(place)
    run_as(ALICE, convert, image(place), target)

    def served() -> object:
        return importer.main(["--store", str(target), "get", "docker://x/y:1"], standalone_mode=False)

    outcome = outcome_as(BOB, served)
    assert f"user {ALICE} put it there" in outcome.what
    assert run_as(ALICE, served) == Exit.GOOD
    os.chown(target, ALICE, ALICE)
    assert run_as(BOB, served) == Exit.GOOD


def node_place(first: Path) -> str:
    """Where the launcher makes its directory on a node; ``first``: TMPDIR."""
    return next(places.safe_places((str(first), "/tmp")))


def owned(path: Path, owner: int, mode: int = 0o755) -> Path:
    path.mkdir(parents=True)
    os.chown(path, owner, owner)
    path.chmod(mode)
    return path


@pytest.fixture
def state(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Alice's list of runs."""
    monkeypatch.setenv("RUNNER_STATE", str(place / "state"))
    return owned(place / "state", ALICE, 0o700)


@pytest.mark.usefixtures("state")
def test_no_run_is_made_where_a_stranger_could_exchange_its_script(place: Path) -> None:
    for number, (owner, mode, whose) in enumerate(((CAROL, 0o777, "user"), (0, 0o777, "everybody"))):
        for at in (None, owned(place / f"at{number}", owner, mode)):
            root = place / f"runs{number}" if at is not None else owned(place / f"runs{number}", owner, mode)
            outcome = outcome_as(ALICE, creation.create, root, "x", 0.0, at)
            assert f"this directory is {whose}" in outcome.what
            assert not list((at or root).iterdir())
    for mode in (0o1777, 0o755, 0o2775):
        root = owned(place / f"good{mode}", 0 if mode == 0o1777 else ALICE, mode)
        assert run_as(ALICE, lambda at: creation.create(at, "x", 0.0).path.parent, root) == root


@pytest.mark.usefixtures("state")
def test_no_run_is_made_below_a_strangers_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = owned(owned(place / "carols", CAROL, 0o1777) / "runs", ALICE)
    outcome = outcome_as(ALICE, creation.create, root, "x", 0.0)
    assert f"below {root.parent}, which is user" in outcome.what
    assert not list(root.iterdir())

    own, link = owned(place / "own", ALICE), place / "carols/link"
    link.symlink_to(own)
    assert "which is user" in outcome_as(ALICE, creation.create, root, "x", 0.0, link).what
    assert not list(own.iterdir())

    def is_made() -> bool:
        made = creation.create(root, "x", 0.0)
        states.ensure_own(made)
        return made.path.parent == root

    root = owned(owned(place / "closed", CAROL, 0o755) / "runs", ALICE)
    assert "which is user" in outcome_as(ALICE, is_made).what, "he can open it again"
    os.chown(root.parent, CAROL, ALICE)
    assert "which is user" in outcome_as(ALICE, is_made).what, "of the group that all have at the login"
    monkeypatch.setenv("RUNNER_TRUST", f"an-unknown-name,{CAROL}")
    assert run_as(ALICE, is_made), "an account of the site, by its name"
    monkeypatch.delenv("RUNNER_TRUST")
    os.chown(root.parent, 900, 900)
    assert run_as(ALICE, is_made), "an account of the system"
    os.chown(root.parent, CAROL, GROUP)
    with monkeypatch.context() as patch:
        patch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=ALICE))
        assert run_as(ALICE, is_made, groups=(GROUP,)), "a project's directory is its leader's"

    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("RUNNER_CACHE", str(owned(place / "cache", ALICE)))
    monkeypatch.chdir(owned(place / "work", ALICE))
    for mode, what in ((0o755, "you may not write to"), (0o777, f"below {place}/hers{0o777}, which is user")):
        hers = owned(place / f"hers{mode}", CAROL, mode)
        asked = {"gpus": 1, "arguments": ("true",), "site": "local", "runtime": "native", "runs": f"{hers}/runs"}
        outcome = outcome_as(ALICE, prepare, make_request(asked))
        assert what in outcome.what and "--runs" in outcome.fix and "make it" not in outcome.fix


@pytest.mark.usefixtures("state")
def test_a_link_of_ones_own_list_leads_to_no_strangers_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = owned(place / "runs", ALICE)
    run_id = run_as(ALICE, lambda: creation.create(root, "x", 0.0).run_id)
    of_study = run_as(ALICE, lambda: on_disk(root, study(gpus=(1,), repeats=1)).path)
    for name in ("job.sh", "job.json"):
        (root / run_id / name).touch()

    def counts() -> tuple[int, ...]:
        return len(lookup.matching_runs(run_id)[0]), len([*directory.linked()]), len(studies.ids())

    for owner, expected in ((ALICE, (1, 1, 1)), (CAROL, (0, 0, 0))):
        for path in (root / run_id, of_study):
            os.chown(path, owner, owner)
        assert run_as(ALICE, counts) == expected
    assert not run_as(ALICE, directory.is_linked, Run(root / run_id))
    place.chmod(0o1777)
    os.chown(root, CAROL, CAROL)
    monkeypatch.setattr(directory, "own_run", lambda _link: Run(root / run_id))  # it was, when that was looked at
    assert not run_as(ALICE, directory.is_linked, Run(root / run_id))


def test_what_a_stranger_put_where_ones_own_run_lay_is_no_run(
    place: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it another one of the user's, which `cancel @1` would end."""
    os.chown(state, 0, 0)
    hers, scratch = owned(place / "hers", 0), place / "scratch"
    kept, gone = (creation.create(root, "x", 0.0).path for root in (hers, scratch))
    sweeps = [studies.create_sweep(root, "x", Sweep({}, CommandLine((), "/")), 0.0).path for root in (hers, scratch)]
    for path in (hers, scratch, state):
        subprocess.run(["chown", "-RPh", f"{ALICE}:{ALICE}", path], check=True)
    assert run_as(ALICE, lambda: len([*directory.linked()])) == 2
    assert run_as(ALICE, lambda: len(studies.ids(directory.SWEEP))) == 2
    shutil.move(scratch, place / "purged")
    owned(scratch, CAROL)
    for link, target in ((gone, kept), (scratch / sweeps[1].name, sweeps[0])):
        link.symlink_to(target)
        os.chown(link, CAROL, CAROL, follow_symlinks=False)

    def known() -> tuple[object, ...]:
        return [run.path for run in directory.linked()], studies.ids(directory.SWEEP), studies.find_sweep("7")

    assert run_as(ALICE, known) == ([kept], (sweeps[0].name,), None)
    assert "another user's link" in outcome_as(ALICE, lookup.find, gone.name).what
    gone.unlink()
    shutil.copytree(kept, gone)
    os.chown(gone, CAROL, CAROL)
    monkeypatch.setattr(directory, "is_own", lambda _path: True)  # as it was when that was looked at
    assert run_as(ALICE, known)[0] == [kept]


def test_a_strangers_run_names_no_directory_of_ones_own(place: Path, state: Path) -> None:
    os.chown(state, 0, 0)
    hers, theirs = owned(place / "hers", 0, 0o700), owned(place / "theirs", CAROL)
    asked = study(gpus=(1,), repeats=1)
    own = left_run(on_disk(hers, asked), asked.launches[0].key).path
    strangers = Run(owned(theirs / "20260101-000000-x-1", CAROL))
    (theirs / "link").symlink_to(own)
    for path in (theirs, hers, state):
        subprocess.run(["chown", "-RPh", f"{CAROL if path == theirs else ALICE}", path], check=True)

    def read_by_alice(at: Path) -> tuple[str, str, Path | None]:
        job = Submitted("local", "7.7.7ea6bc94", "", "", 0.0, place=str(at), allocation=str(at))
        began = start(0, environment={"RUNNER_RUN_DIR": str(at)})
        for name, record in ((directory.JOB, job), ("ranks/0.start.json", began)):
            run_as(CAROL, files.write, strangers.path / name, msgspec.json.encode(record))
        submitted = run_as(ALICE, lambda: Run(strangers.path).submitted)
        return submitted.place, submitted.allocation, run_as(ALICE, lambda: Run(strangers.path).launched_as)

    run_as(CAROL, strangers.ranks.mkdir)
    unknown = strangers.path / "launches" / own.parent.name / strangers.run_id
    assert read_by_alice(own) == ("", "", unknown)
    assert read_by_alice(theirs / "link")[:2] == ("", "")
    for at in (theirs, place / "gone"):
        assert read_by_alice(at)[:2] == (str(at),) * 2, "of the same owner, or moved away since"
    elsewhere = Path("/gone/x/launches/g0001-full-r1") / own.name
    assert read_by_alice(elsewhere)[2] == elsewhere
    os.chown(strangers.path, ALICE, ALICE)
    assert run_as(ALICE, lambda: Run(strangers.path).launched_as) == elsewhere


@pytest.mark.usefixtures("state")
def test_a_strangers_run_shows_no_file_of_ones_own(place: Path) -> None:
    private = owned(place / "private", ALICE, 0o700) / "rank-0.err"
    private.write_text("RuntimeError: of Alice alone\n")
    shutil.chown(private, ALICE, ALICE)
    run = Run(owned(place / "run", CAROL))
    (run.path / "logs").mkdir()
    (run.path / "logs/rank-0.err").symlink_to(private)

    def read_of_logs() -> str:
        lines = collected._lines(run, "logs/rank-0.err")
        return f"{lines} {logs.last_output(run)} {logs.log_files(run, logs.Selection())}"

    assert run_as(ALICE, read_of_logs) == "[] None ()"
    job = Submitted("slurm", "5", "", "", 1.0, record=SchedulerRecord(JobState("ended", "FAILED"), output=str(private)))
    run_as(CAROL, files.write_private, run.path / directory.JOB, msgspec.json.encode(job).decode())
    (run.path / directory.JOB).chmod(0o644)
    for user in (CAROL, ALICE):
        os.chown(private, user, user)
        text = f"{run_as(ALICE, lambda: scripts.end_of(run, job, JobState('ended')).lines)}"
        assert ("Alice" in text, "Alice" in run_as(ALICE, read_of_logs)) == (user == CAROL,) * 2
    (run.path / directory.JOB).unlink()
    shutil.rmtree(run.logs)
    run.logs.symlink_to(private.parent)
    assert "Alice" not in run_as(ALICE, read_of_logs)
    (run.path / directory.SCRIPT).symlink_to(private)
    private.with_name("0.exit.json").write_text('{"rank": 0}')
    run.ranks.symlink_to(private.parent)
    for name in (run.logs, run.ranks):
        os.chown(name, CAROL, CAROL, follow_symlinks=False)
    assert run_as(ALICE, lambda: (last_sign_s(run), files.Folder(run.ranks).newest_s())) == (0.0, 0.0)
    assert run_as(ALICE, files.Folder(private.parent).newest_s) > 0

    def read_of_records() -> tuple[object, ...]:
        return run.content(directory.SCRIPT), gather._script(run), run.records.record(0, "exit", dict)

    assert run_as(ALICE, read_of_records) == (b"", "", None)


def test_a_private_file_that_was_moved_into_a_strangers_run_is_not_shown(place: Path) -> None:
    run = Run(owned(place / "run", CAROL))
    (run.path / "logs").mkdir()
    script, log = (run.path / name for name in (directory.SCRIPT, "logs/rank-0.err"))
    for path in (script, log):
        path.write_text("of Alice alone")

    def read_by_alice(mode: int, group: int) -> tuple[bytes, str, bool]:
        for path in (script, log):
            os.chown(path, ALICE, group)
            path.chmod(mode)
        call = logs.LogFile(log, 0, Run(run.path)).open
        is_shown = not outcome_as(ALICE, lambda: call().close()).what
        return *run_as(ALICE, lambda: (run.content(directory.SCRIPT), gather._script(run))), is_shown

    text = "of Alice alone"
    for mode, group in ((0o600, CAROL), (0o640, ALICE)):
        assert read_by_alice(mode, group) == (b"", "", False)
    for mode, group in ((0o644, ALICE), (0o640, CAROL)):
        assert read_by_alice(mode, group) == (text.encode(), text, True), "its owner may read it"
    os.chown(run.logs, ALICE, ALICE)
    for mode, is_shown in ((0o755, True), (0o700, False)):
        run.logs.chmod(mode)
        assert read_by_alice(0o644, ALICE)[2] is is_shown, "a closed directory is so with what is in it"
        assert run_as(ALICE, lambda: files.Folder(run.path).names_in("logs")) == {*(("rank-0.err",) * is_shown)}
    run.write("request.json", {})
    os.chown(run.path / "request.json", CAROL, CAROL)
    outcome = outcome_as(ALICE, Run(run.path).read, "request.json", dict)
    assert "this run is another user's, and this file of it closed to you" in outcome.what
    os.chown(run.path, ALICE, ALICE)
    run = Run(run.path)
    assert read_by_alice(0o600, ALICE) == (text.encode(), text, True), "a run of her own"


def test_what_others_put_into_a_directory_that_all_may_write_to_makes_it_no_run_of_its_owners(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = owned(place / "train", ALICE, 0o1777)
    (at / "ranks").mkdir()
    names = (directory.SCRIPT, "plan.json", "ranks/0.exit.json")
    for owner in (ALICE, CAROL):
        for name in names:
            (at / name).write_text("{}")
            os.chown(at / name, owner, owner)
        os.chown(at / "ranks", owner, owner)
        contents = run_as(ALICE, lambda: [Run(at).content(name) for name in names])
        assert contents == [b"{}" if owner == ALICE else b""] * len(names)
    monkeypatch.chdir(place)
    for mode, meant in ((0o1777, ()), (0o755, (at,))):
        at.chmod(mode)
        assert run_as(ALICE, lookup.places_of, "train", place / "none") == meant
        assert run_as(ALICE, lookup.places_of, "./train", place / "none") == (at,)


def test_to_prepare_a_strangers_request_again_runs_nothing_of_his(place: Path) -> None:
    asked, hers = Request(gpus=2, directory=str(place)), Run(owned(place / "run", CAROL))
    for name, path in (("site", owned(place / "sites", CAROL) / "x.yaml"), ("env_name", owned(place / "env", CAROL))):
        if name == "site":
            path.touch()
            os.chown(path, CAROL, CAROL)
        request = msgspec.structs.replace(asked, **{name: str(path)})
        assert f"this is user {CAROL}'s" in outcome_as(ALICE, check_foreign, request, {}, hers).what
        away = msgspec.structs.replace(request, **{name: str(place / "comes-and-goes")})
        assert "not there any more" in outcome_as(ALICE, check_foreign, away, {}, hers).what
        for each in (path, *([path.parent] if name == "site" else [])):
            os.chown(each, ALICE, ALICE)
        assert "a copy of that user's" in outcome_as(ALICE, check_foreign, request, {}, hers).what
        run_as(ALICE, check_foreign, request, {name: ""}, hers)


def test_a_strangers_request_names_no_host_file_or_recipe_but_that_users(place: Path) -> None:
    hers, own = (Run(owned(place / name, owner)) for name, owner in (("run", CAROL), ("copy", ALICE)))
    for name in ("hostfile", "recipe"):
        private, shared = owned(place / name, ALICE, 0o700), owned(place / f"hers-{name}", CAROL)
        asked = msgspec.structs.replace(Request(gpus=2, directory=str(place)), **{name: str(private)})
        refused = outcome_as(ALICE, check_foreign, asked, {}, hers)
        assert (refused.where, refused.fix) == (f"--{name} {private}", f"--{name} {private}, if you mean it")
        run_as(ALICE, check_foreign, asked, {name: ""}, hers)
        run_as(ALICE, check_foreign, msgspec.structs.replace(asked, **{name: str(shared)}), {}, hers)
        (shared / "link").symlink_to(shared)
        os.chown(shared / "link", CAROL, CAROL, follow_symlinks=False)
        linked = msgspec.structs.replace(asked, **{name: f"{shared}/link"})
        assert "the user whose request names it" in outcome_as(ALICE, check_foreign, linked, {}, hers).what
        assert bool(outcome_as(ALICE, check_foreign, asked, {}, own).what) == (name == "hostfile"), "hers may be a copy"
        run_as(ALICE, partial(check_foreign, own=True), asked, {}, own)


def test_a_strangers_request_brings_a_program_that_is_not_of_it_no_code_of_his(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hers, own = (Run(owned(place / name, owner)) for name, owner in (("run", CAROL), ("own", ALICE)))
    asked = Request(gpus=1, nodes=1, program=("python3", "x.py"), directory=str(hers.path), account="team", queue="q")
    changed = {"arguments": ("python3", f"{place}/own/x.py")}
    ways: dict[str, tuple[Any, str, Any, str]] = {
        "env": ((("PYTHONPLATLIBDIR", "../home/carol"), ("B", None)), "--env PYTHONPLATLIBDIR --env B", 0, "env"),
        "mounts": ((Mount("/home/carol/p", "/usr/lib/python3"),), "--mount /usr/lib/python3", 0, "mount"),
        "modules": (("/home/carol/m",), "--module /home/carol/m", 0, "module"),
        "options": ((("checkpoint", "/home/alice/.bashrc"),), "--set checkpoint", 0, "set"),
        "scheduler_options": ((("mem", "1"), ("export", "A=1")), "--scheduler-option export", 1, "scheduler-option"),
        "image": ("/home/carol/x.sif", "--image /home/carol/x.sif", None, "image"),
        "scratch": ("/home/carol", "--scratch /home/carol", None, "scratch"),
        "project": ("carols", "--project carols", None, "project"),
        "field": ("a/../b", "--field a/../b", None, "field"),
        "hosts": (("carol@n1", "n2"), "--hosts carol@n1,n2", None, "hosts"),
        "snapshot": (True, "--snapshot True", None, "snapshot"),
    }
    refused = outcome_as(ALICE, check_foreign, asked, changed, hers)  # python3 -m x.py would be his
    assert "a program of yours would start in that user's directory" in refused.what
    run_as(ALICE, check_foreign, replace_program(asked), {}, hers)
    for field, (value, named, first, option) in ways.items():
        given = msgspec.structs.replace(asked, **{field: value})
        request = replace_program(given)
        refused = outcome_as(ALICE, check_foreign, request, {}, hers)
        assert (refused.where, "another user's" in refused.what) == (f"{hers.path}: {named}", True)
        assert f"or --without {option}; RUNNER_TRUST={CAROL}, if you trust" in refused.fix
        assert _field(option) == field
        run_as(ALICE, check_foreign, request, {field: value if first is None else value[first:]}, hers)
        run_as(ALICE, check_foreign, given, {}, hers)  # she has named his program, whatever it imports
        run_as(ALICE, check_foreign, given, changed, own)
    recipe = msgspec.structs.replace(asked, program=(), recipe="probe", arguments=("--out", "/home/alice/x"))
    refused = outcome_as(ALICE, check_foreign, recipe, {}, hers)
    assert refused.where.endswith(": -- ...") and "--without arguments;" in refused.fix
    monkeypatch.setenv("RUNNER_TRUST", str(CAROL))
    run_as(ALICE, check_foreign, recipe, {}, hers)


def test_what_a_stranger_left_in_an_own_directory_that_is_closed_now_says_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings and a recipe; and of the list of runs a directory that is open still."""
    own = owned(place / "exp", ALICE)
    for name in ("mine.yaml", "recipe.yaml"):
        (own / name).touch()
        os.chown(own / name, CAROL, CAROL)
    assert "another user's" in outcome_as(ALICE, paths.check_settings, own / "mine.yaml").what
    assert f"user {CAROL}'s" in outcome_as(ALICE, loader.directory_of, "exp", place).what
    for name in ("mine.yaml", "recipe.yaml"):
        os.chown(own / name, ALICE, ALICE)
    run_as(ALICE, paths.check_settings, own / "mine.yaml")
    run_as(ALICE, loader.directory_of, "exp", place)
    monkeypatch.setenv("RUNNER_STATE", str(owned(place / "state", ALICE, 0o700)))
    owned(place / "state/runs", ALICE, 0o777)
    assert "all may write" in outcome_as(ALICE, paths.state, "runs").what


def replace_program(request: Request) -> Request:
    return msgspec.structs.replace(request, program=(), recipe="probe")


def test_a_strangers_link_is_no_batch_script(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script := owned(place / "private", ALICE, 0o700) / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --gpus=1\n")
    os.chown(script, ALICE, ALICE)
    monkeypatch.setenv("RUNNER_STATE", str(owned(place / "state", ALICE, 0o700)))
    check = partial(run_script, check=True, as_json=False)
    check([str(script)], {}, ())  # reads Python's modules
    for owner in (CAROL, ALICE):
        (link := owned(place / f"of-{owner}", owner) / "job.sbatch").symlink_to(script)
        os.chown(link, owner, owner, follow_symlinks=False)
        outcome = outcome_as(ALICE, check, [str(link)], {}, ())
        assert outcome.what == ("this is another user's link" if owner == CAROL else "")


def test_a_directory_that_is_another_users_since_is_not_submitted_from_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scratch is purged, and anybody may make the name again."""
    place.chmod(0o1777)
    owned(place / "project", ALICE)
    (place / "project/train.py").touch()
    os.chown(place / "project/train.py", ALICE, ALICE)
    here = Request(gpus=2, directory=str(place / "project"))
    above = msgspec.structs.replace(here, directory=str(place))
    of_words = [
        ("python3", "project/train.py"),
        ("python3", "-m", "project.train"),
        ("python3", f"--code={place}/project/train.py"),
        ("x=project,.",),
    ]
    others = [msgspec.structs.replace(above, program=words) for words in of_words]
    of_words = [("bash", "-c", f"cd {place}/project && python3 train.py"), ("python3", f"-c{place}/project/train.py")]
    others += [msgspec.structs.replace(above, program=words) for words in of_words]
    monkeypatch.setenv("OF_PLACE", str(place))
    others.append(msgspec.structs.replace(above, program=("bash", "-c", "cd $OF_PLACE/project && python3 train.py")))
    others.append(msgspec.structs.replace(above, program=("bash", "-c", f"python3 {place}/project/*.py")))
    others.append(msgspec.structs.replace(above, env=(("PYTHONPATH", f"/usr/lib:{place}/project"),)))
    others.append(msgspec.structs.replace(above, options=(("code", f"{place}/project/train.py"),)))
    others.append(msgspec.structs.replace(above, modules=(f"{place}/project/train.py",)))
    records = [run_as(ALICE, record_of, each, "s") for each in (here, *others)]
    (place / "ours.yaml").touch()
    os.chown(place / "ours.yaml", ALICE, ALICE)
    of_site = run_as(ALICE, record_of, above, str(place / "ours.yaml"))
    for record in (*records, of_site):
        run_as(ALICE, check_directory, record, "it")
    shutil.rmtree(place / "project")
    (place / "ours.yaml").unlink()
    for record in (*records[1:], of_site):
        assert outcome_as(ALICE, check_directory, record, "it").what.startswith("this is not there any more")
    (place / "ours.yaml").touch()
    os.chown(place / "ours.yaml", CAROL, CAROL)
    assert f"user {CAROL}'s" in outcome_as(ALICE, check_directory, of_site, "it").what
    for is_link in (False, True):
        if is_link:
            shutil.rmtree(place / "project")
            (place / "project").symlink_to(".")
            os.lchown(place / "project", CAROL, CAROL)
        else:
            os.chown(owned(place / "project", CAROL) / "..", 0, 0)
            (place / "project/train.py").touch()
        for record in records[: 1 if is_link else None]:
            what = outcome_as(ALICE, check_directory, record, "it").what
            assert f"user {CAROL}'s" in what and "since it was submitted" in what
    run_as(ALICE, check_directory, run_as(ALICE, record_of, here, "s"), "it")  # she chose it
    with monkeypatch.context() as away:  # it is there for one look, and not for the next
        away.setattr(Path, "stat", lambda path, **own: os.lstat(path) if own else None)
        gone = msgspec.structs.replace(here, directory=str(place / "away"))
        what = outcome_as(ALICE, check_directory, msgspec.structs.replace(records[0], request=gone), "it").what
    assert what.startswith("this is not there any more")
    os.chown(place / "project", ALICE, GROUP)
    os.chown(place, 0, GROUP)
    place.chmod(0o2775)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=GROUP, pw_name="alice"))
    record = run_as(ALICE, record_of, msgspec.structs.replace(here, directory=str(place)), "s", groups=(GROUP,))
    (words,) = record.of_others
    older = words.replace(
        f"({GROUP}) to write to, who may be anybody",
        f"to write to, who may be anybody: RUNNER_TRUST=@{GROUP} trusts them",
    )
    assert older != words
    run_as(ALICE, check_directory, msgspec.structs.replace(record, of_others=(older,)), "it", groups=(GROUP,))


def test_a_strangers_file_of_a_bare_name_is_no_batch_script(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(owned(place / "here", 0, 0o1777))
    for owner, is_script in ((CAROL, False), (ALICE, True)):
        for name in ("job", "python3"):
            Path(name).write_text("#!/bin/sh\n#SBATCH -N 1\n")
            os.chown(name, owner, owner)
        assert run_as(ALICE, is_batch_script, "job") == is_script
        assert not run_as(ALICE, is_batch_script, "python3"), "PATH has it"
        copied = outcome_as(ALICE, remote.check_working_directory, ("submit", "--name", "x", "job"))
        assert ("as a batch script" in copied.what) != is_script, "its copy on another machine would be alice's"


def test_a_directory_that_is_closed_to_this_user_is_no_obstacle_in_path(place: Path) -> None:
    owned(place / "closed", CAROL, 0o700)
    env = {"PATH": f"{place}/closed/bin:/usr/bin", "PYTHONPATH": f"{place}/closed"}
    others = run_as(ALICE, paths.for_other_machines, env)
    assert others == (env if not files.is_on_own_disk(place) else {"PATH": "/usr/bin", "PYTHONPATH": ""})


def test_no_strangers_name_changes_what_is_compared(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(owned(place / "here", CAROL, 0o755))
    for name in ("A1,A2", "s:lr=1"):
        owned(Path(name), CAROL, 0o755)
    monkeypatch.setenv("RUNNER_STATE", str(owned(place / "state", ALICE, 0o700)))
    for name, first in (("A1,A2", "A1"), ("s:lr=1", "s")):
        assert f'"{first}"' in outcome_as(ALICE, readers.side, name).what


def test_what_others_have_put_among_the_working_files_is_not_copied(place: Path) -> None:
    here = owned(place / "here", 0, 0o1777)
    own, others = ["train.py", "mine/net.py"], ["torch.py", "hers/x.py", "runs/20261129-010203-train-1/job.sh"]
    for name in (*own, *others):
        (here / name).parent.mkdir(exist_ok=True, parents=True)
        (here / name).touch()
        for each in (here / name, *(here / name).parents):
            if here in each.parents:
                os.chown(each, *(2 * (ALICE if name in own else CAROL,)))
    assert run_as(ALICE, remote._own, here, (*own, *others)) == own
    subprocess.run(["git", "-C", here, "init", "-q"], check=True)
    subprocess.run(["git", "-C", here, "add", *own, *others[:2]], check=True)
    subprocess.run(["chown", "-R", str(ALICE), here / ".git"], check=True)
    snapshot = run_as(ALICE, snapshot_of, Request(gpus=1, directory=str(here), program=("true",)))
    assert (snapshot.names, snapshot.others) == (("mine/net.py", "train.py"), ("hers/x.py", "torch.py"))
    os.chown(here, 0, ALICE)
    here.chmod(0o2775)  # all of the login's group may write
    assert run_as(ALICE, remote._own, here, (*own, *others)) == own
    os.chown(here / "runs", ALICE, ALICE)
    assert run_as(ALICE, remote._own, here, (*own, others[-1])) == own, "runs there are others"
    here.chmod(0o755)  # what is theirs was put there for them
    for kernels, copied in ((False, (*own, *others[:2])), (True, own)):
        assert run_as(ALICE, partial(remote._own, kernels=kernels), here, (*own, *others[:2])) == list(copied)


def test_a_strangers_directory_with_a_colon_in_its_name_is_not_ones_own_image_with_a_tag(place: Path) -> None:
    here = owned(place / "here", 0, 0o1777)
    own = owned(here / "base", ALICE)
    owned(here / "base:latest", CAROL)
    assert run_as(ALICE, archives._split, f"{own}:latest") == (own, "latest")


def test_an_engine_at_a_port_of_a_stranger_is_refused(place: Path) -> None:
    """It would get the logins of registries."""
    serves = (
        "from http.server import *\nclass A(BaseHTTPRequestHandler):\n def do_GET(s):\n"
        "  s.send_response(200); s.send_header('Content-Length', '22'); s.end_headers()\n"
        '  s.wfile.write(b\'{"ApiVersion": "1.43"}\')\n'
        "a = HTTPServer(('127.0.0.1', 0), A); print(a.server_port, flush=True); a.serve_forever()"
    )
    for user in (CAROL, ALICE):
        words = [*become(user), "/usr/bin/python3", "-c", serves]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            urls = (f"{host}:{port}" for host in ("tcp://127.0.0.1", "tcp://", "", "tcp://127.1", "TCP://0.0.0.0"))
            said = [outcome_as(ALICE, lambda at=url: str(engine.connect(at))).what for url in urls]
            child.terminate()
        assert all(("no trusted user listens" in what) == (user == CAROL) for what in said), said


def test_a_strangers_repository_above_is_not_ones_own(place: Path) -> None:
    (owned(place / "here", 0, 0o1777) / ".git").mkdir()
    (place / "here/.git/HEAD").write_text("ref: refs/heads/main\n")
    work = owned(place / "here/work", ALICE)
    for owner, top in ((ALICE, place / "here"), (CAROL, None)):
        os.chown(place / "here/.git", owner, owner)
        found = run_as(ALICE, code_record.repository_of, work)
        assert (found and found.top) == top
    os.chown(work, CAROL, CAROL)
    assert run_as(ALICE, code_record.repository_of, work).top == place / "here", "all of it is that user's"


def test_a_strangers_repository_is_read_through_no_link_of_his(place: Path) -> None:
    (private := owned(place / "private", ALICE, 0o700) / "key").write_text(key := "a" * 40)
    os.chown(private, ALICE, ALICE)

    def record(owner: int, name: str = "") -> CodeRecord:
        top = repository(place / f"{owner}{name.replace('/', '-')}", {"a.py": b"1\n"})
        git(top, "update-index", "--split-index", "--assume-unchanged", "a.py")
        for link in sorted((top / ".git").glob(name) if "*" in name else [top / ".git" / name] if name else []):
            link.unlink(missing_ok=True)
            link.symlink_to(private)
        for path in (top, *top.rglob("*")):
            os.chown(path, owner, owner, follow_symlinks=False)
        result: CodeRecord = run_as(ALICE, partial(code_record.code_record, with_diff=False), (), top)[0]
        return result

    assert record(CAROL).dirty is False
    for name in ("HEAD", "commondir", "config", "index", "sharedindex.*", "refs/heads/main"):
        refused = record(CAROL, name)
        assert "this is another user's link" in refused.problem and key not in repr(refused), name
    assert record(ALICE, "HEAD").commit == key, "of her own each link is followed"
    (place / f"{CAROL}/.git/objects/info/alternates").symlink_to(private)
    for each in (place / f"{CAROL}/.git/objects").glob("??"):
        shutil.rmtree(each)
    broken = run_as(ALICE, partial(code_record.code_record, with_diff=False), (), place / f"{CAROL}")[0]
    assert "git cannot read the repository" in broken.problem and key not in broken.problem


@pytest.mark.usefixtures("state")
def test_a_strangers_directory_or_link_is_no_run_by_a_bare_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, owner in (("123", CAROL), ("124", ALICE)):
        (owned(place / "here" / name, owner) / "job.sh").touch()
        (place / "here" / name / "job.json").touch()
    (place / "here/125").symlink_to("124")
    os.chown(place / "here/125", CAROL, CAROL, follow_symlinks=False)
    monkeypatch.chdir(place / "here")

    def meant(name: str) -> list[Path]:
        return [run.path for run in lookup.matching_runs(name)[0]]

    here = place / "here"
    given = ("123", "124", "125", "./123")
    assert [run_as(ALICE, meant, name) for name in given] == [[], [here / "124"], [], [here / "123"]]


def test_a_strangers_study_is_none_by_a_bare_name_and_leads_to_no_run_of_ones_own(
    place: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, here = study(gpus=(1,), repeats=1), owned(place / "here", 0, 0o1777)
    key = asked.launches[0].key
    os.chown(state, 0, 0)
    hers = on_disk(owned(place / "hers", 0), asked)
    left_run(hers, key)
    train = on_disk(here, asked)
    shutil.rmtree(train.path / "launches")
    (train.path / "launches").symlink_to(hers.path / "launches")
    for path, owner in ((place / "hers", ALICE), (state, ALICE), (train.path, CAROL)):
        subprocess.run(["chown", "-RPh", f"{owner}:{owner}", path], check=True)
    train.path.rename(here / "train")
    (here / "link").symlink_to(hers.path)
    os.chown(here / "link", CAROL, CAROL, follow_symlinks=False)
    subprocess.run(["chmod", "-R", "a+rwX", here / "train"], check=True)
    monkeypatch.chdir(here)
    assert run_as(ALICE, lambda: studies.find("train").path) == hers.path
    assert "another user's link" in outcome_as(ALICE, studies.find, "./link").what
    assert "another user's link" in outcome_as(ALICE, lookup.find, f"./link/launches/{key}/x").what
    for mode in (0o700, 0o711):
        assert "closed to you" in outcome_as(ALICE, lookup.find, str(owned(place / f"{mode}", CAROL, mode))).what
    assert len(run_as(ALICE, lambda: studies.find(str(hers.path)).runs(key))) == 1
    assert run_as(ALICE, lambda: studies.find("./train").runs(key)) == ()
    for call in (lambda: run.cancel(studies.find("./train")), lambda: run.resume(studies.find("./train"), *NO_ONE)):
        assert f"belongs to user {CAROL}" in outcome_as(ALICE, call).what


def test_a_copy_of_a_strangers_study_stays_one_when_it_goes_on(
    place: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(state, 0, 0)
    (site := owned(place / "hers", 0) / "site.yaml").write_text("name: s\nextends: local\n")
    request = make_request({"gpus": 1, "site": str(site), "arguments": ("true",)}, site.parent)
    asked = study(gpus=(1,), repeats=1, request=record_of(request, str(site)))
    with monkeypatch.context() as patch:
        patch.setenv("RUNNER_STATE", str(place / "of the stranger"))
        copy = on_disk(site.parent, asked)
    left_run(copy, asked.launches[0].key, measured(1.0), noted=False)
    subprocess.run(["chown", "-R", f"{ALICE}:{ALICE}", site.parent, state], check=True)
    for _ in range(2):
        of = studies.StudyDirectory(copy.path, asked)
        resumed = outcome_as(ALICE, run.resume, of, run.How(), SimpleNamespace(say=str), None)
        assert "this is yours, and may be a copy of that user's" in resumed.what


def test_a_servers_files_are_below_what_stays_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a name in /tmp is free once the job has ended, while what it started may go on."""
    monkeypatch.delenv("TMPDIR", raising=False)
    kept = Path(run_as(ALICE, serve._kept, Path("/nowhere")))
    try:
        assert kept.parent.name.startswith(f"gpu-runner-{ALICE}")
        assert [each.stat().st_mode & 0o777 for each in (kept, kept.parent)] == [0o700] * 2
    finally:
        kept.rmdir()


@pytest.mark.usefixtures("state")
def test_a_strangers_run_starts_no_program_of_his_and_gets_no_file(place: Path) -> None:
    path, clients = owned(place / "20260101-000000-x-1", CAROL, 0o777), owned(place / "bin", CAROL)
    copied = owned(place / "copy/lib/bin", ALICE)
    record = Submitted("slurm", "7", str(clients), "", 0.0)
    for call in (states.clients_of, states.connected):
        for each in (record, msgspec.structs.replace(record, clients=str(copied))):
            assert "are not root's alone" in outcome_as(ALICE, call, Run(path), each).what
    of_root = msgspec.structs.replace(record, clients="/usr/bin")
    assert run_as(ALICE, states.clients_of, Run(path), of_root) == Path("/usr/bin").resolve()
    asked, errors = run_as(ALICE, lambda: [len(each) for each in states.query([(Run(path), record)])])
    assert (asked, errors) == (0, 1)
    run_as(ALICE, Run(path).keep, "job.json", record)
    assert not list(path.iterdir())
    hers = owned(place / "hers", ALICE)

    def exchanged() -> list[str]:
        run = Run(path)
        path.rename(path.with_name("old"))
        path.symlink_to(hers)
        run.keep("job.json", record)
        return [each.name for each in hers.iterdir()]

    place.chmod(0o777)
    assert run_as(ALICE, exchanged) == []


@pytest.fixture
def twins(place: Path, state: Path) -> tuple[Path, Path]:
    """A directory of Alice's that is a run, a study and a sweep, and a stranger's, of the same id."""
    os.chown(state, 0, 0)
    hers = on_disk(owned(place / "hers", 0), study(gpus=(1,), repeats=1)).path
    for name in ("job.sh", "job.json"):
        (hers / name).touch()
    (hers / directory.SWEEP).write_text(json.dumps(msgspec.to_builtins(Sweep({}, CommandLine((), "/")))))
    strangers = shutil.copytree(hers, owned(place / "carols", CAROL, 0o777) / hers.name)
    for path, owner in ((place / "hers", ALICE), (state, ALICE), (strangers, CAROL)):
        subprocess.run(["chown", "-R", f"{owner}:{owner}", path], check=True)
    subprocess.run(["chmod", "-R", "a+rX", strangers], check=True)
    return hers, strangers


def found_sweep(path: Path) -> studies.SweepDirectory:
    sweep = studies.find_sweep(str(path))
    assert sweep is not None
    return sweep


def test_what_a_stranger_exchanges_for_ones_own_under_a_command_is_not_acted_on(
    twins: tuple[Path, Path],
) -> None:
    hers, strangers = twins
    before = sorted(hers.rglob("*"))

    def exchanged_after(module: Any, name: str, call: Callable[[], object]) -> str:
        original = getattr(module, name)

        def exchanging(*arguments: Any) -> Any:
            result = original(*arguments)
            if not strangers.is_symlink():
                strangers.rename(strangers.with_name("old"))
                strangers.symlink_to(hers)
            return result

        def called() -> None:
            setattr(module, name, exchanging)
            call()

        what = outcome_as(ALICE, called).what
        strangers.unlink()
        strangers.with_name("old").rename(strangers)
        return what

    whose = f"this directory is below {strangers.parent}, which is user {CAROL}'s"
    study_of, sweep_of = partial(studies.find, str(strangers)), partial(found_sweep, strangers)
    for module, name, call in (
        (lookup, "_is_run_directory", lambda: states.cancel_run(lookup.find(str(strangers)))),
        (files.Folder, "content_of", lambda: run.resume(study_of(), *NO_ONE)),
        (files.Folder, "content_of", lambda: run.cancel(study_of())),
        (files.Folder, "content_of", lambda: sweep_of().stop()),
        (files.Folder, "content_of", lambda: chain.cancel(sweep_of())),
    ):
        assert exchanged_after(module, name, call).startswith(whose)
    assert exchanged_after(ownership, "real_path", lambda: Run(lookup.resolved(strangers)).keep("x.json", {})) == ""

    def read_twice() -> None:
        found = Run(lookup.resolved(strangers))
        assert not [found.read(directory.SWEEP, dict) for _ in range(2)]

    assert "Stale file handle" in exchanged_after(files.Folder, "content_of", read_twice)
    assert sorted(hers.rglob("*")) == before
    for call in (lambda: sweep_of().stop(), lambda: chain.cancel(sweep_of())):
        assert f"belongs to user {CAROL}" in outcome_as(ALICE, call).what


def test_no_strangers_link_is_followed_behind_ones_own_or_from_python(
    place: Path, twins: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hers, strangers = twins
    home, theirs = owned(place / "home", ALICE), strangers.with_name("link")
    for link, target, owner in (
        (theirs, hers, CAROL), (home / "behind", theirs, ALICE), (home / "mine", hers.parent, ALICE),
    ):  # fmt: skip
        link.symlink_to(target)
        os.chown(link, owner, owner, follow_symlinks=False)
    monkeypatch.chdir(home)
    for given in (home / "behind", theirs):
        for call in (
            lambda at: lookup.find(str(at)), lambda at: studies.find(str(at)), found_sweep,
            lambda at: api.Run(at).cancel(), lambda at: api.Run(at).logs(),
        ):  # fmt: skip
            outcome = outcome_as(ALICE, call, given)
            assert (outcome.what, outcome.where) == ("this is another user's link", str(theirs))
    assert "another user's link" in outcome_as(ALICE, lookup.find, "behind").what
    assert run_as(ALICE, lambda: lookup.find(f"mine/{hers.name}").path) == hers
    (home / "a").symlink_to("b")
    (home / "b").symlink_to("a")
    assert "symbolic links" in outcome_as(ALICE, lookup.find, "./a").what


@pytest.mark.usefixtures("state")
def test_a_strangers_run_with_the_id_of_ones_own_is_called_that(place: Path) -> None:
    def submitted() -> Path:
        made = creation.create(root, "x", 0.0)
        made.write(directory.COMMAND, {})
        return made.path

    root = owned(place / "hers", ALICE)
    path = run_as(ALICE, submitted)
    theirs = shutil.copytree(path, place / "theirs" / path.name)
    (theirs / directory.COMMAND).write_text('{"a": 1}')
    for owner, what in ((CAROL, "another user's run, with the id"), (ALICE, "changed since the run was submitted")):
        subprocess.run(["chown", "-R", str(owner), theirs], check=True)
        subprocess.run(["chmod", "-R", "a+rX", theirs], check=True)
        assert what in outcome_as(ALICE, Run(theirs).read, directory.COMMAND, dict).what


def test_what_a_stranger_put_where_ones_own_is_looked_for_is_refused(place: Path) -> None:
    root = owned(place / "scratch/gpu-runner/environments/mine", CAROL)
    assert "mine is user" in outcome_as(ALICE, environments.find, "mine", str(place / "scratch"), "x").what
    os.mkfifo(root / "environment.json")
    os.chown(root, ALICE, ALICE)
    assert "not there" in outcome_as(ALICE, environments.find, "mine", str(place / "scratch"), "x").what
    report, link = owned(place / "www", ALICE), place / "report-1"
    link.symlink_to(report)
    run_as(ALICE, writing.check, report)
    os.chown(link, CAROL, CAROL, follow_symlinks=False)
    place.chmod(0o1777)
    assert f"user {CAROL}'s link" in outcome_as(ALICE, writing.check, link).what
    for file, whose in ((place / "own.csv", ""), (link / "x.csv", f"user {CAROL}'s link")):
        assert whose in outcome_as(ALICE, paths.write_output, file, b"x").what
        assert file.exists() == (not whose)
    owned(place / "hers", CAROL, 0o777)
    assert f"below {place}/hers" in outcome_as(ALICE, paths.write_output, place / "hers/x.csv", b"x").what
    assert "No such file" in outcome_as(ALICE, paths.write_output, place / "none/x.csv", b"x").what
    assert f"user {CAROL}'s link" in outcome_as(ALICE, making.check_replaceable, link / "bundle.tar").what


def test_a_conda_that_a_stranger_put_around_an_environment_activates_nothing(place: Path) -> None:
    place.chmod(0o1777)
    owned(place / "etc/profile.d", CAROL)
    (place / "etc/profile.d/conda.sh").touch()
    for prefix in (owned(place / "mine/env", ALICE), owned(place / "envs/mine", ALICE)):
        assert "no conda that activates" in outcome_as(ALICE, environments._conda, prefix).what
    root = owned(place / "conda", ALICE)
    (root / "etc/profile.d").mkdir(parents=True)
    (root / "etc/profile.d/conda.sh").touch()
    os.chown(root / "etc/profile.d/conda.sh", ALICE, ALICE)
    assert outcome_as(ALICE, environments._conda, owned(root / "envs/mine", ALICE)).value == root


def test_no_environment_is_made_and_nothing_collected_where_a_stranger_could_exchange_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(owned(place / "cache", ALICE)))
    spec = EnvironmentSpec("x", "virtualenv", "pytorch", Setup(), ())
    root = owned(place / "envs/x", CAROL, 0o777)
    assert "x is user" in outcome_as(ALICE, make.make, spec, root, Silent()).what
    packages = PackagesSpec("pytorch", "cpu", (), Setup())
    shared = owned(owned(place / "scratch", 0, 0o1777) / "conda", CAROL)
    sourced = msgspec.structs.replace(spec.setup, conda=str(shared))
    for call, asked in ((make.make, replace(spec, setup=sourced)), (collect.collect, replace(packages, setup=sourced))):
        assert "what is there runs as you" in outcome_as(ALICE, call, asked, place / "hers", Silent()).what
    assert "x is user" in outcome_as(ALICE, collect.collect, packages, root, Silent()).what
    assert not list(root.iterdir())
    work = owned(owned(place / "wheels", ALICE) / ".collecting", CAROL, 0o777)
    assert "collecting is user" in outcome_as(ALICE, collect.collect, packages, work.parent, Silent()).what
    os.chown(root, ALICE, ALICE)
    root.chmod(0o755)
    assert run_as(ALICE, make.places_of, spec, root, "k").caches == root.parent / ".caches"
    owned(root.parent / ".caches", CAROL, 0o777)
    assert run_as(ALICE, make.places_of, spec, root, "k").caches == root / ".caches"
    root.parent.chmod(0o1777)
    owned(root.parent / ".other", CAROL)
    for name in (".conda", ".other"):  # which another user may make, or has
        assert run_as(ALICE, environments.beside, root, name) == root / name
    owned(root.parent / ".conda", ALICE)
    assert run_as(ALICE, environments.beside, root, ".conda") == root.parent / ".conda"


def test_a_strangers_conda_makes_no_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = owned(place / "envs", 0, 0o1777)
    (owned(at / ".conda/bin", CAROL) / "conda").touch()
    os.chown(at / ".conda", CAROL, CAROL)
    monkeypatch.setenv("HOME", str(owned(place / "home", ALICE)))
    choices: dict[str, Any] = {"site": "local", "scratch": None, "force": (), "framework": None, "kind": "conda"}

    def conda() -> str:
        return prepare_environment("x", at=at, **choices).spec.setup.conda

    assert run_as(ALICE, conda) == ""
    subprocess.run(["chown", "-R", f"{ALICE}:{ALICE}", at / ".conda"], check=True)
    assert run_as(ALICE, conda) == str(at / ".conda")


def test_no_cache_that_others_may_write_to_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, mode, whose in ((CAROL, 0o755, "user"), (ALICE, 0o777, "everybody's"), (0, 0o1777, "everybody's")):
        monkeypatch.setenv("RUNNER_CACHE", str(owned(place / f"cache-{owner}-{mode}", owner, mode)))
        for call in (blobs.directory, location, wheels.shelf):
            arguments = ("22.05",) if call is location else ()
            outcome = outcome_as(ALICE, call, *arguments)
            assert f"the cache directory is {whose}" in outcome.what
            assert ("chmod go-w" in outcome.fix) == (owner == ALICE), outcome.fix
    monkeypatch.setenv("RUNNER_CACHE", str(place / "cache-61002-none/x"))
    owned(place / "cache-61002-none", CAROL, 0o777)
    assert "the cache directory is below" in outcome_as(ALICE, blobs.directory).what, "where it would be made"
    monkeypatch.setenv("RUNNER_CACHE", str(owned(place / "shared", 0, 0o1777) / "cache/x"))
    run_as(ALICE, blobs.directory)
    assert run_as(ALICE, ownership.is_private, place / "shared/cache/x"), "no other user can make it from here on"


def test_what_others_left_in_ones_own_directories_is_not_used_once_these_are_closed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = owned(place / "home", ALICE)
    for name in ("RUNNER_STATE", "RUNNER_CACHE", "RUNNER_CONFIG", "RUNNER_STORE", "XDG_CONFIG_DIRS"):
        monkeypatch.delenv(name, raising=False)
    for name, below in (("STATE", ".local/state"), ("CACHE", ".cache"), ("CONFIG", ".config")):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / below))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("RUNNER_TRUST", f"@{GROUP}")
    calls: dict[str, Callable[[], object]] = {
        ".local/state/gpu-runner/verdict.key": lambda: seals.seal("x"),
        ".local/state/gpu-runner/runs": directory.index,
        ".cache/gpu-runner/images": store.directory,
        ".config/gpu-runner/config.yaml": read_config,
        ".config/gpu-runner/sites/mine.yaml": lambda: read_site("mine"),
    }
    for name, call in calls.items():
        at = home / name
        at.parent.mkdir(parents=True, exist_ok=True)
        own = home.joinpath(*Path(name).parts[: name.split("/").index("gpu-runner") + 1])
        subprocess.run(["chown", "-R", f"{ALICE}:{ALICE}", home], check=True)
        at.write_text("name: mine\nextends: local\n" if "sites" in name else "{}\n")
        for whose, group, mode, groups, is_refused in (
            (CAROL, CAROL, 0o755, (), True),
            (CAROL, GROUP, 0o755, (GROUP,), True),
            (CAROL, GROUP, 0o2775, (GROUP,), False),  # a project's: others of it may write there now
            (0, 0, 0o755, (), False),
            (ALICE, ALICE, 0o755, (), False),
        ):
            os.chown(at, whose, group)
            for above in {own, at.parent}:
                os.chown(above, ALICE, group if mode == 0o2775 else ALICE)
                above.chmod(mode)
            outcome = outcome_as(ALICE, call, groups=groups)
            is_said = outcome.what.startswith(f"this is user {CAROL}'s") and f"mv {at} {at}.not-mine" in outcome.fix
            assert (is_said, bool(outcome.what)) == (is_refused,) * 2, (name, whose, mode, outcome)
        at.unlink()


def test_no_list_of_runs_and_no_settings_of_a_stranger_are_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNNER_STATE", "RUNNER_CONFIG", "XDG_CONFIG_DIRS"):
        monkeypatch.delenv(name, raising=False)
    for number, (owner, is_refused) in enumerate(((CAROL, True), (ALICE, False))):
        directory_of_one = owned(place / f"shared{number}/gpu-runner", owner)
        for variable, call, whose in (
            ("XDG_STATE_HOME", directory.index, "the directory of your runs"),
            ("XDG_CONFIG_HOME", paths.config_files, "the directory of settings"),
            ("XDG_CONFIG_DIRS", paths.config_files, "the directory of settings"),
        ):
            with monkeypatch.context() as its:
                its.setenv("HOME", str(place))
                its.setenv(variable, str(directory_of_one.parent))
                outcome = outcome_as(ALICE, call)
            assert (f"{whose} is user {CAROL}'s" in outcome.what) is is_refused, outcome


def test_no_settings_of_a_stranger_beside_a_configuration_of_ones_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip reads XDG_CONFIG_HOME, whatever RUNNER_CONFIG is, and its settings may name programs."""
    monkeypatch.setenv("RUNNER_CONFIG", str(owned(place / "own", ALICE) / "config.yaml"))
    for owner, is_refused in ((CAROL, True), (ALICE, False)):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(owned(place / f"config-{owner}", owner)))
        assert (f"user {CAROL}'s" in outcome_as(ALICE, paths.config_files).what) is is_refused


def test_no_link_beside_ones_settings_leads_to_a_strangers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("RUNNER_STATE", str(place / "state"))
    cases = [(ALICE, 0, 0o1777, 0o755, False), (ALICE, CAROL, 0o1777, 0o755, True), (ALICE, CAROL, 0o1777, 0o711, True)]
    cases += [(who, CAROL, 0o755, 0o755, False) for who in (ALICE, 0)]  # as an administrator has given it to a project
    cases += [(0, CAROL, 0o1777, 0o755, True), (ALICE, CAROL, 0o1777, 0o700, False)]  # it is as if it were not there
    for number, (linker, owner, above, mode, is_refused) in enumerate(cases):
        its = owned(owned(place / f"scratch{number}", 0, above) / "alice", owner)
        own = owned(owned(place / f"home{number}", linker) / "gpu-runner", linker)
        (its / "recipes/ours").mkdir(parents=True)
        (its / "sites").mkdir()
        (its / "config.yaml").write_text("account: x\n")
        (its / "sites/ours.yaml").write_text("name: ours\ndescription: x\nextends: local\n")
        (its / "recipes/ours/recipe.yaml").write_text("name: ours\ndescription: x\nprogram: [x]\nimage: x\n")
        for path in (its, *its.rglob("*")):
            os.chown(path, owner, owner)
        its.chmod(mode)
        (own / "sites").mkdir()
        (own / "recipes").mkdir()
        for each, read in (
            ("sites/ours.yaml", lambda: read_site("ours").name),
            ("recipes/ours", lambda: read_recipe("ours").recipe.name),
            ("config.yaml", lambda: read_config().account),
        ):
            (own / each).symlink_to(its / each)
            os.chown(own / each, linker, linker, follow_symlinks=False)
            with monkeypatch.context() as variables:
                variables.setenv("XDG_CONFIG_HOME" if linker else "XDG_CONFIG_DIRS", str(own.parent))
                outcome = outcome_as(ALICE, read)
            assert ("these settings are another user's" in outcome.what) is is_refused, (number, each, outcome)
            assert bool(outcome.value) is not (is_refused or mode == 0o700), (number, each, outcome)


def test_no_engine_and_no_login_of_a_stranger_are_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    login = '{"auths": {"r.io": {"auth": "bWU6c2VjcmV0"}}}'
    for owner, is_used in ((CAROL, False), (ALICE, True)):
        runtime = owned(place / f"user-{owner}", owner)
        (runtime / "docker.sock").touch()
        (owned(runtime / "containers", owner) / "auth.json").write_text(login)
        for name, value in (("XDG_RUNTIME_DIR", str(runtime)), ("HOME", "/nonexistent")):
            monkeypatch.setenv(name, value)
        for path in (runtime / "docker.sock", runtime / "containers/auth.json"):
            os.chown(path, owner, owner)
        urls = run_as(ALICE, lambda: [*engine.default_urls(place)])
        assert (f"unix://{runtime}/docker.sock" in urls) is is_used
        assert (run_as(ALICE, credentials.find, "r.io") is not None) is is_used
    (place / "docker").mkdir()
    (place / "docker/config.json").write_text('{"credsStore": "x/../../../../tmp/x"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(place / "docker"))
    assert "no name of a credential helper" in outcome_as(ALICE, credentials.find, "r.io").what


def test_a_users_files_are_mirrored_into_no_strangers_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top, home = owned(place / "work/project-12345678", CAROL, 0o777), owned(place / "home", ALICE, 0o700)
    monkeypatch.setattr(sys, "argv", ["mirror", str(top), str(home / "trees")])
    assert f"SystemExit({mirror.REFUSED})" in outcome_as(ALICE, mirror.main).what
    assert not list(top.iterdir())
    program = home / ".cache/gpu-runner/remote/code-c/bin/gpu-runner"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\npwd\n")
    subprocess.run(["chown", "-R", f"{ALICE}:{ALICE}", home], check=True)
    program.chmod(0o755)
    script = Path(remote.__file__).with_name("remote.sh").read_text()
    for there, said in ((top, "another user's"), (home / "new", str(home / "new"))):
        words = ("sh", "-c", script, "sh", "call", "1", "c", "k", "site", "login", "gpu-runner", "", "", str(there))
        env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
        done = subprocess.run([*become(ALICE), *words], env=env, capture_output=True, text=True, check=False)
        assert said in done.stdout + done.stderr, done
    below = owned(owned(place / "carols", CAROL, 0o777) / "cache", ALICE, 0o700)
    for cache in (owned(place / "cache-1", CAROL, 0o777), owned(place / "cache-2", ALICE, 0o777), below):
        env["XDG_CACHE_HOME"] = str(cache)
        done = subprocess.run([*become(ALICE), *words], env=env, capture_output=True, text=True, check=False)
        said = "could exchange what is in" if cache == below else "is another user's, or everybody's"
        assert (done.returncode, said in done.stderr) == (4, True), done


def test_a_strangers_link_to_a_name_that_is_too_long_is_not_followed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel follows it, and no one can ask whose that is."""
    long = "/".join(["d" * 200] * 15)

    def lead(at: str, times: int) -> None:
        os.chdir(at)
        for _ in range(times):
            Path(long).mkdir(parents=True)
            Path("next").symlink_to(long)
            os.chdir("next")

    carols, shared = owned(place / "carols", CAROL), owned(place / "shared", 0, 0o1777)
    run_as(CAROL, lead, str(carols), 2)
    run_as(CAROL, os.symlink, carols / "next/next", shared / "hers")
    assert (shared / "hers").is_dir()
    monkeypatch.setenv("RUNNER_STATE", str(shared / "hers"))
    assert "not to be looked at" in outcome_as(ALICE, paths.state_dir).what
    others = {
        carols: f"RUNNER_TRUST={CAROL}, if you trust",
        owned(place / "open to all", 0, 0o777): f"chmod +t '{place}/open to all'",
    }
    for at, fix in others.items():
        assert fix in outcome_as(ALICE, paths.write_output, at / "x", b"x").fix
        assert fix in outcome_as(ALICE, check_place, at).fix
    assert "not to be looked at" in outcome_as(ALICE, paths.write_output, shared / "hers/x", b"x").what
    assert ownership.is_first_come(shared / "hers")


def test_no_cache_of_the_shell_is_a_strangers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = owned(place / "scratch", 0, 0o1777)
    for name in ("CACHE", "STATE"):
        monkeypatch.setenv(f"RUNNER_{name}", str(owned(place / name, ALICE)))
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.chdir(owned(place / "work", ALICE))
    own, hers = (owned(shared / f"torch-{owner}", owner) for owner in (ALICE, CAROL))
    for at, env, is_refused in (
        (own, (), False),
        (hers, (), True),
        (shared, (), True),
        (shared / "later", (), False),
        (hers, (("TORCH_HOME", "/mine"),), False),
    ):
        monkeypatch.setenv("TORCH_HOME", str(at))
        asked = {"gpus": 1, "arguments": ("true",), "site": "local", "runtime": "native", "env": env}
        outcome = outcome_as(ALICE, prepare, make_request(asked))
        assert ("what is there runs as you" in outcome.what) == is_refused, (at, outcome)
    hers = owned(shared / "open", CAROL, 0o777)
    monkeypatch.setenv("TORCH_HOME", f"{hers}/new")
    outcome = outcome_as(ALICE, prepare, make_request({**asked, "env": ()}))
    assert (outcome.where, list(hers.iterdir())) == (f"TORCH_HOME={hers}/new", [])
    assert "export TORCH_HOME=DIR, or unset it" in outcome.fix and f"below {hers}, which is" in outcome.what


def test_no_site_that_settings_or_another_site_name_is_a_strangers(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, own = owned(place / "scratch", 0, 0o1777), owned(place / "own", ALICE)
    monkeypatch.setenv("RUNNER_CONFIG", str(own / "config.yaml"))
    for owner in (ALICE, CAROL):
        (base := shared / f"{owner}.yaml").write_text("name: base\ndescription: x\nextends: local\n")
        (own / "two.yaml").write_text(f"name: two\ndescription: x\nextends: {base}\n")
        (own / "config.yaml").write_text(f"site: {base}\n")
        for path, whose in ((base, owner), (own / "two.yaml", ALICE), (own / "config.yaml", ALICE)):
            os.chown(path, whose, whose)
        for read in (read_config, partial(read_site, str(own / "two.yaml"))):
            assert ("these settings are another user's" in outcome_as(ALICE, read).what) == (owner == CAROL)


def test_what_a_site_sources_is_no_strangers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, hers = owned(place / "scratch", 0, 0o1777), owned(owned(place / "open", 0, 0o777) / "hers", ALICE)
    for owner in (ALICE, CAROL):
        conda = owned(shared / f"conda-{owner}", owner)
        whats = [outcome_as(ALICE, environments.check_setup, Setup(conda=str(conda))).what]
        whats.append(outcome_as(ALICE, environments.check_setup, Setup(modules=(f"{conda}/m",))).what)
        for line in (["source", f"{conda}/x"], ["eval", f". {conda}/x"], ["export", f"PATH={conda}:/bin"]):
            whats.append(outcome_as(ALICE, environments.check_setup, Setup(), [line]).what)
        for variable in (f"TORCH_HOME={conda}", f"PYTHONHOME={conda}", f"/usr/lib:{conda}", f"DATA={conda}"):
            whats.append(outcome_as(ALICE, environments.check_setup, Setup(), [[variable]]).what)
        refused = [owner == CAROL] * 8
        assert [("what is there runs as you" in what) for what in whats] == [*refused, False]
    assert "runs as you" in outcome_as(ALICE, environments.check_setup, Setup(), [[f"OPENSSL_CONF={conda}"]]).what
    for variable in (f"HF_HOME={shared}/later", f"TMPDIR={shared}", f"TORCH_HOME={shared}/later"):
        assert run_as(ALICE, environments.check_setup, Setup(), [["export", variable]]) == ()
    with monkeypatch.context() as patch:
        patch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=ALICE, pw_name=f"conda-{CAROL}"))
        for variable in (f"HF_HOME={shared}/conda-{CAROL}/hf", f"XDG_CACHE_HOME={shared}", f"PATH=/bin:{shared}"):
            what = outcome_as(ALICE, environments.check_setup, Setup(), [["export", variable]]).what
            assert "what is there runs as you" in what, "where each user has a directory, or all may write"
    (place / "link").symlink_to(shared / "not yet")
    for name in ("PYTHONPATH", "JUPYTER_PATH", "IPYTHONDIR", "PERL5LIB", "R_LIBS_USER", "NCCL_NET_PLUGIN", "ENV"):
        outcome = outcome_as(ALICE, environments.check_setup, Setup(), [["export", f"{name}={shared}/later"]])
        assert "may be another" in outcome.what, name
        run_as(ALICE, environments.check_setup, Setup(), [["export", f"{name}={shared}/conda-{ALICE}"]])
    for later in (shared / "not yet", place / "link", hers):  # which all may make, or move away
        assert "may be another" in outcome_as(ALICE, environments.check_setup, Setup(conda=str(later))).what
    for name in ("CACHE", "STATE"):
        monkeypatch.setenv(f"RUNNER_{name}", str(owned(place / name, ALICE)))
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.chdir(owned(place / "work", ALICE))
    (site := place / "mine.yaml").write_text(f"name: m\nextends: local\nmpi: {{load: [[source, {shared}/not yet]]}}\n")
    site.write_text(f"{site.read_text()}ways: {{native: {{load: [[source, {shared}/conda-{CAROL}/x]]}}}}\n")
    venv.create(place / "venv")
    for env_name in (None, str(place / "venv")):
        way = {"site": str(site), "runtime": "native", "env_name": env_name}
        asked = make_request({"gpus": 1, "arguments": ("true",), **way})
        assert "what is there runs as you" in outcome_as(ALICE, prepare, asked).what
    site.write_text(f"name: m\nextends: local\nways: {{native: {{environment: {shared}/conda-{CAROL}}}}}\n")
    stand_in(owned(shared / f"conda-{CAROL}/bin", CAROL), "python3", f"touch {Path.cwd()}/ran")
    asked = make_request({"gpus": 1, "arguments": ("true",), "site": str(site), "runtime": "native"})
    assert "what is there runs as you" in outcome_as(ALICE, prepare, asked).what
    assert not Path("ran").exists()


@pytest.mark.parametrize("mode", [0o3775, 0o2775])
def test_a_place_of_the_logins_group_is_one_of_all(mode: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (group_place := owned(place / "all", 0)).chmod(mode)
    os.chown(group_place, 0, GROUP)
    group_place.chmod(mode)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=GROUP, pw_name="alice"))
    monkeypatch.setenv("RUNNER_STATE", str(group_place))
    assert "could be another user's" in outcome_as(ALICE, paths.state_dir, groups=(GROUP,)).what
    assert f"RUNNER_TRUST=@{GROUP} trusts them" in outcome_as(ALICE, paths.state_dir, groups=(GROUP,)).fix
    if not mode & 0o1000:
        place_of_file = owned(group_place / "hers", ALICE)
        (place_of_file / "bin").mkdir()
        (place_of_file / "bin/python3").symlink_to("/usr/bin/python3")
        (place_of_file / "config.yaml").touch()
        monkeypatch.setenv("RUNNER_CONFIG", str(place_of_file / "config.yaml"))
        for read in (paths.config_file, partial(environments.environment_of_directory, place_of_file)):
            refused = outcome_as(ALICE, read, groups=(GROUP,))
            assert f"its group's ({GROUP})" in refused.what
            assert refused.fix.endswith(f"; RUNNER_TRUST=@{GROUP} trusts them")
            monkeypatch.setenv("RUNNER_TRUST", f"@{GROUP}")
            assert "group's" not in outcome_as(ALICE, read, groups=(GROUP,)).what
            monkeypatch.delenv("RUNNER_TRUST")
        monkeypatch.delenv("RUNNER_CONFIG")
    assert "modules of others" in outcome_as(ALICE, check_kernels, group_place, groups=(GROUP,)).what
    assert run_as(ALICE, environments.beside, group_place / "x", ".conda", groups=(GROUP,)) == group_place / "x/.conda"
    os.chown(group_place, ALICE, GROUP)  # as umask 002 leaves her own
    assert f"chmod g-w {group_place}" in outcome_as(ALICE, paths.state_dir, groups=(GROUP,)).fix
    # By an ACL, as of `setfacl -m g:GROUP:rwx`: tag, permissions and id of each entry.
    os.chown(group_place, 0, 0)
    entries = ((0x01, 7, -1), (0x04, 5, -1), (0x08, 7, GROUP), (0x10, 7, -1), (0x20, 5, -1))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(group_place, "system.posix_acl_access", acl)
    home, named = owned(group_place / "home", ALICE), owned(place / "bin", 0) / "id"
    answers = f'-un) echo alice ;; "-g "*) echo {GROUP} ;; "-gn "*) echo lab ;; *) /usr/bin/id "$@" ;; esac\n'
    named.write_text(f"#!/bin/sh\ncase $* in {answers}")
    named.chmod(0o755)
    for trust, trusted in (("", False), (f"@{GROUP}", True)):
        monkeypatch.setenv("RUNNER_TRUST", trust)
        what = outcome_as(ALICE, paths.state_dir, groups=(GROUP,)).what
        assert ("could be another user's" in what) != trusted
        assert (not run_as(ALICE, serve._of_strangers, str(home), groups=(GROUP,))) == (trusted or mode == 0o3775)
        for text in (f'. {LEFTOVERS} && is_own "$HOME"', (SHELL / "cli/remote.sh").read_text()):
            member = [*become(ALICE, groups=(GROUP,)), "bash", "-c", text, "bash", "none"]
            env = {"HOME": str(home), "PATH": f"{named.parent}:/usr/bin:/bin", "RUNNER_TRUST": trust}
            done = subprocess.run(member, check=False, env=env)
            assert (done.returncode == 0) == (trusted or mode == 0o3775), text


def test_what_an_acl_shares_with_one_user_is_not_its_groups(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mode of it the group has what the user may."""
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=ALICE, pw_name="alice"))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name="all", gr_mem=[]))
    home = owned(place / "home", ALICE)
    for of_group, whose in ((5, ""), (7, "its group's (all) to write to, who may be anybody (no sticky bit)")):
        entries = ((0x01, 7, -1), (0x02, 7, CAROL), (0x04, of_group, -1), (0x10, 7, -1), (0x20, 5, -1))
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
        os.setxattr(home, "system.posix_acl_access", acl)
        assert home.stat().st_mode & 0o777 == 0o775
        assert run_as(ALICE, ownership.exchangeable_by, home) == whose
        assert run_as(ALICE, places.all_may_write, str(home), home.stat()) == bool(whose)


@pytest.mark.parametrize(("group", "trusted"), [(BOB, False), (GROUP, True), (ALICE, True), (50, True), (100, False)])
def test_ones_own_is_open_to_a_group_of_its_acl_that_one_is_not_in(
    group: int, trusted: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a place's default ACL gives it; not a project's, the user's alone, nor the system's but for ``users``."""
    home, named = owned(place / "home", ALICE), owned(place / "bin", 0) / "id"
    entries = ((0x01, 7, -1), (0x04, 5, -1), (0x08, 7, group), (0x10, 7, -1), (0x20, 5, -1))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(home, "system.posix_acl_access", acl)
    answers = f'-un | "-gn "*) echo alice ;; "-g "*) echo {ALICE} ;; *) /usr/bin/id "$@" ;;'
    named.write_text(f"#!/bin/sh\ncase $* in {answers} esac\n")
    named.chmod(0o755)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=ALICE, pw_name="alice"))
    monkeypatch.setattr(
        grp, "getgrgid", lambda number: SimpleNamespace(gr_name={ALICE: "alice", 100: "users"}.get(number))
    )
    whose = "" if trusted else "everybody's to write to, by a group of its ACL (no sticky bit)"
    assert run_as(ALICE, ownership.exchangeable_by, home, groups=(GROUP,)) == whose
    (file := owned(place / "sites", ALICE) / "ours.yaml").write_text("name: ours\nextends: local\n")
    os.chown(file, ALICE, ALICE)
    os.setxattr(file, "system.posix_acl_access", acl)
    what = outcome_as(ALICE, read_site, str(file), groups=(GROUP,)).what
    assert what == (f"this file is {whose[: whose.index(' (no')]}, and it says what runs as you" if whose else "")
    shells = (f'. {LEFTOVERS} && is_own "$HOME"', (SHELL / "cli/remote.sh").read_text())
    for text in shells if shutil.which("getfacl") else ():
        member = [*become(ALICE, groups=(GROUP,)), "bash", "-c", text, "bash", "none"]
        env = {"HOME": str(home), "PATH": f"{named.parent}:/usr/bin:/bin"}
        assert (subprocess.run(member, check=False, env=env).returncode == 0) == trusted, text


def test_no_shell_believes_what_a_strangers_file_system_says_of_owners(place: Path) -> None:
    """A FUSE file system may also leave while it answers. Those of btrfs and overlayfs are no mount's, either."""
    home, mounted = owned(place / "home", ALICE), owned(place / "mounted", CAROL)
    find = owned(place / "bin", 0) / "find"
    source = f"user_id={ALICE}"  # his word, beside the kernel's own
    mount = f"""mount -it fuse -o fd=3,rootmode=40000,user_id=$0,group_id=0 {source} {mounted} 3<>/dev/fuse || exit 77
        minor=$(awk -v at={mounted} '$5 == at {{ sub("0:", "", $3); print $3 }}' /proc/self/mountinfo)
        export DEVICE=$((minor % 256 + minor / 256 * 1048576)); exec "$@\""""
    for device, mounter, believed in (("$DEVICE", CAROL, False), ("$DEVICE", ALICE, True), ("77", ALICE, False)):
        of_look = f'*") -printf %D" | *" -type d "*) [ -z "$(/usr/bin/find "$@")" ] || echo {device} ;;'
        find.write_text(f'#!/bin/sh\ncase "$*" in {of_look} *) exec /usr/bin/find "$@" ;; esac\n')
        find.chmod(0o755)
        for text in (f'. {LEFTOVERS} && is_own "$HOME"', (SHELL / "cli/remote.sh").read_text()):
            words = [*become(ALICE), "bash", "-c", text, "bash", "none"]
            env = {"HOME": str(home), "PATH": f"{find.parent}:/usr/bin:/bin"}
            done = subprocess.run(["unshare", "-m", "bash", "-c", mount, str(mounter), *words], env=env, check=False)
            assert (done.returncode == 0) == believed, (text, device, mounter)
    shell, scratch = library(place) / "lib/charliecloud.sh", owned(place / "scratch", ALICE)
    for path in ("/usr/bin:/bin", env["PATH"]):  # the latter has the last device
        words = [*become(ALICE), "bash", str(shell), "directories", str(scratch / "alice.ch")]
        assert subprocess.run(words, env={"PATH": path}, check=False).returncode == 0
        assert bool([*scratch.glob("gpu-runner-ch-*")]) == (path == env["PATH"])
    check = f'. {LEFTOVERS} && is_believed "$(stat -c %d "$0")" "$0"'
    for at in (home, Path("/proc"), Path("/dev/shm"), Path("/")):
        assert subprocess.run(["bash", "-c", check, at], check=False).returncode == 0


def test_a_logins_group_that_is_trusted_by_its_name_is_a_projects(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where each has the group of a laboratory."""
    lab = owned(owned(owned(place / "projects", 0) / "lab", CAROL) / "hers", ALICE)
    named = owned(place / "bin", 0) / "id"
    for place_of, owner, mode in ((lab.parent, CAROL, 0o2770), (lab.parent.parent, 0, 0o2775)):
        os.chown(place_of, owner, ALICE)
        place_of.chmod(mode)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=ALICE, pw_name="alice"))
    monkeypatch.setattr(grp, "getgrnam", {"lab": SimpleNamespace(gr_gid=ALICE)}.__getitem__)
    answers = f'-un) echo alice ;; "-gn "*) echo lab ;; "-g "*) echo {ALICE} ;; *) /usr/bin/id "$@" ;;'
    answers = f'"group lab" | "group -- lab") echo lab:x:{ALICE}: ;; {answers}'
    for answering in (named, named.with_name("getent")):
        answering.write_text(f"#!/bin/sh\ncase $* in {answers} esac\n")
        answering.chmod(0o755)
    for trust, trusted in (("bob,@lab", True), (f"{CAROL},@{ALICE}", True), ("@labs", False)):
        monkeypatch.setenv("RUNNER_TRUST", trust)
        assert (run_as(ALICE, ownership.exchangeable_by, lab) == "") == trusted
        for text in (f'. {LEFTOVERS} && is_own "$HOME"', (SHELL / "cli/remote.sh").read_text()):
            env = {"HOME": str(lab), "PATH": f"{named.parent}:/usr/bin:/bin", "RUNNER_TRUST": trust}
            done = subprocess.run([*become(ALICE), "bash", "-c", text, "bash", "none"], check=False, env=env)
            assert (done.returncode == 0) == trusted, text


@pytest.mark.parametrize(
    ("about", "above", "trust", "trusted"),
    [
        # As Debian's `users`, into which adduser puts everybody.
        ((CAROL, 100, 0o2755), (0, 0, 0o755), "", False),
        ((CAROL, 100, 0o2755), (0, 0, 0o755), "@users", True),
        ((CAROL, 100, 0o2755), (0, 0, 0o755), "@100", True),
        ((0, 100, 0o2775), (0, 0, 0o755), "", False),
        ((0, 100, 0o2775), (0, 0, 0o755), "@users", True),
        ((0, 50, 0o2775), (0, 0, 0o755), "", True),  # whose members the administrator chose
        ((CAROL, 50, 0o2755), (0, 0, 0o755), "", False),
        ((CAROL, CAROL, 0o755), (0, GROUP, 0o2770), "", True),  # the place above says whose it is
        ((CAROL, CAROL, 0o755), (0, GROUP, 0o3777), "", False),
    ],
)
def test_a_group_of_the_system_is_no_project(
    about: tuple[int, int, int], above: tuple[int, int, int], trust: str, trusted: bool, place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    hers = owned(owned(owned(place / "projects", 0) / "lab", CAROL) / "hers", ALICE)
    for each, (owner, group, mode) in ((hers.parent, about), (hers.parents[1], above)):
        os.chown(each, owner, group)
        each.chmod(mode)
    named = owned(place / "bin", 0) / "id"
    answers = f'-un) echo alice ;; "-g "*) echo {ALICE} ;; *) /usr/bin/id "$@" ;;'
    named.write_text(f"#!/bin/sh\ncase $* in {answers} esac\n")
    named.chmod(0o755)
    monkeypatch.setenv("RUNNER_TRUST", trust)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=ALICE, pw_name="alice"))
    for groups in ((50, 100, GROUP), (50, GROUP)):  # all others may be in `users` where she is not
        whose = run_as(ALICE, ownership.exchangeable_by, hers, groups=groups)
        assert (whose == "") == trusted
        if about[:2] == (0, 100) and not trusted:
            assert ownership.way_out(hers, whose).endswith("; RUNNER_TRUST=@users trusts them")
        assert (not run_as(ALICE, serve._of_strangers, str(hers), groups=groups)) == trusted
        for text in (f'. {LEFTOVERS} && is_own "$HOME"', (SHELL / "cli/remote.sh").read_text()):
            member = [*become(ALICE, groups=groups), "bash", "-c", text, "bash", "none"]
            env = {"HOME": str(hers), "PATH": f"{named.parent}:/usr/bin:/bin", "RUNNER_TRUST": trust}
            assert (subprocess.run(member, check=False, env=env).returncode == 0) == trusted, text
        if about[0] == CAROL and about[1] < GROUP:
            assert run_as(ALICE, node_place, hers, groups=groups) == "/tmp"


def test_a_users_private_group_keeps_no_kernel_from_starting(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = owned(owned(place / "scratch", 0, 0o755) / "code", ALICE)
    os.chown(code.parent, 0, ALICE)
    code.parent.chmod(0o2770)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=ALICE, pw_name="alice"))
    for name, is_open in (("alice", False), ("all", True)):
        monkeypatch.setattr(grp, "getgrgid", lambda _, name=name: SimpleNamespace(gr_name=name))
        assert bool(run_as(ALICE, serve._of_strangers, str(code))) == is_open


def test_cells_of_notebooks_import_from_a_teams_directory_and_no_strangers(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = owned(place / "code", CAROL)
    for group, mode, theirs in ((CAROL, 0o755, True), (GROUP, 0o2775, False), (GROUP, 0o2777, True)):
        os.chown(code, CAROL, group)
        code.chmod(mode)
        assert bool(run_as(ALICE, serve._of_strangers, str(code), groups=(GROUP,))) == theirs
    code.chmod(0o755)
    rows = ((0, 0, 0o755), False), ((0, 0, 0o3777), True), ((CAROL, CAROL, 0o755), True), ((ALICE, ALICE, 0o777), True)
    for (above, group, mode), theirs in (*rows, ((0, GROUP, 0o2770), False)):
        os.chown(code, CAROL, CAROL if group == GROUP else GROUP)
        os.chown(place, above, group)
        place.chmod(mode)
        found = run_as(ALICE, serve._of_strangers, str(code), groups=(GROUP,))
        assert bool(found) == theirs, "the group is by that above"
    os.chown(code, ALICE, ALICE)
    for above, mode, theirs in ((0, 0o777, True), (CAROL, 0o755, True), (0, 0o1777, False), (ALICE, 0o777, True)):
        os.chown(place, above, above)
        place.chmod(mode)
        assert bool(run_as(ALICE, serve._of_strangers, str(code))) == theirs, "one's own may be exchanged"
    place.chmod(0o755)
    os.chown(place, 500, 500)
    assert not run_as(ALICE, serve._of_strangers, str(code)), "a system's account"
    os.chown(place, 0, 0)
    monkeypatch.setattr(grp, "getgrnam", {"lab": SimpleNamespace(gr_gid=GROUP)}.__getitem__)
    for trust, owner in ((f"{CAROL}", CAROL), ("@lab", BOB)):
        os.chown(code, owner, GROUP)
        assert run_as(ALICE, serve._of_strangers, str(code))
        monkeypatch.setenv("RUNNER_TRUST", trust)
        assert not run_as(ALICE, serve._of_strangers, str(code))
        monkeypatch.delenv("RUNNER_TRUST")


def test_no_link_of_a_stranger_leads_to_where_things_are_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads to the user's directory while its owner is looked at, and to the stranger's after that."""
    shared, own = owned(place / "scratch", 0, 0o1777), owned(owned(place / "alices", ALICE) / "thesis", ALICE)
    for name in ("link", "above"):
        run_as(CAROL, os.symlink, own if name == "link" else own.parent, shared / name)
    run_as(ALICE, os.symlink, own, shared / "hers")
    (owned(place / "open", CAROL, 0o777) / "hers").symlink_to(own)
    assert run_as(ALICE, ownership.exchangeable_by, shared / "hers") == ""
    lab = owned(owned(owned(place / "projects", 0) / "lab", CAROL) / "hers", ALICE)
    script, shell = (SHELL / "cli/remote.sh").read_text(), SHELL / "backends/runtimes/shell"
    named = owned(place / "bin", 0) / "id"
    # Her login's group; a project's; one that it may have from another place, as all may write here; after newgrp(1).
    cases = [(ALICE, CAROL, ALICE, 0o755, False), (GROUP, CAROL, GROUP, 0o755, False)]
    cases += [(ALICE, CAROL, GROUP, *each) for each in ((0o755, True), (0o1777, False), (0o3775, False))]
    cases += [(ALICE, ALICE, ALICE, *each) for each in ((0o2775, False), (0o3775, True))]
    os.chown(lab.parent.parent, 0, ALICE)  # where those of the login's group may write, all may
    for login, owner, group, mode, trusted in cases:
        os.chown(lab.parent, owner, group)
        lab.parent.parent.chmod(mode)
        monkeypatch.setattr(pwd, "getpwuid", lambda _, login=login: SimpleNamespace(pw_gid=login, pw_name="alice"))
        answers = f'-un) echo alice ;; "-g "*) echo {login} ;; *) /usr/bin/id "$@" ;;'
        named.write_text(f"#!/bin/sh\ncase $* in {answers} esac\n")
        named.chmod(0o755)
        assert (run_as(ALICE, ownership.exchangeable_by, lab, groups=(ALICE, GROUP)) == "") == trusted
        at = run_as(ALICE, node_place, lab, groups=(ALICE, GROUP))
        assert at == (str(lab) if trusted else "/tmp")
        for text in (f'. {LEFTOVERS} && is_own "$HOME"', script):
            member = [*become(ALICE, groups=(ALICE, GROUP)), "bash", "-c", text, "bash", "none"]
            env = {"HOME": str(lab), "PATH": f"{named.parent}:/usr/bin:/bin"}
            assert (subprocess.run(member, check=False, env=env).returncode == 0) == trusted
    roots = owned(owned(place / "roots", 0) / "hers", ALICE).parent
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=GROUP, pw_name="alice"))
    for group, mode, closed in ((GROUP, 0o2775, False), (GROUP, 0o3775, True), (ALICE, 0o2775, True)):  # GROUP: login's
        os.chown(roots, 0, group)
        roots.chmod(mode)
        assert (run_as(ALICE, ownership.exchangeable_by, roots / "hers", groups=(ALICE, GROUP)) == "") == closed
    os.chown(roots, 0, GROUP)
    roots.chmod(0o2775)
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name="alice"))
    assert run_as(ALICE, ownership.exchangeable_by, roots / "hers", groups=(GROUP,)) == "", "a user private group"
    monkeypatch.undo()
    for variable, read in (("RUNNER_CONFIG", paths.config_file), ("RUNNER_SITE", paths.site_of_shell)):
        for owner in (ALICE, CAROL):
            own_file = shared / f"{variable}-{owner}.yaml"
            own_file.touch()
            os.chown(own_file, owner, owner)
            monkeypatch.setenv(variable, str(own_file))
            what = outcome_as(ALICE, read).what
            assert ("these settings are another user's" in what) == (owner == CAROL)
            assert (f"it is user {CAROL}'s" in what) == (owner == CAROL)
        monkeypatch.delenv(variable)
    (theirs := owned(shared / "closed", CAROL) / "ours.yaml").touch()
    assert "these settings are another user's" in outcome_as(ALICE, read_config, theirs).what, "opened for the reading"
    theirs.parent.chmod(0o700)
    for file in (theirs, shared / "to-come.yaml"):
        monkeypatch.setenv("RUNNER_SITE", str(file))
        assert "these settings are another user's" in outcome_as(ALICE, paths.site_of_shell).what, "he may open it"
    monkeypatch.delenv("RUNNER_SITE")
    (shared / "references.yaml").touch()
    os.chown(shared / "references.yaml", CAROL, CAROL)
    monkeypatch.setenv("RUNNER_CONFIG", str(shared / f"RUNNER_CONFIG-{ALICE}.yaml"))
    assert "references may be theirs" in outcome_as(ALICE, default_file).what
    monkeypatch.delenv("RUNNER_CONFIG")
    (home := owned(place / "home", ALICE, 0o700)).joinpath("image").write_text("x")
    for link in (shared / "link", shared / "above/thesis", place / "open/hers"):
        assert run_as(ALICE, ownership.exchangeable_by, link).startswith(("behind", "below"))
        assert "could exchange" in outcome_as(ALICE, creation.make_root, link).what
        for variable, call in (("RUNNER_STATE", paths.state_dir), ("RUNNER_CACHE", lambda: paths.cache("images"))):
            monkeypatch.setenv(variable, str(link))
            assert "could be another user's" in outcome_as(ALICE, call).what
        assert run_as(ALICE, node_place, link) in (str(own), "/tmp")
        monkeypatch.setattr(sys, "argv", ["mirror", str(link), str(home / "trees")])
        assert f"SystemExit({mirror.REFUSED})" in outcome_as(ALICE, mirror.main).what
        if not (chain := place / "chain").is_symlink():
            chain.symlink_to(link)
        own_check = ("bash", "-c", f'. {LEFTOVERS} && is_own "$0"')
        words: list[tuple[str | Path, ...]] = [(*own_check, link), (*own_check, chain)]
        words += [("bash", shell / "stage.sh", link / "gpu-runner-stage-1~1", "", "no", home / "image", "1", "")]
        if link.parent.name != "open":  # each names what it reaches as it is then
            words += [("sh", "-c", script, "sh", "send", link, "x")]
            words += [("sh", "-c", script, "sh", "call", "1", "c", "k", "site", "login", "x", "", link)]
        for each in words:
            env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
            done = subprocess.run([*become(ALICE), *each], env=env, cwd=home, capture_output=True, check=False)
            assert done.returncode in (1, 3), (each, done)
    assert not list(own.iterdir())


def test_a_directory_that_another_project_may_have_moved_is_no_project_of_ones_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its group by the place in which it was created."""
    lab = owned(owned(owned(place / "projects", 0) / "lab", CAROL) / "hers", ALICE)
    script, named = (SHELL / "cli/remote.sh").read_text(), owned(place / "bin", 0) / "id"
    named.touch(0o755)
    os.chown(lab.parent, CAROL, GROUP)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=ALICE, pw_name="alice"))
    for owner, group, trusted in (
        (0, BOB, False),
        (0, 50, True),
        (ALICE, BOB, False),
    ):  # of another project; a system's
        os.chown(lab.parent.parent, owner, group)
        lab.parent.parent.chmod(0o2775)
        named.write_text(
            f"#!/bin/sh\ncase $* in -un) echo alice ;; '-g '*) echo {ALICE} ;; *) /usr/bin/id \"$@\" ;; esac\n"
        )
        assert (run_as(ALICE, ownership.exchangeable_by, lab, groups=(ALICE, GROUP)) == "") == trusted
        assert bool(run_as(ALICE, serve._of_strangers, str(lab.parent), groups=(ALICE, GROUP))) != trusted
        for text in (f'. {LEFTOVERS} && is_own "$HOME"', script):
            member = [*become(ALICE, groups=(ALICE, GROUP)), "bash", "-c", text, "bash", "none"]
            env = {"HOME": str(lab), "PATH": f"{named.parent}:/usr/bin:/bin"}
            assert (subprocess.run(member, check=False, env=env).returncode == 0) == trusted, (text, owner, group)


def test_what_is_built_and_run_is_in_no_temporary_directory_of_a_stranger(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(owned(place / "tmp", CAROL, 0o1777)))
    home = owned(place / "home", ALICE)
    (home / "script").write_text('dirname "$TMPDIR"\n')
    assert run_as(ALICE, make.run_script, home / "script", home / "log", Silent(), 60) == (0, ["/tmp"])


def test_a_strangers_recipe_is_named_by_its_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, owner in (("carols", CAROL), ("own", ALICE)):
        recipe = owned(place / name, owner) / "recipe.yaml"
        recipe.write_text(f"name: {name}\ndescription: x\nprogram: [x]\nimage: x\n")
    monkeypatch.chdir(place)
    assert [run_as(ALICE, read_recipe, name).recipe.name for name in ("own", "./carols")] == ["own", "carols"]
    for read, named in ((read_recipe, "carols"), (make_request, {"gpus": 1, "recipe": "carols"})):
        assert "the recipe is user" in outcome_as(ALICE, read, named).what
    (owned(place / "work", ALICE) / "train.py").write_text("import horovod.torch\n")
    folder, new = owned(place / "folder", CAROL, 0o777), new_recipe("mine", ("python", "train.py"), place / "work")
    assert "the folder is user" in outcome_as(ALICE, write_recipe, new, folder, place / "work").what
    assert not list(folder.iterdir())


def test_a_strangers_site_file_is_named_by_its_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(owned(place / "home", ALICE)))
    monkeypatch.chdir(owned(place / "shared", 0, 0o1777))
    for name, owner in (("carols.yaml", CAROL), ("own.yaml", ALICE)):
        Path(name).write_text(f"name: {name}\ndescription: x\nextends: local\nlogin: me@far\n")
        os.chown(name, owner, owner)
    for name in ("own.yaml", "./carols.yaml"):
        assert run_as(ALICE, read_site, name).name == name.removeprefix("./")
        assert run_as(ALICE, make_request, {"gpus": 1, "site": name}).site == str(Path.cwd() / name)
        assert run_as(ALICE, remote.call_of, ("submit", "--site", name)).site.login == "me@far"
    for read, named in ((read_site, "carols.yaml"), (make_request, {"gpus": 1, "site": "carols.yaml"})):
        refused = outcome_as(ALICE, read, named)
        assert f"the site file is user {CAROL}'s" in refused.what and "./carols.yaml if you trust" in refused.fix
    assert run_as(ALICE, remote.call_of, ("submit", "--site", "carols.yaml")) is None, "nothing is sent"
    assert "not there any more" in outcome_as(ALICE, read_site, "gone.yaml").what, "by then one may be"
    monkeypatch.chdir(place / "home")
    assert outcome_as(ALICE, read_site, "gone.yaml").what == "no such file"


def test_no_strangers_site_names_a_program_that_lists_values(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = owned(place / "sites", 0) / "ours.yaml"
    for text, owner, trust, program in (
        ("published: mine\n", CAROL, "", ""),
        ("published: mine\n", CAROL, str(CAROL), "mine"),
        ("published: mine\n", ALICE, "", "mine"),
        ("", CAROL, "", "showappl"),
    ):
        site.write_text(f"name: ours\nextends: neuron\n{text}")
        os.chown(site, owner, owner)
        monkeypatch.setenv("RUNNER_TRUST", trust)
        assert run_as(ALICE, lambda: read_site(str(site)).published) == program


def test_no_yaml_and_no_environment_is_read_through_a_strangers_link(place: Path) -> None:
    private, hers = owned(place / "private", ALICE, 0o700), owned(place / "carols", CAROL)
    (private / "site.yaml").write_text("name: mine\nextends: local\ndescription: of Alice alone\n")
    (private / "recipe.yaml").write_text("name: r\ndescription: of Alice alone\nprogram: [x]\nimage: x\n")
    (private / "create.sh").touch()
    record = Environment("e", "virtualenv", "", "", "", Setup(), ImageFacts(framework="of Alice alone"))
    (private / "environment.json").write_bytes(msgspec.json.encode(record))
    subprocess.run(["chown", "-R", f"{ALICE}:{ALICE}", private], check=True)
    for path in private.iterdir():
        path.chmod(0o600)
    envs, link = owned(hers / "envs", CAROL), "this is another user's link"
    (owned(envs / "made", CAROL) / "create.sh").touch()
    (envs / "linked").symlink_to(private)
    for at in ("site.yaml", "recipe.yaml", "envs/made/environment.json"):
        (hers / at).symlink_to(private / Path(at).name)
    subprocess.run(["chown", "-RPh", f"{CAROL}:{CAROL}", hers], check=True)
    assert outcome_as(ALICE, read_site, str(hers / "site.yaml")).what == link
    assert outcome_as(ALICE, read_recipe, str(hers)).what == link
    assert run_as(ALICE, lambda: list(environments.all_environments(envs))) == []
    shutil.copytree(private, hers / "copies/hers")
    subprocess.run(["chown", "-R", f"{CAROL}:{CAROL}", hers / "copies"], check=True)
    subprocess.run(["chmod", "-R", "a+rX", hers / "copies"], check=True)
    for own, names in ((False, ["hers"]), (True, [])):
        listed = run_as(ALICE, lambda own=own: list(environments.all_environments(hers / "copies", own=own)))
        assert [root.name for root, _ in listed] == names
    for name, base in (("bad", private / "site.yaml"), ("good", "site2.yaml")):
        (hers / f"{name}.yaml").write_text(f"name: theirs\nextends: {base}\n")
        shutil.chown(hers / f"{name}.yaml", CAROL, CAROL)
    (hers / "site2.yaml").write_text("name: theirs\nextends: local\ndescription: x\n")
    assert "another user's file leads to it" in outcome_as(ALICE, read_site, str(hers / "bad.yaml")).what
    for owner in (0, CAROL):
        shutil.chown(hers / "site2.yaml", owner, owner)
        assert run_as(ALICE, read_site, str(hers / "good.yaml")).name == "theirs"
    subprocess.run(["chown", "-RPh", f"{ALICE}:{ALICE}", hers], check=True)
    assert run_as(ALICE, read_site, str(hers / "site.yaml")).description == "of Alice alone"
    assert run_as(ALICE, read_site, str(hers / "bad.yaml")).description == "of Alice alone"
    assert run_as(ALICE, read_recipe, str(hers)).recipe.name == "r"
    assert [each for _, each in run_as(ALICE, lambda: list(environments.all_environments(envs)))] == [record] * 2


def test_an_installation_to_which_another_users_link_leads_reads_what_it_ships(place: Path) -> None:
    (place / "link").symlink_to(SHELL.parent)
    os.chown(place / "link", CAROL, CAROL, follow_symlinks=False)
    lines = (
        "from runner.linting import frameworks",
        "from runner.expectation import expect",
        "from runner.recipes import loader",
        "from runner.sites import loader as sites, proofs",
        "assert expect.load() and proofs.recorded() and loader.read_recipe('probe') and sites.read_site('slurm')",
        f"assert {str(place)!r} in frameworks.__file__",
    )
    environment = os.environ | {"PYTHONPATH": str(place / "link")}
    subprocess.run((sys.executable, "-c", "\n".join(lines)), env=environment, cwd="/", check=True)


def test_a_strangers_link_that_no_verb_expects_is_reported_with_what_to_name(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = owned(place / "carols", CAROL) / "link"
    run_as(CAROL, os.symlink, place, link)
    monkeypatch.setattr(cli.cli, "main", lambda **_: ownership.real_path(link))

    def reported() -> str:
        with redirect_stderr(io.StringIO()) as error:
            cli.run(["status"])
        return error.getvalue()

    assert run_as(ALICE, reported).endswith(f" {ownership.StrangersLinkError.fix}\n")


def test_what_is_a_strangers_is_reported_without_a_look_at_ones_own(place: Path, state: Path) -> None:
    os.chown(state, 0, 0)
    private = owned(place / "private", ALICE, 0o700)
    (private / "recipe.yaml").write_text("{name: r, description: x, program: [x], image: x, options: {model: ''}}\n")
    hers = on_disk(owned(place / "studies", 0), asked := study((1, 2), 1))
    left_run(hers, asked.launches[0].key, noted=False)
    unjudged = measured_launch(owned(place / "runs", 0), 0)
    (unjudged.path / "verdict.json").unlink()
    whole = owned(place / "whole", 0)
    measured = whole_study(whole, (1, 2), repeats=1, site=f"{private}/recipe.yaml", directory=str(hers.path))
    one = measured_run(whole, "20261122-130000-one-1", 1, recipe=str(private), program=("x", "--model", "y"))
    for root in ("studies", "runs", "whole"):
        subprocess.run(["chown", "-R", f"{CAROL}:{CAROL}", place / root], check=True)
        subprocess.run(["chmod", "-R", "a+rX", place / root], check=True)
    shutil.rmtree(state)
    owned(state, ALICE, 0o700)
    (hers.path / "lock").unlink(missing_ok=True)
    hers.path.chmod(0o777)
    assert "does not have the run" in run_as(ALICE, lambda: campaign.gaps_of(hers.path))[0]
    assert not (hers.path / "lock").exists()
    assert "only shipped" in run_as(ALICE, lambda: gather.study_report(measured).why_not_expected)
    report = run_as(ALICE, lambda: readers.report_of([unjudged], print)[0])
    assert (report.rows[0].state, report.rows[0].why, report.detailed[0].steps is None) == ("proven", "", False)
    for owner, settings in ((CAROL, ()), (ALICE, (("model", "y"),))):
        subprocess.run(["chown", "-R", f"{owner}:{owner}", whole, private], check=True)
        private.chmod(0o755)
        assert run_as(ALICE, one_gpu_of, Run(one.path)).settings == settings
        what = outcome_as(ALICE, partial(expectation, one_gpu=str(one.path)), (1,)).what
        assert ("is not read by its path: " in what) == (owner == CAROL)


def test_git_and_sockets_are_served_where_no_one_else_renames(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def directory_above() -> Path:
        with files.temporary_directory() as own:
            return own.parent

    def private() -> bool:
        own = Path(tempfile.gettempdir()) / "sockets"
        own.mkdir(mode=0o700)
        return ownership.is_private(own)

    for number, (owner, mode, is_safe) in enumerate(((CAROL, 0o1777, False), (0, 0o777, False), (0, 0o1777, True))):
        monkeypatch.setattr(tempfile, "tempdir", str(owned(place / f"tmp{number}", owner, mode)))
        assert run_as(ALICE, directory_above) == (Path(tempfile.gettempdir()) if is_safe else Path("/tmp"))
        assert run_as(ALICE, private) is is_safe


def test_live_leases_of_a_stranger_hold_up_no_one(place: Path) -> None:
    target = store_of(place)
    for name in (".k.claim", f".k.claim.{BOB}"):
        run_as(CAROL, lock._written, target / name, process_identity.unique())

    def hold(name: str) -> list[str]:
        with lock.leased(target / name, print, limit_s=1, holders=owners.believed_users(target)):
            return [each.name for each in target.iterdir() if owners.is_own(each)]

    assert run_as(BOB, hold, ".k.claim")[0].startswith(f".k.claim.{BOB}~"), "also of one that comes late"
    dead = f"{process_identity.mark().rsplit('.', 2)[0]}.{2**22}.1/x"
    run_as(BOB, lock._written, target / ".l.claim", dead)
    at = (target / ".l.claim").stat().st_ino
    run_as(CAROL, lock._written, target / f".l.claim.{at}.dead", process_identity.unique())
    assert f".l.claim.{BOB}" in run_as(BOB, hold, ".l.claim"), "nor one who says to remove it"
    (target / f".l.claim.{at}.dead").unlink()
    assert run_as(BOB, hold, ".l.claim") == [".l.claim"], "whatever a name would make of its holder"


def test_a_strangers_link_among_boxes_is_no_box(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(owned(place / "cache", ALICE)))
    boxes, precious = owned(place / "cache/boxes", ALICE, 0o777), owned(place / "precious", ALICE)
    run_as(ALICE, (precious / "thesis").touch)
    run_as(CAROL, (boxes / "x").symlink_to, precious)
    owned(boxes / "y", CAROL)
    for name in ("x", "y"):
        assert run_as(ALICE, lifecycle.down, name) is False
    assert (precious / "thesis").exists()
    assert run_as(ALICE, lifecycle.names) == ()


def test_a_stranger_who_takes_the_name_for_sshs_sockets_holds_up_no_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("RUNNER_CACHE", str(owned(place / "cache", ALICE) / ("long" * 20)))
    stand_in(place, "ssh", "")
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    site = msgspec.structs.replace(read_site("local"), name="far", login="me@far.example")

    def sockets() -> Path:
        (word,) = (each for each in remote._Connection(site)._ssh if each.startswith("ControlPath="))
        return Path(word.partition("=")[2]).parent

    taken = [owned(Path(f"/tmp/gpu-runner-ssh-{ALICE}{end}"), CAROL) for end in ("", "-0")]
    try:
        first = run_as(ALICE, sockets)
        assert (run_as(ALICE, sockets), first.stat().st_uid) == (first, ALICE)
        first.rmdir()
    finally:
        for each in taken:
            each.rmdir()


def test_only_its_owner_holds_a_lock(place: Path) -> None:
    path = owned(place / "cache", ALICE) / "lock"
    path.touch(0o644)
    os.chown(path, ALICE, ALICE)

    def hold() -> int:
        with lock.locked(path, print):
            return path.stat().st_mode & 0o777

    assert run_as(ALICE, hold) == 0o600
    assert "Permission denied" in outcome_as(CAROL, os.open, path, os.O_RDONLY).what
    path.unlink()
    path.symlink_to(place / "nothing")
    assert "cannot lock" in outcome_as(ALICE, hold).what
    assert not (place / "nothing").exists()


def test_an_image_gets_a_name_whatever_strangers_have_taken(place: Path) -> None:
    target, source = store_of(place), image(place)
    (target / "refs").mkdir()
    (target / "refs").chmod(0o1777)
    _, hers, _ = run_as(ALICE, convert, source, target)
    for user, name in ((CAROL, "x/y:1"), (BOB, DIGEST)):
        run_as(user, os.mkfifo, f"{target / 'refs' / files.key_of(name)}.{BOB}")
    run_as(CAROL, (target / f"{hers.stem}-u{BOB}.sqsh").touch)
    made, his, _ = run_as(BOB, convert, source, target)
    assert (made, his.stat().st_uid, his.name.startswith(f"{hers.stem}-u{BOB}-")) == (True, BOB, True)
    assert [run_as(BOB, looked_up, name, target) for name in NAMES] == [(his, "")] * 2


def test_root_leaves_nothing_of_its_own_in_place_of_a_users(place: Path) -> None:
    target = store_of(place, ALICE, 0o700)
    _, hers, _ = run_as(ALICE, convert, image(place), target)
    known = store.lookup(str(hers), target)
    assert known is not None
    assert "SHA-256" in integrity.verified(msgspec.structs.replace(known, sha256="0" * 64)).broken
    assert {each.stat().st_uid for each in target.rglob("*")} == {ALICE}
    assert run_as(ALICE, looked_up, DIGEST, target) == (hers, "")


def launched(uid: int, place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The launcher with a program that writes into its cache, as that user, with the system's Python."""
    lib = place / "lib"
    if not lib.exists():
        shutil.copytree(LAUNCHER, lib)
        subprocess.run(["chmod", "-R", "a+rX", lib], check=True)
    words = [*become(uid), "/usr/bin/python3", f"{lib}/launch.py"]
    env = {"PATH": "/usr/bin:/bin", "TMPDIR": str(place / "tmp"), "HOME": "/nonexistent"}
    env |= {"RUNNER_JOB_ID": "5", "SLURMD_NODENAME": "n1"}
    words += ["--caches", "node", "--umask", "022", *options, "--", "/usr/bin/python3", "-c", SHOW]
    return subprocess.run(words, env=env, cwd=place, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="there is no Python that all users can run")
@pytest.mark.parametrize("trap", ["none", "directory", "link to a directory", "link to nothing", "file"])
def test_a_jobs_caches_are_its_users_whatever_another_has_put_there(place: Path, tmp: Path, trap: str) -> None:
    (place / "carols").mkdir()
    os.chown(place / "carols", CAROL, CAROL)
    (place / "carols").chmod(0o777)
    taken = tmp / f"gpu-runner-{places.outside(ALICE)}"

    def set_up() -> None:
        if trap == "directory":
            taken.mkdir()
            taken.chmod(0o777)
        elif trap == "file":
            taken.touch()
        elif trap != "none":
            taken.symlink_to(place / ("carols" if trap == "link to a directory" else "carols/nothing"))

    run_as(CAROL, set_up)
    done = launched(ALICE, place)
    assert done.returncode == 0, done.stderr
    used = Path(done.stdout.strip())
    assert used.name == "n1+5"
    assert used.parent == taken if trap == "none" else used.parent.name.startswith(f"{taken.name}+")
    assert not used.exists(), "removed at the end"
    assert os.path.lexists(taken)
    assert list((place / "carols").iterdir()) == []
    assert not taken.is_dir() or list(taken.iterdir()) == []


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="there is no Python that all users can run")
def test_two_users_with_jobs_of_one_number_share_no_cache(place: Path, tmp: Path) -> None:
    left = tmp / f"gpu-runner-{places.outside(BOB)}/n1+4"

    def leave() -> None:
        left.parent.mkdir(mode=0o700)
        left.mkdir(mode=0o700)

    run_as(BOB, leave)
    hers = Path(launched(ALICE, place).stdout.strip())
    assert left.exists(), "another user's is not touched"
    his = Path(launched(BOB, place).stdout.strip())
    assert (hers, his) == (tmp / f"gpu-runner-{places.outside(ALICE)}/n1+5", left.parent / "n1+5")
    assert not left.exists(), "his own dead job's is"
    tmp.chmod(0o777)  # without the sticky bit, anyone could rename what lies there
    done = launched(ALICE, place)
    assert Path(done.stdout.strip()).parents[1] == Path("/tmp")


def test_a_cache_that_another_user_put_on_the_node_is_not_used(
    place: Path, tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a link; what is not there is made before another one can."""
    hers, home = owned(tmp / "hub", CAROL), owned(place / "home", ALICE)
    (tmp / "led").symlink_to(home)
    os.chown(tmp / "led", CAROL, CAROL, follow_symlinks=False)
    (home / "link").symlink_to(tmp / "led")
    monkeypatch.setenv("HOME", str(home))

    def of_others(given: Path) -> tuple[str, ...]:
        made = caches.prepare({"TMPDIR": str(tmp / "led"), "TORCH_HOME": str(given)}, "n1", "5", home=True)
        assert made is not None
        assert made.variables["TMPDIR"] == str(home)
        assert made.variables.get("TORCH_HOME", "") == (f"{made.path}/torch" if made.of_others else "")
        made.leave()
        return made.of_others

    for given in (hers, hers / "x/y", tmp / "led", tmp / "led/x", home / "link", home / "../home/link/z"):
        assert run_as(ALICE, of_others, given) == ("TORCH_HOME",), given
    for given in (home, home / "later", tmp / "later/too", tmp / "later"):
        assert run_as(ALICE, of_others, given) == ()
    assert ((tmp / "later/too").stat().st_uid, (tmp / "later").stat().st_mode & 0o022) == (ALICE, 0)
    monkeypatch.setenv("RUNNER_TRUST", f"@7,{CAROL}")
    assert run_as(ALICE, of_others, hers) == ()


def test_another_users_login_is_neither_read_nor_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = place / "config.json"
    config.write_text('{"auths": {"r.io": {"auth": "bWU6c2VjcmV0"}}}')
    os.chown(config, ALICE, ALICE)
    config.chmod(0o600)
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    for name, value in (("DOCKER_CONFIG", str(place)), ("HOME", "/nonexistent"), ("XDG_RUNTIME_DIR", "/nonexistent")):
        monkeypatch.setenv(name, value)
    expected = Login(str(config), "me", "secret")
    assert credentials.find("r.io") == expected
    assert run_as(ALICE, credentials.find, "r.io") == expected
    outcome = outcome_as(BOB, credentials.find, "r.io")
    assert (outcome.value, "secret" in outcome.what) == (None, False)


@pytest.mark.parametrize("options", [(), ("--stage",)], ids=["", "from a staged copy"])
def test_a_user_who_is_not_root_runs_a_job_on_a_cluster_of_roots(
    daemons: Daemons, squashfs: StoredImage, options: tuple[str, ...]
) -> None:
    assert probe(daemons, squashfs.path, "charliecloud", *options)["outcome"] == "ran"


def store_of(place: Path, owner: int = 0, mode: int = 0o1777, group: int = 0) -> Path:
    path = place / "store"
    path.mkdir()
    os.chown(path, owner, group or owner)
    path.chmod(mode)
    return path


NAMES = ("x/y:1", DIGEST)
NO_ONE: Any = (run.How(), None, None)
