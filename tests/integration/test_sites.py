"""Ways in which sites have jobs asked for, accepted and run by a real Slurm: ranks lie where the plan puts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Runner
from tests.support.placements import assert_placed_as_planned, submit_one_of_each

pytestmark = pytest.mark.integration


def test_a_site_asks_in_its_own_way_and_ranks_lie_as_planned(runner: Runner, tmp_path: Path) -> None:
    assert_placed_as_planned(runner, submit_one_of_each(runner, tmp_path))


def test_what_a_check_refuses_can_be_forced_and_is_recorded(runner: Runner, tmp_path: Path) -> None:
    site = tmp_path / "strict.yaml"
    site.write_text(f"name: strict\nextends: {json.dumps(str(runner.site))}\nsubmit_below: [/nowhere]\n")
    request = ("submit", "--recipe", "probe", "--gpus", "1")
    assert "submit-directory" in runner(*request, code=3, site=site).err
    said = runner(*request, "--force", "submit-directory", "--wait", code=0, site=site)
    assert "forced [submit-directory]" in said.err
    (finding,) = json.loads((runner.newest() / "provenance.json").read_text())["findings"]
    assert (finding["code"], finding["forced"]) == ("submit-directory", True)
    for name in ("plan.json", "verdict.json"):
        assert json.loads((runner.newest() / name).read_text())["forced"] == ["submit-directory"]
    assert "forced: submit-directory" in said.out


def test_a_program_with_processes_of_its_own_has_a_node_and_no_place_among_tasks(runner: Runner) -> None:
    runner("submit", "--recipe", "probe", "--gpus", "8", "--wireup", "own", "--wait", code=0)
    (path,) = (runner.newest() / "ranks").glob("*.probe.json")
    probe = json.loads(path.read_text())
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_PROCID"} & set(probe["environment_names"])
    assert "SLURM_JOB_ID" in probe["environment_names"]
