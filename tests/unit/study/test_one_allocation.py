"""A study in one allocation: its cost, its time limit, where its launches run, and those whose turn never came."""

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.model.job import JobState
from runner.model.plan import LaunchPlace, ListedHosts
from runner.model.site import Queue
from runner.model.study import Launch
from runner.model.verdict import Verdict
from runner.study import one_allocation, question
from runner.study.attempts import attempt_of, settle
from runner.study.gather import facts
from tests.support.plans import PLAN, SITE
from tests.support.studies import left_run, measured, on_disk, study

KEY = "g0001-full-r1"
ONE = msgspec.structs.replace(PLAN, tasks_per_node=(1,), program=("p", "--window-seconds", "300"), walltime_s=3600)
FOUR = msgspec.structs.replace(ONE, tasks_per_node=(2, 2))


def test_an_allocation_has_time_for_all_launches_and_no_more_than_the_site_allows() -> None:
    lengths = [(100.0, 3600)] * 10
    assert question.needed_s(100.0, 3600) == 180
    assert question.needed_s(100.0, 150) == 150, "a launch ends at its own time limit"
    assert question.most_s(lengths) == 1860
    assert one_allocation.limit_s(lengths, SITE, None) == 1860
    queue = msgspec.structs.replace(SITE, queues={"short": Queue(max_walltime_s=1200)})
    assert one_allocation.limit_s(lengths, queue, "short") == 1200
    assert one_allocation.limit_s(lengths * 10, SITE, None) == 3600


def test_a_solo_launch_has_its_node_and_its_gpu() -> None:
    hosts = ListedHosts(("nodea", "nodeb"))
    largest = msgspec.structs.replace(FOUR, hosts=hosts)
    single = msgspec.structs.replace(ONE, hosts=ListedHosts(("nodea",)), divides_cpus=True)
    placed = one_allocation.in_place(single, Launch("s", 1, "solo", 1, 0, node=1, device=1), largest)
    assert placed.launch == LaunchPlace(first_node=1, first_gpu=1, node_gpus=2)
    assert not placed.divides_cpus
    assert placed.hosts == ListedHosts(("nodeb",))


def launch_of(tmp_path: Path, **job: Any) -> tuple[Any, Any]:
    of = on_disk(tmp_path, study((1,), 1, way="one-allocation"))
    own = of.path / "allocations/1"
    own.mkdir(parents=True)
    return of, left_run(of, KEY, allocation=str(own), **job)


def test_a_launch_whose_turn_never_came_is_missing_and_no_attempt(tmp_path: Path) -> None:
    of, run = launch_of(tmp_path)
    over = JobState("ended", "CANCELLED")
    assert attempt_of(run, over) is None
    run.write("verdict.json", Verdict("cancelled"))
    assert attempt_of(run, None) is None, "`status RUN` has judged it"
    assert facts(of).launches[0].state == "missing"
    (run.path / "begun").touch()
    attempt = attempt_of(run, over)
    assert attempt is not None
    assert attempt.state == "not-proven"


@pytest.mark.parametrize("job_id", ["", "7.1.x"], ids=["never submitted", "known"])
def test_launches_stay_where_the_job_of_their_allocation_is_known(tmp_path: Path, job_id: str) -> None:
    of, run = launch_of(tmp_path, job_id="", submitted_s=time.time() - 60)
    if job_id:
        record = json.loads((run.path / "job.json").read_text())
        own = of.path / "allocations/1/job.json"
        own.write_text(json.dumps(record | {"job_id": job_id, "allocation": ""}))
    settle(of, of.study.launches)
    assert [each.submitted.job_id for each in of.runs(KEY)] == ([job_id] if job_id else [])


@pytest.mark.parametrize(("listed", "hours"), [(True, 1.0), (False, 0.5)], ids=["the second", "the first"])
def test_the_launch_in_which_an_allocation_was_lost_is_paid_for(tmp_path: Path, listed: bool, hours: float) -> None:
    """It began at the second 1450.5 and wrote last 450 s later; the allocation recorded its end no more."""
    of, run = launch_of(tmp_path)
    (run.path / "begun").touch()
    os.utime(run.path / "begun", (1450.5, 1450.5))
    log = run.logs / "rank-0.out"
    log.touch()
    os.utime(log, (1900.5, 1900.5))
    own = of.path / "allocations/1"
    (own / "plan.json").write_bytes(msgspec.json.encode(FOUR))
    (own / "launches").write_text("1000.5\t1440.5\t0\t/before\n" if listed else "")
    assert facts(of).gpu_hours == pytest.approx(hours)


def test_switches_and_hours_of_an_allocation(tmp_path: Path) -> None:
    of, run = launch_of(tmp_path)
    run.write("verdict.json", measured(100.0))
    (run.path / "begun").touch()
    own = of.path / "allocations/1"
    (own / "plan.json").write_bytes(msgspec.json.encode(FOUR))
    (own / "launches").write_text(f"1000.5\t1100.5\t0\t{run.path}\n1101.0\t1900.5\t0\t/x\n")
    (of.path / "allocations/nodes").write_text("dgx01\tleaf3\ndgx02\t-\n")
    now = facts(of)
    assert now.gpu_hours == pytest.approx(1.0), "900 s of 4 GPUs, whatever ran on them"
    assert now.switches == {"dgx01": "leaf3"}
    assert now.differences == ()
