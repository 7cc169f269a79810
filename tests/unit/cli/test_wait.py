"""What people see of long work, of a job while it is waited for, and of its verdict."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.cli import progress, shell
from runner.cli import run as command_line
from runner.cli.options import answer, say
from runner.cli.progress import describe, job_display
from runner.cli.wait import show_verdict
from runner.jobs.directory import Run
from runner.jobs.watch import JobProgress
from runner.model.job import JobState, Submitted
from runner.model.verdict import ArmFigure, Verdict
from tests.support.evidence import ended, write_record
from tests.support.plans import PLAN
from tests.support.terminals import Terminal
from tests.support.waiting import until

RUNNING = JobState("running", "RUNNING")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """One of four ranks that has no job yet."""
    made = Run(tmp_path)
    made.write("plan.json", PLAN)
    return made


def test_elsewhere_there_is_a_line_at_every_change_and_each_minute(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with job_display(run, quiet=False) as update:
        for second in range(0, 301, 5):
            update(JobProgress(RUNNING, 4 if second >= 75 else 2, 0, float(second)))
    assert capsys.readouterr().err.splitlines() == [
        "[   0.0 s] running, tasks started 2/4, ended 0/4",
        "[  60.0 s] running, tasks started 2/4, ended 0/4",
        "[  75.0 s] running, tasks started 4/4, ended 0/4",
        "[ 135.0 s] running, tasks started 4/4, ended 0/4",
        "[ 195.0 s] running, tasks started 4/4, ended 0/4",
        "[ 255.0 s] running, tasks started 4/4, ended 0/4",
    ]


def test_the_clock_is_the_jobs_and_does_not_restart(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.write("job.json", Submitted("slurm", "7", "", "", time.time() - 3600))
    for named in (False, True):
        with job_display(run, quiet=False, named=named) as update:
            update(JobProgress(RUNNING, 4, 0, 1.0))
    alone, of_several = capsys.readouterr().err.splitlines()
    assert alone.startswith("[3601.")
    assert of_several.startswith("[3601.")
    assert of_several.endswith(f" s] {run.run_id}: running, tasks started 4/4, ended 0/4")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_name_of_one_of_several_changes_no_terminal(is_terminal: bool) -> None:
    """A stranger names a run's directory as it likes."""
    path = "/nowhere/\x1b]0;title\x07"
    program = SILENT.replace('"/nowhere")), quiet=False', f"{path!r})), quiet=False, named=True")
    if is_terminal:
        shown = seconds_shown(program)[0]
    else:
        shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stderr
    assert "\\x1b]0;title\\x07: pending" in shown
    assert "\x1b]0" not in shown


@pytest.mark.parametrize(
    ("verdict", "more", "colour"),
    [(Verdict("ran"), {}, "\x1b[32m"), (Verdict("failed"), {}, "\x1b[31m"), (Verdict("cancelled"), {}, "\x1b[33m"),
     (Verdict("failed"), {"NO_COLOR": "1"}, "")],
)  # fmt: skip
def test_a_verdict_has_its_colour_in_a_terminal(
    verdict: Verdict, more: dict[str, str], colour: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = pty.openpty()
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        show_verdict(run, verdict)
        terminal.flush()
        assert os.read(leader, 4096).decode().startswith(f"{colour}verdict: {verdict.outcome}")
    os.close(leader)


# One state, then silence: a scheduler that takes its time.
SILENT = """
import time
from pathlib import Path
from runner.cli.progress import job_display
from runner.jobs.directory import Run
from runner.jobs.watch import JobProgress
from runner.model.job import JobState
with job_display(Run(Path("/nowhere")), quiet=False) as update:
    time.sleep(1.5)
    update(JobProgress(JobState("pending", "PENDING", "Resources [a]"), 0, 0, 0.0))
    time.sleep(3.5)
"""


def seconds_shown(program: str) -> tuple[str, set[int]]:
    """What that Python program shows on a terminal, and the numbers of seconds among it."""
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "40"}
    terminal = Terminal([sys.executable, "-c", program], env, Path.cwd())
    assert terminal.end(300) == 0
    return " ".join(terminal.seen.split()), {int(second) for second in re.findall(r"(\d+) s\b", terminal.seen)}


def test_in_a_terminal_the_time_is_seen_to_pass_while_nothing_is_reported() -> None:
    shown, seconds = seconds_shown(SILENT)
    assert "waiting for the scheduler" in shown
    assert "pending (Resources [a])" in shown  # no markup
    assert len(seconds & {0, 1, 2, 3, 4}) >= 3  # a busy machine draws some too late


def test_what_is_mostly_fast_is_shown_only_where_it_is_slow() -> None:
    program = "import time; from runner.cli.progress import slow\nwith slow('{}'): time.sleep({})\n"
    shown, seconds = seconds_shown(program.format("fast", 0.1) + program.format("submitting", 3.5))
    assert "submitting" in shown and "fast" not in shown
    assert len(seconds) >= 2  # of three: on a busy machine the first is over before it is drawn


def test_a_state_in_words() -> None:
    assert describe(JobProgress(None, 0, 0, 0.0), 2) == "waiting for the scheduler, tasks started 0/2, ended 0/2"
    pending = JobState("pending", "PEND\x07ING", "Reso\x1burces")
    assert describe(JobProgress(pending, 0, 0, 0.0), 2).startswith("pend\\x07ing (Reso\\x1burces), ")
    assert describe(JobProgress(JobState("unknown"), 0, 0, 0.0), 2).startswith("not known to the scheduler, ")


@pytest.mark.parametrize(
    ("done", "total", "elapsed_s", "shown"),
    [
        (512_000_000, 1_536_000_000, 4.0, "512 of 1536 MB, 128 MB/s, 8 s left"),
        (100_000_000, 20_000_000_000, 1.0, "100 of 20000 MB, 100 MB/s, 3:19 min left"),
        (512_000_000, None, 4.0, "512 MB, 128 MB/s"),
        (600_000_000, 512_000_000, 4.0, "600 MB, 150 MB/s"),
        (0, 512_000_000, 0.0, "0 MB, 0 MB/s"),
    ],
)
def test_bytes_rate_and_time_left_are_shown_as_far_as_they_are_known(
    done: int, total: int | None, elapsed_s: float, shown: str
) -> None:
    assert progress.amount(done, total, elapsed_s) == shown


def test_a_log_gets_a_plain_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("runner.cli.progress.time.monotonic", lambda: now)
    with progress.display() as shown:
        shown.step("squashing")
        for _ in range(48):
            now += 0.5
            shown.moved(round((now - 100) * 50e6), 2_000_000_000)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "[   0.0 s] squashing"
    assert said[1:] == ["    500 of 2000 MB, 50 MB/s, 30 s left", "    1000 of 2000 MB, 50 MB/s, 20 s left"]


def test_a_terminal_gets_the_amount_beside_the_spinner(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real terminal of its own."""
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(progress._Live, "every_s", 0.0)
        with progress.display() as shown:
            shown.step("squashing")
            shown.moved(100, 200)
            shown.moved(300_000_000, 600_000_000)
            said = ""
            while "300 of 600 MB" not in said:  # drawn by a thread, when it is its turn
                said += os.read(leader, 1 << 16).decode("utf-8", "replace")
    os.close(leader)
    assert "squashing" in said


HOSTILE = "rank 0 on n0\x1b[2J\x07\n\r\u202e\udcff\x00 ende"
SHOWN = "rank 0 on n0\\x1b[2J\\x07\\n\\r\\u202e\\udcff\\x00 ende"
ARMS = (ArmFigure("uncoupled", 39.96, 9.0, 1.0, 1.1, 30.0), ArmFigure("full", 30.0, 7.5, 1.3, 1.3, 40.0))
MEASURED = Verdict("measured", images_per_s=30.0, window_s=40.0, arms=ARMS)


@pytest.fixture
def as_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken away from what is printed, as on a terminal."""
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        (Verdict("ran", reasons=(HOSTILE,)), SHOWN),
        (Verdict("ran", proven=(HOSTILE,)), SHOWN),
        (Verdict("ran", remarks=(HOSTILE,)), SHOWN),
        (Verdict("ran", log=HOSTILE), f"  log: {SHOWN}\n"),
        (Verdict("ran", demonstration=HOSTILE), f"verdict: ran ({SHOWN})\n"),
        (Verdict("failed", fix=HOSTILE, who="user"), f"  fix (user): {SHOWN}\n"),
        (Verdict("ran", forced=(HOSTILE,)), f"  forced: {SHOWN}\n"),
        (Verdict("measured", images_per_s=3.0, window_s=4.0, demonstration=HOSTILE), f"   [{SHOWN}]\n"),
        (Verdict("failed", reasons=("Größe 日本 ñ",)), "Größe 日本 ñ"),
        (MEASURED, "  arm uncoupled: 40.0 images/s over 30.00 s, slowest rank 9.00\n  arm full: 30.0 images/s over "),
    ],
)
def test_a_verdict_is_shown_in_any_language_without_control_characters(
    verdict: Verdict, shown: str, capsys: pytest.CaptureFixture[str], as_terminal: None
) -> None:
    show_verdict(Run(Path(f"/runs/{HOSTILE}")), verdict)
    out = capsys.readouterr().out
    assert shown in out and f"/runs/{SHOWN}\n" in out
    assert all(map(str.isprintable, out.split("\n")))


def test_what_others_wrote_changes_no_terminal_and_a_script_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_terminal: None
) -> None:
    hostile = HOSTILE.replace("\udcff", "")
    answer({}, [hostile], as_json=False)
    assert capsys.readouterr().out == SHOWN.replace("\\udcff", "") + "\n"
    say("one\x1b]0;\u202e\ntwo")
    assert capsys.readouterr().err == "one\\x1b]0;\\u202e\ntwo\n"
    answer({}, hostile, as_json=False)
    assert capsys.readouterr().out == f"{hostile}\n"
    words = 'description: "D\\n\\e]0;x\\a\\u202e\\n"\n'
    (tmp_path / "s.yaml").write_text(f"name: o\nextends: box\n{words}")
    (tmp_path / "recipe.yaml").write_text(f"name: {tmp_path.name}\nimage: a\nprogram: [python]\n{words}")
    for command, path in (("site", tmp_path / "s.yaml"), ("recipe", tmp_path)):
        assert command_line([command, "show", str(path)]) == 0
        out = capsys.readouterr().out
        assert "D \\x1b]0;x\\x07\\u202e\n" in out and all(map(str.isprintable, out.split("\n")))


def test_a_shell_reports_that_its_job_has_ended(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by its time limit, where the shell itself goes on."""
    monkeypatch.setattr(shell, "_EVERY_S", 0.05)
    with shell._attached(run):
        until((run.path / "attached").exists)
        assert capsys.readouterr().err == ""
        (run.path / "ranks").mkdir()
        write_record(run, ended(0))
        until(lambda: "the job has ended\n" in capsys.readouterr().err)
