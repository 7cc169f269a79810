"""What each rung demands of what its jobs left, and which attempt of a rung is made, kept or gone on with; its jobs
themselves are climbed in tests/integration.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from runner.jobs.verdict import judge as verdict_of
from runner.model.plan import RESULTS
from runner.model.records import ProvingRecord
from runner.model.verdict import BETWEEN_GPUS, REQUIRED, ProvenValue, RungRecord
from runner.proving.climb import Listener, Place, attempts, climb
from runner.proving.ladder import Earlier, Job, JobOutcome, Judgement, Ladder, Rung
from runner.proving.rungs import MAIN_RESULT, names, rungs
from runner.recipes.loader import read_recipe
from runner.sites.loader import read_site
from tests.support.evidence import GOOD
from tests.support.proof_records import UUIDS

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


def earlier_rungs(**figures: ProvenValue) -> dict[str, RungRecord]:
    """The first rung, passed on two H100."""
    known: dict[str, ProvenValue] = {"devices": 2, "capability": "9.0", "memory_bytes": 80 * 10**9, "mig": False}
    return {"devices": RungRecord("devices", "passed", figures={**known, **figures})}


def step_outcome(name: str, facts: dict[str, Any], ranks: int = 2, kind: Any = "cuda", **changes: Any) -> JobOutcome:
    """A step that ran, with the same facts on every rank."""
    records = tuple(ProvingRecord("2", rank, name, kind, facts) for rank in range(ranks))
    values: dict[str, Any] = {"outcome": "ran", "facts": records, "nccl_processes": ranks, "proven": ("ran well",)}
    return JobOutcome(**{**values, **changes})


def judge(name: str, *outcomes: JobOutcome, ladder: Ladder = GPUS, **main: float) -> Judgement:
    """``main``: images a second of rungs of the main job, ``_`` for ``-``."""
    earlier = earlier_rungs()
    for rung, rate in main.items():
        figures: dict[str, ProvenValue] = {"images_per_s": rate}
        earlier[rung.replace("_", "-")] = RungRecord(rung.replace("_", "-"), "passed", figures=figures)
    return BY_NAME[name].judge(ladder, earlier, outcomes)


def jobs(name: str, ladder: Ladder = GPUS, **figures: ProvenValue) -> tuple[Job, ...]:
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


def test_a_ladder_that_pretends_names_no_gpu_and_labels_everything() -> None:
    judged = judge(
        "devices", step_outcome("devices", {**DEVICES, "driver": "", "horovod_nccl": False}, kind="cpu"), ladder=PRETEND
    )
    assert (judged.state, judged.gpus, judged.label) == ("passed", (), "pretend: CPU")
    assert "driver" not in judged.versions


def test_a_step_on_the_wrong_kind_of_device_is_no_evidence() -> None:
    for ladder, kind in ((GPUS, "cpu"), (PRETEND, "cuda")):
        judged = judge("devices", step_outcome("devices", DEVICES, kind=kind), ladder=ladder)
        assert "did not do the step devices on" in judged.reason
    assert "no record" in judge("devices", step_outcome("devices", DEVICES, ranks=0)).reason


def test_the_bandwidth_of_a_link_is_that_of_nccls_own_tests() -> None:
    judged = judge("allreduce-n", step_outcome("allreduce", ALLREDUCE))
    assert judged.figures["bus_67108864_bytes_gb_per_s"] == pytest.approx(67.108864)
    assert "bus_4_bytes_gb_per_s" not in judged.figures
    alone = judge("allreduce-1", step_outcome("allreduce", {**ALLREDUCE, "size": 1}, ranks=1))
    assert alone.state == "passed"
    assert not [name for name in alone.figures if name.startswith("bus")]


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
    assert judge("main-fp32", MEASURED, ladder=Ladder(2, quick=True)).label.startswith("demonstration")


def test_those_sentences_are_the_verdicts_own() -> None:
    sentences = verdict_of(GOOD).proven
    earlier = {**earlier_rungs(), MAIN_RESULT: RungRecord(MAIN_RESULT, "passed", proven=sentences)}
    assert BY_NAME["result"].judge(Ladder(4), earlier, []).state == "passed"


@pytest.mark.parametrize(
    ("without", "why"),
    [(None, ""), (0, "distinct devices"), (1, "where the ranks computed"), (2, "synchronised ranks")],
)
def test_the_result_is_proven_by_the_sentences_of_the_verdict(without: int | None, why: str) -> None:
    proven = tuple(sentence for place, sentence in enumerate(MEASURED.proven) if place != without)
    earlier = {**earlier_rungs(), MAIN_RESULT: RungRecord(MAIN_RESULT, "passed", proven=proven)}
    judged = BY_NAME["result"].judge(GPUS, earlier, [])
    assert judged.state == ("failed" if why else "passed")
    assert why in judged.reason


def test_attempts_with_the_same_inputs_are_counted_by_their_directories() -> None:
    a, b = "a" * 12, "b" * 12
    tried = {f"main-fp32-{a}.1", f"main-fp32-{a}.12", f"main-fp32-{b}.3", "lock", "main-fp32-x.1", f"fp32-{a}.4"}
    assert attempts(tried | {f"main-fp32-{a}.0", f"main-fp32-{a}.x"}, "main-fp32", "a" * 24) == {1, 12}


@pytest.mark.parametrize(("count", "ranks"), [(8, 8), (8, 3), (8, 1), (2, 2), (1, 4), (0, 2)])
def test_no_two_ranks_of_a_node_compute_on_the_same_device(count: int, ranks: int) -> None:
    """In the mode EXCLUSIVE_PROCESS the second one would be refused the GPU."""
    of_rank = run_path(str(RECIPE / "share.py"))["of_rank"]
    used = [of_rank(count, {"RUNNER_LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}) for rank in range(ranks)]
    if count == 1:  # each sees its own
        assert all(list(each) == [0] for each in used)
    else:
        assert sorted(index for each in used for index in each) == list(range(count))


def clocks(event: float, wall: float = 1.0) -> JobOutcome:
    return step_outcome("clocks", {"event_s": [event] * 5, "wall_s": [wall] * 5}, ranks=1)


@pytest.mark.parametrize("event_s", [0.991, 1.0, 1.009])
def test_events_and_wall_clock_agree(event_s: float) -> None:
    judged = judge("clocks", clocks(event_s))
    assert judged.state == "passed"
    assert judged.figures["events_against_wall_percent"] == pytest.approx(100 * (event_s - 1))


ROOFLINE: dict[str, Any] = {
    "products": {"fp32": 50e12, "tf32": 400e12, "amp-bf16": 700e12, "amp-fp16": 700e12},
    "copy_bytes_per_s": 2.5e12,
    "flop_per_image": 24_500_000_000,
    "model": "resnet50",
    "image_px": 224,
}


def roofline(**changes: Any) -> JobOutcome:
    return step_outcome("roofline", {**ROOFLINE, **changes}, ranks=1)


def test_the_main_jobs_share_of_the_roofline_is_that_of_one_gpu_in_its_own_precision() -> None:
    above = judge("roofline", roofline(), main_fp32=4400.0)
    assert (above.state, above.figures) == ("failed", {})
    assert "main-fp32: 4400.0 images/s are 108 % of what products of matrices reach" in above.reason
    judged = judge("roofline", roofline(), main_fp32=800.0, main_channels_last=5000.0)
    assert judged.state == "passed"
    assert judged.figures["main-fp32_percent_of_products"] == pytest.approx(100 * 400 * 24.5e9 / 50e12)
    assert judged.figures["main-channels-last_percent_of_products"] == pytest.approx(100 * 2500 * 24.5e9 / 700e12)
    assert "main-tf32_percent_of_products" not in judged.figures
    assert judged.figures["copy_gb_per_s"] == pytest.approx(2500.0)
    uncounted = judge("roofline", roofline(flop_per_image=None), main_fp32=800.0)
    assert uncounted.state == "passed"
    assert not [name for name in uncounted.figures if name.endswith("percent_of_products")]


def measured(rate: float = 1000.0, share: float | None = 0.001, **changes: Any) -> JobOutcome:
    return JobOutcome(**{"outcome": "measured", "images_per_s": rate, "instrumentation_share": share, **changes})


def test_the_cost_of_measuring_and_of_hooks() -> None:
    judged = judge("cost", measured(1000.0), measured(990.0, 0.002), measured(990.0), measured(1000.0), ladder=ONE)
    assert judged.state == "passed"
    assert judged.figures["instrumentation_percent"] == pytest.approx(0.2)
    assert judged.figures["hooks_change_percent"] == pytest.approx(-1.0)
    assert judged.figures["hooks_verdict"] == "no verdict"


def test_plain_and_hooked_runs_alternate_on_one_gpu() -> None:
    hooks = [dict(job.options)["hooks-at-one"] for job in BY_NAME["cost"].jobs(GPUS, earlier_rungs())]
    assert hooks == ["false", "true", "true", "false"]
    assert {job.gpus for job in BY_NAME["cost"].jobs(GPUS, earlier_rungs())} == {1}


def script(rate: float = 1000.0, size: int = 2) -> JobOutcome:
    return step_outcome("synthetic", {"images_per_s": rate, "size": size, "batch_size": 256})


def test_ours_and_horovods_script_alternate_with_the_same_batch_and_precision() -> None:
    jobs = BY_NAME["synthetic"].jobs(GPUS, earlier_rungs())
    assert [job.recipe for job in jobs] == [{"A": "prove", "B": "horovod-pytorch"}[arm] for arm in "ABBABA"]
    assert {dict(job.options)["batch-size"] for job in jobs} == {"256"}
    assert dict(jobs[1].options)["precision"] == "tf32"
    assert dict(jobs[1].options)["channels-last"] == "false"
    judged = judge("synthetic", script(), measured(1001.0), measured(999.0), script(1002.0), measured(), script(998.0))
    assert (judged.state, judged.figures["verdict"]) == ("passed", "equivalent")
    assert judged.figures["script_images_per_s"] == 1000.0


PART = {"uuid": "MIG-1", "problem": "", "devices": 1, "memory_bytes": 10**10, "computes": True}


def test_parts_of_gpus_are_tried_where_there_are_some() -> None:
    obstacle = BY_NAME["mig"].obstacle
    assert obstacle(GPUS, earlier_rungs(mig=True)) == ""
    assert "no GPU is cut" in obstacle(GPUS, earlier_rungs())
    assert "processors" in obstacle(PRETEND, earlier_rungs(mig=True))
    judged = judge("mig", step_outcome("slices", {"slices": [PART, {**PART, "uuid": "MIG-2"}]}, ranks=1))
    assert (judged.state, judged.figures) == ("passed", {"slices": 2, "memory_bytes_least": 10**10})


def test_where_the_ladder_pretends_both_sides_compute_the_sites_small_model() -> None:
    site = read_site("local").without_gpus.options["horovod-pytorch"]
    chosen = dict(BY_NAME["synthetic"].jobs(PRETEND, earlier_rungs())[0].options)
    assert {name: str(site[name]) for name in ("model", "image-size", "batch-size")}.items() <= chosen.items()


def devices(**facts: Any) -> JobOutcome:
    return step_outcome("devices", {**DEVICES, **facts})


def allreduce(processes: int = 2, **facts: Any) -> JobOutcome:
    return step_outcome("allreduce", {**ALLREDUCE, **facts}, nccl_processes=processes)


def slices(*parts: dict[str, Any]) -> JobOutcome:
    return step_outcome("slices", {"slices": list(parts)}, ranks=1)


def instrumented(run: JobOutcome) -> tuple[JobOutcome, ...]:
    return measured(), measured(), run, measured()


def scripted(first: JobOutcome) -> tuple[JobOutcome, ...]:
    return first, measured(), measured(), script(), measured(), script()


def times(event_s: list[float], wall_s: list[float]) -> JobOutcome:
    return step_outcome("clocks", {"event_s": event_s, "wall_s": wall_s}, ranks=1)


BROKEN = JobOutcome("failed", ("rank 0 exited with code 1",))
FAILS: tuple[tuple[str, JobOutcome | tuple[JobOutcome, ...], str], ...] = (
    ("devices", devices(driver=""), "the driver does not say its version"),
    ("devices", devices(nvml_problem="libnvidia-ml.so.1 cannot be loaded"), "libnvidia-ml.so.1 cannot be loaded"),
    ("devices", devices(horovod_nccl=False), "Horovod has no NCCL"),
    ("devices", devices(devices=[{**DEVICE, "uuid": UUIDS[0]}]), "torch sees 1 device of 2"),
    ("devices", devices(devices=[{**DEVICE, "uuid": each, "computes": False} for each in UUIDS]), "matrices is wrong"),
    ("devices", devices(devices=[{**DEVICE, "uuid": None}] * 2), "no UUID"),
    ("devices", devices(driver=None), "cannot be read"),
    ("allreduce-n", step_outcome("allreduce", ALLREDUCE, outcome="failed", reasons=("exited",)), "failed; exited"),
    ("allreduce-n", allreduce(size=1), "saw a world of 1, planned 2"),
    ("allreduce-n", allreduce(sums=[{**SUM, "right": False}]), "wrong sums of 67108864 bytes"),
    ("allreduce-n", allreduce(sums=[{**SUM, "on_device": False}]), "left the device"),
    ("allreduce-n", allreduce(sums=[]), "did not reduce the same tensors"),
    ("allreduce-n", allreduce(hooked_gradients=0), "no gradient went through"),
    ("allreduce-n", allreduce(weights_equal=False), "weights were not moved, and equal"),
    ("allreduce-n", allreduce(weights_moved=False), "weights were not moved, and equal"),
    ("allreduce-n", allreduce(nccl_built=False), "Horovod has no NCCL"),
    ("allreduce-n", allreduce(0), "NCCL's log shows 0 processes, planned 2"),
    ("clocks", clocks(0.98), "differ from the host's clock by -2.00 %"),
    ("clocks", clocks(1.02), "differ from the host's clock by +2.00 %"),
    ("clocks", clocks(1.0, wall=0.0), "no times"),
    ("clocks", times([], []), "no times"),
    ("clocks", times([1.0, 1.0], [1.0]), "no times"),
    ("clocks", times([-1.0], [1.0]), "cannot be read"),
    ("roofline", roofline(copy_bytes_per_s=0.0), "no rates"),
    ("cost", instrumented(measured(share=0.011)), "our calls took 1.10 % of the window"),
    ("cost", instrumented(measured(share=None)), "does not say what its instrumentation took"),
    ("cost", instrumented(BROKEN), "verdict failed; rank 0 exited with code 1"),
    ("synthetic", scripted(script(size=1)), "a world of 1, planned 2"),
    ("synthetic", scripted(script(0.0)), "no rate"),
    ("synthetic", scripted(measured()), "verdict measured"),
    ("mig", slices(), "lists no part"),
    ("mig", slices({**PART, "problem": "CUDA error"}), "MIG-1: CUDA error"),
    ("mig", slices({**PART, "devices": 0}), "MIG-1: 0 devices"),
    ("mig", slices({**PART, "computes": False}), "MIG-1: a product is wrong"),
    ("main-fp32", JobOutcome("not-proven", ("weights differ",)), "verdict not-proven; weights differ"),
)


@pytest.mark.parametrize(("rung", "outcomes", "why"), FAILS, ids=[f"{each[0]}: {each[2]}" for each in FAILS])
def test_a_rung_fails_with_its_reason_and_shows_no_figure(
    rung: str, outcomes: JobOutcome | tuple[JobOutcome, ...], why: str
) -> None:
    judged = judge(rung, *(outcomes if isinstance(outcomes, tuple) else (outcomes,)))
    assert (judged.state, judged.figures, judged.gpus) == ("failed", {}, ())
    assert why in judged.reason


def no_jobs(_ladder: Ladder, _earlier: Earlier) -> tuple[Job, ...]:
    return ()


def passes(_ladder: Ladder, _earlier: Earlier, _outcomes: Sequence[JobOutcome]) -> Judgement:
    return Judgement("passed")


def climbed(root: Path, machine: str, again: Sequence[str] = ()) -> RungRecord:
    """The rung's record; its directory of runs is made as a job would make it."""
    silent = Listener(lambda _: None, lambda *_: None, lambda _: None, lambda _: None)
    rung = Rung("only", "looks", no_jobs, passes)
    record = climb(Ladder(1), [rung], Place(root, {}, (machine,)), silent, again).records[0]
    (root / "jobs" / f"only-{record.inputs[:12]}.{record.attempt}").mkdir(parents=True, exist_ok=True)
    return record


def test_a_rung_that_is_to_be_done_again_is_done_anew_also_after_other_inputs(tmp_path: Path) -> None:
    first = climbed(tmp_path, "GPU-1")
    assert climbed(tmp_path, "GPU-1") == first
    assert climbed(tmp_path, "GPU-2").inputs != first.inputs
    again = climbed(tmp_path, "GPU-1", again=["only"])
    assert (again.inputs, again.attempt) == (first.inputs, 2), "not what the first attempt left"
    climbed(tmp_path, "GPU-2")
    assert climbed(tmp_path, "GPU-1").attempt == 2, "its own newest attempt"
