"""Launches of a study are compared only where each rank had the same node, GPU, processors and ports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.jobs.directory import Run
from runner.model.plan import LaunchPlace
from runner.model.records import StartRecord
from runner.study.sameness import run_differences
from tests.support.plans import PLAN

GPUS = [f"GPU-{number}" for number in range(8)]
CPUS = ["48-55", "56-63", "16-23", "24-31", "112-119", "120-127", "80-87", "88-95"]


def run(
    root: Path, key: str, ranks: int, *, node: str = "dgx01", first: tuple[int, int] = (0, 0), **more: Any
) -> tuple[str, Run]:
    """A run that was a launch: its ranks on a node, each with its GPU; ``more`` replaces fields of its last rank."""
    path = root / key
    (path / "ranks").mkdir(parents=True)
    made = Run(path)
    made.write("plan.json", msgspec.structs.replace(PLAN, launch=LaunchPlace(*first, node_gpus=8)))
    for rank in range(ranks):
        gpu = (first[1] + rank) % 8
        start = StartRecord(
            "2", rank, ranks, rank, ranks, 0, node, True, "cuda",
            device_uuid=f"{node}-{GPUS[gpu]}", device_ports=(f"mlx5_{gpu // 2}:1",), cpus=CPUS[gpu],
        )  # fmt: skip
        last = more if rank == ranks - 1 else {}
        made.write(f"ranks/{rank}.start.json", msgspec.structs.replace(start, **last))
    return key, made


def test_all_sizes_and_solo_launches_on_the_same_places(tmp_path: Path) -> None:
    alone = [run(tmp_path, f"solo-{number}", 1, first=(0, number)) for number in range(8)]
    other = run(tmp_path, "solo-of-the-second-node", 1, node="dgx02", first=(1, 3))
    sizes = [run(tmp_path, f"full-{size}", size) for size in (1, 2, 4, 8)]
    assert run_differences(dict([*alone, other, *sizes])) == ()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"device_uuid": "GPU-x"}, "GPU 3 of node 0: UUID dgx01-GPU-3 in b8, GPU-x in a4"),
        ({"device_uuid": None}, "GPU 3 of node 0: UUID dgx01-GPU-3 in b8, none in a4"),
        ({"cpus": "0-7"}, "GPU 3 of node 0: processors 24-31 in b8, 0-7 in a4"),
        ({"device_ports": []}, "GPU 3 of node 0: ports mlx5_1:1 in b8, none in a4"),
        ({"host": "dgx07", "device_uuid": "GPU-x"}, "GPU 3 of node 0: node dgx01 in b8, dgx07 in a4"),
    ],
)
def test_what_differs_is_named_with_both_launches(tmp_path: Path, more: dict[str, Any], sentence: str) -> None:
    assert run_differences(dict([run(tmp_path, "b8", 8), run(tmp_path, "a4", 4, **more)])) == (sentence,)


def test_another_allocation_on_other_nodes_is_one_sentence(tmp_path: Path) -> None:
    found = run_differences(dict([run(tmp_path, "b8", 8), run(tmp_path, "a8", 8, node="dgx05")]))
    assert found == ("GPU 0 of node 0: node dgx01 in b8, dgx05 in a8 (and 7 more)",)


def test_ranks_that_were_not_bound_share_all_processors(tmp_path: Path) -> None:
    """A rank alone has the whole node then, and one of eight an eighth: that is no equal base."""
    every: dict[str, Any] = {"cpus": "0-127"}
    runs = [run(tmp_path, "b1", 1, **every), run(tmp_path, "a2", 2, **every)]
    (tmp_path / "a2/ranks/0.start.json").write_text(
        json.dumps(json.loads((tmp_path / "a2/ranks/0.start.json").read_text()) | every)
    )
    assert run_differences(dict(runs)) == ("GPU 0 of node 0: ranks that share its processors: 1 in b1, 2 in a2",)
