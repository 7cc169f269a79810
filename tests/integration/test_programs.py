"""Programs that import nothing of ours, unchanged: they run, and no figure is made of what they print."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.commands import Runner
from tests.support.planted_faults import RECIPE
from tests.support.programs import UNCHANGED
from tests.support.rank_records import records

pytestmark = pytest.mark.integration


def test_a_horovod_benchmark_as_a_recipe(runner: Runner) -> None:
    """It prints a throughput; it is not proven, so the verdict is "ran" and repeats none."""
    done = runner("submit", "--recipe", str(UNCHANGED), "--gpus", "4", "--nodes", "2", "--wait", code=0)
    run = runner.newest()
    said = (run / "logs" / "rank-0.out").read_text()
    assert "Number of ranks: 4, of this node: 2" in said
    assert "img/sec" in said
    assert "Same weights everywhere: True" in said
    assert json.loads((run / "verdict.json").read_text())["outcome"] == "ran"
    assert "img/s" not in done.out
    assert "images/s" not in done.out
    assert not records(run, "report")


def test_a_torch_distributed_script_from_its_own_directory(runner: Runner, tmp_path: Path) -> None:
    """``submit -- python3 ddp.py``: no recipe, started where it lies, and what it writes there stays there."""
    shutil.copy(UNCHANGED / "ddp.py", tmp_path)
    words = ("submit", "--gpus", "4", "--nodes", "2", "--env", "OMP_NUM_THREADS=1", "--wait")
    runner(*words, "--", "python3", "ddp.py", "--lr", "a b", code=0, cwd=tmp_path)
    run = runner.newest()
    for rank in range(4):
        said = (run / "logs" / f"rank-{rank}.out").read_text()
        assert f"rank {rank} of 4, local rank {rank % 2}, same weights: True, arguments: ['--lr', 'a b']" in said
    assert len({(tmp_path / f"checkpoint-{rank}.txt").read_text() for rank in range(4)}) == 1
    verdict = json.loads((run / "verdict.json").read_text())
    assert verdict["outcome"] == "ran"
    assert verdict["images_per_s"] is None
    assert json.loads((run / "plan.json").read_text())["job_name"] == "ddp"
    assert not (run / "recipe").exists()


def test_a_program_that_leaves_our_result_is_held_to_our_proof(runner: Runner) -> None:
    """Proven, it is measured; with a fault, it is not."""
    words = ("submit", "--gpus", "2", "--wait", "--", "python3", "main.py")
    runner(*words, code=0, cwd=RECIPE)
    assert json.loads((runner.newest() / "verdict.json").read_text())["outcome"] == "measured"
    runner(*words, "--fault", "same-seed", code=6, cwd=RECIPE)
