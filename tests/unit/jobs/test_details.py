"""The nodes and GPUs that a run really had, from what its ranks recorded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runner.jobs.directory import RunDirectory
from runner.jobs.facts import shown_run
from runner.model.job import JobState
from runner.model.origin import NodeShare
from runner.model.records import StartRecord
from tests.support.plans import PLAN

START = StartRecord("2", 0, 4, 0, 2, 0, "h", True, "cuda")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    (tmp_path / "ranks").mkdir()
    made = RunDirectory(tmp_path)
    made.write("plan.json", PLAN)
    return made


def started(run: RunDirectory, rank: int, node: str, **values: object) -> None:
    record = msgspec.structs.replace(START, rank=rank, node_name=node, **values)
    run.write(f"ranks/{rank}.start.json", record)


def test_the_gpus_of_a_node_are_those_that_the_scheduler_named(run: RunDirectory) -> None:
    for rank, node, gpus in ((0, "n1", "2,3"), (1, "n1", "2,3"), (2, "n2", "0,1")):
        started(run, rank, node, environment={"SLURM_STEP_GPUS": gpus, "SLURM_JOB_GPUS": "7"}, device_index=0)
    run.write("ended.json", JobState("ended", "COMPLETED", allocated="cpu=8,gres/gpu:a100=4"))
    found = shown_run(run, None)
    assert found.node_list == (NodeShare("n1", (0, 1), (2, 3)), NodeShare("n2", (2,), (0, 1)))
    assert found.allocated == "cpu=8,gres/gpu:a100=4"


def test_else_those_that_the_ranks_took(run: RunDirectory) -> None:
    started(run, 0, "n1", device_index=1)
    started(run, 1, "n1", device_index=0, environment={"SLURM_STEP_GPUS": "odd"})
    assert shown_run(run, None).node_list == (NodeShare("n1", (0, 1), (0, 1)),)


def test_a_run_that_never_started_has_none(run: RunDirectory) -> None:
    found = shown_run(run, None)
    assert (found.node_list, found.command_line, found.code) == ((), (), None)
