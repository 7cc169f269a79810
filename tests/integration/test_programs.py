"""Programs in containers: those that import nothing of ours, unchanged, a user's training that is measured, TensorFlow
through the whole chain, and the smallest recipe.
"""

import shutil
from pathlib import Path

import pytest

from tests.support.commands import Runner
from tests.support.json_schema import check
from tests.support.planted_faults import RECIPE
from tests.support.rank_records import document_of, outcome, printed, records
from tests.support.recipes import UNCHANGED, counted_and_unchanged, measure, states

pytestmark = pytest.mark.integration


def test_a_horovod_benchmark_as_a_recipe(runner: Runner) -> None:
    """It prints a throughput; it is not proven, so the verdict is "ran" and repeats none."""
    done = runner("submit", "--recipe", str(UNCHANGED), "--gpus", "4", "--nodes", "2", "--wait", code=0)
    run = runner.newest()
    for said in ("Number of ranks: 4, of this node: 2", "img/sec", "Same weights everywhere: True"):
        assert said in printed(run)
    assert outcome(run) == "ran"
    assert "img/s" not in done.out
    assert "images/s" not in done.out
    assert not records(run, "report")


def test_a_torch_distributed_script_from_its_own_directory(runner: Runner, tmp_path: Path) -> None:
    """``submit -- python3 ddp.py``: no recipe, started where it lies, and what it writes there stays there."""
    shutil.copy(UNCHANGED / "ddp.py", tmp_path)
    words = ("submit", "--gpus", "4", "--nodes", "2", "--env", "OMP_NUM_THREADS=1", "--wait")
    runner(*words, "--", "python3", "ddp.py", "--lr", "a b", code=0, cwd=tmp_path)
    run = runner.newest()
    for rank in range(4):
        said = f"rank {rank} of 4, local rank {rank % 2}, same weights: True, arguments: ['--lr', 'a b']"
        assert said in printed(run, rank)
    assert len({(tmp_path / f"checkpoint-{rank}.txt").read_text() for rank in range(4)}) == 1
    verdict = document_of(run, "verdict")
    assert (verdict["outcome"], verdict["images_per_s"]) == ("ran", None)
    assert document_of(run, "plan")["job_name"] == "ddp"
    assert not (run / "recipe").exists()


def test_a_program_that_leaves_our_result_is_held_to_our_proof(runner: Runner) -> None:
    """Proven, it is measured; with a fault, it is not."""
    words = ("submit", "--gpus", "2", "--wait", "--", "python3", "main.py")
    runner(*words, code=0, cwd=RECIPE)
    assert outcome(runner.newest()) == "measured"
    runner(*words, "--fault", "same-seed", code=6, cwd=RECIPE)


def test_hello_from_each_rank(runner: Runner) -> None:
    """Each rank says where it is; the sums are checked, and the verdict knows the world that Horovod formed."""
    runner("submit", "--recipe", "horovod-minimal", "--gpus", "2", "--nodes", "2", "--wait", code=0)
    run = runner.newest()
    for rank in range(2):
        said = f"hello from rank {rank} of 2, local rank 0 on dgx0{rank + 1}, processor"
        assert said in printed(run, rank)
    assert "world of 2: the sum over ranks is 1" in printed(run)
    assert outcome(run) == "ran"
    reports = records(run, "report").values()
    for report in reports:
        check(report)
    assert [report["world_size"] for report in reports] == [2, 2]


def test_a_script_is_measured_and_not_changed(contained: Runner) -> None:
    """It trains twice, with the meter and without: all that training changes is the same, bit for bit."""
    run, verdict = measure(contained, "twice", "script", "--wireup", "torchrun")
    assert (verdict["outcome"], verdict["unit"]) == ("measured", "samples")
    assert any("synchronised" in sentence for sentence in verdict["proven"])
    assert any(sentence.startswith("waiting for data: ") for sentence in verdict["remarks"])
    for rank, (first, second) in enumerate(states(run)):
        assert first == second, rank
    trained = [report["trained"] for report in records(run, "report").values()]
    assert trained[0] == trained[1] and {*trained[0]} == {
        "modules",
        "parameters",
        "parameters at the end",
        "optimizer",
        "precision",
        "inputs",
        "compiled",
        "activation checkpointing",
        "mean size of a sample",
        "forward passes of a step",
    }
    assert all(trained[0].values())
    for record in (*records(run, "report").values(), *records(run, "meter").values(), document_of(run, "result")):
        check(record)


def test_samples_are_counted_as_the_scripts_do(contained: Runner) -> None:
    names = ("stated_of_all_ranks", "accumulated", "compiled", "adversarial", "recomputed")
    assert counted_and_unchanged(contained, *names) == len(names)


JOB = ("submit", "--recipe", "horovod-tensorflow", "--nodes", "2", "--wait")


@pytest.mark.usefixtures("tensorflow_squashfs")
def test_tensorflow_is_measured(runner: Runner) -> None:
    done = runner(*JOB, "--gpus", "4", "--set", "steps=20", code=0)
    run = runner.newest()
    result, reports = document_of(run, "result"), records(run, "report").values()
    assert outcome(run) == "measured"
    for record in (*reports, result):
        check(record)
    assert len({report["gradient_checksum"] for report in reports}) == 4
    assert len({report["parameter_checksum"] for report in reports}) == 1
    assert (result["recipe"], result["training_mode"], result["proven"]) == ("horovod-tensorflow", "tape", True)
    assert result["image"]["framework_version"] == "2.21.0"
    assert document_of(run, "plan")["image"]["about"]["framework"] == "tensorflow"
    assert "images/s" in done.out


@pytest.mark.usefixtures("tensorflow_squashfs")
def test_keras_3_trains_unsynchronised_in_silence_and_is_reported(runner: Runner) -> None:
    """No fault is planted: this is what Horovod 0.28.1 does with Keras 3's own training step."""
    short = ("--set", "steps=4", "--set", "warmup-steps=1")  # each of the first steps is traced anew
    done = runner(*JOB, "--gpus", "2", *short, "--set", "mode=fit", "--env", "TF_USE_LEGACY_KERAS=0", code=6)
    verdict = document_of(runner.newest(), "verdict")
    assert (verdict["outcome"], verdict["images_per_s"]) == ("not-proven", None)
    assert any("not synchronised: 2 different sets of parameters" in reason for reason in verdict["reasons"]), verdict
    assert "images/s" not in done.out
