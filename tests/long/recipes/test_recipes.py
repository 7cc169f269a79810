"""Every recipe with two ranks or more in containers on this machine, and what it says of a wrong world."""

import json
import re
from pathlib import Path
from typing import Any

import docker
import pytest
from gpu_runner_inside import bandwidth, sentences
from gpu_runner_inside.bandwidth import Timed

from runner.core.progress import Silent
from runner.images.conversion.squashfs import convert_engine_image
from tests.support.commands import Runner
from tests.support.json_schema import check
from tests.support.rank_records import document_of, outcome, printed, records

pytestmark = pytest.mark.integration
TOLERANCE = 0.01  # of a loss, of 0.1 where it is smaller: ranks add floats in another order
SCIKIT_LEARN = "scikit-learn==1.9.1"
LIGHTNING = "lightning==2.6.6"
DIGITS = ("--set", "data=digits", "--set", "epochs=5")
ALTERED = Path(__file__).parents[2] / "recipes" / "unsynchronised"


@pytest.fixture
def local(contained: Runner) -> Runner:
    return contained


def errors(run: Path) -> str:
    """What both ranks wrote to stderr; the first that fails may end the other."""
    return "".join((run / "logs" / f"rank-{rank}.err").read_text() for rank in range(2))


def trained(local: Runner, recipe: str, gpus: int, **options: object) -> tuple[Path, list[dict[str, float]]]:
    settings = [word for key, value in options.items() for word in ("--set", f"{key.replace('_', '-')}={value}")]
    local("submit", "--recipe", recipe, "--gpus", str(gpus), "--wait", *settings, code=0)
    run = local.newest()
    assert outcome(run) == "ran"
    return run, history_of(run)


def history_of(run: Path) -> list[dict[str, float]]:
    """What a training's rank 0 left after each epoch; empty before the first."""
    path = run / "history.json"
    history: list[dict[str, float]] = json.loads(path.read_text()) if path.exists() else []
    return history


def end_of(run: Path) -> str:
    return printed(run).rpartition("\nparameters ")[2].split(",")[0]


def test_horovod_minimal(local: Runner) -> None:
    local("submit", "--recipe", "horovod-minimal", "--gpus", "3", "--wait", code=0)
    run = local.newest()
    assert [f"hello from rank {rank} of 3, local rank {rank}" in printed(run, rank) for rank in range(3)] == [True] * 3
    assert "world of 3: the sum over ranks is 3, the step went along the mean" in printed(run)
    assert (document_of(run, "plan")["runtime"], outcome(run)) == ("charliecloud", "ran")


@pytest.mark.parametrize(
    ("recipe", "fault", "arguments", "says"),
    [
        ("horovod-minimal", "wrong-sum", (), "the sum over ranks is 2, not 1"),
        ("horovod-minimal", "no-allreduce", (), "the parameters differ between ranks after the step"),
        ("horovod-train", "no-allreduce", ("--epochs", "1", "--data", "drawn"),
         "the parameters differ between ranks: gradients were not averaged"),
        ("allreduce", "wrong-sum", ("--through", "horovod"), "of 8 bytes through horovod gave a wrong sum"),
        ("allreduce", "wrong-sum", ("--through", "torch"), "of 8 bytes through torch gave a wrong sum"),
    ],
)  # fmt: skip
def test_a_recipe_sees_a_wrong_world(
    local: Runner, recipe: str, fault: str, arguments: tuple[str, ...], says: str
) -> None:
    """Its program with that fault planted says why it failed."""
    words = ("python3", "main.py", f"/opt/recipes/{recipe}", fault, *arguments)
    local("submit", "--gpus", "2", "--wait", "--", *words, code=5, cwd=ALTERED)
    run = local.newest()
    assert outcome(run) == "failed"
    assert says in errors(run)


# At 0.1 Keras grows steeply enough to make 1 % of what oneDNN rounds otherwise for another batch.
@pytest.mark.usefixtures("tensorflow_squashfs")
@pytest.mark.parametrize(("recipe", "rate"), [("horovod-train", 0.1), ("horovod-train-keras", 0.02)])
def test_two_ranks_match_one(local: Runner, recipe: str, rate: float) -> None:
    """With half of the batch they see the same images in a step, and Horovod's mean is one rank's gradient."""
    same = {"epochs": 4, "warmup_epochs": 0, "data": "drawn"}
    _, alone = trained(local, recipe, 1, batch_size=64, learning_rate=rate, **same)
    _, both = trained(local, recipe, 2, batch_size=32, learning_rate=rate / 2, **same)
    for one, two in zip(alone, both, strict=True):
        assert two["rate"] == one["rate"] == pytest.approx(rate)
        for name in ("loss", "validation_loss"):
            assert abs(two[name] - one[name]) < TOLERANCE * max(one[name], 0.1), (one, two)
    assert both[-1]["loss"] < both[0]["loss"] / 2


def test_horovod_train_says_why_it_cannot_resume(local: Runner, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_text("nothing of the kind")
    more = ("--mount", f"{tmp_path}:/mnt", "--set", "resume=/mnt/checkpoint.pt", "--wait")
    local("submit", "--recipe", "horovod-train", "--gpus", "2", *more, code=5)
    said = errors(local.newest())
    assert "cannot resume from /mnt/checkpoint.pt: UnpicklingError" in said
    assert "give a checkpoint.pt that this recipe wrote" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("through", ["horovod", "torch"])
def test_allreduce(local: Runner, through: str) -> None:
    """Its table is made of the raw times that every rank has left, and claims nothing."""
    settings = ("--set", f"through={through}", "--set", "max-bytes=64K", "--set", "rounds=3", "--set", "iterations=4")
    local("submit", "--recipe", "allreduce", "--gpus", "2", "--wait", *settings, code=0)
    run = local.newest()
    assert outcome(run) == "ran"
    left = records(run, "allreduce")
    assert sorted(left) == [0, 1]
    for record in left.values():
        check(record)
        assert (record["through"], record["operation"], record["size"]) == (through, "Gloo", 2)
    said = printed(run)
    assert f"2 ranks, through {through} (Gloo), on processors; CPU: demonstration, no performance claim" in said
    assert "every sum was right" in said
    times = zip(*([Timed(**each) for each in left[rank]["times"]] for rank in (0, 1)), strict=True)
    rows = [bandwidth.row(each) for each in times]
    assert [each.bytes for each in rows] == [8 << place for place in range(14)]
    assert bandwidth.table(rows) in said


@pytest.mark.parametrize(
    ("recipe", "arms", "more"),
    [
        ("horovod-pytorch", "uncoupled,coordination,full", ()),
        ("horovod-pytorch", "uncoupled,coordination,full", ("--set", "fp16-allreduce=true")),
        ("horovod-pytorch", "coordination", ()),
        ("horovod-tensorflow", "uncoupled,coordination,full", ()),
        ("ddp-pytorch", "uncoupled,full", ()),
        ("ddp-pytorch", "uncoupled", ()),
    ],
)
@pytest.mark.usefixtures("tensorflow_squashfs")
def test_arms_take_turns_and_the_ranks_are_one_world_again(
    local: Runner, recipe: str, arms: str, more: tuple[str, ...]
) -> None:
    """After windows in which every rank trained for itself, the main one is proven like any other."""
    local("submit", "--recipe", recipe, "--gpus", "3", "--set", f"arms={arms}", *more, "--wait", code=0)
    verdict = json.loads((local.newest() / "verdict.json").read_text())
    names = arms.split(",")
    assert (verdict["outcome"], verdict["arm"]) == ("measured", names[-1])
    assert [each["arm"] for each in verdict["arms"]] == (names if len(names) > 1 else [])
    assert any("synchronised" in sentence for sentence in verdict["proven"]) is (names[-1] == "full")
    known = [each["compute_s"] is not None for each in verdict["arms"]]
    assert known == [recipe != "ddp-pytorch"] * len(known)


def test_ddp_is_measured_like_horovod(local: Runner) -> None:
    (ddp, of_ddp, _), (horovod, of_horovod, _) = (measured(local, f"{name}-pytorch") for name in ("ddp", "horovod"))
    assert [(each["recipe"], each["proven"]) for each in (ddp, horovod)] == [
        ("ddp-pytorch", True), ("horovod-pytorch", True),
    ]  # fmt: skip
    assert (ddp["framework"], ddp["horovod_version"]) == ("torch", None)
    for name in ("model", "batch_size", "image_px", "precision", "steps", "warmup_steps"):
        assert ddp[name] == horovod[name]
    for rank in (0, 1):
        ours, theirs = of_ddp[rank], of_horovod[rank]
        assert train_alike(ours, theirs), (ours, theirs)
        assert ours["allreduce_bytes_per_step"] == theirs["allreduce_bytes_per_step"]


def test_fsdp_is_measured_like_ddp(local: Runner) -> None:
    """On divided parameters."""
    (_, of_fsdp, out), (_, of_ddp, ddps) = (measured(local, f"{name}-pytorch") for name in ("fsdp", "ddp"))
    said = "what they reduced was their mean in the first step"
    assert (said in out, said in ddps) == (True, False)
    for rank in (0, 1):
        fsdp, ddp = of_fsdp[rank], of_ddp[rank]
        # It has done one step more: that which is looked at.
        assert abs(fsdp["loss_final"] - ddp["loss_final"]) < 0.2 * ddp["loss_final"], (fsdp, ddp)
        assert fsdp["reduced_gradients_error"] < 1e-4
        assert (fsdp["allreduce_bytes_per_step"], ddp["reduced_gradients_error"]) == (None, None)


DEMONSTRATION = (
    "--demonstration", "--device", "cpu", "--model", "tiny", "--image-size", "32", "--batch-size", "2", "--precision",
    "fp32",
)  # fmt: skip
NOT_REDUCED = "the gradients were not reduced over all ranks: they are not the mean of the ranks' own"
NOT_SYNCHRONISED = "the ranks are not synchronised"


def with_lightning(command: Runner, client: docker.DockerClient) -> str:
    """The name of the image with Lightning on top, which is in the store; a second time takes seconds."""
    said = command("build", "pytorch", "--base", "standin", "--requirement", LIGHTNING, code=0).out
    reference = said.split(": ")[0]
    assert reference.startswith("gpu-runner/horovod-pytorch:standin-with-")
    return convert_engine_image(reference, client, Silent()).image.reference


@pytest.mark.parametrize(
    ("model", "unit", "steps"),
    [
        ("image", "samples", 96),  # 8 epochs: a quarter of 1536 images on each rank, in batches of 32
        ("text", "tokens", 256),  # a quarter of 4096 sentences
    ],
)
def test_lightning_on_two_nodes(
    runner: Runner, engine_client: docker.DockerClient, model: str, unit: str, steps: int
) -> None:
    words = ("--recipe", "lightning", "--gpus", "4", "--nodes", "2", "--wireup", "torchrun", "--set", f"model={model}")
    image = ("--image", with_lightning(runner, engine_client))
    done = runner("submit", *words, *image, "--set", "data=drawn", "--set", "epochs=8", "--wait", code=0)
    run = runner.newest()
    assert outcome(run) == "measured"
    assert "synchronised: gradients differed" in done.out
    assert document_of(run, "verdict")["unit"] == unit
    places = [f"hello from rank {rank} of 4, local rank {rank % 2}, node {rank // 2}" for rank in range(4)]
    assert [place in printed(run, rank) for rank, place in enumerate(places)] == [True] * 4
    losses = [float(each) for each in re.findall(r"epoch \d, validation: loss ([\d.]+)", printed(run))]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2
    right = re.search(rf"Lightning 2\.6\.6, {steps} steps; validation: loss [\d.]+, ([\d.]+)% right", printed(run))
    assert right and float(right[1]) > 80
    for report in records(run, "report").values():
        check(report)
        assert {each // report["group_steps"] for each in report["group_samples"]} == {report["batch_size"]}
        assert report["batch_size"] == 32 * (sentences.LENGTH if model == "text" else 1)


def test_lightning_in_worlds_of_one_is_not_proven(local: Runner, engine_client: docker.DockerClient) -> None:
    words = ("python3", "main.py", "/opt/recipes/lightning", "lightning-alone", "--model", "text", "--demonstration")
    image = ("--image", with_lightning(local, engine_client))
    done = local("submit", "--gpus", "2", *image, "--wait", "--", *words, code=6, cwd=ALTERED)
    assert "saw a world of size 1, planned 2" in " ".join(done.out.split())


def test_lightning_says_what_the_image_lacks(local: Runner) -> None:
    local("submit", "--recipe", "lightning", "--gpus", "2", "--wait", code=5)
    said = errors(local.newest())
    assert "No module named 'lightning'; fix: gpu-runner build pytorch --requirement lightning==2.6.6" in said
    assert "Traceback" not in said


@pytest.mark.usefixtures("tensorflow_squashfs")
def test_keras_3_is_refused(local: Runner) -> None:
    """With it, Horovod's optimizer averages nothing, without a word."""
    words = ("--recipe", "horovod-train-keras", "--gpus", "2", "--env", "TF_USE_LEGACY_KERAS=0", "--wait")
    local("submit", *words, code=5)
    assert "this is Keras 3" in (local.newest() / "logs" / "rank-0.err").read_text()


@pytest.mark.usefixtures("tensorflow_squashfs")
@pytest.mark.parametrize("recipe", ["horovod-pytorch", "ddp-pytorch", "horovod-tensorflow"])
def test_resnet34_is_the_papers(local: Runner, recipe: str) -> None:
    """21,797,672 parameters, as in torchvision."""
    short = ("--set", "model=resnet34", "--set", "steps=2", "--set", "warmup-steps=1")
    local("submit", "--recipe", recipe, "--gpus", "2", "--wait", *short, code=0)
    run = local.newest()
    assert outcome(run) == "measured"
    assert {each["allreduce_bytes_per_step"] for each in records(run, "report").values()} == {4 * 21_797_672}


def test_horovod_train_in_an_image_with_scikit_learn(local: Runner, engine_client: docker.DockerClient) -> None:
    """Built on top of the finished image, with nothing of that changed, and written down with its hashes."""
    words = ("build", "pytorch", "--base", "standin", "--requirement")
    said = local(*words, SCIKIT_LEARN, code=0).out
    assert f"package: {SCIKIT_LEARN.replace('==', ' ')}, sha256 " in said
    reference = said.split(": ")[0]
    assert reference.startswith("gpu-runner/horovod-pytorch:standin-with-")
    assert f"{reference}: up to date" in local(*words, SCIKIT_LEARN, code=0).out
    stored = convert_engine_image(reference, engine_client, Silent()).image
    added = {each["name"]: each for each in stored.about["packages"]}
    assert added["scikit-learn"]["requested"] is True
    assert added["scipy"]["requested"] is False, "it came along"
    assert all(len(each["sha256"]) == 64 for each in added.values())
    assert "numpy" not in added, "the image has it"
    local("submit", "--recipe", "horovod-train", "--gpus", "2", "--wait", "--image", reference, *DIGITS, code=0)
    run = local.newest()
    assert "scikit-learn" in printed(run).splitlines()[0]
    history = history_of(run)
    assert history[-1]["loss"] < history[0]["loss"] / 3
    plan = json.loads((run / "plan.json").read_text())
    assert [each["name"] for each in plan["image"]["about"]["packages"]] == list(added)


def test_a_package_that_the_base_holds_back_is_refused(local: Runner) -> None:
    said = local("build", "pytorch", "--base", "standin", "--requirement", "numpy==1.26.4", code=5).err
    assert "beside what the image has, which is kept as it is" in said


@pytest.mark.usefixtures("tensorflow_squashfs")
@pytest.mark.parametrize(
    ("recipe", "checkpoint"), [("horovod-train", "checkpoint.pt"), ("horovod-train-keras", "checkpoint.npz")]
)
def test_a_training_killed_and_resumed_gives_the_same_end(local: Runner, recipe: str, checkpoint: str) -> None:
    """Killed after some epoch and resumed, it ends as a run that never stopped, which also shows the warm-up."""
    words = ("--recipe", recipe, "--gpus", "2", "--set", "data=drawn")
    child, killed = local.start_until(lambda run: len(history_of(run)) >= 2, "submit", *words, "--set", "epochs=1000")
    child.communicate()
    local("cancel", killed.name, code=0)
    done = len(history_of(killed))
    more = ("--mount", f"{killed}:/mnt", "--set", f"resume=/mnt/{checkpoint}", "--set", f"epochs={done + 2}")
    local("submit", *words, *more, "--wait", code=0)
    resumed = local.newest()
    whole, history = trained(local, recipe, 2, data="drawn", epochs=done + 2)
    # Killed between the two files of an epoch, the checkpoint is one epoch ahead of the history.
    lines = [f"resumed from /mnt/{checkpoint}: {epochs} epochs are done" for epochs in (done, done + 1)]
    assert any(each in printed(resumed) for each in lines)
    assert history_of(resumed) == history
    assert end_of(resumed) == end_of(whole) != ""
    assert [each["rate"] for each in history[:3]] == pytest.approx([0.05 * (1 + part / 3) for part in (1, 2, 3)])


def measured(local: Runner, recipe: str) -> tuple[dict[str, Any], dict[int, dict[str, Any]], str]:
    """The result of 20 steps of two ranks, their reports, and what was printed."""
    done = local("submit", "--recipe", recipe, "--gpus", "2", "--wait", "--set", "steps=20", code=0)
    run = local.newest()
    assert outcome(run) == "measured"
    result, reports = document_of(run, "result"), records(run, "report")
    for record in (*reports.values(), result):
        check(record)
    return result, reports, done.out


def train_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """The same data and parameters to begin with, and about the same loss after the same steps."""
    near = abs(one["loss_final"] - other["loss_final"]) < TOLERANCE * other["loss_final"]
    return near and bool(one["gradient_checksum"] == other["gradient_checksum"])


@pytest.mark.parametrize(
    ("fault", "wireup", "says"),
    [
        ("ddp-alone", "rendezvous", {NOT_SYNCHRONISED}),
        ("ddp-alone", "torchrun", {NOT_SYNCHRONISED}),
        ("fsdp-alone", "rendezvous", {NOT_REDUCED, NOT_SYNCHRONISED}),
        ("fsdp-local", "rendezvous", {NOT_REDUCED}),  # also where all that is gathered is equal on all ranks
    ],
)
def test_ddp_and_fsdp_without_reduction_are_not_proven(local: Runner, fault: str, wireup: str, says: set[str]) -> None:
    words = ("python3", "main.py", f"/opt/recipes/{fault.partition('-')[0]}-pytorch", fault, *DEMONSTRATION)
    done = local("submit", "--gpus", "2", "--wireup", wireup, "--wait", "--", *words, code=6, cwd=ALTERED)
    said = " ".join(done.out.split())
    assert [each for each in says if each not in said] == []
    assert (NOT_SYNCHRONISED in said) == fault.endswith("alone")
