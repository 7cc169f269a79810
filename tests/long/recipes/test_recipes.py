"""Every recipe with two ranks or more in containers on this machine, and what it says of a wrong world."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.local_jobs import outcome

pytestmark = pytest.mark.integration
ALTERED = Path(__file__).parents[2] / "recipes" / "unsynchronised"


@pytest.fixture
def local(tmp_path: Path, squashfs: StoredImage, ch_run: Path) -> Runner:
    """The command line with this machine as its site, and the image in the store."""
    assert squashfs.path.is_file()
    path = {"PATH": f"{ch_run}:{os.environ['PATH']}"}
    return Runner(Path("local"), tmp_path / "runs", tmp_path / "state", tmp_path, path)


def printed(run: Path, rank: int = 0) -> str:
    return (run / "logs" / f"rank-{rank}.out").read_text()


def altered(local: Runner, recipe: str, fault: str, *arguments: str) -> str:
    """The end of a recipe's program with that fault planted: why it failed."""
    words = ("python3", "main.py", f"/opt/recipes/{recipe}", fault, *arguments)
    local("submit", "--gpus", "2", "--wait", "--", *words, code=5, cwd=ALTERED)
    run = local.newest()
    assert outcome(run) == "failed"
    return "".join((run / "logs" / f"rank-{rank}.err").read_text() for rank in range(2))


def test_horovod_minimal(local: Runner) -> None:
    local("submit", "--recipe", "horovod-minimal", "--gpus", "3", "--wait", code=0)
    run = local.newest()
    assert [f"hello from rank {rank} of 3, local rank {rank}" in printed(run, rank) for rank in range(3)] == [True] * 3
    assert "world of 3: the sum over ranks is 3, the step went along the mean" in printed(run)
    assert json.loads((run / "plan.json").read_text())["runtime"] == "charliecloud"
    assert outcome(run) == "ran"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("wrong-sum", "the sum over ranks is 2, not 1"),
        ("no-allreduce", "the parameters differ between ranks after the step"),
    ],
)
def test_horovod_minimal_sees_a_wrong_world(local: Runner, fault: str, says: str) -> None:
    assert says in altered(local, "horovod-minimal", fault)
