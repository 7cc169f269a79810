"""What was launched cannot be unmade: a run that is gone, or a log that was changed, stays to be seen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.jobs.directory import RunDirectory
from runner.study.attempts import settle, to_start
from runner.study.campaign import LOG
from runner.study.directory import StudyDirectory
from runner.study.gather import attempts, facts
from tests.support.studies import left_run, measured, on_disk, study

SLOW, OTHER = "g0001-full-r1", "g0001-full-r2"


@pytest.fixture
def of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyDirectory:
    """A study whose runs were launched by a process that was killed before it could note the last of them."""
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    made = on_disk(tmp_path, study((1,), 2))
    made.note("launched", SLOW, [left_run(made, SLOW, measured(50.0))])
    left_run(made, OTHER, measured(100.0))
    settle(made, made.study.launches)
    return made


def gone(of: StudyDirectory) -> RunDirectory:
    (run,) = of.runs(SLOW)
    shutil.rmtree(run.path)
    return run


def test_a_deleted_run_is_a_gap_that_no_later_run_closes_and_counts_as_an_attempt(of: StudyDirectory) -> None:
    assert facts(of).gaps == ()
    run = gone(of)
    (gap,) = facts(of).gaps
    assert SLOW in gap and run.run_id in gap
    assert [each.state for each in facts(of).launches] == ["not-proven", "proven"]
    assert [each.key for each in to_start(of.study.launches, attempts(of), 2)] == [SLOW]
    assert to_start(of.study.launches, attempts(of), 1) == ()
    of.note("launched", SLOW, [left_run(of, SLOW, measured(101.0))])
    now = facts(of)
    assert (now.state, now.launches[0].attempts, now.gaps) == ("complete", 2, (gap,))


def test_a_run_that_never_began_is_no_gap(of: StudyDirectory) -> None:
    of.note("never-began", SLOW, [gone(of)])
    assert facts(of).gaps == ()


ALTERED: dict[str, Callable[[Path], object]] = {
    "without the line of the deleted run": lambda log: log.write_bytes(b"".join(log.read_bytes().splitlines(True)[1:])),
    "with another run's id": lambda log: log.write_text(log.read_text().replace("train-4", "train-5", 1)),
    "not readable": lambda log: log.write_text("{\n"),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("change", ALTERED.values(), ids=ALTERED)
def test_a_log_that_was_altered_is_seen(of: StudyDirectory, change: Callable[[Path], object]) -> None:
    change(of.path / LOG)
    gone(of)
    assert any("log of launches" in gap for gap in facts(of).gaps)
