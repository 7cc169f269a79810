"""A run's end is judged and kept once, and records that become visible late, as on NFS, are waited for.

The scheduler is this machine's own, which knows a job by its exit marker; time passes on a clock of the test.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.core.errors import UnknownStateError
from runner.jobs.collect import Evidence
from runner.jobs.directory import Run
from runner.jobs.life import Standing, finish, standing
from runner.jobs.watch import Clock, JobProgress
from runner.model.job import ExitMarker, JobState, Submitted
from runner.model.plan import RESULTS
from runner.model.verdict import Verdict
from tests.support.evidence import GOOD, changed, ended, report, start, write_record, write_run

JOB = "999999.1.00000000"  # of another boot: the scheduler knows no more than the marker says


@pytest.fixture
def run(run: Run) -> Run:
    """A run whose job this machine's scheduler has forgotten, or never had."""
    run.write("job.json", Submitted("local", JOB, "", "0", time.time()))
    return run


def unexpected(what: object) -> None:
    raise AssertionError(what)


def test_a_run_whose_end_is_known_is_judged_without_waiting_and_keeps_its_verdict(run: Run) -> None:
    run.write("ended.json", JobState("ended", "TIMEOUT"))
    verdict = finish(run, unexpected, unexpected)
    assert verdict.outcome != "measured"
    assert run.read("verdict.json", Verdict) == verdict == standing(run)


def test_a_verdict_that_cannot_be_kept_is_returned_with_a_warning(run: Run) -> None:
    run.write("ended.json", JobState("ended", "TIMEOUT"))
    (run.path / "verdict.json").mkdir()
    warnings: list[str] = []
    assert finish(run, unexpected, warnings.append).outcome != "measured"
    assert len(warnings) == 1
    assert warnings[0].startswith("verdict.json cannot be kept in")


def test_a_run_of_older_records_keeps_the_verdict_that_it_got(run: Run) -> None:
    run.write("ended.json", JobState("ended", "COMPLETED", exit_code=0))
    stored = Verdict("measured", images_per_s=1.0)
    run.write("verdict.json", stored)
    run.write("ranks/0.report.json", report(0, schema="1"))
    assert finish(run, unexpected, unexpected) == stored


def test_waiting_ends_when_the_time_is_over(run: Run) -> None:
    seen: list[JobProgress] = []
    with pytest.raises(UnknownStateError, match="has not ended within 0 s"):
        finish(run, seen.append, unexpected, timeout_s=0.0)
    assert seen
    assert not (run.path / "verdict.json").exists()


def test_a_job_that_its_scheduler_does_not_know_is_not_waited_for(run: Run) -> None:
    """One of another machine: it may still run there."""
    now = standing(run, unexpected, unexpected)
    assert isinstance(now, Standing)
    assert now.progress.state == JobState("unknown", reason="of another boot or another machine")
    run.write("exit.json", ExitMarker("1", 3, 1.0))
    verdict = standing(run)
    assert isinstance(verdict, Verdict)
    assert verdict.outcome == "failed"


def test_without_a_readable_plan_the_number_of_ranks_is_unknown(run: Run) -> None:
    assert run.tasks == 4
    (run.path / "plan.json").write_text("{")
    assert run.tasks == 0


def test_to_show_a_state_nothing_of_the_judgement_is_imported() -> None:
    modules = "runner.cli.wait, runner.cli.status, runner.jobs.life, runner.jobs.facts"
    code = f"import sys, {modules}; print([name for name in sys.modules if 'runner.' in name])"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'runner.jobs.life'" in imported
    for module in ("runner.jobs.verdict", "runner.jobs.collect", "runner.statistics"):
        assert module not in imported


FAILURE: dict[str, Any] = {"status": 7, "exit_code": 7}
STOPPED: dict[str, Any] = {"status": 143, "exit_code": None, "signal": 15, "signals_forwarded": (15,)}


@dataclass
class Time:
    """A clock on which time passes only during a sleep; ``later``: what happens at which second."""

    later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds
        for event in [event for event in self.later if event[0] <= self.now_s]:
            self.later.remove(event)
            event[1]()

    def clock(self, settle_s: float = 75.0) -> Clock:
        return Clock(self.monotonic, self.sleep, settle_s)


def judged(run: Run, clock: Clock) -> Verdict:
    return finish(run, lambda progress: None, unexpected, clock=clock)


def marked(code: int, why: str = "") -> ExitMarker:
    return ExitMarker(JOB, code, 0.0, why)


# Kind of end -> the evidence, and which of its records is late: (folder and name, what it says when it is there).
LATE: dict[str, tuple[Evidence, str, str]] = {
    "good, an exit record": (changed(marker=marked(0)), "ranks/3.exit.json", ""),
    "good, a start record": (changed(marker=marked(0)), "ranks/0.start.json", ""),
    "good, the marker": (changed(marker=marked(0)), "exit.json", ""),
    "failed, the record of the cause": (changed(marker=marked(7),
        exits={rank: ended(rank, **STOPPED) for rank in (0, 1, 2)} | {3: ended(3, **FAILURE)}), "ranks/3.exit.json",
        "rank 3 on n1 exited with code 7"),
    "failed, the marker": (changed(marker=marked(7), exits=GOOD.exits | {3: ended(3, **FAILURE)}), "exit.json",
        "rank 3 on n1 exited with code 7"),
    "time limit, a start record": (changed(marker=marked(1, "TIMEOUT"), exits={}, reports={}, result=None),
        "ranks/2.start.json", "ranks 0, 1, 2, 3 did not finish the program"),
    "cancelled, an exit record": (changed(marker=marked(1, "CANCELLED"),
        exits={rank: ended(rank, **STOPPED) for rank in range(4)}), "ranks/1.exit.json",
        "ranks 0, 1, 2, 3 left a report, but did not finish the program"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LATE)
def test_a_record_that_comes_45_s_late_is_waited_for(run: Run, kind: str) -> None:
    evidence, name, says = LATE[kind]
    write_run(run, evidence)
    hidden = run.path / "hidden"
    (run.path / name).rename(hidden)
    passing = Time([(45.0, lambda: hidden.rename(run.path / name))])
    verdict = judged(run, passing.clock())
    assert 45.0 <= passing.now_s <= 76.0
    if says:
        assert says in verdict.reasons
    else:
        assert verdict.outcome == "measured"
    # `wait` after `submit --wait`, and `status`, say the same.
    later = Time()
    assert judged(run, later.clock()) == standing(run) == verdict
    assert later.now_s == 0.0


def test_what_never_comes_is_believed_missing_after_75_s(run: Run) -> None:
    write_run(run, changed(marker=marked(0), exits={rank: ended(rank) for rank in (0, 1, 2)}))
    passing = Time()
    verdict = judged(run, passing.clock())
    assert verdict.reasons[0] == "no exit record of rank 3"
    assert passing.now_s == pytest.approx(75.0)
    assert judged(run, Time().clock()) == verdict


def test_a_local_file_system_needs_2_s() -> None:
    assert Clock().settling_s(Run(Path("/dev/shm"))) == 2.0
    assert Clock().settling_s(Run(Path("/proc"))) == 75.0


@pytest.mark.parametrize(
    "evidence",
    [
        changed(marker=marked(0)),
        changed(marker=marked(1, "NODE_FAIL"), exits={}, starts={}, reports={}),
        changed(marker=marked(7), exits=GOOD.exits | {3: ended(3, **FAILURE)}, reports={}, result=None),
        changed(marker=marked(0), reports={}, result=None),
    ],
    ids=["all is there", "no record matters", "a failure needs no report", "reports come before exit records"],
)
def test_there_is_no_wait_where_nothing_can_change(run: Run, evidence: Evidence) -> None:
    write_run(run, evidence)
    passing = Time()
    judged(run, passing.clock())
    assert passing.now_s == 0.0


def test_an_unknown_end_is_not_kept_and_the_scheduler_is_queried_again(run: Run) -> None:
    write_run(run, changed(marker=None, exits={}, reports={}, result=None))
    assert judged(run, Time().clock()).outcome == "unknown"
    assert not (run.path / "verdict.json").exists()
    for rank in range(4):
        write_record(run, ended(rank, **STOPPED))
    run.write("exit.json", marked(1, "TIMEOUT"))
    assert judged(run, Time().clock()).reasons[0] == "the job ran into its time limit"


def test_an_unknown_verdict_of_earlier_is_no_answer(run: Run) -> None:
    write_run(run, changed(marker=marked(0)))
    run.write("verdict.json", Verdict("unknown"))
    run.write("ended.json", JobState("unknown"))
    now = standing(run, clock=Time().clock())
    assert isinstance(now, Verdict)
    assert now.outcome == "measured"
    run.write("ended.json", JobState("ended", "SPECIAL_EXIT"))
    assert judged(run, Time().clock()).outcome == "measured"


def test_a_reported_end_counts_when_the_scheduler_has_forgotten_the_job(run: Run, tmp_path: Path) -> None:
    """All records are good, and Slurm says FAILED: unknown, and no good run as soon as Slurm no longer says so."""
    write_run(run, changed(marker=marked(0)))
    run.write("job.json", Submitted("slurm", "5", str(tmp_path), "0", time.time()))
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\nprintf 'JobId=5\\n   JobState=FAILED ExitCode=1:0\\n   WorkDir={run.path}\\n'\n")
    scontrol.chmod(0o755)
    first = judged(run, Time().clock())
    assert first.outcome == "unknown"
    scontrol.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n")
    assert judged(run, Time().clock()) == first


def test_a_limit_on_the_waiting_holds_while_records_are_awaited(run: Run) -> None:
    write_run(run, changed(marker=marked(0), exits={0: ended(0)}))
    passing = Time()
    with pytest.raises(UnknownStateError, match="has not ended within 10 s"):
        finish(run, lambda progress: None, unexpected, timeout_s=10.0, clock=passing.clock())
    assert passing.now_s < 20.0


def test_a_record_that_cannot_be_read_may_not_be_whole_yet(run: Run) -> None:
    write_run(run, changed(marker=marked(0)))
    whole = (run.ranks / "2.start.json").read_text()
    (run.ranks / "2.start.json").write_text(whole[:40])
    passing = Time([(20.0, lambda: (run.ranks / "2.start.json").write_text(whole))])
    assert judged(run, passing.clock()).outcome == "measured"
    assert 20.0 <= passing.now_s < 26.0


def test_a_record_that_stays_damaged_is_damaged(run: Run) -> None:
    write_run(run, changed(marker=marked(0)))
    (run.ranks / "2.start.json").write_text(msgspec.json.encode(start(2)).decode()[:40])
    passing = Time()
    assert "a record cannot be read" in judged(run, passing.clock()).reasons[0]
    assert passing.now_s == pytest.approx(75.0)


def test_the_record_of_a_rank_that_was_not_planned_stands_for_no_other(run: Run) -> None:
    write_run(run, changed(marker=marked(0)))
    (run.ranks / "1.exit.json").rename(run.path / "hidden")
    write_record(run, ended(99))
    passing = Time([(10.0, lambda: (run.path / "hidden").rename(run.ranks / "1.exit.json"))])
    judged(run, passing.clock())
    assert 10.0 <= passing.now_s < 16.0


@pytest.mark.parametrize("says", ["scontrol", "sacct"])
def test_a_job_that_never_had_a_node_has_left_nothing(run: Run, tmp_path: Path, says: str) -> None:
    """Cancelled while it was pending."""
    write_run(run, changed(starts={}, exits={}, reports={}, result=None, marker=None))
    run.write("job.json", Submitted("slurm", "5", str(tmp_path), "0", time.time()))
    of_controller = f"JobId=5\\n   JobState=CANCELLED Reason=None\\n   NodeList=(null)\\n   WorkDir={run.path}\\n"
    answers = {
        "scontrol": f"printf '{of_controller}'"
        if says == "scontrol"
        else "echo 'Invalid job id specified' >&2; exit 1",
        "sacct": f"echo 'CANCELLED by 7|0:0|None assigned|{run.path}'",
    }
    for program, body in answers.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / program).chmod(0o755)
    passing = Time()
    assert judged(run, passing.clock()).reasons[0] == "the job was cancelled by uid 7"
    assert passing.now_s == 0.0


NEVER_BEGAN = changed(starts={}, exits={}, reports={}, result=None, marker=marked(1))


def container_fails(run: Run) -> None:
    (run.logs / "batch.err").write_text("slurmstepd: error: pyxis: container start failed with error code: 1\n")


def test_where_no_container_started_a_new_listing_is_enough(run: Run) -> None:
    write_run(run, NEVER_BEGAN)
    container_fails(run)
    passing = Time()
    assert "pyxis: container start failed" in judged(run, passing.clock()).log
    assert passing.now_s == pytest.approx(2.0)
    assert not [name for name in run.ranks.iterdir() if not name.name.endswith(".json")]


def test_without_a_new_listing_it_is_not(run: Run) -> None:
    write_run(run, NEVER_BEGAN)
    container_fails(run)
    (run.path / "nccl").rmdir()
    passing = Time()
    judged(run, passing.clock())
    assert passing.now_s == pytest.approx(75.0)


LOG = "n0:1:1 [0] NCCL INFO Using network IB\nn0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0\n"


@pytest.mark.parametrize("late_s", [1.0, None])
def test_nccls_logs_are_waited_for_as_long_as_a_new_listing_takes(run: Run, late_s: float | None) -> None:
    env = (("NCCL_DEBUG_FILE", f"{RESULTS}/nccl/%h.%p.log"),)
    write_run(run, changed(marker=marked(0), plan=msgspec.structs.replace(GOOD.plan, env=env)))

    def leave_logs() -> None:
        for rank in range(4):
            (run.path / "nccl" / f"n0.{rank}.log").write_text(LOG)

    passing = Time([] if late_s is None else [(late_s, leave_logs)])
    assert judged(run, passing.clock()).transport == ("unproven" if late_s is None else "proven")
    assert passing.now_s == pytest.approx(2.0 if late_s is None else 1.0, abs=0.5)


def test_without_a_figure_nccls_logs_are_not_waited_for(run: Run) -> None:
    env = (("NCCL_DEBUG_FILE", f"{RESULTS}/nccl/%h.%p.log"),)
    plan = msgspec.structs.replace(GOOD.plan, env=env, result="if-left")
    write_run(run, changed(marker=marked(0), plan=plan, result=None))
    passing = Time()
    assert judged(run, passing.clock()).outcome == "ran"
    assert passing.now_s == 0.0
