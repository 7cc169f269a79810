"""From site, recipe and runs to an expectation: each input with its source, and each missing one with its way out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.core.errors import RefusedError, RunnerError, UsageError
from runner.diagnosis.logs import NcclLog
from runner.jobs import expected
from runner.jobs.directory import Run
from runner.jobs.expected import OneGpu, expect
from runner.model.expectation import Expectation, Input
from runner.model.plan import Plan
from runner.model.site import Fabric, Site
from runner.model.verdict import Verdict
from runner.recipes.loader import read_recipe
from runner.sites.loader import names, read_site
from tests.support.evidence import GOOD, write_plan
from tests.support.plans import PLAN

TECHNION = read_site("technion")
RATE = OneGpu(2400.0, 2380.0, 2420.0, "a test")


def inputs(found: Expectation) -> dict[str, Input]:
    return {each.name: each for each in found.inputs}


def test_technion_and_16_gpus_need_nothing_more() -> None:
    found = expect(TECHNION, "horovod-pytorch", (), (1, 16, 1024))
    assert [(each.gpus, each.nodes, each.ranks_per_node) for each in found.points] == [
        (1, 1, 1),
        (16, 2, 8),
        (1024, 128, 8),
    ]
    assert all(each.source for each in found.inputs)
    assert "unconfirmed" in inputs(found)["between-gb-s"].source
    assert inputs(found)["between-gb-s"].value == pytest.approx(192.0)
    assert any("published" in note for note in found.notes)
    assert 0.92 < found.points[1].efficiency.low < found.points[1].efficiency.high < 1.0


def test_what_is_given_replaces_what_is_known() -> None:
    given = {"between-gb-s": (50.0, 60.0, 70.0), "bucket-mb": (1.0, 1.0, 1.0)}
    found = expect(TECHNION, "horovod-pytorch", (), (16,), RATE, assumed=given)
    assert inputs(found)["between-gb-s"].value == 60.0
    assert inputs(found)["between-gb-s"].source == "given"
    assert "bucket-mb is given, and no point needs it" in found.notes
    assert inputs(found)["one-gpu-images-per-s"].source == "a test"


def test_settings_decide_gradients_and_the_way_to_reduce() -> None:
    whole = expect(TECHNION, "horovod-pytorch", (), (16,), RATE)
    halved = expect(TECHNION, "horovod-pytorch", (("fp16-allreduce", "true"),), (16,), RATE)
    assert inputs(halved)["gradient-mb"].value == pytest.approx(inputs(whole)["gradient-mb"].value / 2)
    ddp = expect(TECHNION, "ddp-pytorch", (("model", "vgg16"), ("batch-size", "64")), (16,), RATE)
    assert "coordination-us" not in inputs(ddp) and "bucket-mb" in inputs(ddp)
    assert dict(ddp.settings)["batch-size"] == "64"
    by_mpi = expect(TECHNION, "horovod-pytorch", (), (1024,), RATE, by_mpi=True)
    by_gloo = expect(TECHNION, "horovod-pytorch", (), (1024,), RATE)
    assert by_mpi.points[0].efficiency.low > by_gloo.points[0].efficiency.high, "Gloo's ring is linear in the ranks"


def site(**changes: Any) -> Site:
    return msgspec.structs.replace(TECHNION, **changes)


TINY = (("model", "tiny"),)
REFUSED: dict[str, tuple[Any, tuple[Any, ...], type[RunnerError], str]] = {
    "processors": (site(device="cpu"), ("horovod-pytorch", (), (8,)), RefusedError, "nothing is expected of the site"),
    "a demonstration": (site(demonstration="CPU"), ("horovod-pytorch", (), (8,)), RefusedError, "nothing is expected"),
    "no fabric": (site(fabric=None), ("horovod-pytorch", (), (16,)), RefusedError, "which adapters connect the nodes"),
    "no transport": (site(transport=None), ("horovod-pytorch", (), (16,)), RefusedError, "what carries data between"),
    "another GPU": (site(node=msgspec.structs.replace(TECHNION.node, gpu_model="NVIDIA T4")),
        ("horovod-pytorch", (), (8,), RATE), RefusedError, "how fast the GPUs of a node (.*T4.*) reach each other"),
    "no rate": (TECHNION, ("horovod-pytorch", (("model", "vgg16"),), (8,)), RefusedError, "no rate of vgg16"),
    "another program": (TECHNION, ("probe", (), (8,)), RefusedError, "recipe probe: it is no benchmark"),
    "divided parameters": (TECHNION, ("fsdp-pytorch", (), (8,), RATE), RefusedError, "what FSDP sends are gathers"),
    "an unknown model": (TECHNION, ("ddp-pytorch", TINY, (8,), RATE), RefusedError, "bytes of gradients"),
    "no GPUs": (TECHNION, ("horovod-pytorch", (), (0,)), UsageError, "0 GPUs are not possible"),
    "too many": (TECHNION, ("horovod-pytorch", (), (10**9,)), RefusedError, "more than 10000 nodes"),
    "no batch": (TECHNION, ("horovod-pytorch", (("batch-size", "0"),), (8,)), UsageError, "'0' is no batch"),
    "no option": (TECHNION, ("horovod-pytorch", (("batchsize", "1"),), (8,)), UsageError, "no option 'batchsize'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_expected_says_why_and_what_to_do(case: str) -> None:
    at, arguments, kind, says = REFUSED[case]
    with pytest.raises(kind, match=says) as caught:
        expect(at, *arguments)
    assert caught.value.fix


def test_a_missing_fact_can_be_given() -> None:
    with pytest.raises(RefusedError, match="which adapters") as caught:
        expect(site(fabric=None), "horovod-pytorch", (), (16,), RATE)
    assert "--assume between-gb-s=NUMBER" in caught.value.fix
    given = {"between-gb-s": (24.0, 24.0, 24.0)}
    assert expect(site(fabric=None), "horovod-pytorch", (), (16,), RATE, assumed=given).points


WRONG: dict[str, tuple[dict[str, tuple[float, float, float]], str]] = {
    "a name": ({"between": (1.0, 1.0, 1.0)}, "no input 'between'"),
    "no bandwidth": ({"between-gb-s": (0.0, 0.0, 0.0)}, "is not a number from"),
    "infinite": ({"spread": (float("inf"),) * 3}, "is not a number from"),
    "no number": ({"spread": (float("nan"),) * 3}, "is not a number from"),
    "less than nothing": ({"spread": (-0.1, 0.0, 0.1)}, "is not a number from"),
    "more than all": ({"tree-share": (1.0, 2.0, 3.0)}, "is not a number from"),
    "out of order": ({"spread": (0.3, 0.2, 0.1)}, "does not rise"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_assumption_that_makes_no_sense_is_refused(case: str) -> None:
    given, says = WRONG[case]
    with pytest.raises(UsageError, match=says):
        expect(TECHNION, "horovod-pytorch", (), (8,), RATE, assumed=given)


@pytest.mark.parametrize("value", [1e-9, 1e12])
def test_extreme_numbers_have_an_answer(value: float) -> None:
    for name in ("between-gb-s", "gradient-mb", "inside-gb-s", "fusion-mb"):
        found = expect(TECHNION, "horovod-pytorch", (), (16,), RATE, assumed={name: (value,) * 3})
        assert 0 < found.points[0].images_per_s.low <= found.points[0].images_per_s.high


def test_every_site_has_an_answer_or_a_reason() -> None:
    answered = set()
    for name in names():
        try:
            expect(read_site(name), "horovod-pytorch", (), (16,), RATE)
        except RefusedError as error:
            assert error.fix, name
        else:
            answered.add(name)
    assert {"technion", "perlmutter", "polaris"} <= answered


def test_the_files_of_sites_say_which_fabric_they_have() -> None:
    assert TECHNION.fabric == Fabric(adapters=8, gbit_s=200)


def run_of(tmp_path: Path, plan: Plan, verdict: Verdict | None) -> Run:
    run = Run(tmp_path / "20260101-000000-r-1")
    (run.path / "ranks").mkdir(parents=True)
    write_plan(run, replace(GOOD, plan=plan))
    if verdict is not None:
        run.write("verdict.json", verdict)
    return run


ONE = msgspec.structs.replace(
    PLAN, tasks_per_node=(1,), recipe="horovod-pytorch", samples_per_step=128,
    program=("python3", "main.py", "--model", "resnet50", "--batch-size", "128", "--precision", "tf32"),
)  # fmt: skip
MEASURED = Verdict("measured", images_per_s=900.0, precision=(890.0, 910.0))


def test_a_run_of_one_gpu_gives_rate_and_settings(tmp_path: Path) -> None:
    found = expected.one_gpu_of(run_of(tmp_path, ONE, MEASURED))
    assert (found.low, found.images_per_s, found.high) == (890.0, 900.0, 910.0)
    settings = dict(expected.with_settings(found, (("fp16-allreduce", "true"),)))
    assert settings["batch-size"] == "128" and settings["fp16-allreduce"] == "true"
    with pytest.raises(UsageError, match="had batch-size=128, and batch-size=256"):
        expected.with_settings(found, (("batch-size", "256"),))


@pytest.mark.parametrize(
    ("plan", "verdict", "says"),
    [
        (PLAN, MEASURED, "has 4 ranks, not one"),
        (ONE, None, "has no verdict yet"),
        (ONE, Verdict("not-proven"), "is not-proven"),
        (ONE, msgspec.structs.replace(MEASURED, demonstration="CPU"), "makes no claim: CPU"),
    ],
)
def test_a_run_that_proves_no_rate_gives_none(tmp_path: Path, plan: Plan, verdict: Verdict | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        expected.one_gpu_of(run_of(tmp_path, plan, verdict))


ALLREDUCE = msgspec.structs.replace(PLAN, recipe="allreduce", result="none")


def record(rank: int, **changes: Any) -> dict[str, Any]:
    times = [{"bytes": size, "iterations": 10, "rounds_s": [1e-4, 3e-4, 2e-4 + rank * 1e-5]} for size in (8, 1 << 20)]
    fields = {"schema": "2", "kind": "allreduce", "rank": rank, "through": "torch", "operation": "NCCL", "size": 4}
    return {**fields, "device_kind": "cuda", "times": times, **changes}


def allreduce_run(tmp_path: Path, records: list[dict[str, Any]], verdict: Verdict | None = None) -> Run:
    run = run_of(tmp_path, ALLREDUCE, verdict or Verdict("ran"))
    for each in records:
        run.write(f"ranks/{each['rank']}.allreduce.json", each)
    return run


def test_a_run_of_allreduce_gives_the_median_round_of_the_mean_rank(tmp_path: Path) -> None:
    curve = expected.curve_of_run(allreduce_run(tmp_path, [record(rank) for rank in range(4)]))
    assert (curve.ranks, curve.nodes, curve.with_coordination) == (4, 2, False)
    assert [size for size, _ in curve.times] == [8.0, 1048576.0]
    assert curve.times[0][1] == pytest.approx(2.15e-5)


@pytest.mark.parametrize(
    ("records", "verdict", "says"),
    [
        ([record(rank) for rank in range(4)], Verdict("failed"), "is failed"),
        ([record(rank) for rank in range(3)], None, "no whole record of rank 3"),
        ([record(rank, device_kind="cpu") for rank in range(4)], None, "in the memory of processors"),
        ([record(rank, size=1) for rank in range(4)], None, "no whole record of rank 0"),
        ([record(rank, times=[]) for rank in range(4)], None, "did not time the same"),
        ([record(rank, times=record(0)["times"][:1]) for rank in range(4)], None, "of 8 bytes, and tells nothing"),
        ([record(rank, times=record(0)["times"][: 1 + rank % 2]) for rank in range(4)], None, "did not time the same"),
    ],
)
def test_a_run_without_whole_times_gives_no_curve(
    tmp_path: Path, records: list[dict[str, Any]], verdict: Verdict | None, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        expected.curve_of_run(allreduce_run(tmp_path, records, verdict))


def test_no_file_that_is_none_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "binary").write_bytes(b"\0" * 10)
    (tmp_path / "latin").write_bytes(b"\xff\xfe\xe9" * 10)
    long = tmp_path / "long"
    long.touch()
    os.truncate(long, 1 << 25)
    for path, says in (
        (pipe, "no regular file"),
        (tmp_path, "no regular file"),
        (tmp_path / "absent", "No such file"),
        (tmp_path / "binary", "no text"),
        (tmp_path / "latin", "no line with the time"),
        (long, "longer than"),
    ):
        with pytest.raises(UsageError, match=says) as caught:
            expected.curve_of_file(path, 4)
        assert str(path) in caught.value.where


def test_the_signs_of_a_run_are_those_of_its_records() -> None:
    log = NcclLog(networks=frozenset({"IB"}), adapters=frozenset({"mlx5_0:1"}), with_gdr=1, without_gdr=3, p2p=4, shm=2)
    signs = expected.signs_of(replace(GOOD, nccl=log), TECHNION)
    assert (signs.kinds, signs.adapters, signs.planned_adapters) == (("verbs",), ("mlx5_0:1",), 8)
    assert (signs.with_gdr, signs.without_gdr, signs.peer_to_peer, signs.shared_memory) == (1, 3, 4, 2)
    assert (signs.nodes, signs.planned, signs.real_data) == (2, "verbs", None)


def test_the_modelled_recipes_are_those_that_train_on_synthetic_data() -> None:
    for name in expected.MODELLED:
        assert "synthetic" in read_recipe(name).recipe.description
