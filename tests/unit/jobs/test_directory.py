"""The run directory: made whole, found from anywhere, and of a name that is its own."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from runner.core import files
from runner.core.errors import UsageError
from runner.jobs import directory
from runner.jobs.lookup import find


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))


def run_directory(root: Path) -> directory.Run:
    run = directory.create(root, "r-1", 0.0)
    files.write_private(run.path / directory.SCRIPT, "#!/bin/bash\n")
    return run


def test_runs_of_one_second_and_of_several_roots_are_all_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run_directory(tmp_path / root) for root in ("a", "a", "b", "b")]
    assert len({run.run_id for run in runs}) == 4
    monkeypatch.chdir("/")
    assert [find(run.run_id).path for run in runs] == [run.path for run in runs]
    assert find(None).path == runs[-1].path
    assert find(str(runs[1].path)).path == runs[1].path


def test_a_name_of_a_deleted_run_is_free_again(tmp_path: Path) -> None:
    first = run_directory(tmp_path / "a")
    shutil.rmtree(first.path)
    assert run_directory(tmp_path / "b").run_id == first.run_id


def test_no_other_user_may_read_a_run(tmp_path: Path) -> None:
    run = run_directory(tmp_path)
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((run.path / directory.SCRIPT).stat().st_mode) == 0o600


def test_a_recipe_that_holds_its_runs_is_copied_without_them(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "main.py").write_text("x")
    library = tmp_path / "lib"
    library.mkdir()
    for _ in range(2):
        run = run_directory(recipe / "runs")
        directory.copy_program(run, library, recipe)
        assert sorted(path.name for path in (run.path / "recipe").iterdir()) == ["main.py"]


def test_a_recipe_that_cannot_be_copied_is_reported(tmp_path: Path) -> None:
    library, recipe = tmp_path / "lib", tmp_path / "recipe"
    library.mkdir()
    recipe.mkdir()
    (recipe / "gone").symlink_to("/no/such/file")
    with pytest.raises(UsageError, match="cannot be copied"):
        directory.copy_program(run_directory(tmp_path / "runs"), library, recipe)


def test_a_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"):
        directory.create(tmp_path / "file", "r", 0.0)
