"""The rungs above the main job, on what their jobs left."""

from __future__ import annotations

from typing import Any

import pytest

from runner.model.proof_record import Figure, RungRecord
from runner.proving.ladder import JobOutcome, Judgement, Ladder
from runner.proving.rungs import MAIN_RESULT, rungs
from runner.sites.loader import read_site
from tests.support.proving import earlier_rungs, step_outcome

GPUS, ONE, PRETEND = Ladder(2), Ladder(1), Ladder(2, quick=True, pretend=True)
BY_NAME = {rung.name: rung for rung in rungs()}


def judge(name: str, *outcomes: JobOutcome, ladder: Ladder = GPUS, **main: float) -> Judgement:
    """``main``: images a second of rungs of the main job, ``_`` for ``-``."""
    earlier = earlier_rungs()
    for rung, rate in main.items():
        figures: dict[str, Figure] = {"images_per_s": rate}
        earlier[rung.replace("_", "-")] = RungRecord(rung.replace("_", "-"), "passed", figures=figures)
    return BY_NAME[name].judge(ladder, earlier, outcomes)


def clocks(event: float, wall: float = 1.0) -> JobOutcome:
    return step_outcome("clocks", {"event_s": [event] * 5, "wall_s": [wall] * 5}, ranks=1)


@pytest.mark.parametrize("event_s", [0.991, 1.0, 1.009])
def test_events_and_wall_clock_agree(event_s: float) -> None:
    judged = judge("clocks", clocks(event_s))
    assert judged.state == "passed"
    assert judged.figures["events_against_wall_percent"] == pytest.approx(100 * (event_s - 1))


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (clocks(0.98), "differ from the host's clock by -2.00 %"),
        (clocks(1.02), "differ from the host's clock by +2.00 %"),
        (clocks(1.0, wall=0.0), "no times"),
        (step_outcome("clocks", {"event_s": [], "wall_s": []}, ranks=1), "no times"),
        (step_outcome("clocks", {"event_s": [1.0, 1.0], "wall_s": [1.0]}, ranks=1), "no times"),
        (step_outcome("clocks", {"event_s": [-1.0], "wall_s": [1.0]}, ranks=1), "cannot be read"),
    ],
)
def test_clocks_that_do_not_agree_fail(outcome: JobOutcome, why: str) -> None:
    judged = judge("clocks", outcome)
    assert (judged.state, judged.figures) == ("failed", {})
    assert why in judged.reason


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
    judged = judge("roofline", roofline(), main_fp32=800.0, main_channels_last=5000.0)
    assert judged.state == "passed"
    assert judged.figures["main-fp32_percent_of_products"] == pytest.approx(100 * 400 * 24.5e9 / 50e12)
    assert judged.figures["main-channels-last_percent_of_products"] == pytest.approx(100 * 2500 * 24.5e9 / 700e12)
    assert "main-tf32_percent_of_products" not in judged.figures
    assert judged.figures["copy_gb_per_s"] == pytest.approx(2500.0)


def test_a_figure_above_the_roofline_is_wrong() -> None:
    judged = judge("roofline", roofline(), main_fp32=4400.0)
    assert (judged.state, judged.figures) == ("failed", {})
    assert "main-fp32: 4400.0 images/s are 108 % of what products of matrices reach" in judged.reason
    assert judge("roofline", roofline(copy_bytes_per_s=0.0)).state == "failed"


def test_without_counted_operations_there_are_only_rates() -> None:
    judged = judge("roofline", roofline(flop_per_image=None), main_fp32=800.0)
    assert judged.state == "passed"
    assert not [name for name in judged.figures if name.endswith("percent_of_products")]


def measured(rate: float = 1000.0, share: float | None = 0.001, **changes: Any) -> JobOutcome:
    return JobOutcome(**{"outcome": "measured", "images_per_s": rate, "instrumentation_share": share, **changes})


def test_the_cost_of_measuring_and_of_hooks() -> None:
    judged = judge("cost", measured(1000.0), measured(990.0, 0.002), measured(990.0), measured(1000.0), ladder=ONE)
    assert judged.state == "passed"
    assert judged.figures["instrumentation_percent"] == pytest.approx(0.2)
    assert judged.figures["hooks_change_percent"] == pytest.approx(-1.0)
    assert judged.figures["hooks_verdict"] == "no verdict"


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (measured(share=0.011), "our calls took 1.10 % of the window"),
        (measured(share=None), "does not say what its instrumentation took"),
        (JobOutcome("failed", ("rank 0 exited with code 1",)), "verdict failed; rank 0 exited with code 1"),
    ],
)
def test_instrumentation_that_costs_too_much_or_is_unknown_fails(run: JobOutcome, why: str) -> None:
    judged = judge("cost", measured(), measured(), run, measured(), ladder=ONE)
    assert (judged.state, judged.figures) == ("failed", {})
    assert why in judged.reason


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


@pytest.mark.parametrize(
    ("first", "why"),
    [(script(size=1), "a world of 1, planned 2"), (script(0.0), "no rate"), (measured(), "verdict measured")],
)
def test_a_script_that_did_not_do_the_same_work_is_no_comparison(first: JobOutcome, why: str) -> None:
    judged = judge("synthetic", first, measured(), measured(), script(), measured(), script())
    assert (judged.state, judged.figures) == ("failed", {})
    assert why in judged.reason


PART = {"uuid": "MIG-1", "problem": "", "devices": 1, "memory_bytes": 10**10, "computes": True}


def test_parts_of_gpus_are_tried_where_there_are_some() -> None:
    obstacle = BY_NAME["mig"].obstacle
    assert obstacle(GPUS, earlier_rungs(mig=True)) == ""
    assert "no GPU is cut" in obstacle(GPUS, earlier_rungs())
    assert "processors" in obstacle(PRETEND, earlier_rungs(mig=True))
    judged = judge("mig", step_outcome("slices", {"slices": [PART, {**PART, "uuid": "MIG-2"}]}, ranks=1))
    assert (judged.state, judged.figures) == ("passed", {"slices": 2, "memory_bytes_least": 10**10})


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "lists no part"),
        ([{**PART, "problem": "CUDA error"}], "MIG-1: CUDA error"),
        ([{**PART, "devices": 0}], "MIG-1: 0 devices"),
        ([{**PART, "computes": False}], "MIG-1: a product is wrong"),
    ],
)
def test_a_part_that_does_not_compute_fails(parts: list[dict[str, Any]], why: str) -> None:
    judged = judge("mig", step_outcome("slices", {"slices": parts}, ranks=1))
    assert judged.state == "failed"
    assert why in judged.reason


def test_where_the_ladder_pretends_both_sides_compute_the_sites_small_model() -> None:
    site = read_site("local").without_gpus.options["horovod-pytorch"]
    chosen = dict(BY_NAME["synthetic"].jobs(PRETEND, earlier_rungs())[0].options)
    assert {name: str(site[name]) for name in ("model", "image-size", "batch-size")}.items() <= chosen.items()


def test_the_roofline_waits_for_the_main_job() -> None:
    assert BY_NAME["roofline"].needs == ("devices", MAIN_RESULT)
