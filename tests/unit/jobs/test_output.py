"""The last output of a run: from the log that was written last, however its program writes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from runner.jobs.directory import Run
from runner.jobs.logs import last_output


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "logs").mkdir()
    return Run(tmp_path)


def wrote(run: Run, name: str, content: bytes, *, ago_s: float) -> None:
    path = run.logs / name
    path.write_bytes(content)
    os.utime(path, (0, time.time() - ago_s))


def test_the_log_that_was_written_last_counts(run: Run) -> None:
    wrote(run, "batch.out", b"started\n", ago_s=300)
    wrote(run, "rank-0.out", b"step 1\nstep 2\n\n", ago_s=100)
    wrote(run, "rank-1.err", b"", ago_s=0)  # opened, and nothing written
    last = last_output(run)
    assert last is not None
    assert (last.file, last.line) == ("logs/rank-0.out", "step 2")
    assert 100 <= last.age_s < 160


def test_a_bar_that_is_drawn_anew_is_as_far_as_it_was_drawn_last(run: Run) -> None:
    wrote(run, "rank-0.err", b"\r10 %" * 2000 + b"\r 99 % " + "\u00e9".encode()[:1], ago_s=1)
    last = last_output(run)
    assert last is not None
    assert last.line == "99 % \ufffd"


def test_no_line_is_longer_than_a_screen(run: Run) -> None:
    wrote(run, "rank-0.out", b"x" * 10_000, ago_s=-60)  # by the clock of another machine, in the future
    last = last_output(run)
    assert last is not None
    assert (len(last.line), last.age_s) == (200, 0.0)


def test_without_output_there_is_none(run: Run) -> None:
    assert last_output(run) is None
    (run.logs / "rank-0.out").touch()
    assert last_output(run) is None
    run.logs.joinpath("rank-0.out").unlink()
    os.mkfifo(run.logs / "rank-0.out")
    assert last_output(run) is None
