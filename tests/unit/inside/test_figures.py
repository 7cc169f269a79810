"""What a benchmark leaves of its window is what the judge reads; what it prints is no figure."""

import json
from pathlib import Path

import msgspec
import pytest
from gpu_runner_inside import records
from gpu_runner_inside.benchmark import figures, lengths, proof

from runner.jobs.verdict import judge
from runner.model.records import Report
from tests.support.evidence import changed, long_run

ENDS_S = [0.1 + 0.2, 1.0 / 3.0, 1.1, 2.2, 1e6 / 3.0]
FACTS = proof.RankFacts(0, 1, "n0", "GPU-0", "g", "p", moved=True, onehot=True, finite=True)


def written(directory: Path) -> Report:
    timed = figures.Timed(1005.0, ENDS_S, [], 1.0, 0.25)
    device = {"kind": "cuda", "name": "GPU", "identity": "GPU-0", "index": 0}
    made = figures.report_of({"framework": "horovod"}, device, FACTS, timed, lengths.Lengths(50, 30.0, 5, 10), 10)
    path = records.rank_record(str(directory), 0, "report")
    records.write(path, "report", {"rank": 0, "world_local_rank": 0, **made})
    return msgspec.convert(json.loads(Path(path).read_bytes()), Report)


def test_the_times_that_a_rank_writes_are_those_that_the_judge_reads(tmp_path: Path) -> None:
    report = written(tmp_path)
    assert report.ends_s == tuple(ENDS_S)
    assert report.instrumentation_s == 0.25
    one = long_run([1.0] * 60)
    for made, told in ((report, False), (msgspec.structs.replace(report, ends_s=(*ENDS_S[:3], 2.3, ENDS_S[4])), True)):
        ranks = {
            rank: msgspec.structs.replace(made, rank=rank, world_rank=rank, gradient_checksum=f"g{rank}")
            for rank in range(4)
        }
        reasons = judge(changed(reports=ranks, exits=one.exits)).reasons
        assert any("not those that its program wrote" in reason for reason in reasons) is told


@pytest.mark.parametrize("demonstration", [True, False])
def test_the_line_that_a_program_prints_is_called_preliminary(
    capsys: pytest.CaptureFixture[str], demonstration: bool
) -> None:
    figures.print_summary({
        "model": "m", "batch_size": 1, "image_px": 8, "size": 2, "precision": "fp32", "device_name": "d",
        "device_kind": "cuda", "proven": True, "preliminary_images_per_s": 12.34, "demonstration": demonstration,
        "window_s": 1.0, "steps": 10, "warmup_steps": 1, "warmup_s": 0.1, "step_p50_s": 0.1, "compute_p50_s": None,
    })  # fmt: skip
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "images/s" in line)
    assert line.startswith("preliminary throughput: 12.3 images/s")
    assert "the figure is the verdict's" in line
    assert ("no performance claim" in line) is demonstration


@pytest.mark.parametrize(
    ("devices", "distinct"),
    [
        (("GPU-0", "GPU-1"), True), (("GPU-0", "GPU-0"), False), (("MIG-0", "MIG-0"), False),
        # Each rank sees its own GPU only, or has a process namespace of its own: the names tell nothing.
        (("index-0", "index-0"), True), (("cpu-7", "cpu-7"), True),
    ],
)  # fmt: skip
def test_only_uuids_tell_that_two_ranks_share_a_device(devices: tuple[str, str], distinct: bool) -> None:
    ranks = [
        proof.RankFacts(rank, 2, "n0", each, f"g{rank}", "p", True, True, True) for rank, each in enumerate(devices)
    ]
    assert proof.judge(ranks, 2).devices_distinct is distinct
