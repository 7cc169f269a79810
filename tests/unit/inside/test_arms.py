"""The arms of a benchmark take turns so that a drift is the same in all, and leave what the judge reads."""

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gpu_runner_inside import records
from gpu_runner_inside.benchmark import arms, benchmark, lengths
from gpu_runner_inside.benchmark.options import options_of

from runner.model.records import Report
from tests.support.json_schema import check
from tests.support.timed_recipe.small_world import World


class Training:
    """Steps that only note the arm they are of."""

    local_gradients = "g"
    gradients_device: str | None = None
    allreduce_bytes: int | None = None
    hooks, instrumentation_s = False, 0.0
    device = benchmark.Device("cpu", "d", "cpu-1", None)

    def __init__(self) -> None:
        self.world: benchmark.World = World()
        self.arm, self.steps = "full", list[str]()
        self.versions: dict[str, Any] = {"framework": "torch", "framework_version": "1", "python_version": "3"}
        self.versions["horovod_version"] = None

    def use(self, arm: str) -> None:
        self.arm = arm

    def step(self) -> None:
        self.steps.append(self.arm)

    def synchronize(self) -> list[float]:
        return []

    def loss(self) -> float:
        return 1.0

    def parameters_checksum(self) -> str:
        return str(len(self.steps))

    def peak_memory_bytes(self) -> int:
        return 0


def options(**more: Any) -> argparse.Namespace:
    made = options_of(["--demonstration", "--model", "m", "--steps", "60"], ("m",))
    made.channels_last = False
    for name, value in more.items():
        setattr(made, name, value)
    return made


def run(directory: Path, monkeypatch: Any, **more: Any) -> tuple[Training, dict[str, Any]]:
    monkeypatch.setenv("RUNNER_RUN_DIR", str(directory))
    training = Training()
    assert benchmark.run("r", options(**more), training) == 0
    record = json.loads(Path(records.rank_record(str(directory), 0, "report")).read_bytes())
    check(record)
    check(json.loads((directory / "result.json").read_bytes()))
    return training, record


@pytest.mark.parametrize("arm", ["", "uncoupled"])
def test_one_arm_is_never_changed_and_named_where_it_is_not_training_itself(
    tmp_path: Path, monkeypatch: Any, arm: str
) -> None:
    training, record = run(tmp_path, monkeypatch, **({"arms": arm} if arm else {}))
    assert set(training.steps) == {arm or "full"}
    assert (record.get("arm", ""), "arms" in record) == (arm, False)


def test_turns_are_the_same_forwards_and_backwards_around_the_main_arm(tmp_path: Path, monkeypatch: Any) -> None:
    training, record = run(tmp_path, monkeypatch, arms="uncoupled,coordination,full")
    report = msgspec.convert(record, Report)
    names = ["uncoupled", "coordination", "full", "coordination", "uncoupled"]
    assert [window.arm for window in report.arms] == names
    assert report.arms[2].ends_s == report.ends_s
    assert [len(window.ends_s) for window in report.arms] == [15, 15, 30, 15, 15]
    turns = [arm for arm, before in zip(training.steps, ["", *training.steps], strict=False) if arm != before]
    assert turns == ["full", *names], "the warm-up is training"
    assert report.arm == "full"
    # Each change of arm has a group that is not timed.
    assert training.steps.count("coordination") == 2 * (15 + 1) * (report.group_steps or 0)


def test_of_many_steps_some_are_kept_from_every_place_in_their_group() -> None:
    """The first step of a group follows a pause of the device: 3000 steps in tens must not leave that one alone."""
    for steps, kept in ((0, 0), (300, 300), (301, 101), (3000, 273), (4000, 236)):
        made = arms.record(arms.Window("full", 10, 1.0, [1.0], [0.5] * steps))
        assert len(made["compute_s"]) == kept <= arms.MOST_COMPUTE
    window = arms.Window("full", 10, 1.0, [1.0], [0.9 if step % 10 == 0 else 0.5 for step in range(3000)])
    kept = arms.record(window)["compute_s"]
    assert abs(sum(kept) / len(kept) - 0.54) < 0.002


def test_an_error_of_reduced_gradients_that_is_not_finite_is_not_left_out(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Training, "reduced_gradients_error", float("nan"), raising=False)
    _training, record = run(tmp_path, monkeypatch)
    assert record["reduced_gradients_error"] == 1.0


def test_two_windows_have_together_the_steps_of_the_main_one() -> None:
    for groups in (30, 31):
        assert 0 <= 2 * arms.half(lengths.Lengths(3, 0.1, groups, 2)).groups - groups <= 1
