"""The script of a study's allocation, run by a real bash: launches side by side end, are cancelled and killed apart."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from runner.backends.schedulers import render_launches
from runner.jobs.creation import write_script
from runner.model.job import ListedLaunch
from tests.support.golden_launches import prepared
from tests.support.golden_local_jobs import CPUS, HERE, local
from tests.support.users import AS_ROOT, BOB
from tests.support.waiting import until

# A launch's script: it says that it is here, waits for a file, and ends with the status that is in it.
SCRIPT = """\
cd "$(dirname "$0")"
trap 'echo ended >why; exit 143' TERM
: >here
for i in {1..200}; do [ ! -s go ] || exit "$(cat go)"; sleep 0.05; done
exit 99
"""


class Allocation:
    """Three launches; the first two side by side."""

    def __init__(self, root: Path, limit_s: int = 600) -> None:
        self.path = root / "allocation"
        self.path.mkdir()
        self.runs = [root / name for name in ("first", "second", "third")]
        for run in self.runs:
            (run / "logs").mkdir(parents=True)
            (run / "job.sh").write_text(SCRIPT)
        plan, step = prepared(local(CPUS), "native", msgspec.structs.replace(HERE, gpus=1))
        listed = [ListedLaunch(str(run), 100, with_next=run is self.runs[0]) for run in self.runs]
        script = render_launches(msgspec.structs.replace(plan, walltime_s=limit_s), step, listed)
        write_script(self.path, script)
        self.process = subprocess.Popen(["bash", self.path / "job.sh"], cwd=root, start_new_session=True)

    def are(self, name: str, *numbers: int) -> Callable[[], bool]:
        return lambda: all((self.runs[number] / name).exists() for number in numbers)

    def let(self, number: int, status: int = 0) -> None:
        (self.runs[number] / "go").write_text(str(status))

    def codes(self) -> dict[str, int]:
        """Of the launches that ended, by the allocation's list."""
        lines = (self.path / "launches").read_text().splitlines()
        return {Path(run).name: int(code) for _, _, code, run in (line.split("\t") for line in lines)}

    def end(self) -> int:
        return self.process.wait(timeout=20)


@pytest.fixture
def begun(tmp_path: Path) -> Allocation:
    """The first two run at one time, and the third does not."""
    made = Allocation(tmp_path)
    until(made.are("here", 0, 1), "two have begun", timeout_s=20)
    return made


def test_two_run_at_one_time_and_the_next_after_both(begun: Allocation) -> None:
    begun.let(0, 3)
    until(begun.are("over", 0), "the first is over", timeout_s=20)
    assert not (begun.runs[1] / "over").exists()
    time.sleep(0.3)
    assert not (begun.runs[2] / "begun").exists()
    begun.let(1)
    begun.let(2)
    assert begun.end() == 0
    assert begun.codes() == {"first": 3, "second": 0, "third": 0}
    exits = [msgspec.json.decode((run / "exit.json").read_bytes()) for run in begun.runs]
    assert [(each["exit"], each["why"]) for each in exits] == [(3, "KILLED"), (0, "KILLED"), (0, "KILLED")]


def test_one_that_is_cancelled_ends_by_itself(begun: Allocation) -> None:
    (begun.runs[1] / "cancelled.json").touch()
    until(begun.are("over", 1), "it is over", timeout_s=20)
    assert not (begun.runs[0] / "over").exists()
    begun.let(0)
    begun.let(2)
    assert begun.end() == 0
    assert begun.codes() == {"first": 0, "second": 143, "third": 0}


def test_the_end_of_the_allocation_ends_both_and_nothing_more_begins(begun: Allocation) -> None:
    begun.process.send_signal(signal.SIGTERM)
    assert begun.end() == 143
    assert (begun.path / "stopped").read_text() == "CANCELLED\n"
    assert all((run / "why").exists() for run in begun.runs[:2])
    assert not any((run / "over").exists() for run in begun.runs), "they did not end by themselves"
    assert not (begun.runs[2] / "begun").exists()


def test_no_launch_begins_without_its_time(tmp_path: Path) -> None:
    made = Allocation(tmp_path, limit_s=99)
    assert made.end() == 0
    assert (made.path / "stopped").read_text() == "TIME\n"
    assert not any((run / "begun").exists() for run in made.runs)


@AS_ROOT
def test_a_launch_whose_directory_has_become_a_strangers_is_passed_over(begun: Allocation) -> None:
    os.chown(begun.runs[2], BOB, BOB)
    begun.let(0)
    begun.let(1)
    assert begun.end() == 0
    assert begun.codes() == {"first": 0, "second": 0}
    assert {each.name for each in begun.runs[2].iterdir()} == {"job.sh", "logs"}


def test_a_launch_whose_directory_is_gone_stops_the_rest_with_a_reason(begun: Allocation) -> None:
    begun.runs[2].rename(begun.path / "away")
    begun.let(0)
    begun.let(1)
    begun.end()
    assert (begun.path / "stopped").read_text() == "DISK\n"
