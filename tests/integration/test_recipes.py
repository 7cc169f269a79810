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
    runner("submit", "--recipe", "horovod-minimal", "--gpus", "2", "--nodes", "2", "--wait", code=0)
    run = runner.newest()
    for rank in range(2):
        said = (run / "logs" / f"rank-{rank}.out").read_text()
        assert f"hello from rank {rank} of 2, local rank 0 on dgx0{rank + 1}, processor" in said
    assert "world of 2: the sum over ranks is 1" in (run / "logs" / "rank-0.out").read_text()
    assert json.loads((run / "verdict.json").read_text())["outcome"] == "ran"
    reports = records(run, "report")
    for report in reports.values():
        check(report)
    assert [report["world_size"] for report in reports.values()] == [2, 2]
