"""Studies on a real Slurm, by the timed stand-in: 16 ranks, killed and gone on with, and what goes wrong with jobs:
a node that fails, a time limit, a controller that is away.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Runner
from tests.support.daemons import CONTROLLER, Daemons, own_box
from tests.support.documents import result
from tests.support.sshd import running_nodes
from tests.support.studies import TIMED, overlapping, runs_with
from tests.support.users import AS_ROOT
from tests.support.waiting import until

pytestmark = AS_ROOT


@pytest.fixture(scope="module")
def nodes() -> Iterator[Daemons]:
    with own_box("studies") as made:
        yield Daemons(made)


@pytest.fixture
def in_box(nodes: Daemons, tmp_path: Path) -> Runner:
    return Runner.at(nodes.box.site, tmp_path, nodes.box.bin_dir)


def study_of(runner: Runner) -> Path:
    (path,) = runner.runs.glob("*-study")
    return path


def test_sixteen_ranks_killed_and_gone_on_with(in_box: Runner) -> None:
    """Killed while it submits: every job that Slurm has accepted is found again, and none is submitted twice."""
    words = ("scale", "--gpus", "1,2,4,8,16", "--repeats", "2", *TIMED, "--set", "communication-seconds=0.005")
    child = in_box.start(*words)
    until(
        lambda: len(list(in_box.runs.glob("*-study/launches/*/*/job.json"))) >= 4, "four were submitted", timeout_s=90
    )
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate(timeout=60)
    path = study_of(in_box)
    done = in_box("scale", "--resume", path.name, "--wait", code=0)
    assert "complete, 10 of 10 launches proven" in done.out
    assert set(runs_with(path, "result.json").values()) == {1}
    facts = result(in_box("status", path.name, "--json", code=0).out)
    assert {each["attempts"] for each in facts["launches"]} == {1}
    assert [each["gpus"] for each in facts["points"]] == [1, 2, 4, 8, 16]
    assert {len(each["nodes"]) for each in facts["launches"] if each["launch"]["gpus"] == 16} == {2}
    assert facts["demonstration"]


def test_every_gpu_runs_by_itself_one_of_each_node_at_a_time(in_box: Runner) -> None:
    """The allocation is lost in between; what was measured of the 16 stays, and the rest goes on side by side."""
    words = ("--gpus", "16", "--arms", "solo", "--repeats", "1", "--same-nodes", *TIMED)
    planned = in_box("scale", *words, "--dry-run", code=0).out
    assert "16 GPUs alone, one of each node at a time: 8 of 9 turns" in " ".join(planned.split())
    in_box("scale", *words, code=0)
    path = study_of(in_box)
    until(lambda: len(list(path.glob("launches/*-solo-*/*/result.json"))) >= 5, "some were measured", timeout_s=120)
    in_box("cancel", path.name, code=0)
    in_box("wait", path.name, code=6)
    done = in_box("scale", "--resume", path.name, "--wait", code=0)
    assert "complete, 17 of 17 launches proven" in done.out
    assert "solo: 16 of 16 GPUs, each alone, standard deviation between them " in " ".join(done.out.split())
    assert set(runs_with(path, "result.json").values()) == {1}
    facts = result(in_box("status", path.name, "--json", code=0).out)
    assert facts["differences"] == []
    places = {(each["launch"]["node"], each["nodes"][0]) for each in facts["launches"] if each["launch"]["gpus"] == 1}
    assert places == {(0, "dgx01"), (1, "dgx02")}
    beside = overlapping(path)
    assert len(beside) >= 7
    assert all("-solo-n000" in min(pair) and "-solo-n001" in max(pair) for pair in beside), beside


def test_a_node_that_fails_costs_one_attempt(in_box: Runner, nodes: Daemons) -> None:
    """Slurm's own requeue is off: the launch is tried again by the process that waits."""
    child = in_box.start("scale", "--gpus", "1,16", "--repeats", "1", *TIMED, "--set", "window-seconds=20", "--wait")
    until(lambda: list(in_box.runs.glob("*-study/launches/g0016-*/*/ranks/15.start.json")), "16 began", timeout_s=120)
    nodes.inside("scontrol", "update", "NodeName=dgx02", "State=DOWN", "Reason=planted")
    nodes.await_up("dgx02")
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, (out, err)
    assert b"g0016-full-r1: infrastructure" in err
    assert b"g0016-full-r1: trying again" in err
    facts = result(in_box("status", study_of(in_box).name, "--json", code=0).out)
    assert [(each["state"], each["attempts"]) for each in facts["launches"]] == [("proven", 1), ("proven", 2)]


def test_a_time_limit_is_the_reason_and_a_launch_has_an_end_of_attempts(in_box: Runner) -> None:
    """Not tried again by itself, as it would only happen again; by hand as often as is allowed."""
    limit = ("--set", "window-seconds=300", "--time", "1:00", "--wait")
    words = ("scale", "--gpus", "1", "--repeats", "1", *TIMED, *limit)
    in_box(*words, code=6)
    path = study_of(in_box)
    assert "time limit" in in_box("wait", path.name, code=6).out
    (launch,) = result(in_box("status", path.name, "--json", code=0).out)["launches"]
    assert (launch["state"], launch["attempts"]) == ("not-proven", 1)
    assert in_box("scale", "--resume", path.name, "--attempts", "1", code=6).out.startswith("every launch is proven")


def test_a_controller_that_is_away_starts_nothing_twice(in_box: Runner, nodes: Daemons) -> None:
    """Once its ranks run, a job needs no controller; one that would start meanwhile fails."""
    in_box("scale", "--gpus", "1,2", "--repeats", "1", *TIMED, "--set", "window-seconds=10", code=0)
    path = study_of(in_box)
    until(lambda: len(list(path.glob("launches/*/*/ranks/0.start.json"))) == 2, "both have begun", timeout_s=60)
    nodes.end(CONTROLLER)
    try:
        said = result(in_box("status", path.name, "--json", code=0).out)
        assert said["state"] in ("running", "complete")
    finally:
        nodes.start()
    assert "2 of 2 launches proven" in in_box("scale", "--resume", path.name, "--wait", code=0).out
    assert set(runs_with(path, "result.json").values()) == {1}


def test_cancel_ends_all_jobs_and_lets_nothing_more_start(in_box: Runner, nodes: Daemons) -> None:
    in_box("scale", "--gpus", "1,2,16", "--repeats", "2", *TIMED, "--set", "window-seconds=60", code=0)
    path = study_of(in_box)
    assert "jobs are being cancelled" in in_box("cancel", path.name, code=0).out
    in_box("wait", path.name, code=6)
    assert f"{path}/" not in nodes.inside("squeue", "--noheader", "--format=%Z")
    facts = result(in_box("status", path.name, "--json", code=0).out)
    assert "running" not in {each["state"] for each in facts["launches"]}


@pytest.mark.parametrize("way", ["separate", "one-allocation"])
def test_a_study_of_two_hosts(tmp_path: Path, way: str) -> None:
    """By ssh: real sshds of two nodes, no scheduler. One launch at a time."""
    more = ("--same-nodes",) if way == "one-allocation" else ()
    with running_nodes(tmp_path, "/usr/local/bin:/usr/bin:/bin") as nodes:
        hosts = Runner.at(nodes.site(), tmp_path, runs="my $runs")
        hosts("scale", "--gpus", "1,2,4", "--repeats", "2", *TIMED, *more, "--wait", code=0)
        (path,) = hosts.runs.glob("*-study")
        facts = result(hosts("status", path.name, "--json", code=0).out)
    assert (facts["state"], facts["way"], facts["differences"]) == ("complete", way, [])
    assert set(runs_with(path, "result.json").values()) == {1}
    assert overlapping(path) == []
    used = {each["launch"]["gpus"]: each["nodes"] for each in facts["launches"]}
    assert used == {1: ["nodea"], 2: ["nodea"], 4: ["nodea", "nodeb"]}
