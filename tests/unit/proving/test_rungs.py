"""What each rung demands of what its jobs left."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from runner.jobs.verdict import judge as verdict_of
from runner.model.plan import RESULTS
from runner.model.proof_record import BETWEEN_GPUS, REQUIRED, Figure, RungRecord
from runner.proving.climb import attempts
from runner.proving.ladder import Job, JobOutcome, Judgement, Ladder, Rung
from runner.proving.rungs import MAIN_RESULT, names, rungs
from runner.recipes.loader import read_recipe
from tests.support.evidence import GOOD
from tests.support.proof_records import UUIDS
from tests.support.proving import earlier_rungs, step_outcome

RECIPE = Path(__file__).parents[3] / "recipes/prove"
GPUS, ONE, PRETEND = Ladder(2), Ladder(1), Ladder(2, quick=True, pretend=True)
BY_NAME = {rung.name: rung for rung in rungs()}
DEVICE = {"name": "NVIDIA H100", "capability": "9.0", "memory_bytes": 80 * 10**9, "computes": True}
DEVICES: dict[str, Any] = {
    "driver": "570.86.15",
    "nvml_problem": "",
    "gpus": [{"uuid": uuid, "name": "NVIDIA H100", "mig": False} for uuid in UUIDS],
    "devices": [{**DEVICE, "uuid": uuid} for uuid in UUIDS],
    "torch_version": "2.13.0+cu130",
    "cuda_version": "13.0",
    "nccl_version": "2.29.7",
    "architectures": ["sm_90"],
    "horovod_version": "0.28.1",
    "horovod_nccl": True,
}
SUM = {"bytes": 1 << 26, "right": True, "on_device": True, "median_s": 0.001}
ALLREDUCE: dict[str, Any] = {
    "size": 2,
    "nccl_built": True,
    "sums": [{**SUM, "bytes": 4}, SUM],
    "hooked_gradients": 2,
    "weights_equal": True,
    "weights_moved": True,
}


def judge(name: str, outcome: JobOutcome, ladder: Ladder = GPUS) -> Judgement:
    return BY_NAME[name].judge(ladder, earlier_rungs(), [outcome])


def jobs(name: str, ladder: Ladder = GPUS, **figures: Figure) -> tuple[Job, ...]:
    return BY_NAME[name].jobs(ladder, earlier_rungs(**figures))


def test_rungs_need_only_rungs_before_them_and_the_record_demands_rungs_that_exist() -> None:
    known: list[str] = []
    for rung in rungs():
        assert set(rung.needs) <= set(known)
        known.append(rung.name)
    assert {*REQUIRED, BETWEEN_GPUS} <= set(names())
    assert len(set(names())) == len(names())


@pytest.mark.parametrize("ladder", [GPUS, ONE, PRETEND, Ladder(1, quick=True)], ids=str)
@pytest.mark.parametrize("rung", rungs(), ids=lambda rung: rung.name)
def test_every_job_uses_options_that_its_recipe_has_and_a_rung_stays_under_nine_minutes(
    rung: Rung, ladder: Ladder
) -> None:
    made = rung.jobs(ladder, earlier_rungs())
    for job in made:
        assert dict(job.options).keys() <= read_recipe(job.recipe).recipe.options.keys()
        assert 1 <= job.gpus <= ladder.gpus
    assert ladder.pretend or sum(job.limit_s for job in made) <= 9 * 60


def test_devices_are_recorded() -> None:
    judged = judge("devices", step_outcome("devices", DEVICES))
    assert judged.state == "passed"
    assert [gpu.uuid for gpu in judged.gpus] == list(UUIDS)
    assert judged.versions["driver"] == "570.86.15"
    assert judged.figures["memory_bytes"] == 80 * 10**9


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"driver": ""}, "the driver does not say its version"),
        ({"nvml_problem": "libnvidia-ml.so.1 cannot be loaded"}, "libnvidia-ml.so.1 cannot be loaded"),
        ({"horovod_nccl": False}, "Horovod has no NCCL"),
        ({"devices": [{**DEVICE, "uuid": UUIDS[0]}]}, "torch sees 1 device of 2"),
        ({"devices": [{**DEVICE, "uuid": each, "computes": False} for each in UUIDS]}, "matrices is wrong"),
        ({"devices": [{**DEVICE, "uuid": None}] * 2}, "no UUID"),
        ({"driver": None}, "cannot be read"),
    ],
)
def test_devices_fail(facts: dict[str, Any], why: str) -> None:
    judged = judge("devices", step_outcome("devices", {**DEVICES, **facts}))
    assert (judged.state, judged.gpus) == ("failed", ())
    assert why in judged.reason


def test_a_ladder_that_pretends_names_no_gpu_and_labels_everything() -> None:
    judged = judge(
        "devices", step_outcome("devices", {**DEVICES, "driver": "", "horovod_nccl": False}, kind="cpu"), PRETEND
    )
    assert (judged.state, judged.gpus, judged.label) == ("passed", (), "pretend: CPU")
    assert "driver" not in judged.versions


def test_a_step_on_the_wrong_kind_of_device_is_no_evidence() -> None:
    for ladder, kind in ((GPUS, "cpu"), (PRETEND, "cuda")):
        judged = judge("devices", step_outcome("devices", DEVICES, kind=kind), ladder)
        assert "did not do the step devices on" in judged.reason
    assert "no record" in judge("devices", step_outcome("devices", DEVICES, ranks=0)).reason


def test_a_job_that_did_not_run_is_no_evidence() -> None:
    judged = judge("allreduce-n", step_outcome("allreduce", ALLREDUCE, outcome="failed", reasons=("rank 1 exited",)))
    assert (judged.state, judged.reason) == ("failed", "verdict failed; rank 1 exited")


def test_the_bandwidth_of_a_link_is_that_of_nccls_own_tests() -> None:
    judged = judge("allreduce-n", step_outcome("allreduce", ALLREDUCE))
    assert judged.figures["bus_67108864_bytes_gb_per_s"] == pytest.approx(67.108864)
    assert "bus_4_bytes_gb_per_s" not in judged.figures
    alone = judge("allreduce-1", step_outcome("allreduce", {**ALLREDUCE, "size": 1}, ranks=1))
    assert alone.state == "passed"
    assert not [name for name in alone.figures if name.startswith("bus")]


@pytest.mark.parametrize(
    ("facts", "processes", "why"),
    [
        ({"size": 1}, 2, "saw a world of 1, planned 2"),
        ({"sums": [{**SUM, "right": False}]}, 2, "wrong sums of 67108864 bytes"),
        ({"sums": [{**SUM, "on_device": False}]}, 2, "left the device"),
        ({"sums": []}, 2, "did not reduce the same tensors"),
        ({"hooked_gradients": 0}, 2, "no gradient went through"),
        ({"weights_equal": False}, 2, "weights were not moved, and equal"),
        ({"weights_moved": False}, 2, "weights were not moved, and equal"),
        ({"nccl_built": False}, 2, "Horovod has no NCCL"),
        ({}, 0, "NCCL's log shows 0 processes, planned 2"),
    ],
)
def test_an_allreduce_fails(facts: dict[str, Any], processes: int, why: str) -> None:
    judged = judge("allreduce-n", step_outcome("allreduce", {**ALLREDUCE, **facts}, nccl_processes=processes))
    assert (judged.state, judged.figures) == ("failed", {})
    assert why in judged.reason


def test_on_gpus_nccl_writes_the_log_that_is_read() -> None:
    assert ("NCCL_DEBUG_FILE", f"{RESULTS}/nccl/%h.%p.log") in jobs("allreduce-1")[0].env
    assert jobs("allreduce-1", PRETEND)[0].env == ()


def test_one_gpu_has_no_rung_between_gpus() -> None:
    why = BY_NAME[BETWEEN_GPUS].obstacle
    assert "stays UNPROVEN" in why(ONE, earlier_rungs())
    assert why(GPUS, earlier_rungs()) == ""


@pytest.mark.parametrize(("memory", "batch"), [(80e9, "256"), (24e9, "128"), (16e9, "64"), (5e9, "32")])
def test_the_batch_fits_the_smallest_device(memory: float, batch: str) -> None:
    assert dict(jobs("main-fp32", memory_bytes=int(memory))[0].options)["batch-size"] == batch


def test_older_gpus_compute_what_they_can() -> None:
    assert dict(jobs("main-amp", capability="7.5")[0].options)["precision"] == "amp-fp16"
    assert dict(jobs("main-amp", capability="10.0")[0].options)["precision"] == "amp-bf16"
    obstacle = BY_NAME["main-tf32"].obstacle
    assert "7.0 have no TF32" in obstacle(GPUS, earlier_rungs(capability="7.0"))
    assert obstacle(GPUS, earlier_rungs(capability="12.0")) == ""


def test_a_single_rank_runs_the_hooks_too() -> None:
    assert dict(jobs("main-fp32", ONE)[0].options)["hooks-at-one"] == "true"
    assert dict(jobs("main-fp32", GPUS)[0].options)["hooks-at-one"] == "false"


MEASURED = JobOutcome(
    "measured",
    images_per_s=1000.0,
    proven=(
        "2 distinct devices, by the UUIDs that the framework reported",
        "every rank saw a world of 2 and computed on cuda",
        "synchronised: gradients differed before the first allreduce, parameters are equal after the last step",
    ),
)


def test_a_figure_is_shown_only_where_it_is_proven() -> None:
    good = judge("main-fp32", MEASURED)
    assert (good.state, good.figures["images_per_s"], good.label) == ("passed", 1000.0, "")
    short = judge("main-fp32", MEASURED, Ladder(2, quick=True))
    assert short.label.startswith("demonstration")
    refused = judge("main-fp32", JobOutcome("not-proven", ("weights differ",)))
    assert (refused.state, refused.reason, refused.figures) == ("failed", "verdict not-proven; weights differ", {})


def test_those_sentences_are_the_verdicts_own() -> None:
    sentences = verdict_of(GOOD).proven
    earlier = {**earlier_rungs(), MAIN_RESULT: RungRecord(MAIN_RESULT, "passed", proven=sentences)}
    assert BY_NAME["result"].judge(Ladder(4), earlier, []).state == "passed"


def without(sentence: int) -> tuple[str, ...]:
    return MEASURED.proven[:sentence] + MEASURED.proven[sentence + 1 :]


@pytest.mark.parametrize(
    ("proven", "why"),
    [
        (MEASURED.proven, ""),
        (without(0), "distinct devices"),
        (without(1), "where the ranks computed"),
        (without(2), "synchronised ranks"),
    ],
)
def test_the_result_is_proven_by_the_sentences_of_the_verdict(proven: tuple[str, ...], why: str) -> None:
    earlier = {**earlier_rungs(), MAIN_RESULT: RungRecord(MAIN_RESULT, "passed", proven=proven)}
    judged = BY_NAME["result"].judge(GPUS, earlier, [])
    assert judged.state == ("failed" if why else "passed")
    assert why in judged.reason


def test_attempts_with_the_same_inputs_are_counted_by_their_directories() -> None:
    names = {f"main-fp32-{'a' * 12}.1", f"main-fp32-{'a' * 12}.12", f"main-fp32-{'b' * 12}.3", "lock", "main-fp32-x.1"}
    names |= {f"main-fp32-{'a' * 12}.0", f"main-fp32-{'a' * 12}.x", f"fp32-{'a' * 12}.4"}
    assert attempts(names, "main-fp32", "a" * 24) == {1, 12}
    assert attempts(names, "main-fp32", "c" * 24) == set()


@pytest.mark.parametrize(("count", "ranks"), [(8, 8), (8, 3), (8, 1), (2, 2), (1, 4), (0, 2)])
def test_no_two_ranks_of_a_node_compute_on_the_same_device(count: int, ranks: int) -> None:
    """In the mode EXCLUSIVE_PROCESS the second one would be refused the GPU."""
    of_rank = run_path(str(RECIPE / "share.py"))["of_rank"]
    used = [of_rank(count, {"RUNNER_LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}) for rank in range(ranks)]
    if count == 1:  # each sees its own
        assert all(list(each) == [0] for each in used)
    else:
        assert sorted(index for each in used for index in each) == list(range(count))
