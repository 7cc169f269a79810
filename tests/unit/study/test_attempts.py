"""Which launches may be started again, and what becomes of a submission that was cut off at any point."""

import json
import time
from collections import deque
from pathlib import Path

import pytest

from runner.backends.schedulers.local.client import Local
from runner.core.errors import NotAcceptedError
from runner.jobs.directory import SCRIPT, index
from runner.model.job import JobState, Submitted
from runner.model.study import Launch
from runner.model.verdict import Verdict
from runner.study import separate
from runner.study.attempts import Attempt, attempt_of, settle, to_start, without_verdict
from runner.study.directory import StudyDirectory
from runner.study.separate import Work
from tests.support.studies import left_run, measured, on_disk, study

KEY = "g0001-full-r1"
LAUNCH = Launch(KEY, 1, "full", 1, 0)


@pytest.fixture
def of(tmp_path: Path) -> StudyDirectory:
    """A study of one launch."""
    return on_disk(tmp_path, study((1,), 1))


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


def test_what_was_cut_off_before_the_scheduler_was_called_leaves_nothing(of: StudyDirectory) -> None:
    no_record, no_script, refused = (left_run(of, KEY) for _ in range(3))
    (no_record.path / "job.json").unlink()
    (no_script.path / SCRIPT).unlink()
    refused.write("job.json", Submitted("local", "", "", "0", time.time(), refused="no such partition"))
    settle(of, of.study.launches)
    assert of.runs(KEY) == ()
    assert list(index().iterdir()) == []


def test_what_the_queue_has_no_place_for_is_taken_away_and_nothing_else(
    of: StudyDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the clock was set back since the run before."""
    failed = left_run(of, KEY, Verdict("failed", ("x",)))
    kept = failed.path.rename(failed.path.with_name("20990101-000000-train-4"))

    def refuse(*_given: object, **_named: object) -> None:
        left_run(of, KEY, refused="a limit", noted=False)
        raise NotAcceptedError("a limit")

    monkeypatch.setattr(separate, "start", refuse)
    monkeypatch.setattr(separate, "command_of", lambda _prepared: None)
    work = Work(of, of.study.launches, lambda _launch: None, None, waits=True)  # type: ignore[arg-type, return-value]
    assert not separate._start(work, deque([LAUNCH]), deque([(LAUNCH, failed)]))
    assert [each.path for each in of.runs(KEY)] == [kept]


def test_a_job_that_was_started_by_a_killed_submission_is_found_and_kept(of: StudyDirectory) -> None:
    run = left_run(of, KEY, job_id="")
    (run.path / SCRIPT).write_text("#!/bin/bash\nexec sleep 0\n")
    job = Local().submit(run.path, SCRIPT)
    (run.path / "job.id").write_text(job)
    settle(of, of.study.launches)
    assert run.submitted is not None and run.submitted.job_id == job


@pytest.mark.parametrize(("since_s", "least_s", "most_s"), [(-3.5, 1.0, 5.0), (1e6, 1.0, 30.0)], ids=["", "set back"])
def test_a_submission_that_started_no_job_is_waited_for_and_then_removed(
    of: StudyDirectory, since_s: float, least_s: float, most_s: float
) -> None:
    """A clock that was set back holds nothing up."""
    left_run(of, KEY, job_id="", submitted_s=time.time() + since_s)
    slept: list[float] = []
    settle(of, of.study.launches, slept.append)
    assert of.runs(KEY) == ()
    assert least_s < sum(slept) < most_s


@pytest.mark.parametrize(
    ("state", "host", "shown", "gone", "why"),
    [
        (JobState("pending", "PENDING"), "", "pending", False, ""),
        (JobState("running", "RUNNING"), "", "running", False, ""),
        (JobState("unknown"), "", "not-proven", True, "the scheduler knows its job no more, and it left no result"),
        (JobState("unknown"), "another", "running", False, "its job runs, or ran, on another machine"),
        (None, "", "pending", False, "the scheduler does not answer"),
    ],
)
def test_a_run_without_a_verdict_stands_as_its_scheduler_says(
    of: StudyDirectory, state: JobState | None, host: str, shown: str, gone: bool, why: str
) -> None:
    run = left_run(of, KEY)
    run.write("provenance.json", {"host": host})
    attempt = attempt_of(run, state)
    assert attempt is not None
    assert (attempt.state, attempt.gone, attempt.why) == (shown, gone, why)


def test_a_verdict_decides_and_a_refused_submission_is_no_attempt(of: StudyDirectory) -> None:
    shown = [
        attempt.state
        for verdict in (measured(5.0), Verdict("cancelled"), Verdict("measured"))
        if (attempt := attempt_of(left_run(of, KEY, verdict), None)) is not None
    ]
    assert shown == ["proven", "not-proven", "not-proven"]
    assert attempt_of(left_run(of, KEY, refused="no"), None) is None


@pytest.mark.parametrize("left", ["verdict", "exit marker", "record of a rank"])
def test_a_run_that_has_begun_is_never_removed_whatever_else_is_lost(of: StudyDirectory, left: str) -> None:
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
    assert (shown.state if shown else "missing") == "missing"


def test_what_is_no_run_directory_stays(of: StudyDirectory) -> None:
    notes = of.launches(KEY) / "notes"
    notes.mkdir(parents=True)
    (of.launches(KEY) / "read.me").touch()
    settle(of, of.study.launches)
    assert (of.runs(KEY), notes.is_dir()) == ((), True)


@pytest.mark.parametrize("rate", [-5.0, 0.0, 1e300, 1e-320, float("nan"), float("inf"), None])
def test_a_rate_that_no_program_gives_is_no_verdict(of: StudyDirectory, rate: float | None) -> None:
    """It is judged again, by its records; so is one whose arms have no rates (None)."""
    arm = {"arm": "uncoupled", "samples_per_s": 100.0, "slowest_samples_per_s": 0.0, "step_s": 0.1}
    arms = [] if rate is not None else [{**arm, "slowest_step_s": 0.1, "window_s": 30.0}]
    run = left_run(of, KEY)
    verdict = {"outcome": "measured", "images_per_s": rate or 5.0 if arms else rate, "arms": arms}
    (run.path / "verdict.json").write_text(json.dumps(verdict))
    attempt = attempt_of(run, None)
    assert attempt is not None
    assert (attempt.state, attempt.verdict, without_verdict([run])) == ("pending", None, (run,))
