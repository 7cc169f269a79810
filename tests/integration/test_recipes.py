"""The smallest recipe, on two nodes; `make test-recipes` runs them all."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import Runner
from tests.support.rank_records import records
from tests.support.schema import check

pytestmark = pytest.mark.integration


def test_hello_from_each_rank(runner: Runner) -> None:
    """Each rank says where it is; the sums are checked, and the verdict knows the world that Horovod formed."""
    runner("submit", "--recipe", "horovod-minimal", "--gpus", "4", "--nodes", "2", "--wait", code=0)
    run = runner.newest()
    for rank in range(4):
        node = f"dgx0{rank // 2 + 1}"
        said = (run / "logs" / f"rank-{rank}.out").read_text()
        assert f"hello from rank {rank} of 4, local rank {rank % 2} on {node}, processor" in said
    assert "world of 4: the sum over ranks is 6" in (run / "logs" / "rank-0.out").read_text()
    assert json.loads((run / "verdict.json").read_text())["outcome"] == "ran"
    reports = records(run, "report")
    for report in reports.values():
        check(report)
    assert [report["world_size"] for report in reports.values()] == [4, 4, 4, 4]
