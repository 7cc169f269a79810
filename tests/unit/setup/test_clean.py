"""``box clean`` empties only a cache directory that is ours, and keeps the images of jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runner import box
from runner.cli import run
from runner.core import paths
from runner.core.errors import Exit
from runner.images import engine as private_engine
from runner.jobs import creation
from runner.model.job import Submitted
from tests.support.commands import Call
from tests.support.documents import result
from tests.support.plans import PLAN


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("cache", "state"):
        monkeypatch.setenv(f"RUNNER_{name.upper()}", str(tmp_path / name))
    return tmp_path / "cache"


def test_a_cache_that_we_made_is_removed(cache: Path, call: Call) -> None:
    assert paths.ensure_directory(cache / "wheels" / "x").is_dir()
    assert (cache / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    call("clean", "--yes")  # its older name
    assert not cache.exists()


def test_what_is_not_ours_stays_and_so_does_the_marker(cache: Path, call: Call) -> None:
    paths.ensure_directory(cache / "wheels")
    (cache / "wheels/a b.whl").write_bytes(b"x")
    (cache / "thesis").touch()
    out, err = call("box", "clean", "--yes", "--json")
    facts = result(out)
    assert [(each["path"], each["files"]) for each in facts["removed"]] == [(str(cache / "wheels"), 2)]
    assert (facts["left"], facts["boxes"], facts["engine"]) == ([str(cache / "thesis")], [], False)
    assert f"left {cache / 'thesis'}: not ours" in err
    assert {entry.name for entry in cache.iterdir()} == {"thesis", paths.MARKER}


def test_a_directory_without_our_marker_is_refused(cache: Path, call: Call) -> None:
    (cache / "engine/run").mkdir(parents=True)
    paths.ensure_directory(cache / "locks")
    assert not (cache / paths.MARKER).exists()
    for words in (["box", "clean", "--yes"], ["box", "clean", "--keep-cache"]):
        assert "RUNNER_CACHE" in call(*words, code=Exit.REFUSED).err
    (cache / paths.MARKER).write_text("Signature: 8a477f597d28d172789f06886806bc55\n# Another program's\n")
    call("box", "clean", "--yes", code=Exit.REFUSED)
    assert (cache / "engine/run").is_dir()


def test_the_platforms_directory_bears_our_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "gpu-runner" / "wheels").mkdir(parents=True)
    assert paths.is_ours(paths.cache_dir())
    paths.ensure_directory(paths.cache("locks"))
    assert (tmp_path / "gpu-runner" / paths.MARKER).is_file()


@pytest.mark.parametrize("meanwhile", [False, True])
def test_the_image_of_a_job_that_may_need_it_stays(
    cache: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, *, meanwhile: bool
) -> None:
    """Of a job whose scheduler does not answer; another image is beside it. ``meanwhile``: submitted while boxes and
    the engine are stopped.
    """
    image = paths.ensure_directory(cache / "images") / "needed.sqsh"
    for name in ("needed.sqsh", "needed.sqsh.json", "other.sqsh", "other.sqsh.json"):
        image.with_name(name).write_bytes(b"x")

    def submit(*_: object) -> bool:
        run = creation.create(tmp_path / "runs", "r", 0.0)
        plan = msgspec.structs.replace(PLAN, image=msgspec.structs.replace(PLAN.image, path=str(image)))
        run.write("plan.json", plan)
        run.write("job.json", Submitted("slurm", "1", str(tmp_path / "nowhere"), "", 0.0))
        return False

    if meanwhile:
        monkeypatch.setattr(private_engine, "stop_private", submit)
    else:
        submit()
    paths.ensure_directory(cache / "wheels")
    facts = result(call("box", "clean", "--yes", "--json").out)
    left = ["CACHEDIR.TAG", "images", "needed.sqsh", "needed.sqsh.json"]
    assert sorted(path.name for path in cache.rglob("*")) == left
    assert facts["kept"] == [str(image)]
    assert [each["files"] for each in facts["removed"]] == [2, 1]


@pytest.mark.parametrize(
    ("words", "answer", "stays"),
    [(["box", "clean"], b"n\n", True), (["clean"], b"y\n", False), (["box", "clean", "--yes"], b"", False)],
)
def test_at_a_terminal_it_asks_first(
    cache: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], answer: bytes, *, stays: bool
) -> None:
    paths.ensure_directory(cache / "wheels")
    terminal, shell = os.openpty()
    os.write(terminal, answer)
    with os.fdopen(shell) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        run(words)
    assert (cache / "wheels").exists() == stays


def test_without_a_terminal_nothing_is_removed_unless_the_user_says_so(cache: Path) -> None:
    paths.ensure_directory(cache / "wheels")
    words = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "runner", "box", "clean"]
    assert subprocess.run(words, check=False).returncode == Exit.USAGE
    assert (cache / "wheels").is_dir()
    assert subprocess.run([*words, "--yes"], check=False).returncode == Exit.GOOD
    assert not cache.exists()


def test_a_dry_run_says_what_would_go_and_removes_nothing(cache: Path, call: Call) -> None:
    paths.ensure_directory(cache / "wheels")
    (cache / "wheels/a b.whl").write_bytes(b"x")
    facts = result(call("box", "clean", "--dry-run", "--json").out)
    assert [(each["path"], each["files"]) for each in facts["removed"]] == [(str(cache / "wheels"), 2)]
    assert facts["dry_run"] and (cache / "wheels/a b.whl").is_file()


def test_a_box_with_a_job_that_has_not_ended_stays_with_all_that_is_in_it(
    cache: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The box is up, as far as this process can see; its clients do not answer."""
    for name in ("boxes/busy/bin", "boxes/over", "box-roots/trixie"):
        paths.ensure_directory(cache / name)
        (cache / name / "file").touch()
    run = creation.create(tmp_path / "runs", "r", 0.0)
    run.write("plan.json", PLAN)
    run.write("job.json", Submitted("slurm", "1", str(cache / "boxes/busy/bin"), "", 0.0))
    over = creation.create(tmp_path / "runs", "r", 1.0)
    over.write("plan.json", PLAN)
    over.write("job.json", Submitted("slurm", "1", str(cache / "boxes/over/bin"), "", 0.0))
    monkeypatch.setattr(box, "find", lambda name: name == "busy" or None)
    out, said = call("box", "clean", "--yes", "--json")
    facts = result(out)
    assert facts["kept_boxes"] == ["busy"]
    assert [Path(each["path"]).name for each in facts["removed"]] == ["boxes"]
    assert f"kept {cache / 'box-roots'}: " in said
    assert (cache / "boxes/busy/bin/file").is_file() and (cache / "box-roots/trixie/file").is_file()
    assert not (cache / "boxes/over").exists()
