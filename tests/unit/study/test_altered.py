"""A ``study.json`` that is not as ``scale`` wrote it is refused: directories are made and removed by what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.core.errors import UsageError
from runner.study.directory import find, read
from runner.study.gather import list_studies
from runner.study.plan import launches
from tests.support.studies import on_disk, study

ALTERED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a key that leads elsewhere": lambda asked: asked["launches"][0].update(key="../../elsewhere"),
    "a key that is no file name": lambda asked: asked["launches"][0].update(key="g0001-full\0"),
    "a key twice": lambda asked: asked["launches"][0].update(key=asked["launches"][1]["key"]),
    "no launches": lambda asked: asked.update(launches=[]),
    "no GPUs": lambda asked: asked["launches"][0].update(gpus=0),
    "a size that was not asked for": lambda asked: asked["launches"][0].update(gpus=7),
    "an arm that was not asked for": lambda asked: asked["launches"][0].update(arm="solo"),
    "arms that were not asked for": lambda asked: asked["launches"][0].update(arms=["uncoupled", "full"]),
    "a setting that was not asked for": lambda asked: asked["launches"][0].update(settings=[["a", "b"]]),
}


ALONE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a node before the first": lambda launch: launch.update(node=-1),
    "more nodes than GPUs": lambda launch: launch.update(node=2),
    "more GPUs of a node than GPUs": lambda launch: launch.update(device=2),
    "a node without a GPU": lambda launch: launch.update(device=None),
    "a GPU that another launch has": lambda launch: launch.update(device=1 - launch["device"]),
    "two GPUs": lambda launch: launch.update(gpus=2),
    "training as it is": lambda launch: launch.update(arm="full"),
}


@pytest.mark.parametrize("change", ALONE.values(), ids=ALONE)
def test_a_single_gpu_is_one_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], Any]
) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    planned = launches((2,), ("full", "solo"), ((),), 2, solo_places=(2,))
    of = on_disk(tmp_path, study((2,), 2, way="one-allocation", arms=("full", "solo"), launches=planned))
    assert read(of.path) is not None
    asked = json.loads((of.path / "study.json").read_text())
    change(asked["launches"][0])
    (of.path / "study.json").write_text(json.dumps(asked))
    assert read(of.path) is None


@pytest.mark.parametrize("change", ALTERED.values(), ids=ALTERED)
def test_a_study_that_was_altered_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], Any]
) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    of = on_disk(tmp_path, study((1, 2), 2))
    assert find(of.path.name).study == of.study
    asked = json.loads((of.path / "study.json").read_text())
    change(asked)
    (of.path / "study.json").write_text(json.dumps(asked))
    assert read(of.path) is None
    for wanted in (of.path.name, of.name, of.path.name[:-3], str(of.path)):
        with pytest.raises(UsageError, match="not as `scale` wrote it"):
            find(wanted)
    assert list_studies() == ()
