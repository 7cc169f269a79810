"""From site, recipe and runs to an expectation: each input with its source, and each missing one with its way out."""

import math
import os
from collections.abc import Sequence
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
from runner.model.site import Fabric
from runner.model.verdict import Verdict
from runner.recipes.loader import read_recipe
from runner.sites.loader import names, read_site
from tests.support.evidence import GOOD, leave, report, write_plan
from tests.support.plans import PLAN

TECHNION = read_site("technion")
RATE = OneGpu(2400.0, 2380.0, 2420.0, "a test")


HOROVOD = "horovod-pytorch"
NODE = TECHNION.node


def ask(recipe: str = HOROVOD, *, gpus: int = 16, rate: OneGpu | None = RATE, **given: Any) -> Expectation:
    """What that many GPUs of the Technion, or of a site like it, should reach."""
    site = msgspec.structs.replace(TECHNION, **given.pop("site", {}))
    return expect(site, recipe, given.pop("settings", ()), (gpus,), rate, **given)


def inputs(expectation: Expectation) -> dict[str, Input]:
    return {each.name: each for each in expectation.inputs}


def test_technion_and_16_gpus_need_nothing_more() -> None:
    expectation = expect(TECHNION, HOROVOD, (), (1, 16, 1024))
    assert [(each.gpus, each.nodes, each.ranks_per_node) for each in expectation.points] == [
        (1, 1, 1), (16, 2, 8), (1024, 128, 8),
    ]  # fmt: skip
    assert all(each.source for each in expectation.inputs)
    assert TECHNION.fabric == Fabric(adapters=8, gbit_s=200)
    assert "unconfirmed" in inputs(expectation)["between-gb-s"].source
    assert inputs(expectation)["between-gb-s"].value == pytest.approx(192.0)
    assert any("published" in note for note in expectation.notes)
    assert 0.84 < expectation.points[1].efficiency.low < expectation.points[1].efficiency.high < 1.0


def test_what_is_given_replaces_what_is_known() -> None:
    given = {"between-gb-s": (50.0, 60.0, 70.0), "bucket-mb": (1.0, 1.0, 1.0)}
    expectation = ask(assumed=given, site={"fabric": None})
    assert inputs(expectation)["between-gb-s"].value == 60.0
    assert inputs(expectation)["between-gb-s"].source == "given"
    assert "bucket-mb is given, and no point needs it" in expectation.notes
    assert inputs(expectation)["one-gpu-images-per-s"].source == "a test"


def test_settings_decide_gradients_and_the_way_to_reduce() -> None:
    whole, halved = ask(), ask(settings=(("fp16-allreduce", "true"),))
    assert inputs(halved)["gradient-mb"].value == pytest.approx(inputs(whole)["gradient-mb"].value / 2)
    ddp = ask("ddp-pytorch", settings=(("model", "vgg16"), ("batch-size", "64")))
    assert "coordination-us" not in inputs(ddp) and "bucket-mb" in inputs(ddp)
    assert dict(ddp.settings)["batch-size"] == "64"
    by_mpi, by_gloo = (ask(gpus=1024, by_mpi=by_mpi).points[0].efficiency for by_mpi in (True, False))
    assert by_mpi.low > by_gloo.high, "Gloo's ring is linear in the ranks"


def assumed(name: str, *numbers: float) -> dict[str, Any]:
    return {"assumed": {name: numbers * (3 // len(numbers))}}


NO_NUMBER = "is not a number from"
REFUSED: list[tuple[dict[str, Any], type[RunnerError], str]] = [
    ({"site": {"device": "cpu"}}, RefusedError, "nothing is expected of the site"),
    ({"site": {"demonstration": "CPU"}}, RefusedError, "nothing is expected"),
    ({"site": {"fabric": None}}, RefusedError, "which adapters connect the nodes"),
    ({"site": {"transport": None}}, RefusedError, "what carries data between"),
    ({"site": {"node": msgspec.structs.replace(NODE, gpu_model="NVIDIA T4")}}, RefusedError,
        "how fast the GPUs of a node (.*T4.*) reach each other"),
    ({"rate": None, "settings": (("model", "vgg16"),)}, RefusedError, "no rate of vgg16"),
    ({"recipe": "probe"}, RefusedError, "recipe probe: it is no benchmark"),
    ({"recipe": "fsdp-pytorch"}, RefusedError, "what FSDP sends are gathers"),
    ({"recipe": "ddp-pytorch", "settings": (("model", "tiny"),)}, RefusedError, "bytes of gradients"),
    ({"gpus": 0}, UsageError, "0 GPUs are not possible"),
    ({"gpus": 10**9}, RefusedError, "more than 10000 nodes"),
    ({"settings": (("batch-size", "0"),)}, UsageError, "'0' is no batch"),
    ({"settings": (("batchsize", "1"),)}, UsageError, "no option 'batchsize'"),
    # Assumptions that make no sense.
    (assumed("between", 1.0), UsageError, "no input 'between'"),
    (assumed("between-gb-s", 0.0), UsageError, NO_NUMBER), (assumed("spread", math.inf), UsageError, NO_NUMBER),
    (assumed("spread", math.nan), UsageError, NO_NUMBER), (assumed("spread", -0.1, 0.0, 0.1), UsageError, NO_NUMBER),
    (assumed("tree-share", 1.0, 2.0, 3.0), UsageError, NO_NUMBER),
    (assumed("spread", 0.3, 0.2, 0.1), UsageError, "does not rise"),
]  # fmt: skip


@pytest.mark.parametrize(("question", "kind", "says"), REFUSED)
def test_what_cannot_be_expected_says_why_and_what_to_do(
    question: dict[str, Any], kind: type[RunnerError], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        ask(**question)
    assert caught.value.fix
    assert "adapters" not in says or "--assume between-gb-s=NUMBER" in caught.value.fix


@pytest.mark.parametrize("value", [1e-9, 1e12])
def test_extreme_numbers_have_an_answer(value: float) -> None:
    for name in ("between-gb-s", "gradient-mb", "inside-gb-s", "fusion-mb"):
        images_per_s = ask(**assumed(name, value)).points[0].images_per_s
        assert 0 < images_per_s.low <= images_per_s.high


def test_every_site_has_an_answer_or_a_reason() -> None:
    answered = set()
    for name in names():
        try:
            expect(read_site(name), HOROVOD, (), (16,), RATE)
        except RefusedError as error:
            assert error.fix, name
        else:
            answered.add(name)
    assert {"technion", "perlmutter", "polaris"} <= answered
    for name in expected.MODELLED:
        assert "synthetic" in read_recipe(name).recipe.description


def run_of(tmp_path: Path, plan: Plan, verdict: Verdict | None, left: Sequence[dict[str, Any]] = ()) -> Run:
    run = Run(tmp_path / "20260101-000000-r-1")
    (run.path / "ranks").mkdir(parents=True)
    write_plan(run, replace(GOOD, plan=plan))
    if verdict is not None:
        run.write("verdict.json", verdict)
    for each in left:
        leave(run, f"ranks/{each['rank']}.allreduce.json", each)
    return run


ONE = msgspec.structs.replace(
    PLAN, tasks_per_node=(1,), recipe="horovod-pytorch", samples_per_step=128,
    program=("python3", "main.py", "--model", "resnet50", "--batch-size", "128", "--precision", "tf32",
             "--channels-last"),
)  # fmt: skip
MEASURED = Verdict("measured", images_per_s=900.0, precision=(890.0, 910.0))


def test_a_run_of_one_gpu_gives_rate_and_settings(tmp_path: Path) -> None:
    run = run_of(tmp_path, ONE, MEASURED)
    leave(run, "ranks/0.report.json", report(0, device_name="H100"))
    one_gpu = expected.one_gpu_of(run)
    assert one_gpu.source.startswith(f"measured by the run {run.run_id} on H100 (")  # a site may have other GPUs
    assert (one_gpu.low, one_gpu.images_per_s, one_gpu.high) == (890.0, 900.0, 910.0)
    settings = dict(expected.with_settings(one_gpu, (("fp16-allreduce", "true"),)))
    assert settings["batch-size"] == "128" and settings["fp16-allreduce"] == "true"
    assert (settings["channels-last"], settings["compile"]) == ("true", "false"), "flags have no word behind them"
    assert ask(settings=tuple(settings.items()), rate=one_gpu).points
    with pytest.raises(UsageError, match="had batch-size=128, and batch-size=256"):
        expected.with_settings(one_gpu, (("batch-size", "256"),))


ALLREDUCE = msgspec.structs.replace(PLAN, recipe="allreduce", result="none")


def record(rank: int, **changes: Any) -> dict[str, Any]:
    times = [{"bytes": size, "iterations": 10, "rounds_s": [1e-4, 3e-4, 2e-4 + rank * 1e-5]} for size in (8, 1 << 20)]
    fields = {"schema": "2", "kind": "allreduce", "rank": rank, "through": "torch", "operation": "NCCL", "size": 4}
    return {**fields, "device_kind": "cuda", "times": times, **changes}


def test_a_run_of_allreduce_gives_the_median_round_of_the_mean_rank(tmp_path: Path) -> None:
    curve = expected.curve_of_run(run_of(tmp_path, ALLREDUCE, Verdict("ran"), [record(rank) for rank in range(4)]))
    assert (curve.ranks, curve.nodes, curve.with_coordination) == (4, 2, False)
    assert [size for size, _ in curve.times] == [8.0, 1048576.0]
    assert curve.times[0][1] == pytest.approx(2.15e-5)


def records(**changes: Any) -> list[dict[str, Any]]:
    return [record(rank, **changes) for rank in range(4)]


UNEQUAL = [record(rank, times=record(0)["times"][: 1 + rank % 2]) for rank in range(4)]


@pytest.mark.parametrize(
    ("plan", "verdict", "left", "says"),
    [
        (PLAN, MEASURED, [], "has 4 ranks, not one"),
        (ONE, None, [], "has no verdict yet"),
        (ONE, Verdict("not-proven"), [], "is not-proven"),
        (ONE, msgspec.structs.replace(MEASURED, demonstration="CPU"), [], "makes no claim: CPU"),
        (ONE, msgspec.structs.replace(MEASURED, unit="tokens"), [], "counts tokens, not images"),
        (ALLREDUCE, Verdict("failed"), records(), "is failed"),
        (ALLREDUCE, Verdict("ran"), records()[:3], "no whole record of rank 3"),
        (ALLREDUCE, Verdict("ran"), records(device_kind="cpu"), "in the memory of processors"),
        (ALLREDUCE, Verdict("ran"), records(size=1), "no whole record of rank 0"),
        (ALLREDUCE, Verdict("ran"), records(times=[]), "did not time the same"),
        (ALLREDUCE, Verdict("ran"), records(times=record(0)["times"][:1]), "of 8 bytes, and tells nothing"),
        (ALLREDUCE, Verdict("ran"), UNEQUAL, "did not time the same"),
    ],
)  # fmt: skip
def test_a_run_that_proves_no_rate_or_curve_gives_none(
    tmp_path: Path, plan: Plan, verdict: Verdict | None, left: list[dict[str, Any]], says: str
) -> None:
    run = run_of(tmp_path, plan, verdict, left)
    with pytest.raises(UsageError, match=says):
        (expected.curve_of_run if plan is ALLREDUCE else expected.one_gpu_of)(run)


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
