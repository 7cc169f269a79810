"""A study of 1, 2 and 4 ranks on this machine by the timed stand-in: killed, gone on with, looked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.studies import TIMED, overlapping, runs_with
from tests.support.waiting import until

pytestmark = pytest.mark.integration
LABEL = "CPU, this machine: demonstration, no performance claim"


def test_a_study_that_is_killed_goes_on_and_measures_nothing_twice(tmp_path: Path) -> None:
    local = Runner(Path("local"), tmp_path / "runs", tmp_path / "state", tmp_path)
    words = (
        "scale",
        "--gpus",
        "1,2,4",
        "--repeats",
        "1",
        *TIMED,
        "--set",
        "communication-seconds=0.005",
        "--env",
        "NOTE",
    )
    child = local.start(*words, env={"NOTE": "first"})

    def first() -> list[Path]:
        return list(local.runs.glob("*-study/launches/g0002-*/*/job.json"))

    until(first, "the second launch has begun", timeout_s=60)
    os.killpg(child.pid, signal.SIGSTOP)  # so that it does not begin the third meanwhile
    (path,) = local.runs.glob("*-study")
    assert "another `scale` is at work on this study" in local("scale", "--resume", path.name, code=3).err
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate(timeout=60)

    done = local("scale", "--resume", "timed", code=0, env={"NOTE": "now"})
    assert "warning: what is launched now differs from " in done.err
    assert "NOTE: first -> now" in done.err
    assert "complete, 3 of 3 launches proven" in done.out
    assert f"[{LABEL}]" in done.out
    assert runs_with(path, "result.json") == {f"g{gpus:04d}-full-r1": 1 for gpus in (1, 2, 4)}
    again = local("scale", "--resume", path.name, code=0, env={"NOTE": "now"})
    assert again.out.startswith("every launch is proven")

    facts = result(local("status", path.name, "--json", code=0).out)
    assert (facts["state"], facts["demonstration"]) == ("complete", LABEL)
    rates = [point["images_per_s"]["value"] for point in facts["points"]]
    assert rates[0] < rates[1] < rates[2]
    assert 0.5 < facts["points"][2]["efficiency_of_one"]["value"] < 1.0, "communication takes its part"
    assert [point["efficiency_of_one"] and point["efficiency_of_one"]["low"] for point in facts["points"]] == [None] * 3
    assert 0.0 < facts["gpu_hours"] < 0.1
    listed = result(local("status", "--json", code=0).out)
    assert ([each["study"] for each in listed["studies"]], listed["runs"]) == ([path.name], [])
    assert len(result(local("status", "--all", "--json", code=0).out)["runs"]) == 3


def test_a_study_in_one_allocation_goes_on_after_it_was_lost(runner: Runner) -> None:
    """On real Slurm: one job, one launch after another, each with the whole of its nodes; what was measured stays."""
    done = runner("scale", "--gpus", "1,2,16", "--repeats", "1", "--same-nodes", "--name", "one", *TIMED, code=0)
    assert "one-allocation *" in done.out
    assert "g0016-full-r1" not in done.err, "it does not wait: the allocation goes on without it"
    (path,) = runner.runs.glob("*-one-study")
    job = json.loads((path / "allocations/1/job.json").read_text())["job_id"]
    last = path / "launches/g0016-full-r1"
    until(lambda: list(last.glob("*/ranks/0.start.json")), "the last launch has begun", timeout_s=60)
    running = result(runner("status", path.name, "--json", code=0).out)
    assert [each["state"] for each in running["launches"]] == ["proven", "proven", "running"]
    subprocess.run([runner.clients / "scancel", job], check=True, timeout=60)
    assert "incomplete, 2 of 3 launches proven" in runner("wait", path.name, code=6).out

    done = runner("scale", "--resume", path.name, "--wait", code=0)
    assert "complete, 3 of 3 launches proven" in done.out
    assert runs_with(path, "result.json") == {f"g{gpus:04d}-full-r1": 1 for gpus in (1, 2, 16)}
    assert overlapping(path) == []
    assert (
        (path / "allocations/nodes").read_text() == (path / "allocations/2/nodes").read_text() == "dgx01\t-\ndgx02\t-\n"
    )
    facts = result(runner("status", path.name, "--json", code=0).out)
    assert (facts["way"], facts["differences"]) == ("one-allocation", [])
    assert [each["nodes"] for each in facts["launches"]] == [["dgx01"], ["dgx01"], ["dgx01", "dgx02"]]
    runs = [json.loads((Path(each["directory"]) / "ranks/0.start.json").read_text()) for each in facts["launches"]]
    shapes = [
        {name: run["environment"].get(name) for name in ("SLURM_GPUS_ON_NODE", "SLURM_CPUS_ON_NODE")} for run in runs
    ]
    assert shapes[0] == shapes[1] == shapes[2], "every size has all of its nodes"
