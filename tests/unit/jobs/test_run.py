"""A run by its directory: what of it can be read, and what is none of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.core.errors import UsageError
from runner.jobs.directory import Run
from runner.jobs.facts import shown_run
from runner.model.job import JobState, NodeShare
from runner.model.records import StartRecord
from tests.support.evidence import start
from tests.support.plans import PLAN


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "ranks").mkdir()
    made = Run(tmp_path)
    made.write("plan.json", PLAN)
    return made


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
