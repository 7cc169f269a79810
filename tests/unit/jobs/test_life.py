"""A run's end is judged and kept once, and records that become visible late, as on NFS, are waited for.

The scheduler is this machine's own, which knows a job by its exit marker; time passes on a clock of the test.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.core.errors import UnknownStateError
from runner.jobs.collect import Evidence
from runner.jobs.directory import Run
from runner.jobs.life import Standing, finish, standing
from runner.jobs.logs import Selection, follow
from runner.jobs.watch import Clock, JobProgress
from runner.model.job import ExitMarker, JobState, Submitted
from runner.model.plan import RESULTS
from runner.model.verdict import Verdict
from tests.support.evidence import GOOD, changed, ended, leave, report, with_plan, write_record, write_run
from tests.support.shell_files import stand_in

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
    (run.path / "verdict.json").unlink()
    (run.path / "verdict.json").mkdir()
    warnings: list[str] = []
    assert finish(run, unexpected, warnings.append) == verdict
    assert [each[: len("verdict.json cannot be kept in")] for each in warnings] == ["verdict.json cannot be kept in"]


def test_a_run_of_older_records_keeps_the_verdict_that_it_got(run: Run) -> None:
    run.write("ended.json", JobState("ended", "COMPLETED", exit_code=0))
    stored = Verdict("measured", images_per_s=1.0)
    run.write("verdict.json", stored)
    leave(run, "ranks/0.report.json", report(0, schema="1"))
    assert finish(run, unexpected, unexpected) == stored
    edited = msgspec.structs.replace(stored, images_per_s=2.0)
    (run.path / "verdict.json").write_bytes(msgspec.json.encode(edited))
    assert finish(run, unexpected, unexpected).outcome == "not-proven"


def test_a_job_that_its_scheduler_does_not_know_is_not_waited_for(run: Run) -> None:
    """One of another machine: it may still run there."""
    now = standing(run, unexpected, unexpected, clock=Time().clock())
    assert isinstance(now, Standing)
    assert now.progress.state == JobState("unknown", reason="of another boot or another machine")
    run.write("exit.json", ExitMarker("1", 3, 1.0))
    verdict = standing(run, clock=Time().clock())
    assert isinstance(verdict, Verdict)
    assert verdict.outcome == "failed"


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


def judged(run: Run, *later: tuple[float, Callable[[], object]]) -> tuple[Verdict, float]:
    """The verdict, and how many seconds it was waited for."""
    passing = Time(list(later))
    return finish(run, lambda progress: None, unexpected, clock=passing.clock()), passing.now_s


def marked(code: int, why: str = "") -> ExitMarker:
    return ExitMarker(JOB, code, 0.0, why)


Happens = Callable[[Path], tuple[float, Callable[[], object]] | None]


def late(name: str, at_s: float = 45.0, instead: str = "") -> Happens:
    """A file that is visible only then; until then another one is, of this content."""

    def hide(path: Path) -> tuple[float, Callable[[], object]]:
        hidden = (path / name).rename(path / "hidden")
        if instead:
            (path / name).write_text(instead)
        return at_s, lambda: hidden.rename(path / name)

    return hide


def unplanned(path: Path) -> tuple[float, Callable[[], object]] | None:
    """The record of a rank that was not planned stands for no other, which comes late."""
    write_record(Run(path), ended(99))
    return late("ranks/1.exit.json", 10.0)(path)


def never_started(run: Path) -> None:
    (run / "logs/batch.err").write_text("slurmstepd: error: pyxis: container start failed with error code: 1\n")


def never_started_and_unlistable(run: Path) -> None:
    never_started(run)
    (run / "nccl").rmdir()


def nothing(_run: Path) -> None:
    pass


LOG = "n0:1:1 [0] NCCL INFO Using network IB\nn0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0\n"


def nccl_logs_come(run: Path) -> tuple[float, Callable[[], object]]:
    return 1.0, lambda: [(run / "nccl" / f"n0.{rank}.log").write_text(LOG) for rank in range(4)]


GOOD_END = changed(marker=marked(0))
ONE_FAILED = changed(marker=marked(7), exits=GOOD.exits | {3: ended(3, **FAILURE)})
ALL_STOPPED = {rank: ended(rank, **STOPPED) for rank in range(4)}
NEVER_BEGAN = changed(starts={}, exits={}, reports={}, result=None, marker=marked(1))
WITH_NCCL_LOGS = with_plan(GOOD_END, env=(("NCCL_DEBUG_FILE", f"{RESULTS}/nccl/%h.%p.log"),))
CRASHED, WHOLE = "rank 3 on n1 exited with code 7", (45.0, 76.0)
# Evidence, what becomes of the directory at once and later, how long it is waited, and what the verdict says then.
WAITED: dict[str, tuple[Evidence, Happens, tuple[float, float], str]] = {
    **{f"a good run's {name} is late": (GOOD_END, late(name), WHOLE, "measured")
        for name in ("ranks/3.exit.json", "ranks/0.start.json", "exit.json")},
    "the record of the cause is late": (replace(ONE_FAILED, exits=ALL_STOPPED | {3: ended(3, **FAILURE)}),
        late("ranks/3.exit.json"), WHOLE, CRASHED),
    "a failed run's marker is late": (ONE_FAILED, late("exit.json"), WHOLE, CRASHED),
    "a time limit, and a start record is late": (changed(marker=marked(1, "TIMEOUT"), exits={}, reports={},
        result=None), late("ranks/2.start.json"), WHOLE, "ranks 0, 1, 2, 3 did not finish the program"),
    "cancelled, and an exit record is late": (changed(marker=marked(1, "CANCELLED"), exits=ALL_STOPPED),
        late("ranks/1.exit.json"), WHOLE, "ranks 0, 1, 2, 3 left a report, but did not finish the program"),
    "a record that is not whole yet": (GOOD_END, late("ranks/2.start.json", 20.0, "{"), (20.0, 26.0), "measured"),
    "a record beyond the plan": (GOOD_END, unplanned, (10.0, 16.0), "beyond the plan: rank 99"),
    "NCCL's logs come": (WITH_NCCL_LOGS, nccl_logs_come, (0.5, 1.5), "measured proven"),
    "all is there": (GOOD_END, nothing, (0.0, 0.0), "measured"),
    "no record matters": (changed(marker=marked(1, "NODE_FAIL"), exits={}, starts={}, reports={}), nothing, (0.0, 0.0),
        "NODE_FAIL"),
    "a failure needs no report": (replace(ONE_FAILED, reports={}, result=None), nothing, (0.0, 0.0), CRASHED),
    "reports come before exit records": (changed(marker=marked(0), reports={}, result=None), nothing, (0.0, 0.0),
        "left no report of the training"),
    "what never comes": (replace(GOOD_END, exits={rank: ended(rank) for rank in (0, 1, 2)}), nothing, (75.0, 75.0),
        "no exit record of rank 3"),
    "a record that stays damaged": (GOOD_END, late("ranks/2.start.json", 999.0, "{"), (75.0, 75.0),
        "a record cannot be read"),
    "no container started: a new listing is enough": (NEVER_BEGAN, never_started, (2.0, 2.0),
        "pyxis: container start failed"),
    "no container started, and no new listing": (NEVER_BEGAN, never_started_and_unlistable, (75.0, 75.0),
        "pyxis: container start failed"),
    "NCCL's logs: a new listing is enough": (WITH_NCCL_LOGS, nothing, (2.0, 2.0), "unproven"),
    "NCCL's logs where no figure is claimed": (with_plan(replace(WITH_NCCL_LOGS, result=None), result="if-left"),
        nothing, (0.0, 0.0), "ran"),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITED)
def test_what_is_not_there_is_waited_for_as_long_as_it_may_be_hidden(run: Run, name: str) -> None:
    evidence, happens, (least_s, most_s), says = WAITED[name]
    write_run(run, evidence)
    later = happens(run.path)
    verdict, waited_s = judged(run, *filter(None, [later]))
    assert least_s - 0.01 <= waited_s <= most_s + 0.01
    assert says in " ".join((verdict.outcome, verdict.transport, *verdict.reasons, verdict.log))
    assert all(path.name.endswith(".json") for path in run.ranks.iterdir())
    # `wait` after `submit --wait`, and `status`, say the same.
    assert judged(run) == (standing(run), 0.0) == (verdict, 0.0)


def test_a_local_file_system_needs_2_s() -> None:
    assert Clock().settling_s(Run(Path("/dev/shm"))) == 2.0
    assert Clock().settling_s(Run(Path("/proc"))) == 75.0


def test_an_unknown_end_is_not_kept_and_the_scheduler_is_queried_again(run: Run) -> None:
    write_run(run, changed(marker=None, exits={}, reports={}, result=None))
    assert judged(run)[0].outcome == "unknown"
    assert not (run.path / "verdict.json").exists()
    for rank in range(4):
        write_record(run, ended(rank, **STOPPED))
    run.write("exit.json", marked(1, "TIMEOUT"))
    assert judged(run)[0].reasons[0] == "the job ran into its time limit"


def test_an_unknown_verdict_of_earlier_is_no_answer(run: Run) -> None:
    write_run(run, changed(marker=marked(0)))
    run.write("verdict.json", Verdict("unknown"))
    run.write("ended.json", JobState("unknown"))
    now = standing(run, clock=Time().clock())
    assert isinstance(now, Verdict)
    assert now.outcome == "measured"
    run.write("ended.json", JobState("ended", "SPECIAL_EXIT"))
    assert judged(run)[0].outcome == "measured"


def slurm(run: Run, clients: Path, **bodies: str) -> None:
    """The run's job is one of Slurm, whose clients do so."""
    run.write("job.json", Submitted("slurm", "5", str(clients), "0", time.time()))
    for program, body in bodies.items():
        stand_in(clients, program, body)


UNKNOWN_JOB = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


def test_a_reported_end_counts_when_the_scheduler_has_forgotten_the_job(run: Run, tmp_path: Path) -> None:
    """All records are good, and Slurm says FAILED: unknown, and no good run as soon as Slurm no longer says so."""
    write_run(run, changed(marker=marked(0)))
    slurm(run, tmp_path, scontrol=f"printf 'JobId=5\\n   JobState=FAILED ExitCode=1:0\\n   WorkDir={run.path}\\n'")
    first, _ = judged(run)
    assert first.outcome == "unknown"
    slurm(run, tmp_path, scontrol=UNKNOWN_JOB)
    assert judged(run)[0] == first


@pytest.mark.parametrize("says", ["scontrol", "sacct"])
def test_a_job_that_never_had_a_node_has_left_nothing(run: Run, tmp_path: Path, says: str) -> None:
    """Cancelled while it was pending."""
    write_run(run, changed(starts={}, exits={}, reports={}, result=None, marker=None))
    shown = f"JobId=5\\n   JobState=CANCELLED Reason=None\\n   NodeList=(null)\\n   WorkDir={run.path}\\n"
    scontrol = f"printf '{shown}'" if says == "scontrol" else UNKNOWN_JOB
    slurm(run, tmp_path, scontrol=scontrol, sacct=f"echo '7|CANCELLED by 7|0:0|None assigned|{run.path}'")
    verdict, waited_s = judged(run)
    assert (verdict.reasons[0], waited_s) == ("the job was cancelled by uid 7", 0.0)


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_scheduler_of_many_users_is_queried_each_30_s_and_when_the_run_directory_changes(
    run: Run, tmp_path: Path, *, is_followed: bool
) -> None:
    """Ranks begin at 100 s; all is over at 205 s, and the controller takes 3 s more to say so."""
    write_run(run, changed(marker=None, exits={}, reports={}, result=None, starts={}))
    passing, asked = Time(), list[float]()
    shown = f"JobId=5\\n   JobState=$(cat {tmp_path}/phase) Reason=None\\n   WorkDir={run.path}\\n"
    slurm(run, tmp_path, scontrol=f'echo >>{tmp_path}/asked; printf "{shown}"')

    def state(name: str) -> None:
        (tmp_path / "phase").write_text(name)

    def on_progress(_progress: JobProgress) -> None:
        asked.extend([passing.now_s] * (len((tmp_path / "asked").read_bytes()) - len(asked)))

    def over() -> None:
        for rank in GOOD.exits:
            write_record(run, GOOD.exits[rank])
            write_record(run, GOOD.reports[rank])
        run.write("exit.json", marked(0))

    def begun() -> None:
        for record in GOOD.starts.values():
            write_record(run, record)

    state("PENDING")
    passing.later += [
        (100.0, begun),
        (101.0, lambda: state("RUNNING")),
        (205.0, over),
        (208.0, lambda: state("COMPLETED")),
    ]
    if is_followed:
        follow(run, Selection(), lambda *_: None, on_progress, clock=passing.clock())
    else:
        finish(run, on_progress, unexpected, clock=passing.clock())
    assert asked[0] == 0.0
    while_nothing_changes = [second for second in asked if second < 100.0 or 106.0 < second < 205.0]
    assert len(while_nothing_changes) <= 8
    gaps = [later - earlier for earlier, later in pairwise(while_nothing_changes)]
    assert min(gaps) >= 30.0
    assert any(100.0 <= second < 106.0 for second in asked), "ranks have begun"
    assert passing.now_s < 218.0, "the end of the script is a reason to ask often"


@pytest.mark.parametrize("limit_s", [0.0, 10.0])
def test_waiting_ends_when_the_time_is_over_and_while_records_are_awaited(run: Run, limit_s: float) -> None:
    if limit_s:
        write_run(run, changed(marker=marked(0), exits={0: ended(0)}))
    seen: list[JobProgress] = []
    passing = Time()
    with pytest.raises(UnknownStateError, match=f"has not ended within {limit_s:g} s"):
        finish(run, seen.append, unexpected, timeout_s=limit_s, clock=passing.clock())
    assert seen
    assert passing.now_s < 20.0
    assert not (run.path / "verdict.json").exists()
