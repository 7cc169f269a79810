"""The run directory: made whole, found by what a user has at hand, and what of it can be read."""

import json
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.core import files
from runner.core.errors import UsageError
from runner.jobs import creation, directory
from runner.jobs.directory import Run
from runner.jobs.facts import shown_run
from runner.jobs.logs import Selection, log_files
from runner.model.job import JobState, NodeShare, Submitted
from runner.model.records import StartRecord
from tests.support.evidence import start
from tests.support.plans import PLAN


def run_directory(root: Path) -> directory.Run:
    run = creation.create(root, "r-1", 0.0)
    files.write_private(run.path / directory.SCRIPT, "#!/bin/bash\n")
    return run


def library(root: Path) -> Path:
    (root / "lib").mkdir(exist_ok=True)
    return root / "lib"


def test_no_other_user_may_read_a_run_and_the_name_of_a_deleted_one_is_free_again(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "a")
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((run.path / directory.SCRIPT).stat().st_mode) == 0o600
    shutil.rmtree(run.path)
    assert run_directory(tmp_path / "b").run_id == run.run_id


@pytest.mark.parametrize("state", ["state", "recipe/state"])
def test_a_recipe_that_holds_its_runs_and_the_list_of_them_is_copied_without(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / state))
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "main.py").write_text("x")
    for _ in range(2):
        run = run_directory(recipe / "runs")
        creation.copy_program(run, library(tmp_path), recipe)
        assert sorted(path.name for path in (run.path / "recipe").iterdir()) == ["main.py"]


def test_what_cannot_be_made_or_copied_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root, why in ((tmp_path / "file", "cannot be made"), (directory.index(), "the list of runs")):
        with pytest.raises(UsageError, match=why):
            creation.create(root, "r", 0.0)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/gone").symlink_to("/no/such/file")
    with pytest.raises(UsageError, match="cannot be copied"):
        creation.copy_program(run_directory(tmp_path / "runs"), library(tmp_path), tmp_path / "recipe")


def test_a_run_is_read_only_while_it_is_the_directory_that_it_was(tmp_path: Path) -> None:
    """What a stranger puts into its place could lead to a run of this user's alone."""
    own, theirs = run_directory(tmp_path / "own"), tmp_path / "theirs"
    started(own, 0, "n1")
    files.write_private(own.path / "logs/rank-0.out", "private\n")
    shutil.copytree(own.path, theirs)
    run = Run(theirs)
    (log,) = log_files(run, Selection())
    theirs.rename(tmp_path / "away")
    theirs.symlink_to(own.path)
    assert (run.content(directory.SCRIPT), run.records.start(0)) == (b"", None)
    for read in (log.open, lambda: run.owner, lambda: run.names_in("ranks"), lambda: run.content_of("nodes")):
        with pytest.raises(OSError, match="Stale file handle"):
            read()
    assert Run(theirs).content(directory.SCRIPT), "a link of this user's is followed"


def started(run: Run, rank: int, node: str, **values: Any) -> None:
    run.write(f"ranks/{rank}.start.json", start(rank, node_name=node, **values))


def test_what_is_missing_or_damaged_is_none(run: Run) -> None:
    run.write("plan.json", msgspec.structs.replace(PLAN, program=("a\udcff",)))
    assert run.needed_plan().program == ("a\udcff",), "bytes that are no UTF-8 survive"
    run.write("plan.json", msgspec.to_builtins(PLAN) | {"gpus_per_node": "\ud800"})
    (run.path / "verdict.json").write_text(json.dumps({"outcome": "\ud800"}))
    assert (run.plan, run.verdict) == (None, None), "half a character is neither a number nor an outcome"
    run.write("plan.json", msgspec.to_builtins(PLAN) | {"program": ["\ud800"]})
    assert run.plan is None, "nor a part of an argument"
    run.write("plan.json", msgspec.to_builtins(PLAN) | {"scheduler_settings": {"directives": "x"}})
    with pytest.raises(UsageError, match="plan cannot be read"):
        run.needed_plan()
    run.write("plan.json", msgspec.to_builtins(PLAN) | {"scheduler": "gone", "scheduler_settings": {"directives": "x"}})
    assert run.needed_plan().scheduler == "gone"
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


def test_a_program_of_a_recipe_that_is_too_long_is_not_read(run: Run) -> None:
    (run.path / "recipe").mkdir()
    for name, size in (("a.py", 1), ("b.py", 1 << 40)):
        with (run.path / "recipe" / name).open("wb") as file:
            file.truncate(size)
    assert [name for name, _ in directory.recipe_programs(run.path / "recipe")] == ["a.py"]


@pytest.mark.parametrize("job", ["12", "12_3", "12+1", "12[]", "12[4].pbs-1.site", "12.pbs", "4242.123456.7ea6bc94"])
def test_a_recorded_job_id_is_one_that_a_client_takes_for_a_jobs(run: Run, job: str) -> None:
    """An option of scontrol, or PBS's JOB@SERVER of a stranger, is none."""
    for job_id, left in ((job, job), (f"{job}@attackers.host:15001", ""), ("-Q", ""), ("--uid=0", "")):
        run.write(directory.JOB, Submitted("pbs", job_id, "", "0", 0.0))
        assert run.submitted is not None and run.submitted.job_id == left


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


def test_the_figure_of_a_verdict_of_an_older_version_is_of_the_planned_arm(run: Run) -> None:
    run.write("plan.json", msgspec.structs.replace(PLAN, arms=("full", "uncoupled")))
    run.write("verdict.json", {"outcome": "measured", "images_per_s": 10.0})
    figure = run.figure
    assert figure is not None and (figure.value, figure.unit, figure.arm, figure.claim) == (
        10.0, "images", "uncoupled", "uncoupled",
    )  # fmt: skip
    assert [doubt.code for doubt in figure.doubts] == ["other-arm", "steadiness-unknown", "no-interval"]
    (run.path / "verdict.json").write_text(json.dumps({"outcome": "failed", "images_per_s": 10.0}))
    assert run.figure is None


def test_a_launch_of_a_study_belongs_to_it(tmp_path: Path) -> None:
    launch = tmp_path / "study" / "launches" / "g0001-full-r1" / "20261121-205349-imp-2"
    assert (Run(launch).group, Run(launch).name) == (None, "imp")
    launch.mkdir(parents=True)
    (tmp_path / "study" / "study.json").touch()
    assert Run(launch).group == tmp_path / "study"
    assert (Run(tmp_path / "study").group, Run(tmp_path / "study").name) == (None, "study")
    assert Run(Path("/runs/20261121-205349-big-model-3.1-16.2")).name == "big-model-3.1"


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


def test_a_newly_made_directory_of_runs_ignores_itself_for_git_and_an_existing_one_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in ("new $runs é", "old"):
        if name == "old":
            (tmp_path / name).mkdir()
        run = creation.create(tmp_path / name, "r", 0.0)
        (run.path / "file").touch()
        assert (tmp_path / name / ".gitignore").exists() == (name != "old")
    seen = subprocess.run(["git", "-C", tmp_path, "status", "--porcelain"], capture_output=True, text=True, check=True)
    assert "old/" in seen.stdout and "runs" not in seen.stdout
    launch = creation.create(tmp_path / "study/launches/g0001", "r", 1.0)
    assert [each.name for each in launch.path.parent.iterdir()] == [launch.run_id]
