"""The GPU of each rank while the job runs: joined by its UUID, and named by its node and number where that fails."""

import time

import msgspec
import pytest

from runner.cli.allotment import gpu_lines
from runner.jobs.directory import Run
from runner.jobs.gpu_load import rank_gpus
from runner.model.records import GpuLoad, NodeRecord
from tests.support.evidence import GOOD, start, write_record

LOADS = (
    GpuLoad("GPU-9", 0.0, 0, 80 * 2**30, 61.0),
    GpuLoad("GPU-1", 1.0, 3 * 2**30, 80 * 2**30, 70.0),
    GpuLoad("GPU-0", 97.4, 61 * 2**30, 80 * 2**30, 412.0),
)


def write(run: Run, *, uuids: tuple[str | None, ...] = ("GPU-0", "GPU-1"), loads: tuple[GpuLoad, ...] = LOADS) -> None:
    """Two ranks on the first node, whose launcher's record says what NVML shows."""
    for rank, uuid in enumerate(uuids):
        write_record(run, start(rank, device_uuid=uuid, node_rank=0, local_rank=rank, local_size=len(uuids), host="n0"))
    own = start(0)
    record = NodeRecord("2", 0, 0, "n0", own.token or "", time_s=time.time() - 12.0, load=loads)
    (run.ranks / "0.node.json").write_bytes(msgspec.json.encode(record))


def test_each_ranks_gpu_is_found_by_its_uuid_and_the_idle_one_is_named(run: Run) -> None:
    write(run)
    first, second = rank_gpus(run, GOOD.plan)
    assert (first.rank, first.gpu, first.busy_percent, first.power_w) == (0, 2, 97.4, 412.0)
    assert (second.rank, second.node, second.gpu, second.memory_used_bytes) == (1, "n0", 1, 3 * 2**30)
    head, names, *rows, idle = gpu_lines((first, second), None)
    assert head.endswith("read 12 s ago:")
    assert names.split() == ["RANK", "NODE", "GPU", "BUSY", "MEMORY", "POWER"]
    assert rows[0].split() == ["0", "n0", "2", "97", "%", "61.0", "of", "80.0", "GiB", "412", "W"]
    assert idle.endswith("of the time): rank 1 (GPU 1 of n0)")


@pytest.mark.parametrize("uuids", [("GPU-0", None), ("GPU-0", "MIG-7"), ("GPU-0", "GPU-0")])
def test_where_a_start_record_does_not_say_whose_gpu_it_is_all_are_shown(
    run: Run, uuids: tuple[str | None, ...]
) -> None:
    write(run, uuids=uuids)
    assert [(each.rank, each.node, each.gpu) for each in rank_gpus(run, GOOD.plan)] == [
        (None, "n0", gpu) for gpu in range(3)
    ]


def test_one_start_of_a_node_uses_all_its_gpus(run: Run) -> None:
    write(run, uuids=("GPU-0",))
    own = msgspec.structs.replace(GOOD.plan, wireup="own")
    assert [each.rank for each in rank_gpus(run, own)] == [None, None, None]


def test_a_record_of_no_launcher_of_this_run_and_what_is_not_visible(run: Run) -> None:
    write(run, loads=(GpuLoad("GPU-0"), GpuLoad("GPU-1", busy_percent=50.0)))
    shown = rank_gpus(run, GOOD.plan)
    _head, _names, first, second = gpu_lines(shown, None)
    assert (first.split(), second.split()) == (["0", "n0", "0", "-"], ["1", "n0", "1", "50", "%"]), (
        "not seen is not idle"
    )
    write_record(run, start(0, token="of another step", host="n0"))
    assert rank_gpus(run, GOOD.plan) == ()
    (run.ranks / "0.node.json").write_text("{")
    assert rank_gpus(run, GOOD.plan) == ()
