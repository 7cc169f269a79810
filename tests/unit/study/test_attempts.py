"""Which launches may be started again, and what becomes of a submission that was cut off at any point."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from runner.backends.schedulers.local.client import Local
from runner.jobs.directory import SCRIPT, index
from runner.model.job import JobState, Submitted
from runner.model.study import Launch
from runner.model.verdict import ArmFigure, Verdict
from runner.study.attempts import Attempt, attempt_of, settle, to_start, without_verdict
from tests.support.studies import left_run, measured, on_disk, study

KEY = "g0001-full-r1"
LAUNCH = Launch(KEY, 1, "full", 1, 0)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))


@pytest.mark.parametrize(
    ("states", "again"),
    [
        ((), True),
        (("not-proven",), True),
        (("not-proven", "not-proven"), True),
        (("not-proven", "not-proven", "not-proven"), False),
        (("proven",), False),
        (("proven", "not-proven"), False),
        (("not-proven", "pending"), False),
        (("pending",), False),
    ],
)
def test_only_what_is_missing_or_not_proven_is_started_and_not_without_end(
    states: tuple[str, ...], again: bool
) -> None:
    made = [Attempt(None, each, gone=each != "pending") for each in states]  # type: ignore[arg-type]
    assert bool(to_start((LAUNCH,), {KEY: made}, limit=3)) is again


def test_what_was_cut_off_before_the_scheduler_was_called_leaves_nothing(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    no_record, no_script, refused = (left_run(of, KEY) for _ in range(3))
    (no_record.path / "job.json").unlink()
    (no_script.path / SCRIPT).unlink()
    refused.write("job.json", Submitted("local", "", "", "0", time.time(), refused="no such partition"))
    settle(of, of.study.launches)
    assert of.runs(KEY) == ()
    assert list(index().iterdir()) == []


def test_a_job_that_was_started_by_a_killed_submission_is_found_and_kept(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    run = left_run(of, KEY, job_id="")
    (run.path / SCRIPT).write_text("#!/bin/bash\nexec sleep 0\n")
    job = Local().submit(run.path, SCRIPT)
    (run.path / "job.id").write_text(job)
    settle(of, of.study.launches)
    assert run.submitted is not None and run.submitted.job_id == job


@pytest.mark.parametrize(("since_s", "least_s", "most_s"), [(-3.5, 1.0, 5.0), (1e6, 1.0, 30.0)], ids=["", "set back"])
def test_a_submission_that_started_no_job_is_waited_for_and_then_removed(
    tmp_path: Path, since_s: float, least_s: float, most_s: float
) -> None:
    """A clock that was set back holds nothing up."""
    of = on_disk(tmp_path, study((1,), 1))
    left_run(of, KEY, job_id="", submitted_s=time.time() + since_s)
    slept: list[float] = []
    settle(of, of.study.launches, slept.append)
    assert of.runs(KEY) == ()
    assert least_s < sum(slept) < most_s


@pytest.mark.parametrize(
    ("state", "shown", "gone"),
    [
        (JobState("pending", "PENDING"), "pending", False),
        (JobState("running", "RUNNING"), "running", False),
        (JobState("unknown"), "not-proven", True),
        (None, "pending", False),
    ],
)
def test_a_run_without_a_verdict_stands_as_its_scheduler_says(
    tmp_path: Path, state: JobState | None, shown: str, gone: bool
) -> None:
    attempt = attempt_of(left_run(on_disk(tmp_path, study((1,), 1)), KEY), state)
    assert attempt is not None
    assert (attempt.state, attempt.gone, bool(attempt.why)) == (shown, gone, state is None or state.phase == "unknown")


def test_a_process_of_another_machine_is_not_taken_for_gone(tmp_path: Path) -> None:
    run = left_run(on_disk(tmp_path, study((1,), 1)), KEY)
    run.write("provenance.json", {"host": "another"})
    attempt = attempt_of(run, JobState("unknown"))
    assert attempt is not None and (attempt.gone, attempt.why) == (False, "its job runs, or ran, on another machine")


def test_a_verdict_decides_and_a_refused_submission_is_no_attempt(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    shown = [
        attempt.state
        for verdict in (measured(5.0), Verdict("cancelled"), Verdict("measured"))
        if (attempt := attempt_of(left_run(of, KEY, verdict), None)) is not None
    ]
    assert shown == ["proven", "not-proven", "not-proven"]
    assert attempt_of(left_run(of, KEY, refused="no"), None) is None


@pytest.mark.parametrize("left", ["verdict", "exit marker", "record of a rank"])
def test_a_run_that_has_begun_is_never_removed_whatever_else_is_lost(tmp_path: Path, left: str) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    run = left_run(of, KEY, measured(5.0) if left == "verdict" else None)
    if left == "exit marker":
        (run.path / "exit.json").touch()
    if left == "record of a rank":
        (run.ranks / "0.start.json").touch()
    (run.path / "job.json").write_text("")
    (run.path / SCRIPT).unlink()
    settle(of, of.study.launches)
    assert [each.path for each in of.runs(KEY)] == [run.path]
    shown = attempt_of(run, None)
    assert (shown.state if shown else "missing") == ("proven" if left == "verdict" else "missing")


def test_what_is_no_run_directory_stays(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    notes = of.launches(KEY) / "notes"
    notes.mkdir(parents=True)
    (of.launches(KEY) / "read.me").touch()
    settle(of, of.study.launches)
    assert (of.runs(KEY), notes.is_dir()) == ((), True)


@pytest.mark.parametrize("rate", [-5.0, 0.0, 1e300, 1e-320, float("nan"), float("inf")])
def test_a_rate_that_no_program_gives_is_no_verdict(tmp_path: Path, rate: float) -> None:
    """It is judged again, by its records."""
    run = left_run(on_disk(tmp_path, study((1,), 1)), KEY)
    (run.path / "verdict.json").write_text(json.dumps({"outcome": "measured", "images_per_s": rate}))
    attempt = attempt_of(run, None)
    assert attempt is not None
    assert (attempt.state, attempt.verdict, without_verdict([run])) == ("pending", None, (run,))


def test_arms_without_rates_are_no_verdict(tmp_path: Path) -> None:
    arm = ArmFigure("uncoupled", 100.0, 0.0, 0.1, 0.1, 30.0)
    run = left_run(on_disk(tmp_path, study((1,), 1)), KEY, measured(5.0, arms=(arm,)))
    assert without_verdict([run]) == (run,)
