"""File systems that are slow, hang, or are full: real ones.

A client of sshfs keeps a listing for 20 s, so what the node writes becomes visible late to the login node. Time is real
here; what a clock of the test can show is in tests/unit/jobs/test_life.py.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.core import files
from runner.core.errors import Exit
from runner.jobs.directory import Run
from runner.jobs.life import finish, standing
from runner.jobs.watch import presence
from runner.model.job import ExitMarker, JobState, Submitted
from runner.model.verdict import Verdict
from tests.support.evidence import changed, ended, write_record, write_run
from tests.support.installed import CHECKOUT
from tests.support.squashfs import SUPERBLOCK
from tests.support.submissions import IMAGE, sound
from tests.support.two_machines import seen_from_two_machines
from tests.support.users import AS_ROOT

pytestmark = pytest.mark.integration
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


def judged(run: Run, warnings: list[str]) -> tuple[Verdict, float]:
    began = time.monotonic()
    verdict = finish(run, lambda progress: None, warnings.append)
    return verdict, time.monotonic() - began


@AS_ROOT
def test_what_a_node_wrote_is_found_although_the_listing_is_an_old_one(two_views: tuple[Run, Run]) -> None:
    here, there = two_views
    assert presence(here).exits == {0, 1, 2}
    write_record(there, ended(3))
    assert presence(here).exits == {0, 1, 2}, "this file system hides nothing: it proves nothing"
    there.write("exit.json", ExitMarker(JOB, 0, 0.0))
    verdict, waited_s = judged(here, [])
    assert verdict.outcome == "measured"
    assert waited_s < HIDDEN_S / 2, "a listing made anew shows it at once"
    assert standing(here) == judged(here, [])[0] == verdict


@AS_ROOT
def test_a_job_that_ends_while_it_is_waited_for_is_judged_by_all_its_records(two_views: tuple[Run, Run]) -> None:
    """The node writes the last record, then the marker, in three seconds."""
    here, there = two_views

    def end() -> None:
        time.sleep(3.0)
        write_record(there, ended(3))
        there.write("exit.json", ExitMarker(JOB, 0, 0.0))

    node = threading.Thread(target=end)
    node.start()
    verdict, waited_s = judged(here, [])
    node.join()
    assert verdict.outcome == "measured"
    assert waited_s < HIDDEN_S


@AS_ROOT
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


MOUNTER = CHECKOUT / "tests/support/dead_mount.py"


def start(dead: Path, *words: str, home: str = "/") -> subprocess.Popen[str]:
    """The command line beside a file system at ``dead`` that never answers."""
    argv = ["unshare", "--map-root-user", "--mount", sys.executable, str(MOUNTER), str(dead)]
    argv += [sys.executable, "-m", "runner", *words]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": home}
    if home != "/":
        del env["RUNNER_CONFIG"]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_a_submission_says_which_file_system_does_not_answer(tmp_path: Path) -> None:
    """As the place of runs, of data, of the image, and as a home; with a real mount that no process serves."""
    dead = tmp_path / "dead"
    dead.mkdir()
    words = ("submit", "--site", "neuron", "--recipe", "probe", "--gpus", "8", "--dry-run")
    places = {
        f"{dead}/runs": ("--runs", f"{dead}/runs"),
        f"{dead}/data": ("--mount", f"{dead}/data:/data", "--runs", str(tmp_path / "runs")),
        f"{dead}/x.sif": ("--image", f"{dead}/x.sif", "--runs", str(tmp_path / "runs")),
    }
    began = time.monotonic()
    asked = {place: start(dead, *words, *more) for place, more in places.items()}
    asked[str(dead)] = start(dead, *words, "--runs", str(tmp_path / "runs"), home=str(dead))
    for place, child in asked.items():
        out, err = child.communicate(timeout=60)
        assert child.returncode == 3, err
        assert f"the file system of {place} has not answered for 5 s" in err
        assert out == ""
    assert time.monotonic() - began < 40


FULL, THROUGH = "No space left on device", "no Slurm client"


@pytest.mark.parametrize(
    ("kilobytes", "outcomes"),
    [
        *((size, {FULL}) for size in (4, 16, 64)),
        *((size, {FULL, THROUGH}) for size in (128, 160, 192, 256)),
        (1024, {THROUGH}),
    ],
)
def test_a_disk_that_fills_at_any_moment_is_reported(tmp_path: Path, kilobytes: int, outcomes: set[str]) -> None:
    """A run directory on a file system of this size, in a mount namespace that goes with the command."""
    Path(IMAGE).write_bytes(SUPERBLOCK)
    words = [sys.executable, "-m", "runner", *sound("--runs", str(tmp_path))]
    script = f'mount -t tmpfs -o size={kilobytes}k tmpfs "$1" && cd / && shift && exec "$@"'
    own = {"RUNNER_CACHE": str(tmp_path / "cache"), "RUNNER_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", tmp_path, *words],
        capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"], "PYTHONPATH": str(CHECKOUT), **own},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    codes = {FULL: (Exit.USAGE, Exit.INFRASTRUCTURE), THROUGH: (Exit.NOT_ACCEPTED,)}
    outcome = {words for words, allowed in codes.items() if words in done.stderr and done.returncode in allowed}
    assert outcome, done.stderr
    assert outcome <= outcomes
