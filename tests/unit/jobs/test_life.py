"""A run's end is judged and kept once; what cannot be kept is said, and the verdict stands all the same."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.core.errors import UnknownStateError
from runner.jobs import directory
from runner.jobs.directory import Run
from runner.jobs.life import Standing, finish, standing
from runner.jobs.watch import JobProgress
from runner.model.job import ExitMarker, JobState, Submitted
from runner.model.verdict import Verdict
from tests.support.evidence import report
from tests.support.plans import PLAN


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose job this machine's scheduler has forgotten, or never had."""
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    made = directory.create(tmp_path / "runs", "probe-4", 0.0)
    made.write("plan.json", PLAN)
    made.write("job.json", Submitted("local", "1", "", "0", time.time()))
    return made


def unexpected(progress: JobProgress) -> None:
    raise AssertionError(f"looked at the job: {progress}")


def test_a_run_whose_end_is_known_is_judged_without_waiting_and_keeps_its_verdict(run: Run) -> None:
    run.write("ended.json", JobState("ended", "TIMEOUT"))
    verdict = finish(run, unexpected, unexpected_warning)
    assert verdict.outcome != "measured"
    assert run.read("verdict.json", Verdict) == verdict == standing(run)


def unexpected_warning(text: str) -> None:
    raise AssertionError(text)


def test_a_verdict_that_cannot_be_kept_is_returned_with_a_warning(run: Run) -> None:
    run.write("ended.json", JobState("ended", "TIMEOUT"))
    (run.path / "verdict.json").mkdir()
    warnings: list[str] = []
    assert finish(run, unexpected, warnings.append).outcome != "measured"
    assert len(warnings) == 1
    assert warnings[0].startswith("verdict.json cannot be kept in")


def test_a_run_of_older_records_keeps_the_verdict_that_it_got(run: Run) -> None:
    run.write("ended.json", JobState("ended", "COMPLETED", exit_code=0))
    stored = Verdict("measured", images_per_s=1.0)
    run.write("verdict.json", stored)
    run.write("ranks/0.report.json", report(0, schema="1"))
    assert finish(run, unexpected, unexpected_warning) == stored


def test_waiting_ends_when_the_time_is_over(run: Run) -> None:
    seen: list[JobProgress] = []
    with pytest.raises(UnknownStateError, match="has not ended within 0 s"):
        finish(run, seen.append, unexpected_warning, timeout_s=0.0)
    assert seen
    assert not (run.path / "verdict.json").exists()


def test_a_job_that_its_scheduler_does_not_know_is_not_waited_for(run: Run) -> None:
    """One of another machine: it may still run there."""
    now = standing(run, unexpected, unexpected_warning)
    assert isinstance(now, Standing)
    assert now.progress.state == JobState("unknown", reason="of another boot or another machine")
    run.write("exit.json", ExitMarker("1", 3, 1.0))
    verdict = standing(run)
    assert isinstance(verdict, Verdict)
    assert verdict.outcome == "failed"


def test_without_a_readable_plan_the_number_of_ranks_is_unknown(run: Run) -> None:
    assert run.tasks == 4
    (run.path / "plan.json").write_text("{")
    assert run.tasks == 0


def test_to_show_a_state_nothing_of_the_judgement_is_imported() -> None:
    modules = "runner.cli.wait, runner.cli.status, runner.jobs.life, runner.jobs.facts"
    code = f"import sys, {modules}; print([name for name in sys.modules if 'runner.' in name])"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'runner.jobs.life'" in imported
    for module in ("runner.jobs.verdict", "runner.jobs.collect", "runner.statistics"):
        assert module not in imported
