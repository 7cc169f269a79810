"""The run directory: made whole, found by what a user has at hand, and what of it can be read."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.core import files
from runner.core.errors import UsageError
from runner.jobs import directory
from runner.jobs.directory import Run
from runner.jobs.facts import Selection, list_runs, shown_run
from runner.jobs.lookup import find
from runner.model.job import JobState, NodeShare, Submitted
from runner.model.records import StartRecord
from runner.model.verdict import Verdict
from tests.support.evidence import start
from tests.support.plans import PLAN


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


def started(run: Run, rank: int, node: str, **values: Any) -> None:
    run.write(f"ranks/{rank}.start.json", start(rank, node_name=node, **values))


def test_what_is_missing_or_damaged_is_none(run: Run) -> None:
    for name in ("job.json", "exit.json", "ended.json", "verdict.json", "code.json", "provenance.json", "command.json"):
        (run.path / name).write_text('{"schema": [')
    (run.path / "plan.json").unlink()
    known = (run.plan, run.submitted, run.marker, run.ended, run.verdict, run.code, run.figure, run.records.start(0))
    assert set(known) == {None}
    assert (run.tasks, run.provenance.runner, run.command.arguments, run.has_marker) == (0, "", (), True)
    with pytest.raises(UsageError, match="plan cannot be read"):
        run.needed_plan()
    with pytest.raises(UsageError, match="no recorded command line"):
        run.needed_command()


def test_the_records_of_a_run_are_those_of_its_ranks(run: Run) -> None:
    for rank in (0, 2, 10):
        started(run, rank, "n1", token="abc")
    (run.ranks / "03.start.json").write_text("{}")
    (run.ranks / "4.start.json").write_text("{")
    (run.ranks / "5.start.json").symlink_to("/no/such/file")
    run.write("ranks/6.start.json", start(7))
    records = run.records
    assert records.listing() == {"start": (0, 2, 4, 5, 6, 10)}
    assert list(records.starts) == [0, 2, 10]
    damaged: list[str] = []
    assert list(records.records("start", StartRecord, range(7), damaged)) == [0, 2]
    assert [each.split(":")[0] for each in damaged] == [f"{rank}.start.json" for rank in (4, 5, 6)]
    assert damaged[2].endswith("it is the record of rank 7")


def test_bytes_that_are_no_utf_8_survive(run: Run) -> None:
    run.write("plan.json", msgspec.structs.replace(PLAN, program=("a\udcff",)))
    assert run.needed_plan().program == ("a\udcff",)


def test_the_figure_of_a_verdict_of_an_older_version_is_of_the_planned_arm(run: Run) -> None:
    run.write("plan.json", msgspec.structs.replace(PLAN, arms=("full", "uncoupled")))
    (run.path / "verdict.json").write_text(json.dumps({"outcome": "measured", "images_per_s": 10.0}))
    figure = run.figure
    assert figure is not None and (figure.value, figure.unit, figure.arm, figure.claim) == (
        10.0, "images", "uncoupled", "uncoupled",
    )  # fmt: skip
    assert [doubt.code for doubt in figure.doubts] == ["other-arm", "steadiness-unknown", "no-interval"]
    (run.path / "verdict.json").write_text(json.dumps({"outcome": "failed", "images_per_s": 10.0}))
    assert run.figure is None


def test_a_launch_of_a_study_belongs_to_it(tmp_path: Path) -> None:
    launch = tmp_path / "study" / "launches" / "g0001-full-r1" / "20261121-205349-imp-2"
    assert Run(launch).group is None
    launch.mkdir(parents=True)
    (tmp_path / "study" / "study.json").touch()
    assert Run(launch).group == tmp_path / "study"
    assert Run(tmp_path / "study").group is None


@pytest.mark.parametrize(
    ("starts", "nodes"),
    [
        ((), ()),
        # As the scheduler named them, the most exact first; else those that the ranks took.
        ([(rank, node, {"SLURM_STEP_GPUS": gpus, "SLURM_JOB_GPUS": "7"}, 0) for rank, node,
            gpus in ((0, "n1", "2,3"), (1, "n1", "2,3"), (2, "n2", "0,1"))],
            (NodeShare("n1", (0, 1), (2, 3)), NodeShare("n2", (2,), (0, 1)))),
        ([(0, "n1", {}, 1), (1, "n1", {"SLURM_STEP_GPUS": "odd"}, 0)], (NodeShare("n1", (0, 1), (0, 1)),)),
    ],
)  # fmt: skip
def test_the_nodes_and_gpus_that_a_run_really_had(run: Run, starts: Any, nodes: tuple[NodeShare, ...]) -> None:
    for rank, node, environment, index in starts:
        started(run, rank, node, environment=environment, device_index=index)
    run.write("ended.json", JobState("ended", "COMPLETED", allocated="cpu=8,gres/gpu:a100=4"))
    shown = shown_run(run, None)
    assert (shown.node_list, shown.allocated) == (nodes, "cpu=8,gres/gpu:a100=4")
    assert (shown.command_line, shown.code) == ((), None)


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
