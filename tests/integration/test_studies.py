"""The timed stand-in on this machine and on Slurm: a study killed and gone on with; launches compared and exported."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from runner.core.errors import Exit
from tests.support.bundles import edited, forged
from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.rank_records import document_of, records
from tests.support.studies import TIMED, overlapping, runs_with
from tests.support.timed import SUBMIT
from tests.support.waiting import until

pytestmark = pytest.mark.integration
LABEL = "CPU, this machine: demonstration, no performance claim"


def test_a_study_that_is_killed_goes_on_and_measures_nothing_twice(local: Runner) -> None:
    words = ("scale", "--gpus", "1,2,4", "--repeats", "1", *TIMED, "--set", "communication-seconds=0.005")
    child = local.start(*words, "--env", "NOTE", env={"NOTE": "first"})
    second = "*-study/launches/g0002-*/*/job.json"
    until(lambda: list(local.runs.glob(second)), "the second launch has begun", timeout_s=60)
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
    job = document_of(path, "allocations/1/job")["job_id"]
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
    listed = [(path / "allocations" / name).read_text() for name in ("nodes", "2/nodes")]
    assert listed == ["dgx01\t-\ndgx02\t-\n"] * 2
    facts = result(runner("status", path.name, "--json", code=0).out)
    assert (facts["way"], facts["differences"]) == ("one-allocation", [])
    assert [each["nodes"] for each in facts["launches"]] == [["dgx01"], ["dgx01"], ["dgx01", "dgx02"]]
    seen = [records(Path(each["directory"]), "start")[0]["environment"] for each in facts["launches"]]
    shapes = [[each.get(name) for name in ("SLURM_GPUS_ON_NODE", "SLURM_CPUS_ON_NODE")] for each in seen]
    assert shapes[0] == shapes[1] == shapes[2], "every size has all of its nodes"


SHORT = ("--gpus", "1", "--set", "window-seconds=0.4", "--set", "warmup-seconds=0.1", "--set", "warmup-steps=2")
STEP_S = {"A": "0.01", "B": "0.02"}
REFERENCE = """\
references:
- {site: local, recipe: timed, gpus: 1, options: {model: sleep}, value: 1e6, unit: images/s, lower: -0.5,
   source: a wish, date: 2026-11-22}
"""


def test_a_planted_loss_is_found_and_proven_elsewhere(local: Runner, tmp_path: Path) -> None:
    runs: dict[str, list[str]] = {"A": [], "B": []}
    for side in "ABBABA":
        local(*SUBMIT, *SHORT, "--set", f"compute-seconds={STEP_S[side]}", code=0)
        runs[side].append(local.newest().name)
    sides = ",".join(runs["A"]), ",".join(runs["B"])

    junit = tmp_path / "junit.xml"
    words = ("compare", *sides, "--fail-below", "0.95", "--junit", str(junit), "--json")
    compared = result(local(*words, code=Exit.BELOW_REFERENCE).out)
    (point,) = compared["points"]
    assert (point["verdict"], point["order"], point["judgement"]) == ("slower", "ABBABA", "below")
    assert point["low"] < point["high"] < -0.05  # of a half; how narrow it is depends on what else runs here
    assert compared["differences"] == ["plan program"]
    assert "demonstration" in compared["demonstration"]
    assert 'failures="1"' in junit.read_text()
    assert "no verdict: fewer than 3" in local("compare", runs["A"][0], runs["B"][0], code=Exit.GOOD).out

    (tmp_path / "references.yaml").write_text(REFERENCE)
    said = local("compare", sides[0], "--reference", str(tmp_path / "references.yaml"), code=Exit.BELOW_REFERENCE).out
    assert "below 500000 images/s" in said

    line = local("export", runs["B"][1], "--format", "reframe", code=0).out
    assert re.search(r"gpu-runner: \S+ outcome=measured gpus=1 throughput=(\S+) images/s claim=demonstration", line)

    bundle = tmp_path / "figures.tar"
    made = result(local("export", *runs["A"], *runs["B"], "--bundle", str(bundle), "--json", code=0).out)
    shutil.rmtree(local.runs)
    verified = result(local("verify", str(bundle), "--json", code=0).out)
    assert verified["runs"] == made["runs"]
    assert {run["run"] for run in made["runs"]} == {*runs["A"], *runs["B"]}
    forged(bundle, edited("verdict.json", lambda verdict: verdict | {"images_per_s": 1e6}))
    refused = json.loads(local("verify", str(bundle), "--json", code=Exit.NOT_PROVEN).out)
    assert "images_per_s differs" in refused["error"]["what"]
