"""What runs have cost, and what RUNNER_BUDGET leaves."""

from pathlib import Path

import msgspec
import pytest

from runner.core.errors import UsageError
from runner.jobs import creation
from runner.jobs.cost import left_of_budget
from runner.jobs.directory import Run
from runner.model.job import ExitMarker
from runner.model.plan import StepNodes
from tests.support.evidence import start
from tests.support.plans import PLAN

HOUR = msgspec.structs.replace(PLAN, walltime_s=3600)  # of four GPUs


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_BUDGET", "10")


def submitted_run(root: Path, plan: object = HOUR, **submitted: object) -> Run:
    run = creation.create(root, "train-4", 0.0)
    run.write("plan.json", plan)  # type: ignore[arg-type]
    run.write(
        "job.json",
        {"scheduler": "slurm", "job_id": "1", "clients": "", "script_sha256": "", "submitted_s": 0.0} | submitted,
    )
    return run


def test_no_budget_is_no_limit(run: Run) -> None:
    assert left_of_budget(run.path.parent) is None


def test_a_run_counts_with_its_time_limit_until_it_is_over_and_then_with_what_it_took(
    budget: None, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    run = submitted_run(runs)
    assert left_of_budget(runs) == 10 - 4
    run.write("ranks/0.start.json", start(0, time_s=1000.0))
    assert left_of_budget(runs) == 10 - 4
    run.write("exit.json", ExitMarker("1", 0, 1000.0 + 900))
    assert left_of_budget(runs) == 10 - 1


def test_what_costs_nothing_or_lies_elsewhere_does_not_count(budget: None, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    submitted_run(runs, refused="no such partition")
    submitted_run(runs, msgspec.structs.replace(HOUR, existing_allocation=StepNodes(job_id="7", nodes=("n0", "n1"))))
    submitted_run(tmp_path / "others")
    assert left_of_budget(runs) == 10


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_budget_is_a_number_of_gpu_hours(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_BUDGET", text)
    with pytest.raises(UsageError, match="is no number of GPU-hours"):
        left_of_budget(tmp_path)
