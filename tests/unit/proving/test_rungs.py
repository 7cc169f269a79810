"""What each rung demands of what its jobs left, and which attempt of a rung is made, kept or gone on with; its jobs
themselves are climbed in tests/integration.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from runner.jobs.verdict import judge as verdict_of
from runner.model.plan import RESULTS
from runner.model.records import ProvingRecord
from runner.model.verdict import BETWEEN_GPUS, REQUIRED, ProvenValue, RungRecord, Verdict
from runner.proving.climb import Listener, Place, attempts, climb
from runner.proving.ladder import Job, JobOutcome, Judgement, Ladder, Rung
from runner.proving.rungs import _METERED, FEW_STEPS, MAIN_RESULT, names, rungs
from runner.recipes.loader import names as recipe_names
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
    values: dict[str, Any] = {"facts": records, "nccl_processes": ranks}
    return JobOutcome(**{"verdict": Verdict("ran", proven=("ran well",)), **values, **changes})


def judge(name: str, *outcomes: JobOutcome, ladder: Ladder = GPUS) -> Judgement:
    """After two rungs of the main job, with these images a second."""
    earlier = earlier_rungs()
    for rung, rate in (("main-fp32", 800.0), ("main-channels-last", 5000.0)):
        earlier[rung] = RungRecord(rung, "passed", figures={"images_per_s": rate})
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
        if not job.recipe:
            assert job.program[:3] == ("python3", "-u", "-c")
            continue
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


def test_on_gpus_nccl_writes_the_log_that_is_read() -> None:
    assert ("NCCL_DEBUG_FILE", f"{RESULTS}/nccl/%h.%p.log") in jobs("allreduce-1")[0].env
    assert jobs("allreduce-1", PRETEND)[0].env == ()


# a rung, what the first rung saw, and why the rung is left out then; empty where it is not
OBSTACLES: tuple[tuple[str, Ladder, dict[str, ProvenValue], str], ...] = (
    (BETWEEN_GPUS, ONE, {}, "stays UNPROVEN"),
    (BETWEEN_GPUS, GPUS, {}, ""),
    ("main-tf32", GPUS, {"capability": "7.0"}, "7.0 have no TF32"),
    ("main-tf32", GPUS, {"capability": "12.0"}, ""),
    ("mig", GPUS, {"mig": True}, ""),
    ("mig", GPUS, {}, "no GPU is cut"),
    ("mig", PRETEND, {"mig": True}, "processors"),
)


@pytest.mark.parametrize(("rung", "ladder", "seen", "why"), OBSTACLES)
def test_a_rung_that_cannot_be_climbed_says_why(
    rung: str, ladder: Ladder, seen: dict[str, ProvenValue], why: str
) -> None:
    obstacle = BY_NAME[rung].obstacle(ladder, earlier_rungs(**seen))
    assert why in obstacle and bool(obstacle) is bool(why)


# a rung, what the first rung saw, and an option of its first job: a batch that fits, a precision that older GPUs have,
# hooks also with a single rank
OPTIONS: tuple[tuple[str, Ladder, dict[str, ProvenValue], str, str], ...] = (
    ("main-fp32", GPUS, {"memory_bytes": 40 * 10**9}, "batch-size", "256"),
    ("main-fp32", GPUS, {"memory_bytes": 40 * 10**9 - 1}, "batch-size", "128"),
    ("main-fp32", GPUS, {"memory_bytes": 20 * 10**9}, "batch-size", "128"),
    ("main-fp32", GPUS, {"memory_bytes": 20 * 10**9 - 1}, "batch-size", "64"),
    ("main-fp32", GPUS, {"memory_bytes": 10 * 10**9}, "batch-size", "64"),
    ("main-fp32", GPUS, {"memory_bytes": 10 * 10**9 - 1}, "batch-size", "32"),
    ("main-amp", GPUS, {"capability": "7.5"}, "precision", "amp-fp16"),
    ("main-amp", GPUS, {"capability": "10.0"}, "precision", "amp-bf16"),
    ("main-fp32", ONE, {}, "hooks-at-one", "true"),
    ("main-fp32", GPUS, {}, "hooks-at-one", "false"),
)


@pytest.mark.parametrize(("rung", "ladder", "seen", "option", "value"), OPTIONS)
def test_jobs_fit_the_devices(rung: str, ladder: Ladder, seen: dict[str, ProvenValue], option: str, value: str) -> None:
    assert dict(jobs(rung, ladder, **seen)[0].options)[option] == value


SENTENCES = (
    "2 distinct devices, by the UUIDs that the framework reported",
    "every rank saw a world of 2 and computed on cuda",
    "synchronised: gradients differed before the first allreduce, parameters are equal after the last step",
)
MEASURED = JobOutcome(Verdict("measured", images_per_s=1000.0, proven=SENTENCES))


def test_a_figure_of_a_quick_ladder_is_a_demonstration() -> None:
    assert judge("main-fp32", MEASURED).label == ""
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
    proven = tuple(sentence for place, sentence in enumerate(SENTENCES) if place != without)
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


ROOFLINE: dict[str, Any] = {
    "products": {"fp32": 50e12, "tf32": 400e12, "amp-bf16": 700e12, "amp-fp16": 700e12},
    "copy_bytes_per_s": 2.5e12,
    "flop_per_image": 24_500_000_000,
    "model": "resnet50",
    "image_px": 224,
}


def roofline(**changes: Any) -> JobOutcome:
    return step_outcome("roofline", {**ROOFLINE, **changes}, ranks=1)


def measured(rate: float = 1000.0, share: float | None = 0.001) -> JobOutcome:
    return JobOutcome(Verdict("measured", images_per_s=rate), instrumentation_share=share)


THROTTLED = JobOutcome(
    Verdict("measured", images_per_s=1000.0, steady=True, precision=(999.0, 1001.0), disturbed="its GPUs throttled"),
    instrumentation_share=0.001,
)


def test_plain_and_hooked_runs_alternate_on_one_gpu() -> None:
    hooks = [dict(job.options)["hooks-at-one"] for job in BY_NAME["cost"].jobs(GPUS, earlier_rungs())]
    assert hooks == ["false", "true", "true", "false"]
    assert {job.gpus for job in BY_NAME["cost"].jobs(GPUS, earlier_rungs())} == {1}


def script(rate: float = 1000.0, size: int = 2) -> JobOutcome:
    return step_outcome("synthetic", {"images_per_s": rate, "size": size, "batch_size": 256})


def test_ours_and_horovods_script_alternate_with_the_same_batch_and_precision() -> None:
    jobs = BY_NAME["synthetic"].jobs(GPUS, earlier_rungs())
    assert [job.recipe for job in jobs] == [{"A": "prove", "B": "horovod-pytorch"}[arm] for arm in "ABBAAB"]
    assert {dict(job.options)["batch-size"] for job in jobs} == {"256"}
    assert dict(jobs[1].options)["precision"] == "tf32"
    assert dict(jobs[1].options)["channels-last"] == "false"


def test_short_measurements_take_each_side_once_and_give_no_verdict() -> None:
    """A quick ladder on one GPU shall take ten minutes: starting a job is most of a short one."""
    for name, left in (("cost", [measured(), measured(990.0)]), ("synthetic", [script(), measured()])):
        quick = Ladder(2, quick=True)
        assert len(BY_NAME[name].jobs(quick, earlier_rungs())) == 2
        judged = BY_NAME[name].judge(quick, earlier_rungs(), left)
        assert judged.state == "passed", judged.reason
        assert "no verdict" in judged.figures.values()


PART = {"uuid": "MIG-1", "problem": "", "devices": 1, "memory_bytes": 10**10, "computes": True}


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


BROKEN = JobOutcome(Verdict("failed", ("rank 0 exited with code 1",)))
FAILS: tuple[tuple[str, JobOutcome | tuple[JobOutcome, ...], str], ...] = (
    ("devices", devices(driver=""), "the driver does not say its version"),
    ("devices", devices(nvml_problem="libnvidia-ml.so.1 cannot be loaded"), "libnvidia-ml.so.1 cannot be loaded"),
    ("devices", devices(horovod_nccl=False), "Horovod has no NCCL"),
    ("devices", devices(devices=[{**DEVICE, "uuid": UUIDS[0]}]), "torch sees 1 device of 2"),
    ("devices", devices(devices=[{**DEVICE, "uuid": each, "computes": False} for each in UUIDS]), "matrices is wrong"),
    ("devices", devices(devices=[{**DEVICE, "uuid": None}] * 2), "no UUID"),
    ("devices", devices(driver=None), "cannot be read"),
    ("allreduce-n", step_outcome("allreduce", ALLREDUCE, verdict=Verdict("failed", ("exited",))), "failed; exited"),
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
    ("roofline", roofline(flop_per_image=135 * 10**9), "main-fp32: 800.0 images/s are 108 % of what products of"),
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
    ("main-fp32", JobOutcome(Verdict("not-proven", ("weights differ",))), "verdict not-proven; weights differ"),
)


@pytest.mark.parametrize(("rung", "outcomes", "why"), FAILS, ids=[f"{each[0]}: {each[2]}" for each in FAILS])
def test_a_rung_fails_with_its_reason_and_shows_no_figure(
    rung: str, outcomes: JobOutcome | tuple[JobOutcome, ...], why: str
) -> None:
    judged = judge(rung, *(outcomes if isinstance(outcomes, tuple) else (outcomes,)))
    assert (judged.state, judged.figures, judged.gpus) == ("failed", {}, ())
    assert why in judged.reason


# a rung, what its jobs left, and figures that it shows; None: it shows no such figure
SHOWN: tuple[tuple[str, tuple[JobOutcome, ...], dict[str, Any]], ...] = (
    ("main-fp32", (MEASURED,), {"images_per_s": 1000.0}),
    ("main-fp32", (JobOutcome(Verdict("measured", images_per_s=1.0, forced=("too-long",))),),
     {"doubts": "forced: too-long; cannot tell whether steady; no interval"}),
    ("allreduce-n", (allreduce(),), {"bus_67108864_bytes_gb_per_s": 67.108864, "bus_4_bytes_gb_per_s": None}),
    ("allreduce-1", (step_outcome("allreduce", {**ALLREDUCE, "size": 1}, ranks=1, nccl_processes=1),),
     {"allreduce_67108864_bytes_s": 0.001, "bus_67108864_bytes_gb_per_s": None}),
    ("clocks", (clocks(0.991),), {"events_against_wall_percent": -0.9}),
    ("clocks", (clocks(1.009),), {"events_against_wall_percent": 0.9}),
    ("roofline", (roofline(),),  # of one GPU of two, in the precision of the job
     {"main-fp32_percent_of_products": 100 * 400 * 24.5e9 / 50e12, "copy_gb_per_s": 2500.0,
      "main-channels-last_percent_of_products": 100 * 2500 * 24.5e9 / 700e12,
      "main-tf32_percent_of_products": None}),
    ("roofline", (roofline(flop_per_image=None),), {"main-fp32_percent_of_products": None}),
    ("cost", (measured(1000.0), measured(990.0, 0.002), measured(990.0), measured(1000.0)),
     {"instrumentation_percent": 0.2, "hooks_change_percent": -1.0, "hooks_verdict": "no verdict"}),
    ("cost", (THROTTLED,) * 4, {"doubts": "its GPUs throttled"}),
    ("synthetic", (script(), measured(1001.0), measured(999.0), script(1002.0), script(998.0), measured()),
     {"verdict": "equivalent", "script_images_per_s": 1000.0}),
    ("mig", (slices(PART, {**PART, "uuid": "MIG-2"}),), {"slices": 2, "memory_bytes_least": 10**10}),
)  # fmt: skip


@pytest.mark.parametrize(("rung", "outcomes", "shown"), SHOWN, ids=[each[0] for each in SHOWN])
def test_a_rung_passes_with_its_figures(rung: str, outcomes: tuple[JobOutcome, ...], shown: dict[str, Any]) -> None:
    judged = judge(rung, *outcomes)
    assert judged.state == "passed", judged.reason
    assert {name: judged.figures.get(name) for name in shown} == pytest.approx(shown)


def test_every_shipped_recipe_has_a_rung() -> None:
    """The main job and the recipe of the steps are whole ladders."""
    assert {*FEW_STEPS} == {*recipe_names()} - {"horovod-pytorch", "prove"}


@pytest.mark.parametrize(
    ("rung", "verdict", "state"),
    [
        ("fsdp-pytorch", Verdict("measured", images_per_s=10.0), "passed"),
        ("probe", Verdict("ran"), "passed"),
        ("meter", Verdict("ran"), "failed"),
        ("fsdp-pytorch", Verdict("not-proven", reasons=("x",)), "failed"),
        ("horovod-tensorflow", Verdict("failed", reasons=("rank 0 exited with code 1",), log="logs/rank-1.err: "
         "ImportError: Extension horovod.tensorflow has not been built: x.so not found"), "not applicable"),
        ("lightning", Verdict("failed", reasons=("rank 0: lightning is not in the image",)), "not applicable"),
        ("horovod-minimal", Verdict("failed", reasons=("No module named 'horovod'",)), "failed"),
    ],
)  # fmt: skip
def test_a_recipe_passes_in_a_few_steps_or_does_not_apply_where_its_package_is_missing(
    rung: str, verdict: Verdict, state: str
) -> None:
    judged = judge(rung, JobOutcome(verdict))
    assert judged.state == state
    assert bool(judged.reason) == (state != "passed")
    assert judged.label == ("demonstration: a few steps" if state == "passed" else "")


def climbed(root: Path, machine: str, again: Sequence[str] = ()) -> RungRecord:
    """The rung's record; its directory of runs is made as a job would make it."""
    silent = Listener(lambda *_: None, lambda *_: None, lambda _: None, lambda _: None)
    rung = Rung("only", "looks", lambda *_: (), lambda *_: Judgement("passed"))
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


@pytest.mark.parametrize("code", [_METERED, (RECIPE / "slices.py").read_text().split('"""')[3]])
def test_a_job_imports_nothing_from_where_it_starts(tmp_path: Path, code: str) -> None:
    assert "import" in code
    (tmp_path / "torch.py").write_text("open('another-users', 'w')")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert not (tmp_path / "another-users").exists()
