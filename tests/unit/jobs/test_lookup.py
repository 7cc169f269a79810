"""RUN is what a user has at hand: an id, a name, the beginning of one, a job's id, a directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runner.core import files
from runner.core.errors import UsageError
from runner.jobs import directory
from runner.jobs.directory import Run
from runner.jobs.facts import Selection, list_runs
from runner.jobs.lookup import find
from runner.model.job import Submitted
from runner.model.verdict import Verdict


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TZ", "UTC")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def submitted(root: Path, name: str, job: str = "", *, at_s: float = 0.0, refused: str = "") -> Run:
    """A run that the scheduler took as this job, or refused."""
    run = directory.create(root, f"{name}-2", at_s)
    files.write_private(run.path / directory.SCRIPT, "#!/bin/bash\n")
    run.write("job.json", Submitted("slurm", job, "", "0", at_s, refused=refused))
    return run


def test_a_run_is_found_by_each_of_its_names(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submitted(root, "hang.test", "1234")
    submitted(root, "other", "12.pbs-server")
    monkeypatch.chdir("/")
    for wanted in (run.run_id, str(run.path), "hang.test", "hang", "hang.test-2", "1234", run.run_id[:-3]):
        assert find(wanted).path == run.path, wanted
    assert find("12").name == "other"


def test_a_directory_with_a_script_of_the_same_name_is_no_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(root, "train", "1")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / directory.SCRIPT).touch()
    monkeypatch.chdir(tmp_path)
    assert find("train").path == run.path
    with pytest.raises(UsageError, match="no run matches"):
        find("./train")


def test_what_names_a_run_whole_goes_before_what_begins_another(root: Path) -> None:
    whole = submitted(root, "train", "20")
    submitted(root, "train-large", "201")
    submitted(root, "20", "7")
    assert find("train").path == whole.path
    assert find("201").name == "train-large"
    with pytest.raises(UsageError, match='"20" matches 2 runs'):  # a name, and a job
        find("20")


def test_the_id_of_a_run_that_is_gone_means_no_other_run(root: Path) -> None:
    """Else `cancel` with it would end the one that was submitted in the same second, or with more ranks."""
    gone, second = (submitted(root, "train") for _ in range(2))
    assert second.run_id == f"{gone.run_id}.2"
    shutil.rmtree(gone.path)
    with pytest.raises(UsageError, match="no run matches"):
        find(gone.run_id)
    assert find(gone.run_id[:-1]).path == second.path


def test_what_fits_several_runs_names_them(root: Path) -> None:
    runs = [submitted(root, "imp", str(number), at_s=60.0 * number) for number in range(1, 11)]
    runs[-1].write("verdict.json", Verdict("failed"))
    for wanted in ("imp", "i", "1970"):
        with pytest.raises(UsageError, match=f'"{wanted}" matches 10 runs: {runs[-1].run_id} .failed., ') as caught:
            find(wanted)
        assert caught.value.what.endswith(f"{runs[2].run_id} and 2 more")


def test_what_fits_no_run_is_answered_with_the_newest(root: Path) -> None:
    runs = [submitted(root, "train", str(number), at_s=60.0 * number) for number in range(4)]
    runs[3].write("verdict.json", Verdict("failed"))
    submitted(root, "refused", refused="no such partition")
    with pytest.raises(UsageError) as caught:
        find("imp")
    assert caught.value.what == (
        f'no run matches "imp". Recent: {runs[3].run_id} (failed), {runs[2].run_id}, {runs[1].run_id}. '
        "All: python -m runner status"
    )
    for wanted in ("", "/", "..", "4", "nowhere/train", "a\x1bb"):
        with pytest.raises(UsageError, match="no run matches") as caught:
            find(wanted)
        assert caught.value.what.isprintable()


def test_a_refused_submission_is_found_only_by_its_own_id(root: Path) -> None:
    run = submitted(root, "train", "1")
    refused = submitted(root, "train", refused="no such partition")
    assert find(None).path == find("train").path == find("tr").path == run.path
    assert find(refused.run_id).path == find(str(refused.path)).path == refused.path


def test_the_only_submission_was_refused(root: Path) -> None:
    refused = submitted(root, "train", refused="no such partition")
    with pytest.raises(UsageError, match=f"there are no runs yet; {refused.run_id} was never submitted"):
        find(None)


def test_a_directory_without_a_script_was_never_submitted(root: Path) -> None:
    cut_off = directory.create(root, "train-2", 0.0)
    with pytest.raises(UsageError, match=f'no run matches "{cut_off.run_id}"'):
        find(cut_off.run_id)


def test_the_name_in_an_id() -> None:
    def name(run_id: str) -> str:
        return Run(Path("/runs", run_id)).name

    assert name("20261121-205349-imp-2") == "imp"
    assert name("20261121-205349-big-model-3.1-16.2") == "big-model-3.1"
    assert name("a-directory-of-mine") == "a-directory-of-mine"


def test_what_cannot_be_read_in_the_list_of_runs_is_no_obstacle(root: Path, tmp_path: Path) -> None:
    run = submitted(root, "train", "1")
    runs = tmp_path / "state" / "runs"
    (runs / "loop").symlink_to("loop")
    (runs / "gone").symlink_to("/no/such/run")
    (runs / "file").touch()
    broken = submitted(root, "train-too", "2")
    (broken.path / "job.json").unlink()
    (broken.path / "job.json").symlink_to("job.json")
    assert find("1").path == find("train").path == run.path
    assert [listed.run for listed in list_runs(Selection()).runs] == [run.run_id]
