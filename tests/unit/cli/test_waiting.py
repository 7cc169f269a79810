"""Who waits sees that time passes: in a terminal at least every 2 s, elsewhere at every change and each minute."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from runner.cli.progress import describe, job_display
from runner.core.text import age
from runner.jobs.watch import JobProgress
from runner.model.job import JobState

RUNNING = JobState("running", "RUNNING")


def test_elsewhere_there_is_a_line_at_every_change_and_each_minute(capsys: pytest.CaptureFixture[str]) -> None:
    with job_display(4, quiet=False) as update:
        for second in range(0, 301, 5):
            update(JobProgress(RUNNING, 4 if second >= 75 else 2, 0, float(second)))
    assert capsys.readouterr().err.splitlines() == [
        "[   0.0 s] running, ranks started 2/4, ended 0/4",
        "[  60.0 s] running, ranks started 2/4, ended 0/4",
        "[  75.0 s] running, ranks started 4/4, ended 0/4",
        "[ 135.0 s] running, ranks started 4/4, ended 0/4",
        "[ 195.0 s] running, ranks started 4/4, ended 0/4",
        "[ 255.0 s] running, ranks started 4/4, ended 0/4",
    ]


# One state, then silence: a scheduler that takes its time.
SILENT = """
import time
from runner.cli.progress import job_display
from runner.cli.progress import display
from runner.jobs.watch import JobProgress
from runner.model.job import JobState
with job_display(2, quiet=False) as update:
    time.sleep(1.5)
    update(JobProgress(JobState("pending", "PENDING", "Resources [a]"), 0, 0, 0.0))
    time.sleep(3.5)
"""


def seconds_shown(program: str) -> tuple[str, set[int]]:
    """What that Python program shows on a terminal, and the numbers of seconds among it."""
    master, terminal = os.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "40"}
    shown = ""
    with subprocess.Popen([sys.executable, "-c", program], stderr=terminal, env=env) as child:
        os.close(terminal)
        while True:
            try:
                shown += os.read(master, 4096).decode("utf-8", "replace")
            except OSError:  # the terminal's last process has gone
                break
    os.close(master)
    assert child.returncode == 0
    return " ".join(shown.split()), {int(second) for second in re.findall(r"(\d+) s\b", shown)}


def test_in_a_terminal_the_time_is_seen_to_pass_while_nothing_is_reported() -> None:
    shown, seconds = seconds_shown(SILENT)
    assert "waiting for the scheduler" in shown
    assert "pending (Resources [a])" in shown  # no markup
    assert len(seconds & {0, 1, 2, 3, 4}) >= 3  # a busy machine draws some too late


def test_what_is_mostly_fast_is_shown_only_where_it_is_slow() -> None:
    program = "import time; from runner.cli.progress import slow\nwith slow('submitting'): time.sleep({})"
    assert seconds_shown(program.format(0.1)) == ("", set())
    shown, seconds = seconds_shown(program.format(3.5))
    assert "submitting" in shown
    assert len(seconds) >= 2  # of three: on a busy machine the first is over before it is drawn


def test_a_state_in_words() -> None:
    assert describe(JobProgress(None, 0, 0, 0.0), 2) == "waiting for the scheduler, ranks started 0/2, ended 0/2"
    pending = JobState("pending", "PENDING", "Reso\x1burces")
    assert describe(JobProgress(pending, 0, 0, 0.0), 2).startswith("pending (Reso\\x1burces), ")
    assert describe(JobProgress(JobState("unknown"), 0, 0, 0.0), 2).startswith("not known to the scheduler, ")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3.0, "0 s"), (59.9, "59 s"), (60.0, "1 min"), (7199.0, "1 h"), (86_400.0, "1 d"), (1e7, "115 d")],
)
def test_an_age_in_one_unit(seconds: float, shown: str) -> None:
    assert age(seconds) == shown
