"""Kept wheels: on disk before they get their names, and whole when they are taken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.errors import InfrastructureError
from runner.core.package_directory import PackageDirectory, PackageFile
from runner.images.building import wheels
from tests.support import package_directories
from tests.support.container_programs import CONTAINERS
from tests.support.package_directories import collected
from tests.support.users import ALICE

NAME = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
BASE, OTHER_BASE = "sha256:" + "a" * 64, "sha256:" + "b" * 64
# Traces what a call does to files: each fsync's path and each rename.
TRACED = """
import os, sys
sys.path.insert(0, sys.argv[1])
fsync = os.fsync
def traced(handle):
    print("fsync", os.readlink(f"/proc/self/fd/{handle}"))
    fsync(handle)
os.fsync = traced
sys.addaudithook(lambda event, words: print(event, *words[:2]) if event == "os.rename" else None)
import build
from pathlib import Path
build.keep(Path(sys.argv[2]), Path(sys.argv[3]))
"""


def wheel(text: str = "content") -> bytes:
    return package_directories.wheel("horovod", "0.28.1", {"horovod/__init__.py": text.encode() * 1000})[1]


def built(directory: Path, key: str = "key", text: str = "content") -> Path:
    """What a build has left there."""
    directory.mkdir(parents=True)
    (directory / "key").write_text(f"{key}\n")
    (directory / NAME).write_bytes(wheel(text))
    return directory


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "damaged",
    [
        wheel()[:-200],
        b"",
        wheel()[:100] + bytes([wheel()[100] ^ 1]) + wheel()[101:],
        bytes(len(wheel())),
    ],
    ids=["cut", "empty", "a flipped byte", "zeros"],
)
def test_a_damaged_wheel_is_removed_and_not_taken_until_a_build_replaces_it(tmp_path: Path, damaged: bytes) -> None:
    said: list[str] = []
    path = wheels.keep(BASE, "key", NAME, wheel())
    assert wheels.find(BASE, "key", said.append) == path
    assert [file for _, file in wheels.offered(BASE, said.append)] == [path]
    assert said == []
    path.write_bytes(damaged)
    assert wheels.find(BASE, "key", said.append) is None
    assert said == [f"the kept wheel {path} was damaged, and is removed"]
    assert not path.exists()
    path.write_bytes(damaged)
    assert wheels.offered(BASE, said.append) == ()
    wheels.keep_built(BASE, built(tmp_path / "built", text="new"))
    assert wheels.find(BASE, "key", print) == path
    assert path.read_bytes() == wheel("new")


def test_a_wheel_is_taken_by_the_base_that_it_was_made_in_and_no_other(tmp_path: Path) -> None:
    """A base can name any key and leave any wheel. So can one whose wheels were collected, and copied here."""
    wheels.keep_built(BASE, built(tmp_path / "built"))
    (path,) = wheels.kept(print)
    assert wheels.find(BASE, "key", print) == path
    assert [file for _, file in wheels.offered(BASE, print)] == [path]
    assert wheels.find(BASE, "another", print) is None
    assert wheels.find(OTHER_BASE, "key", print) is None
    assert wheels.offered(OTHER_BASE, print) == ()
    assert path.parents[1] != wheels.shelf()  # of environments
    name = f"compiled/{path.relative_to(path.parents[2])}"
    manifest = collected(tmp_path / "p", files=(PackageFile(name, "", 0), PackageFile(f"compiled/key/{NAME}", "", 0)))
    (tmp_path / "p" / name).parent.mkdir(parents=True)
    path.rename(tmp_path / "p" / name)
    packages = PackageDirectory(tmp_path / "p", manifest)
    (tmp_path / "p" / name).chmod(0o666)  # and could be of any base
    said: list[str] = []
    wheels.keep_collected(packages, said.append)
    (tmp_path / "p" / name).chmod(0o644)
    (tmp_path / "p" / name).rename(tmp_path / "a-private-file")
    (tmp_path / "p" / name).symlink_to(tmp_path / "a-private-file")
    wheels.keep_collected(packages, said.append)
    why = "is not used: another user can change it, or it is a link"
    assert wheels.kept(print) == () and said == [f"the wheel {tmp_path}/p/{name} {why}"] * 2
    (tmp_path / "a-private-file").rename(tmp_path / "p" / name)
    wheels.keep_collected(packages, said.append)
    assert wheels.kept(print) == (path,) and len(said) == 2


@pytest.mark.parametrize("above", range(4), ids=("wheel", "key", "shelf", "all"))
@pytest.mark.parametrize("change", ["writable", "another user's"])
def test_a_wheel_that_another_user_could_have_put_there_is_not_taken(above: int, change: str) -> None:
    path = wheels.keep(BASE, "key", NAME, wheel())
    place = (path, *path.parents)[above]
    if change == "writable":
        place.chmod(place.stat().st_mode | 0o020)
    elif os.geteuid() == 0:
        os.chown(place, ALICE, -1)
    else:
        pytest.skip("takes two users")
    said: list[str] = []
    assert wheels.find(BASE, "key", said.append) is None
    assert wheels.offered(BASE, said.append) == ()
    assert all("others can write to it" in each for each in said) and said
    assert path.exists(), "it may be another user's"


@pytest.mark.parametrize("key", ["../../planted", "/tmp/planted", "..", "a/b"])
def test_a_key_that_is_a_path_leads_nowhere(tmp_path: Path, key: str) -> None:
    """The key is what a program in the base has written, and the base may be anybody's."""
    left = built(tmp_path / "built", key)
    takes: tuple[Callable[[], object], ...] = (
        lambda: wheels.keep_built(BASE, left),
        lambda: wheels.keep(BASE, key, NAME, wheel()),
        lambda: wheels.find(BASE, key, print),
    )
    for take in takes:
        with pytest.raises(InfrastructureError, match="which is no key of a wheel"):
            take()
    assert not list(tmp_path.glob("cache/**/*.whl"))


@pytest.mark.parametrize("linked", ["opt/wheel/key", f"opt/wheel/{NAME}", "opt/wheel", "opt"])
def test_a_link_that_a_build_left_is_not_followed_on_this_machine(tmp_path: Path, linked: str) -> None:
    root, private = tmp_path / "root", tmp_path / "private"
    built(root / "opt/wheel")
    built(private / "opt/wheel", text="secret")
    (root / linked).rename(tmp_path / "away")
    (root / linked).symlink_to(private / linked)
    wheels.keep_built(BASE, root / "opt/wheel")
    assert wheels.offered(BASE, print) == ()


def test_the_program_of_a_build_takes_whole_wheels_only(tmp_path: Path) -> None:
    shelf, out = tmp_path / "shelf", tmp_path / "out"
    (shelf / "key").mkdir(parents=True)
    words = [sys.executable, str(CONTAINERS / "build.py"), "wheel", "--framework", "pytorch", "--horovod", "key"]
    words += ["--out", str(out), "--shelf", str(shelf)]
    for content, code in ((wheel(), 0), (wheel()[:-100], 1)):
        (shelf / "key" / NAME).write_bytes(content)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    assert "is damaged: it is not taken" in done.stdout
    assert "no wheel is kept under key" in done.stderr


def test_the_program_of_a_build_writes_a_wheel_to_disk_before_its_name(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(wheel())
    words = [sys.executable, "-c", TRACED, str(CONTAINERS), str(tmp_path / NAME), str(tmp_path / "shelf/key")]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    first, second = done.stdout.splitlines()
    part = first.removeprefix("fsync ")
    assert second == f"os.rename {part} {tmp_path / 'shelf/key' / NAME}"
    assert [path.name for path in (tmp_path / "shelf/key").iterdir()] == [NAME]
