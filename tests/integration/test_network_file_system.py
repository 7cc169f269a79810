"""A run whose node and whose login node see one directory through a network file system each: sshfs, for real.

A client keeps a listing for 20 s, so what the node writes becomes visible late. Time is real here; what a clock of the
test can show is in tests/unit/jobs/test_late_records.py.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.core import files
from runner.jobs.directory import Run
from runner.jobs.life import finish, standing
from runner.jobs.watch import presence
from runner.model.job import ExitMarker, JobState, Submitted
from runner.model.verdict import Verdict
from tests.support.evidence import changed, ended, write_record, write_run
from tests.support.two_machines import seen_from_two_machines

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting with no fusermount takes root"),
]
JOB = "999999.1.00000000"  # of another boot: this machine knows no more of it than its marker says
HIDDEN_S = 20.0  # sshfs's cache of a directory


@pytest.fixture
def two_views(tmp_path: Path) -> Iterator[tuple[Run, Run]]:
    """One run directory as the login node and as the job's node see it; the login node has just listed its records.

    All is there but the exit record of rank 3 and the marker.
    """
    shared = tmp_path / "shared"
    for folder in ("logs", "ranks", "nccl"):
        (shared / "run" / folder).mkdir(parents=True)
    (shared / "run" / "job.sh").write_text("#!/bin/bash\n")
    with seen_from_two_machines(shared, tmp_path) as (login, node):
        here, there = Run(login / "run"), Run(node / "run")
        write_run(there, changed(marker=None, exits={rank: ended(rank) for rank in (0, 1, 2)}))
        there.write("job.json", Submitted("local", JOB, "", "0", time.time()))
        assert not files.is_local(here.path)
        yield here, there


@contextmanager
def ends_in(seconds: float, there: Run) -> Iterator[None]:
    """The node writes the last record, then the marker, so many seconds from now."""

    def end() -> None:
        time.sleep(seconds)
        write_record(there, ended(3))
        there.write("exit.json", ExitMarker(JOB, 0, 0.0))

    node = threading.Thread(target=end)
    node.start()
    yield
    node.join()


def judged(run: Run, warnings: list[str]) -> tuple[Verdict, float]:
    began = time.monotonic()
    verdict = finish(run, lambda progress: None, warnings.append)
    return verdict, time.monotonic() - began


def test_what_a_node_wrote_is_found_although_the_listing_is_an_old_one(
    two_views: tuple[Run, Run],
) -> None:
    here, there = two_views
    assert presence(here).exits == {0, 1, 2}
    write_record(there, ended(3))
    assert presence(here).exits == {0, 1, 2}, "this file system hides nothing: it proves nothing"
    there.write("exit.json", ExitMarker(JOB, 0, 0.0))
    verdict, waited_s = judged(here, [])
    assert verdict.outcome == "measured"
    assert waited_s < HIDDEN_S / 2, "a listing made anew shows it at once"
    assert standing(here) == judged(here, [])[0] == verdict


def test_a_job_that_ends_while_it_is_waited_for_is_judged_by_all_its_records(
    two_views: tuple[Run, Run],
) -> None:
    here, there = two_views
    with ends_in(3.0, there):
        verdict, waited_s = judged(here, [])
    assert verdict.outcome == "measured"
    assert waited_s < HIDDEN_S


def test_who_may_only_read_waits_until_the_record_shows_by_itself(two_views: tuple[Run, Run], tmp_path: Path) -> None:
    """It cannot make the listing anew, and keeps nothing: `status` afterwards asks again and says no verdict."""
    here, there = two_views
    reading = tmp_path / "read-only"
    reading.mkdir()
    subprocess.run(["mount", "--bind", here.path, reading], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", reading], check=True)
        run = Run(reading)
        assert presence(run).exits == {0, 1, 2}
        write_record(there, ended(3))
        there.write("exit.json", ExitMarker(JOB, 0, 0.0))
        warnings: list[str] = []
        verdict, waited_s = judged(run, warnings)
        assert verdict.outcome == "measured"
        assert HIDDEN_S / 4 < waited_s < 60.0
        assert [warning.split()[0] for warning in warnings] == ["ended.json", "verdict.json"]
        assert there.read("verdict.json", Verdict) is None
        assert there.read("ended.json", JobState) is None
    finally:
        subprocess.run(["umount", "-l", reading], check=False)
