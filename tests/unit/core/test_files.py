"""Files: where they lie, whole or not at all, also where other machines change them; keys change with what goes in."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from runner.cli.show_run import _print_diff
from runner.core import files, ownership, package_directory, paths, process_identity
from runner.core.errors import RefusedError, UsageError
from runner.core.files import (
    UnusableFileError,
    again_if_stale,
    files_below,
    guarded,
    is_local,
    key_of,
    magic,
    names_in,
    read_bytes,
    sha256,
    tree_hash,
)
from runner.environments import directory
from runner.images.building.build import context_files, image_name
from runner.images.reference import parse
from runner.images.sources import layered
from runner.images.store import store
from runner.jobs.directory import Run
from tests.support.limits import largest_file
from tests.support.users import ALICE, AS_ROOT, open_directory


@pytest.mark.parametrize("fails", [False, True])
def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, fails: bool) -> None:
    path = tmp_path / "f"
    files.write_private(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_private(path, "new \ud800")
    with suppress(ZeroDivisionError), files.replacement(path) as temporary:
        temporary.write_text("new")
        assert process_identity.state(files.temporary_owner(temporary)) == "alive"
        assert 1 // (not fails)
    assert path.read_text() == ("old" if fails else "new")
    assert list(tmp_path.iterdir()) == [path]
    assert files.temporary_owner(path) == ""


def test_a_full_disk_is_reported_with_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    with largest_file(10), pytest.raises(OSError, match="File too large") as caught:
        files.write(tmp_path / "f", b"x" * 100)
    assert caught.value.filename == str(tmp_path / "f")


def test_permissions_are_the_named_ones_or_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)  # as where a default ACL lets others write
    files.write(tmp_path / "theirs to read", b"x")
    os.umask(before)
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "open", b"x")
        files.write(tmp_path / "named", b"x", mode=0o664)
        files.write_private(tmp_path / "private", "x")
        files.write(tmp_path / ("n" * 255), b"x")  # a name of the greatest length
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes.pop("theirs to read") == 0o644
    assert modes == {"open": 0o640, "named": 0o664, "private": 0o600, "n" * 255: 0o640}


@pytest.mark.parametrize(("times", "number", "calls"), [(4, errno.ESTALE, 5), (9, errno.ESTALE, 5), (1, errno.EIO, 1)])
def test_a_stale_handle_is_read_again(times: int, number: int, calls: int) -> None:
    called: list[int] = []

    def read() -> str:
        called.append(1)
        if len(called) <= times:
            raise OSError(number, os.strerror(number))
        return "whole"

    if times < calls:
        assert again_if_stale(read) == "whole"
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            again_if_stale(read)
    assert len(called) == calls


def test_local_file_systems_are_known() -> None:
    assert is_local(Path("/dev/shm"))
    assert magic(Path("/proc")) == 0x9FA0  # linux/magic.h; no place for a run, so not among the local ones
    assert not is_local(Path("/proc"))
    assert magic(Path("/nowhere/at/all")) is None


def test_a_directory_is_listed_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    assert names_in(tmp_path) == {"a", "b"}
    assert names_in(tmp_path / "none") == names_in(tmp_path / "a") == frozenset()


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert read_bytes(tmp_path / "f", most=5) == b"12345"
    with pytest.raises(UnusableFileError, match="longer than 4 bytes"):
        read_bytes(tmp_path / "f", most=4)


def test_parts_do_not_run_together() -> None:
    assert key_of("ab", "c") != key_of("a", "bc") != key_of("abc")
    assert key_of("a", "b") == key_of("a", "b")
    assert key_of("a", "b") != key_of("b", "a")
    assert len(key_of("\udcff")) == 24


def test_a_tree_is_its_names_contents_and_permission_to_execute(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a", "sub/b"):
        (tmp_path / name).write_text(name)
    before = tree_hash(files_below(tmp_path))
    assert tree_hash(reversed(files_below(tmp_path))) == before

    for cache in ("__pycache__", ".ruff_cache", ".mypy_cache", ".pytest_cache"):
        (tmp_path / "sub" / cache).mkdir()
        (tmp_path / "sub" / cache / "a").write_text("x")
    assert tree_hash(files_below(tmp_path)) == before, "what tools keep is not source"

    (tmp_path / "a").chmod(0o755)
    executable = tree_hash(files_below(tmp_path))
    assert executable != before
    (tmp_path / "a").rename(tmp_path / "c")
    assert tree_hash(files_below(tmp_path)) not in (before, executable)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_the_context_holds_what_the_dockerfile_copies(framework: str) -> None:
    names = {name for name, _ in context_files(framework)}
    assert {
        f"containers/{framework}/Dockerfile",
        "containers/horovod/build.py",
        "containers/horovod/prove.py",
        "containers/horovod/fixes/cxx-standard.patch",
    } <= names
    assert any(name.startswith("recipes/") for name in names)


KERAS_3 = {"LEGACY_KERAS": "0"}
TENSORFLOW = "nvcr.io/nvidia/tensorflow:25.02-tf2-py3"


@pytest.mark.parametrize(
    ("framework", "base", "options", "name"),
    [
        ("pytorch", "nvcr.io/nvidia/pytorch:25.02-py3", {}, "horovod-pytorch:25.02-py3"),
        ("pytorch", "standin", {}, "horovod-pytorch:standin"),
        ("pytorch", "standin-trixie", {}, "horovod-pytorch:standin-trixie"),
        ("pytorch", "standin", {"NCCL": "none", "CUDA_ARCHS": "auto"}, "horovod-pytorch:standin-without-nccl"),
        ("pytorch", "docker://nvcr.io#nvidia/pytorch:25.02-py3", {}, "horovod-pytorch:25.02-py3"),
        ("pytorch", "me/torch-base:1", {}, "horovod-pytorch:me-torch-base-1"),
        ("pytorch", "docker.io/someone/pytorch:25.02-py3", {}, "horovod-pytorch:someone-pytorch-25.02-py3"),
        ("pytorch", "host:5000/nvidia/pytorch:25.02", {}, "horovod-pytorch:host-5000-nvidia-pytorch-25.02"),
        ("pytorch", f"me/pytorch@sha256:{'0a' * 32}", {}, "horovod-pytorch:me-pytorch-0a0a0a0a0a0a"),
        ("tensorflow", "standin", {}, "horovod-tensorflow:standin"),
        ("tensorflow", "standin", KERAS_3, "horovod-tensorflow:standin-keras3"),
        ("tensorflow", TENSORFLOW, {}, "horovod-tensorflow:25.02-tf2-py3"),
        ("tensorflow", TENSORFLOW, KERAS_3, "horovod-tensorflow:25.02-tf2-py3-keras3"),
    ],
)
def test_the_name_says_base_framework_and_options(
    framework: str, base: str, options: dict[str, str], name: str
) -> None:
    assert image_name(framework, base, options) == f"gpu-runner/{name}"


def test_a_name_too_long_for_a_tag_stays_a_name_of_its_own() -> None:
    names = [image_name("pytorch", f"{owner * 100}/pytorch:" + "1" * 60) for owner in "ab"]
    assert len(set(names)) == 2
    assert [str(parse(name)) for name in names] == names


def test_a_files_hash_is_that_of_its_bytes(tmp_path: Path) -> None:
    content = b"x" * ((1 << 20) + 1)
    (tmp_path / "file").write_bytes(content)
    assert sha256(tmp_path / "file") == sha256(content)
    assert sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_cold_means_no_cache_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("COLD", value)
        assert paths.caches_ignored() is wanted


def test_directories_are_those_of_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNNER_CACHE", "RUNNER_STATE", "RUNNER_CONFIG", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/u/cache")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # "consider the path invalid and ignore it"
    assert str(paths.cache_dir()) == "/scratch/u/cache/gpu-runner"
    assert str(paths.state_dir()) == "/home/u/.local/state/gpu-runner"
    assert str(paths.config_file()) == "/home/u/.config/gpu-runner/config.yaml"


def test_a_cache_is_closed_to_others_unless_it_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mode in (("new", 0o700), ("there", 0o755)):
        monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / name))
        if name == "there":
            (tmp_path / name).mkdir(mode)
        paths.ensure_directory(store.directory())
        assert (tmp_path / name).stat().st_mode & 0o777 == mode
    monkeypatch.setenv("RUNNER_STORE", str(tmp_path / "shared"))
    assert paths.ensure_directory(store.directory()).stat().st_mode & 0o777 == 0o755


PLACES: dict[str, Callable[[], Path]] = {
    "RUNNER_CACHE": paths.cache_dir,
    "RUNNER_STATE": paths.state_dir,
    "RUNNER_CONFIG": paths.config_file,
    "RUNNER_STORE": store.directory,
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_is_the_same_wherever_a_command_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setenv(name, "~/mine")
    assert str(PLACES[name]()) == "/home/u/mine"
    monkeypatch.setenv(name, "mine")
    with pytest.raises(UsageError, match=f"{name} names a path from where a command is called"):
        PLACES[name]()


@pytest.mark.parametrize("is_pipe", [True, False], ids=["a pipe", "a hole"])
def test_what_others_may_have_put_in_a_files_place_is_not_read(tmp_path: Path, is_pipe: bool) -> None:
    for name in ("code.diff", "job.json", "manifest.json", "environment.json"):
        os.mkfifo(tmp_path / name) if is_pipe else (tmp_path / name).touch()
        if not is_pipe:
            os.truncate(tmp_path / name, 1 << 40)
    with pytest.raises(UsageError, match="difference cannot be read"):
        _print_diff(Run(tmp_path))
    with pytest.raises(RefusedError, match="manifest of these packages is damaged"):
        package_directory.read(tmp_path)
    assert directory.read(tmp_path) is None
    if is_pipe:
        with pytest.raises(files.UnusableFileError):
            layered.opener(tmp_path / "code.diff")()


@AS_ROOT
@pytest.mark.parametrize("name", ["RUNNER_STATE", "RUNNER_CACHE"])
def test_a_directory_that_another_user_makes_after_it_was_looked_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with open_directory() as place:
        monkeypatch.setenv(name, str(place / "own"))
        state, cache = paths.state_dir(), paths.cache("images")
        (place / "own").mkdir()
        os.chown(place / "own", ALICE, ALICE)
        with pytest.raises(RefusedError, match=f"user {ALICE}'s"):
            paths.state_dir() if state == place / "own" else paths.ensure_directory(cache)


def test_what_is_made_in_a_guarded_block_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for programs: what they run may lie in TMPDIR. After it all is as the user had it."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "circle").symlink_to("circle")
    places = {
        "TMPDIR": tmp_path / "open",
        "TMP": tmp_path,
        "TEMP": tmp_path / "away",
        "ENROOT_TEMP_PATH": tmp_path / "circle",
    }
    for name, place in places.items():
        monkeypatch.setenv(name, str(place))
    monkeypatch.chdir(tmp_path / "open")
    before = os.umask(0)
    try:
        with guarded():
            assert {name for name in places if name in os.environ} == {"TMP"}
            assert files.user_umask() == 0
            (tmp_path / "made").touch()
            with guarded():  # of another call, which ends before
                pass
            assert (os.umask(0o022), set(places) & set(os.environ)) == (0o022, {"TMP"})
        assert {name: os.environ[name] for name in places} == {name: str(place) for name, place in places.items()}
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o644


def test_the_working_directory_counts_in_a_list_of_paths_where_others_cannot_put_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for mode, here in ((0o755, f"{tmp_path}:"), (0o1777, "")):
        tmp_path.chmod(mode)
        assert ownership.whole_parts(":/x") == f"{here}/x"


def test_all_that_a_word_names_is_known_as_written_and_by_its_real_path(tmp_path: Path) -> None:
    start = Path(os.path.realpath(tmp_path))
    (start / "of all").mkdir()
    (start / "of all/run").touch()
    (start / "link.py").symlink_to("of all/run")
    (start / "gone").symlink_to("/nowhere/at/all")
    run = start / "of all/run"
    assert paths.paths_in("of all/run", start) == paths.paths_in(str(run), Path("/")) == [run]
    for word in ("link.py", "--code=link.py", "cd x && python3 link.py;", f"-I{start}/link.py"):
        assert paths.paths_in(word, start) == [start / "link.py", run]
    assert paths.paths_in("gone", start) == [start / "gone", Path("/nowhere/at/all")]
    for word in ("", "absent/run", "a\0", "x" * 5000, "https://host/run"):
        assert paths.paths_in(word, start) == []


def test_an_interpreter_runs_the_first_word_behind_its_options(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    def is_run(line: str) -> bool:
        return bool(list(paths.named_code((*line.split(), "file"), tmp_path, Path.exists)))

    for line in ("python3", "python3 -u", "python3 -W ignore -X dev", "timeout 5 /not/here/python3.11 -Xtracemalloc",
                 "env A=1 bash -eo pipefail", "perl -w", "bash --norc", "source"):  # fmt: skip
        assert is_run(line) and not is_run(f"{line} another"), line
    for line in ("python3 -c 1", "python3 -um json", "python3 -mjson", "python3 -", "bash -lc true", "tool -u"):
        assert not is_run(line), line
