"""What a run is worth: each fault gets its own sentence and exit code; nothing unproven counts as success."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runner.diagnosis import logs
from runner.jobs.collect import Evidence, nodes_of
from runner.jobs.verdict import judge
from runner.model.job import Cancelled, ExitMarker, JobState
from runner.model.plan import Starter
from runner.model.records import Result
from runner.model.verdict import Verdict
from tests.support.evidence import (
    COMPLETED,
    GOOD,
    changed,
    ended,
    long_run,
    on_all,
    report,
    start,
    watched_run,
    with_plan,
)  # fmt: skip
from tests.support.plans import PLAN
from tests.support.series import group_times

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from _typeshed import TraceFunction


STOPPED = {"status": 143, "exit_code": None, "error": "stopped-before-start", "message": "stopped by SIGTERM"}
FAILED = JobState("ended", "FAILED", exit_code=143)
CANCELLED = JobState("ended", "CANCELLED")


def timed(groups: int = 200, **shape: Any) -> Evidence:
    """A run of so many groups whose times have this shape."""
    return long_run(group_times(Random(1), groups, mean_s=1.0, **shape))


def test_all_proven_is_measured_with_the_figure_of_the_ranks_own_records() -> None:
    verdict = judge(GOOD)
    assert (verdict.outcome, verdict.exit_code, verdict.reasons) == ("measured", 0, ())
    assert verdict.images_per_s == verdict.uncut_images_per_s == pytest.approx(240 / 3.3)
    assert (verdict.window_s, verdict.precision, verdict.steady) == (3.3, None, None)
    assert "4 distinct devices, by the UUIDs that the framework reported" in verdict.proven
    assert any("before the first allreduce" in sentence for sentence in verdict.proven)
    assert verdict.forced == ()


def test_what_was_planned_and_overridden_goes_with_every_verdict() -> None:
    for evidence in (GOOD, changed(exits={}), changed(state=JobState("ended", "TIMEOUT"))):
        verdict = judge(with_plan(replace(evidence, forced=("submit-directory",)), demonstration="CPU, fake GPUs"))
        assert verdict.forced == ("submit-directory",)
        assert verdict.demonstration == "CPU, fake GPUs"


def test_a_figure_that_claims_something_has_an_interval_and_says_whether_it_is_steady() -> None:
    verdict = judge(timed(60, deviation=0.001))
    assert (verdict.outcome, verdict.demonstration, verdict.steady, verdict.remarks) == ("measured", "", True, ())
    assert verdict.precision is not None
    assert verdict.precision[0] < 400.0 < verdict.precision[1]


def test_what_was_cut_is_reported_with_the_figure_of_the_whole_window() -> None:
    verdict = judge(timed(600, start=0.3, decay=0.02))
    assert verdict.uncut_images_per_s is not None and verdict.images_per_s is not None
    assert verdict.images_per_s > verdict.uncut_images_per_s * 1.002
    assert f"the first {verdict.cut_steps} steps" in verdict.remarks[0]
    assert f"the whole window gives {verdict.uncut_images_per_s:.1f} images/s" in verdict.remarks[0]


def tuned(value: str) -> Evidence:
    return replace(SHORT, starts=on_all(start, environment={"HOROVOD_AUTOTUNE": value}))


SHORT = long_run([1.0] * 60)
PLAIN = long_run(group_times(Random(1), 60, mean_s=1.0), compute_quarters_p50_s=(0.05,) * 4)
SLOW = msgspec.structs.replace(PLAIN.reports[3], compute_quarters_p50_s=(0.06,) * 4)
TUNED = "HOROVOD_AUTOTUNE changed the run while it was timed"
# The evidence, whether it is steady, and what is said of it: a remark, or why it makes no claim. "" for nothing.
REMARKED = [
    (timed(deviation=0.002, step=0.05), False, r"after \d+ groups the run was 4\.9 % slower \(99 %: 4\..*"),
    (timed(deviation=0.002, step=-0.05), False, r"after \d+ groups the run was 5\.. % faster \(99 %: 5\..*"),
    (timed(deviation=0.002, step=0.05, step_at=0.2), False,
        "the first 40 groups were 4.7 % faster: a change of level and no warm-up, so nothing was left out"),
    (timed(60, deviation=0.01), None,
        r"a change of up to [1-9][0-9.]+ % can hide in this window, and 1\.0 % is the limit; "
        r"a window of about ([12]\d\d) s may tell: --set window-seconds=\1"),
    (timed(600, deviation=0.002, trend=0.0055), None,
        r".* % can hide in this window, and 1\.0 % is the limit: a longer one may not tell either"),
    (replace(PLAIN, reports=PLAIN.reports | {3: SLOW}), None,
        r"slow ranks: 3 \(by 20.0 %\); without them a step takes up to 10.0 % less"),
    (long_run([1.0] * 60, warmup_s=12.0), True,
        r"demonstration, no performance claim: short warm-up \(50 steps, 12 s; 50 and 30 s are needed\)"),
    (long_run([0.1] * 60), True,
        r"demonstration, no performance claim: short window \(600 steps, 6 s; 200 and 30 s are needed\)"),
    # Autotuning is on where Horovod reads a number above zero.
    *((tuned(value), True, f"demonstration, no performance claim: {TUNED}") for value in ("1", "2x", " +01")),
    *((tuned(value), True, "") for value in ("0", "", "false", "true", "-1", "00", "\u0661")),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "steady", "says"), REMARKED)
def test_what_is_known_of_a_figure_stands_beside_it(evidence: Evidence, steady: bool | None, says: str) -> None:
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.steady) == ("measured", steady)
    assert any(re.fullmatch(says, each) for each in (*verdict.remarks, verdict.demonstration)), verdict


TWO_GUESSES = {rank: start(rank, device_uuid=f"GPU-{rank // 2 * 2}") for rank in range(4)}
PROVEN: dict[str, tuple[Evidence, str]] = {
    "the framework's device before the launcher's guess": (changed(starts=TWO_GUESSES,
        reports={rank: report(rank, device_uuid=f"GPU-{rank}" if rank != 3 else None) for rank in range(4)}),
        "it is assumed that each rank used its own"),
    "each rank sees its own GPU only": (changed(reports=on_all(report, device_uuid="index-0")),
        "it is assumed that each rank used its own"),
    "parts of one GPU": (changed(starts=on_all(start, device_kind="cpu", device_uuid=None),
        reports={rank: report(rank, device_uuid=f"MIG-{rank}") for rank in range(4)}),
        "4 distinct devices, by the UUIDs"),
    "divided parameters whose reduced gradients are the mean": (changed(reports={rank: report(
        rank, reduced_gradients_error=error) for rank, error in enumerate((0.0, 1e-6, 0.01, 0.0))}),
        "what they reduced was their mean in the first step"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROVEN)
def test_what_is_proven_another_way_is_measured_and_says_how(name: str) -> None:
    evidence, says = PROVEN[name]
    verdict = judge(evidence)
    assert verdict.outcome == "measured"
    assert any(says in sentence for sentence in verdict.proven), verdict.proven


def failed(*, state: JobState = FAILED, exits: dict[int, Any] | None = None, **changes: Any) -> Evidence:
    """A job that failed; of a good run these ranks ended so."""
    records = GOOD.exits | {rank: ended(rank, **fields) for rank, fields in (exits or {}).items()}
    return changed(**({"state": state, "exits": records} | changes))


def without_container(line: str) -> Evidence:
    """No rank started, and this is in rank 0's log."""
    fault = logs.container_fault([line], some_started=False)
    assert fault is not None
    state = JobState("ended", "FAILED", exit_code=1)
    return changed(
        state=state, marker=None, starts={}, exits={}, reports={},
        container_faults=(replace(fault, file="rank-0.err", rank=0),),
    )  # fmt: skip


def killed(signal: int, **changes: Any) -> dict[str, Any]:
    return {"status": 128 + signal, "exit_code": None, "signal": signal, **changes}


def refused(error: str, status: int, message: str) -> dict[str, Any]:
    return {"status": status, "exit_code": None, "error": error, "message": message}


def exited(**changes: Any) -> dict[str, Any]:
    return {"status": 1, "exit_code": 1, **changes}


def on_clocks(exits: dict[int, Any], *clocks: tuple[float | None, float | None]) -> Evidence:
    """Ranks 2 and 3 on n1, whose clock differs from rank 0's as each has measured: offset and error."""
    clocks = clocks or ((0.0, 0.001),)
    measured = zip((2, 3), (clocks[0], clocks[-1]), strict=True)
    of_n1 = {rank: start(rank, clock_offset_s=offset, clock_error_s=error) for rank, (offset, error) in measured}
    return failed(exits=exits, starts=GOOD.starts | of_n1, state=JobState("ended", "FAILED", exit_code=1))


IMAGE_WENT = {
    "its own": "ch-run[7]: error: can't execve(2): /bin/bash: Transport endpoint is not connected (ch_core.c 107)",
    "its own, as it goes": "ch-run[24]: error: can't execve(2): /bin/bash: Software caused connection abort (103)",
    "joined": "ch-run[7]: error: join: no PID 2947: /proc/2947/ns/user not found (ch_core.c:372)",
}
STARTED_ALONE = {rank: start(rank, met=False) for rank in (0, 2)}
OUT_OF_MEMORY = "it ran out of memory: the kernel ended it at 183 MiB; the job has 200 MiB on each node"
# The evidence, the outcome, and the first sentences of its verdict.
ENDS: dict[str, tuple[Evidence, str, tuple[str, ...]]] = {
    "the first rank that failed by itself": (failed(exits={0: killed(15, ended_s=10.0),
        1: {"status": 7, "exit_code": 7, "ended_s": 11.0}, 2: killed(15, ended_s=12.0, signals_forwarded=(15,)),
        3: {"status": 1, "exit_code": 1, "ended_s": 13.0}}), "failed",
        ("rank 1 on n0 exited with code 7", "ranks 0, 2 were then stopped too", "rank 3 failed too")),
    # srun's own SIGKILL takes the launcher, too: a record of a killed program tells of the kernel's.
    "a program that was killed by itself": (failed(exits={0: {"status": 1, "exit_code": 1, "ended_s": 10.2},
        3: killed(9, ended_s=10.0)}), "failed",
        ("rank 3 on n1 was ended by signal 9 (SIGKILL)",
        "for lack of memory, or by hand: it had used 0 MiB; the job has all memory of its nodes", "rank 0 failed too")),
    "a rank that was killed with its launcher": (with_plan(directives=(("mem", "250G"),),
        of=changed(state=FAILED, exits={r: ended(r, **STOPPED) for r in (0, 1, 3)}, task_ends={2: "Killed"})), "failed",
        ("rank 2 on n1 left no exit record; srun reports: Killed", "often out of memory; the job asked for mem=250G")),
    "python, where only python3 is": (failed(state=COMPLETED,
        exits={0: refused("program-not-found", 127, "python: No such file or directory")}), "failed",
        ("rank 0 on n0 did not start its program: program-not-found: python: No such file or directory",
        "the image has python3, not python")),
    "a container that never started": (without_container("pyxis: couldn't start container"), "infrastructure",
        ("the container did not start",)),
    # It died before its launcher began, and the others were stopped: they are not the cause.
    "a rank without a record": (changed(state=FAILED, exits={rank: ended(rank, **STOPPED) for rank in (0, 2)},
        starts=STARTED_ALONE, reports={}, task_ends={3: "Terminated", 0: "Bus error", 1: "Exited with exit code 3"}),
        "failed", ("rank 1 left no exit record; srun reports: Exited with exit code 3",)),
    "a rank that lost its image with another rank": (changed(state=FAILED, marker=ExitMarker("1", 127, 0.0), exits={},
        starts={}, reports={}, task_ends={0: "Exited with exit code 127", 1: "Exited with exit code 3"},
        rank_lines={0: "/bin/bash: error while loading shared libraries: libtinfo.so.6: cannot open: Error 107"}),
        "failed",
        ("rank 1 left no exit record; srun reports: Exited with exit code 3",
        "rank 0 left no exit record; srun reports: Exited with exit code 127 (its image went away)")),
    "a rank that hangs while the others end": (changed(state=FAILED, marker=None,
        exits={rank: ended(rank) for rank in (0, 1, 3)}, reports={rank: report(rank) for rank in (0, 1, 3)},
        task_ends={2: "Killed"}), "failed",
        ("rank 2 on n1 did not finish the program", "3 of 4 ranks exited with 0")),
    "a time limit that one rank was waited for": (changed(state=JobState("ended", "TIMEOUT"),
        exits={rank: ended(rank, **STOPPED) for rank in range(3)},
        starts={rank: start(rank, met=False) for rank in range(3)}, reports={}), "failed",
        ("the job ran into its time limit", "rank 3 never started", "ranks 0, 1, 2 waited for the others to start")),
    "a time limit before any rank": (changed(state=JobState("ended", "TIMEOUT"), exits={}, starts={}, reports={}),
        "failed", ("the job ran into its time limit", "ranks 0, 1, 2, 3 never started")),
    "a program out of memory": (with_plan(memory_mb=200,
        of=failed(exits={2: killed(9, max_rss_bytes=183 << 20)}, task_ends={2: "Out Of Memory"})), "failed",
        ("rank 2 on n1 was ended by signal 9 (SIGKILL)", OUT_OF_MEMORY)),
    # That rank may have served the image to all of its node.
    "a bus error beside a dead rank of the node": (changed(state=FAILED,
        exits={0: ended(0), 1: ended(1), 3: ended(3, **killed(7))}, task_ends={2: "Killed"}), "failed",
        ("rank 2 on n1 left no exit record; srun reports: Killed",)),
    "a bus error alone": (failed(exits={3: killed(7)}), "failed", ("rank 3 on n1 was ended by signal 7 (SIGBUS)",)),
    "a signal": (failed(exits={2: killed(11)}), "failed", ("rank 2 on n1 was ended by signal 11 (SIGSEGV)",)),
    **{error: (failed(exits={2: refused(error, 114, "why")}), "infrastructure",
        (f"rank 2 on n1 did not start its program: {error}: why",)) for error in ("rendezvous-port-taken",
        "rendezvous-timeout", "record-not-written")},
    "a world that is not the planned one": (failed(exits={2: refused("world-mismatch", 111, "1, planned 4")}),
        "not-proven", ()),
    "no rank could write anything down": (changed(state=JobState("ended", "FAILED", exit_code=116), marker=None,
        exits={}, starts={}, reports={}, result=None), "infrastructure",
        ("the job could not write to its run directory (exit code 116)",)),
    "nor was there room": (changed(state=JobState("ended", "FAILED", exit_code=116), marker=None, exits={}, starts={},
        reports={}, result=None, disk_full=True), "infrastructure",
        ("the job could not write to its run directory (exit code 116)", "the disk of the run directory is full")),
    "cancelled, and not known by whom": (changed(state=CANCELLED), "cancelled",
        ("the job was cancelled; the scheduler does not say by whom",)),
    "cancelled by root": (changed(state=msgspec.structs.replace(CANCELLED, reason="by uid 0")), "cancelled",
        ("the job was cancelled by uid 0",)),
    "cancelled by `cancel`": (changed(state=CANCELLED, cancelled=Cancelled("ann", "login1", 0.0)), "cancelled",
        ("the job was cancelled by ann on login1, through `cancel` or Ctrl-C",)),
    "a node that failed": (changed(state=JobState("ended", "NODE_FAIL", "NodeDown", "n[0-1]"), failed_nodes=("n1",)),
        "infrastructure", ("the scheduler reports NODE_FAIL: n1 failed (NodeDown)",)),
    # Under Charliecloud the first rank of a node serves the image to the others, which join its container.
    **{f"a rank whose image went away, {why}": (without_container(line), "infrastructure", ()) for why, line
        in IMAGE_WENT.items()},
    **{f"a rank that took its node's image with it, {why}": (replace(without_container(line),
        task_ends={1: "Exited with exit code 3", 0: "Exited with exit code 1"}), "failed",
        ("rank 1 left no exit record; srun reports: Exited with exit code 3",)) for why, line in IMAGE_WENT.items()},
    # Which rank failed first, by the launchers' own clocks, compared when the ranks met. Rank 3 crashed at 100 s; the
    # clock of rank 0's node is 60 s behind n1's.
    "a node whose clock is behind": (on_clocks({0: exited(ended_s=41.0), 3: killed(11, ended_s=100.0)},
        (-60.0, 0.001)), "failed", ("rank 3 on n1 was ended by signal 11 (SIGSEGV)", "rank 0 failed too")),
    "the best comparison of a node's ranks": (on_clocks({0: exited(ended_s=100.5), 3: exited(ended_s=100.0)},
        (0.0, 0.01), (0.0, 9.0)), "failed", ("rank 3 on n1 exited with code 1", "rank 0 failed too")),
    # The signal goes first, and the doubt is reported.
    "ends within the clocks' error": (on_clocks({0: exited(ended_s=100.0), 3: killed(11, ended_s=100.2)}, (0.0, 0.5)),
        "failed", ("rank 3 on n1 was ended by signal 11 (SIGSEGV)", "it cannot be determined which failed first, "
        "rank 3 or rank 0: the clocks of their nodes are known only to 0.5 s", "rank 0 failed too")),
    "ends beyond the clocks' error": (on_clocks({0: exited(ended_s=100.0), 3: killed(11, ended_s=100.2)}, (0.0, 0.05)),
        "failed", ("rank 0 on n0 exited with code 1", "rank 3 failed too")),
    # They order nothing across nodes.
    "clocks that were not compared": (on_clocks({0: exited(ended_s=50.0), 1: killed(11, ended_s=51.0),
        3: exited(ended_s=70.0)}, (None, None)), "failed", ("rank 0 on n0 exited with code 1", "it cannot be "
        "determined which failed first, rank 0 or rank 3: the clocks of their nodes were not compared")),
    # Nothing compares them after the start; quartz drifts by up to 20 millionths.
    "clocks of a long run": (on_clocks({0: exited(started_s=0.0, ended_s=100_000.0), 3: killed(11, started_s=0.0,
        ended_s=100_003.0)}), "failed", ("rank 3 on n1 was ended by signal 11 (SIGSEGV)",)),
    "a crash after the warning of the time limit": (on_clocks({2: killed(11, signals_forwarded=(10,), ended_s=99.0),
        **dict.fromkeys((0, 1, 3), killed(15, signals_forwarded=(10, 15)))}), "failed",
        ("rank 2 on n1 was ended by signal 11 (SIGSEGV)", "ranks 0, 1, 3 were then stopped too")),
    "a rank that fails on SIGTERM was stopped": (on_clocks({2: exited(signals_forwarded=(15,), ended_s=99.0),
        3: killed(11)}), "failed", ("rank 3 on n1 was ended by signal 11 (SIGSEGV)", "rank 2 was then stopped too")),
    # Whatever its ranks left.
    "a job that was killed outright": (changed(state=JobState("ended", "KILLED"), marker=None), "failed", ()),
    "a job that ended with its disk full": (changed(state=JobState("ended", "KILLED"), marker=None, disk_full=True),
        "failed", ("the job was killed outright: its script left no end marker",
        "the disk of the run directory is full")),
    "a job that was cancelled before it could tell": (changed(state=JobState("ended", "KILLED"), marker=None,
        cancelled=Cancelled("ann", "login1", 0.0), starts={}, exits={}, reports={}), "cancelled",
        ("the job was cancelled by ann on login1, through `cancel` or Ctrl-C",)),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_the_cause_stands_first_and_what_followed_after_it(name: str) -> None:
    evidence, outcome, sentences = ENDS[name]
    verdict = judge(evidence)
    assert verdict.outcome == outcome
    assert verdict.reasons[: len(sentences)] == sentences


def test_the_ranks_telling_line_and_its_nodes_xid_give_the_cause() -> None:
    def verdict(line: str, xid: int, **how: int) -> Verdict:
        exits = {1: {"status": 1, **(how or {"exit_code": 1})}}
        evidence = watched_run(failed(exits=exits, rank_lines={1: line}))
        record = evidence.watched[0]
        return judge(replace(evidence, watched={0: msgspec.structs.replace(record, xids=(xid,))}))

    lacks = verdict("ModuleNotFoundError: No module named 'a'", 79)
    assert lacks.reasons[0].startswith("rank 1 on n0 exited with code 1: a is not in the image ")
    assert "reported XID 79" in lacks.reasons[1]
    assert (lacks.outcome, lacks.fix[:16]) == ("failed", "install it there")
    for lost in (verdict("RuntimeError: CUDA error: unspecified launch failure", 79), verdict("", 79, signal=6)):
        assert (lost.outcome, lost.who) == ("infrastructure", "site")
    assert verdict("RuntimeError: CUDA error: an illegal memory access", 31).outcome == "failed"


def test_the_line_and_the_fix_are_those_of_the_cause() -> None:
    quotes = {1: "logs/rank-1.out: boom", 0: "logs/rank-0.err: other"}
    line = judge(failed(exits={1: {"status": 7, "exit_code": 7}}, rank_quotes=quotes))
    assert (line.rank, line.log) == (1, "logs/rank-1.out: boom")
    for name, rank in (("a rank that was killed with its launcher", 2), ("a program that was killed by itself", 3)):
        verdict = judge(ENDS[name][0])
        assert verdict.rank == rank
        assert "(`sacct -j 41 --format=JobID,MaxRSS,ReqMem`)" in verdict.fix
    assert judge(ENDS["a container that never started"][0]).log == "logs/rank-0.err: pyxis: couldn't start container"
    assert OUT_OF_MEMORY not in judge(failed(exits={2: killed(9)}, task_ends={2: "Killed"})).reasons


def test_a_program_that_lost_its_image_tells_nothing_of_a_cancelled_job() -> None:
    lost = "job.sh: line 107: 30422 Bus error  ( exec ch-run )"
    for state, log in ((CANCELLED, ""), (FAILED, f"logs/batch.err: {lost}")):
        assert judge(changed(state=state, exits=on_all(ended, **STOPPED), batch_line=lost)).log == log


def test_a_rank_with_another_jobs_token_is_named() -> None:
    starts = {rank: start(rank, met=False, token="stale" if rank == 2 else "t") for rank in range(4)}
    waiting = failed(exits={0: refused("rendezvous-timeout", 113, "rank 2")}, starts=starts)
    assert "rank 2 on n1 presented the token of another job step" in judge(waiting).reasons


@pytest.mark.parametrize("name", ["CANCELLED", "TIMEOUT"])
def test_a_crash_before_the_end_from_outside_is_reported_with_it(name: str) -> None:
    """Ranks that hang after a crash are ended by hand or by the limit: the crash is what the user looks for."""
    stopped = {rank: ended(rank, **STOPPED, ended_s=100.0) for rank in range(3)}
    before = "before that, rank 3 on n1 was ended by signal 11 (SIGSEGV)"
    for exits, ended_s in ((stopped, 50.0), ({}, 50.0), (stopped, 101.0)):
        exits_and_crash = exits | {3: ended(3, **killed(11, ended_s=ended_s))}
        quotes = {3: "logs/rank-3.err: Segmentation fault"}
        verdict = judge(changed(state=JobState("ended", name), exits=exits_and_crash, rank_quotes=quotes, result=None))
        is_first = ended_s < 100.0
        assert verdict.outcome == ("cancelled" if name == "CANCELLED" else "failed")
        assert (before in verdict.reasons) is is_first
        assert (verdict.rank, verdict.log) == ((3, "logs/rank-3.err: Segmentation fault") if is_first else (None, ""))


CODES = {"measured": 0, "ran": 0, "failed": 5, "cancelled": 5, "not-proven": 6, "infrastructure": 8, "unknown": 9}


def starts(**by_rank: Any) -> dict[int, Any]:
    """Start records of four ranks; each argument is called with the rank."""
    return {rank: start(rank, **{name: value(rank) for name, value in by_rank.items()}) for rank in range(4)}


def state(name: str, marker: int | None = None, **fields: Any) -> Evidence:
    """A good run of whose job the scheduler says so, and whose script left this code."""
    job = JobState("ended" if name else "unknown", name, **fields)
    return changed(state=job, marker=None if marker is None else ExitMarker("41", marker, 0.0))


def own_program(**changes: Any) -> Evidence:
    return with_plan(changed(**changes), result="if-left", framework="none")


OF_NODES: list[dict[str, Callable[[int], str]]] = [
    {"host": lambda _rank: "localhost", "boot_id": lambda rank: f"boot-{rank // 2}"},
    {"host": lambda rank: f"container{rank}", "boot_id": lambda rank: f"boot-{rank // 2}"},
    {"host": lambda rank: f"container{rank}", "node_name": lambda rank: f"n{rank // 2}"},
    {"host": lambda rank: f"n{rank // 2}", "boot_id": lambda _rank: "one kernel"},
    {"node_name": lambda rank: f"n{rank // 2}", "boot_id": lambda _rank: "one kernel"},
]


@pytest.mark.parametrize(
    ("evidence", "outcome"),
    [
        (state("NODE_FAIL", reason="NodeDown", nodes="n1"), "infrastructure"), (state("PREEMPTED"), "infrastructure"),
        (state("TIMEOUT"), "failed"), (state("OUT_OF_MEMORY"), "failed"), (state("CANCELLED"), "cancelled"),
        (state("FAILED", exit_code=71), "infrastructure"), (state("FAILED", exit_code=9), "failed"),
        (state(""), "unknown"), (state("SPECIAL_EXIT"), "unknown"), (state("", 0), "measured"),
        (state("", 3), "failed"), (changed(marker=None), "measured"),
        # A program without a result of ours gets no figure; a user's own only if it leaves one that is proven.
        (with_plan(result="none", of=changed(reports={}, result=None)), "ran"), (own_program(), "measured"),
        (own_program(result=None, reports={}), "ran"),
        (own_program(reports=on_all(report, gradient_checksum="g")), "not-proven"),
        (own_program(result=None, damaged=("result.json: torn",)), "not-proven"),
        # Whatever its hosts are called; ranks of several nodes may have devices of the same index.
        *((changed(starts=starts(**of_rank), exits=on_all(ended, host="localhost")), "measured")
            for of_rank in OF_NODES),
        (with_plan(changed(starts=starts(**OF_NODES[0], device_uuid=lambda _rank: None), reports={}, result=None),
            result="none"), "ran"),
    ],
)  # fmt: skip
def test_every_end_that_a_scheduler_reports_and_every_kind_of_program(evidence: Evidence, outcome: str) -> None:
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.exit_code) == (outcome, CODES[outcome])
    assert (verdict.images_per_s is None) is (outcome != "measured")
    assert (verdict.reasons == ()) is (outcome in ("measured", "ran"))


@pytest.mark.parametrize(
    ("by_rank", "names"),
    [
        ({}, ["n0", "n0", "n1", "n1"]),
        ({"boot_id": lambda rank: "b" if rank else None}, ["n0", "n0", "n1", "n1"]),  # not of every rank
        ({"host": lambda rank: "localhost", "node_name": lambda rank: f"gpu{rank // 2}"},
            ["localhost (gpu0)"] * 2 + ["localhost (gpu1)"] * 2),
    ],
)  # fmt: skip
def test_nodes_have_names_of_their_own(by_rank: dict[str, Any], names: list[str]) -> None:
    assert nodes_of(starts(**by_rank), (2, 2)) == dict(enumerate(names))
    assert nodes_of({}, (2, 2)) == {}


def test_ranks_are_counted_by_node() -> None:
    placed = starts(host=lambda rank: "localhost", boot_id=lambda rank: "aaaaaaaa1" if rank < 3 else "bbbbbbbb2")
    reasons = judge(changed(starts=placed)).reasons
    assert "the ranks were placed as localhost (aaaaaaaa): 3, localhost (bbbbbbbb): 1, planned 2,2" in reasons


def test_thousands_of_nodes_are_one_short_sentence() -> None:
    plan = msgspec.structs.replace(PLAN, tasks_per_node=(4,) * 1000)
    places = {rank: f"n{rank // 4:04d}" for rank in range(4000)} | {3999: "n0500"}
    placed = {rank: start(rank, size=4000, host=host, node_name=host) for rank, host in places.items()}
    (sentence,) = [each for each in judge(changed(plan=plan, starts=placed)).reasons if "placed" in each]
    assert sentence.startswith("the ranks were placed as n0500: 5, n0999: 3, n0000: 4, ")
    assert sentence.endswith(" and 992 nodes more, planned 4 on each of 1000 nodes")


ALL_ALONE = {"rendezvous_values": 0, "rendezvous_ranks": 0}


@pytest.mark.parametrize(
    ("of_rank_0", "used", "note"),
    [
        (ALL_ALONE, (False,) * 4, "nothing shows that the ranks' programs met"),
        ({"rendezvous_values": 9, "rendezvous_ranks": 3}, (False,) * 4,
            "the programs of only 3 of 4 ranks came to Horovod's rendezvous"),
        (ALL_ALONE, (False, False, True, False), ""),  # torch
        ({"rendezvous_values": 40, "rendezvous_ranks": 4}, (False,) * 4, ""),  # Horovod
        ({"rendezvous_values": 1, "rendezvous_ranks": 0}, (False,) * 4, ""),  # the launcher's store
        (ALL_ALONE, (None,) * 4, ""),  # not visible
        (ALL_ALONE, (False, None, False, False), ""),  # not visible on one
        ({}, (False,) * 4, ""),  # no rendezvous
    ],
)  # fmt: skip
def test_programs_that_may_have_run_in_worlds_of_one_are_noted(
    of_rank_0: dict[str, Any], used: tuple[bool | None, ...], note: str
) -> None:
    """What rank 0 recorded, and which ranks saw MASTER_PORT used."""
    exits = {rank: ended(rank, master_port_used=seen) for rank, seen in enumerate(used)}
    exits[0] = msgspec.structs.replace(exits[0], **of_rank_0)
    verdict = judge(with_plan(changed(exits=exits, reports={}, result=None), result="if-left", framework="none"))
    assert (verdict.outcome, verdict.exit_code) == ("ran", 0)
    assert [each[: len(note)] for each in verdict.remarks] == ([note] if note else [])
    assert all("fix: " in each for each in verdict.remarks)


ENDS_S = tuple(float(group) for group in range(1, 31))


def many(ranks: int) -> Evidence:
    """A good run of one rank on each node."""
    return changed(
        plan=msgspec.structs.replace(PLAN, tasks_per_node=(1,) * ranks),
        starts={rank: start(rank, size=ranks, host=f"n{rank}") for rank in range(ranks)},
        exits={rank: ended(rank, ended_monotonic_s=1100.0) for rank in range(ranks)},
        reports={
            rank: report(rank, world_size=ranks, ends_s=ENDS_S, group_steps=1, steps=30, elapsed_s=30.0)
            for rank in range(ranks)
        },
        result=Result("2", size=ranks, window_s=30.0, preliminary_images_per_s=10.0 * ranks),
        nccl=GOOD.nccl,
    )


def operations(evidence: Evidence) -> int:
    """Operations of Python's interpreter during a judgement: a measure of its work that no other load changes."""
    counted = 0

    def count(frame: FrameType, event: str, _argument: Any) -> TraceFunction:
        nonlocal counted
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        counted += event == "opcode"
        return count

    sys.settrace(count)
    try:
        verdict = judge(evidence)
    finally:
        sys.settrace(None)
    assert verdict.outcome == "measured"
    return counted


def test_eight_times_the_ranks_cost_no_more_than_ten_times_the_operations() -> None:
    operations(many(2))  # what the first judgement of a process prepares is not counted
    assert operations(many(1024)) < 10 * operations(many(128))


def test_reports_that_are_whole_beside_a_result_that_is_lost_are_remarked() -> None:
    lost = judge(replace(with_plan(PLAIN, result="if-left"), result=None))
    assert lost.outcome == "ran"
    assert any("result.json, which the first rank leaves last, is missing" in each for each in lost.remarks)


def test_what_a_user_did_already_is_not_advised() -> None:
    """Of an attempt that the next one follows, and of a disk that is full wherever the run directory lies."""
    ended = changed(state=JobState("ended", "TIMEOUT"))
    attempt = replace(ended, plan=msgspec.structs.replace(ended.plan, attempt=1, attempts=5))
    assert "--until-done" in judge(ended).fix and "the chain's next attempt" in judge(attempt).fix
    assert judge(ENDS["nor was there room"][0]).fix.startswith("remove what you no longer need there")


def test_a_process_that_starts_ranks_of_its_own_is_called_a_start_of_it() -> None:
    torchrun = Starter("torchrun", ("t.py",))
    evidence = failed(exits={1: {"status": 1, "exit_code": 1}})
    evidence = replace(evidence, plan=msgspec.structs.replace(evidence.plan, starters=(torchrun,)))
    assert judge(evidence).reasons[0].startswith("start 1 of torchrun on n0 exited")
    missing = replace(evidence, exits={1: evidence.exits[1]})
    assert not any("rank" in each for each in judge(missing).reasons), judge(missing).reasons
