"""Waiting for a study: what ended without a trace is judged, and the time has an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.backends.schedulers.local.client import Local
from runner.core.errors import UnknownStateError
from runner.jobs.watch import Clock
from runner.model.job import Cancelled
from runner.study.gather import wait
from tests.support.studies import left_run, measured, on_disk, study

KEY = "g0001-full-r1"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))


def warn(text: str) -> None:
    raise AssertionError(text)


def test_a_job_that_was_killed_before_it_left_anything_is_judged_after_a_while(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    run = left_run(of, KEY)
    (run.path / "job.sh").write_text("#!/bin/bash\nkill -KILL $$\n")
    run.write("job.json", {**run.read("job.json", dict[str, object]), "job_id": Local().submit(run.path, "job.sh")})  # type: ignore[dict-item]
    run.write("cancelled.json", Cancelled("someone", "here", 1.0))
    found = wait(of, warn, timeout_s=60)
    assert (found.state, found.launches[0].state) == ("incomplete", "not-proven")
    assert found.launches[0].why


def test_a_study_that_is_over_is_not_waited_for(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    left_run(of, KEY, measured(5.0))
    assert wait(of, warn, clock=Clock(sleep=lambda _seconds: pytest.fail("it waits"))).state == "complete"


def test_the_time_to_wait_has_an_end(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    run = left_run(of, KEY)
    (run.path / "job.sh").write_text("#!/bin/bash\nexec sleep 60\n")
    job = Local().submit(run.path, "job.sh")
    run.write("job.json", {**run.read("job.json", dict[str, object]), "job_id": job})  # type: ignore[dict-item]
    try:
        with pytest.raises(UnknownStateError, match="has not ended within 1 s"):
            wait(of, warn, timeout_s=1)
    finally:
        Local().cancel(job)
