"""Real launches of this machine, one side slower on purpose: compared, exported, bundled and verified."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from runner.core.errors import Exit
from tests.support.bundles import edited, forged
from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.timed import SUBMIT

pytestmark = pytest.mark.integration
SHORT = ("--gpus", "1", "--set", "window-seconds=0.4", "--set", "warmup-seconds=0.1", "--set", "warmup-steps=2")
STEP_S = {"A": "0.01", "B": "0.02"}
REFERENCE = """\
references:
- {site: local, recipe: timed, gpus: 1, options: {model: sleep}, value: 1e6, unit: images/s, lower: -0.5,
   source: a wish, date: 2026-11-22}
"""


def test_a_planted_loss_is_found_and_proven_elsewhere(tmp_path: Path) -> None:
    local = Runner(Path("local"), tmp_path / "runs", tmp_path / "state", tmp_path)
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
    shutil.rmtree(tmp_path / "runs")
    verified = result(local("verify", str(bundle), "--json", code=0).out)
    assert verified["runs"] == made["runs"]
    assert {run["run"] for run in made["runs"]} == {*runs["A"], *runs["B"]}
    forged(bundle, edited("verdict.json", lambda verdict: verdict | {"images_per_s": 1e6}))
    refused = json.loads(local("verify", str(bundle), "--json", code=Exit.NOT_PROVEN).out)
    assert "images_per_s differs" in refused["error"]["what"]
