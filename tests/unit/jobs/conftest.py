"""Run directories of this folder's tests, in a state of their own."""

from pathlib import Path

import pytest

from runner.jobs import creation
from runner.jobs.directory import Run
from tests.support.plans import PLAN


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TZ", "UTC")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The directory of a run of four ranks on n0 and n1."""
    made = creation.create(tmp_path / "runs", "probe-4", 0.0)
    made.write("plan.json", PLAN)
    return made
