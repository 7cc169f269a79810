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
from runner.diagnosis.logs import NcclLog
from runner.jobs.collect import Evidence, nodes_of
from runner.jobs.verdict import judge
from runner.model.job import Cancelled, ExitMarker, JobState
from runner.model.records import Result
from runner.model.verdict import Verdict
from tests.support.evidence import (
    COMPLETED,
    GOOD,
    RESULT,
    changed,
    ended,
    long_run,
    on_all,
    report,
    start,
    with_plan,
    with_report,
)  # fmt: skip
from tests.support.plans import PLAN
from tests.support.series import group_times

if TYPE_CHECKING:
    from types import FrameType

    from _typeshed import TraceFunction


STOPPED = {"status": 143, "exit_code": None, "error": "stopped-before-start", "message": "stopped by SIGTERM"}
FAILED = JobState("ended", "FAILED", exit_code=143)
CANCELLED = JobState("ended", "CANCELLED")


def of_times(groups: int = 200, **shape: Any) -> Verdict:
    """On a run of so many groups whose times have this shape."""
    return judge(long_run(group_times(Random(1), groups, mean_s=1.0, **shape)))


def with_result(**changes: Any) -> Evidence:
    return changed(result=msgspec.structs.replace(RESULT, **changes))


def test_all_proven_is_measured_with_the_figure_of_the_ranks_own_records() -> None:
    verdict = judge(GOOD)
    assert (verdict.outcome, verdict.exit_code, verdict.reasons) == ("measured", 0, ())
    assert verdict.images_per_s == verdict.uncut_images_per_s == pytest.approx(240 / 3.3)
    assert (verdict.window_s, verdict.precision, verdict.steady) == (3.3, None, None)
    assert "4 distinct devices, by the UUIDs that the framework reported" in verdict.proven
    assert any("before the first allreduce" in sentence for sentence in verdict.proven)


def test_a_program_without_a_result_of_ours_ran_and_gets_no_figure() -> None:
    verdict = judge(with_plan(result="none", of=changed(reports={}, result=None)))
    assert (verdict.outcome, verdict.exit_code, verdict.images_per_s) == ("ran", 0, None)


def test_the_demonstration_label_goes_with_every_verdict() -> None:
    for evidence in (GOOD, changed(exits={})):
        assert judge(with_plan(demonstration="CPU, fake GPUs", of=evidence)).demonstration == "CPU, fake GPUs"


def test_a_figure_that_claims_something_has_an_interval_and_says_whether_it_is_steady() -> None:
    verdict = of_times(60, deviation=0.001)
    assert (verdict.outcome, verdict.demonstration, verdict.steady, verdict.remarks) == ("measured", "", True, ())
    assert verdict.precision is not None
    assert verdict.precision[0] < 400.0 < verdict.precision[1]


def test_what_was_cut_is_reported_with_the_figure_of_the_whole_window() -> None:
    verdict = of_times(600, start=0.3, decay=0.02)
    assert verdict.uncut_images_per_s is not None and verdict.images_per_s is not None
    assert verdict.images_per_s > verdict.uncut_images_per_s * 1.002
    assert f"the first {verdict.cut_steps} steps" in verdict.remarks[0]
    assert f"the whole window gives {verdict.uncut_images_per_s:.1f} images/s" in verdict.remarks[0]


@pytest.mark.parametrize(
    ("shape", "steady", "says"),
    [
        ({"deviation": 0.002, "step": 0.05}, False, r"after \d+ groups the steps were 4\.9 % slower \(99 %: 4\..*"),
        ({"deviation": 0.002, "step": -0.05}, False, r"after \d+ groups the steps were 5\.. % faster \(99 %: 5\..*"),
        ({"deviation": 0.002, "step": 0.05, "step_at": 0.2}, False,
            "the first 40 groups were 4.7 % faster: a change of level and no warm-up, so nothing was left out"),
        ({"groups": 60, "deviation": 0.01}, None,
            r"a change of up to [1-9][0-9.]+ % can hide in this window, and 1\.0 % is the limit; "
            r"a window of about ([12]\d\d) s may tell: --set window-seconds=\1"),
        ({"groups": 600, "deviation": 0.002, "trend": 0.0055}, None,
            r".* % can hide in this window, and 1\.0 % is the limit: a longer one may not tell either"),
    ],
)  # fmt: skip
def test_a_run_that_is_not_steady_or_may_not_be_says_what_is_known(
    shape: dict[str, Any], steady: bool | None, says: str
) -> None:
    verdict = of_times(**shape)
    assert (verdict.outcome, verdict.steady) == ("measured", steady)
    assert any(re.fullmatch(says, remark) for remark in verdict.remarks), verdict.remarks


def test_a_slow_rank_is_reported_with_its_cost() -> None:
    evidence = long_run(group_times(Random(1), 60, mean_s=1.0), compute_quarters_p50_s=(0.05,) * 4)
    slow = msgspec.structs.replace(evidence.reports[3], compute_quarters_p50_s=(0.06,) * 4)
    verdict = judge(replace(evidence, reports=evidence.reports | {3: slow}))
    assert verdict.remarks[-1] == "slow ranks: 3 (by 20.0 %); without them a step takes up to 10.0 % less"


@pytest.mark.parametrize(
    ("evidence", "label"),
    [
        (long_run([1.0] * 60, warmup_s=12.0), "short warm-up (50 steps, 12 s; 50 and 30 s are needed)"),
        (long_run([0.1] * 60), "short window (600 steps, 6 s; 200 and 30 s are needed)"),
        (replace(long_run([1.0] * 60), starts=on_all(start, environment={"HOROVOD_AUTOTUNE": "1"})),
            "HOROVOD_AUTOTUNE changed the run while it was timed"),
    ],
)  # fmt: skip
def test_a_figure_that_makes_no_claim_is_labelled(evidence: Evidence, label: str) -> None:
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.demonstration) == ("measured", f"demonstration, no performance claim: {label}")


@pytest.mark.parametrize(
    ("value", "tunes"),
    [
        ("1", True), ("2x", True), (" +01", True), ("0", False), ("", False), ("false", False), ("true", False),
        ("-1", False), ("00", False), ("\u0661", False),
    ],
)  # fmt: skip
def test_autotuning_is_on_where_horovod_reads_a_number_above_zero(value: str, tunes: bool) -> None:
    tuned = replace(long_run([1.0] * 60), starts=on_all(start, environment={"HOROVOD_AUTOTUNE": value}))
    assert ("HOROVOD_AUTOTUNE" in judge(tuned).demonstration) is tunes


def reduced(*errors: float | None) -> Evidence:
    """A good run whose ranks compared the gradients that they reduced with their mean."""
    return changed(reports={rank: report(rank, reduced_gradients_error=error) for rank, error in enumerate(errors)})


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
    "divided parameters whose reduced gradients are the mean": (reduced(0.0, 1e-6, 0.01, 0.0),
        "what they reduced was their mean in the first step"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROVEN)
def test_what_is_proven_another_way_is_measured_and_says_how(name: str) -> None:
    evidence, says = PROVEN[name]
    verdict = judge(evidence)
    assert verdict.outcome == "measured"
    assert any(says in sentence for sentence in verdict.proven), verdict.proven


# Where a case says all that is wrong, its sentences are whole.
UNPROVEN: dict[str, tuple[Evidence, str]] = {
    "no start record": (changed(starts={r: start(r) for r in (0, 1, 3)}), "no start record of rank 2"),
    "no exit record": (changed(exits={r: ended(r) for r in (0, 1, 2)}), "no exit record of rank 3"),
    "no report": (changed(reports={r: report(r) for r in (0, 1)}), "ranks 2, 3 left no report"),
    "worlds of one": (changed(reports=on_all(report, world_size=1, world_rank=0)), "size 1, planned"),
    "one rank in a world of one": (with_report(2, world_size=1), "rank 2 saw a world of size 1, planned 4"),
    "same rank twice": (with_report(2, world_rank=1), "several processes had the same rank"),
    "started alone": (changed(starts=GOOD.starts | {1: start(1, size=1)}), "started in a world of 1"),
    "never met": (changed(starts=GOOD.starts | {1: start(1, met=False)}), "never met"),
    "wrong placement": (changed(starts=GOOD.starts | {2: start(2, host="n0", device_uuid="x")}), "n0: 3, n1: 1"),
    "wrong device": (with_report(1, device_kind="cpu"), "did not compute on cuda"),
    "no GPU seen": (replace(with_report(1, device_uuid=None), starts=GOOD.starts | {1: start(1, device_kind="cpu")}),
        "rank 1 saw no GPU"),
    "sockets": (changed(nccl=NcclLog(networks=frozenset({"Socket"}))), "NCCL used sockets"),
    "shared device": (with_report(1, device_uuid="GPU-0"), "ranks 0, 1 shared one device"),
    "shared device, and a rank that reports none": (changed(reports=with_report(1,
        device_uuid="GPU-0").reports | {3: report(3, device_uuid=None)}), "ranks 0, 1 shared one device (GPU-0)"),
    "shared device by the launchers' guess": (changed(starts=TWO_GUESSES, reports=on_all(report, device_uuid=None)),
        "ranks 2, 3 shared one device (GPU-2 on n1)"),
    "same gradients": (with_report(1, gradient_checksum="g0"), "trained on the same data"),
    "other parameters": (with_report(1, parameter_checksum="q"), "not synchronised"),
    "one-hot": (with_report(1, onehot_ok=False), "one-hot"),
    "not-a-number loss": (with_report(3, loss_finite=False), "not finite on rank 3"),
    "nothing learnt": (with_report(3, parameters_moved=False), "did not change"),
    "silent on gradients": (with_report(3, gradient_checksum=None), "not every rank says what its gradients"),
    "not reduced": (reduced(0.0, 0.0, 0.98, 0.0), "the gradients were not reduced over all ranks"),
    "not the mean": (reduced(*[0.06] * 4), "they are not the mean of the ranks' own (relative difference 0.06)"),
    "not compared": (reduced(0.0, 0.0, None, 0.0), "not every rank compared the reduced gradients"),
    # Without a comparison on any rank, equal gathered parameters are all that there is.
    "divided and not compared": (changed(reports=on_all(report, sharded="FSDP2")),
        "not every rank compared the reduced gradients with the ranks' own"),
    "no result": (changed(result=None), "left no result"),
    "another figure": (with_result(preliminary_images_per_s=99.0), "records give 72.727"),
    "no figure": (with_result(preliminary_images_per_s=None), "gives no figure"),
    "result of another world": (with_result(size=1), "world of 1, planned 4"),
    "program's doubt": (with_result(proof_reasons=("x",)), "the program says: x"),
    "another window in the result": (with_result(window_s=3.0), "window took 3.000"),
    "no times": (changed(reports=on_all(report, ends_s=())), "lack what a throughput"),
    "fewer groups on one rank": (with_report(2, ends_s=(1.0, 2.0)), "did not do the same steps"),
    "another batch on one rank": (with_report(2, batch_size=1000), "did not do the same steps"),
    "negative counts": (changed(reports=on_all(report, batch_size=-10, group_steps=-2)), "lack what a throughput"),
    "times that fall": (with_report(2, ends_s=(2.0, 1.0, 3.2)), "times of rank 2 do not rise"),
    "times without end": (with_report(2, ends_s=(1.0, 2.0, float("inf"))), "times of rank 2 do not rise"),
    "times below a clock's resolution": (with_report(2, ends_s=(5e-324, 1e-323, 2e-323)), "rank 2 do not rise"),
    "times of centuries": (with_report(2, ends_s=(1.0, 2.0, 1e300)), "times of rank 2 do not rise"),
    "time of the window by itself": (with_report(2, elapsed_s=2.9), "says that its window took 2.900 s"),
    "number of steps by itself": (with_report(2, steps=60), "says that it did 60 steps"),
    "window before the program": (with_report(2, window_began_monotonic_s=990.0), "outside its program's life of 10.0"),
    "window after the program": (with_report(2, window_began_monotonic_s=1008.0), "outside its program's life of 10.0"),
    "no clock of the window": (with_report(2, window_began_monotonic_s=None), "does not say when its window began"),
    "no clock of the launcher": (changed(exits=GOOD.exits | {2: ended(2, ended_monotonic_s=None)}),
        "launcher of rank 2 does not say when"),
    "another batch than planned": (with_plan(samples_per_step=256), "took batches of 10, planned 256"),
    "two job steps": (changed(starts={r: start(r, token="ab"[r // 2]) for r in range(4)}), "2 different tokens of job"),
    "two jobs": (changed(starts={r: start(r, job_id=f"4{r // 2}") for r in range(4)}), "2 different job ids"),
    "another plan": (changed(plan_sha256="f" * 64), "did not see the plan that lies in the run directory"),
    "records of the first version": (changed(reports=on_all(report, schema="1")), "older version (1)"),
    "no NCCL": (with_report(1, nccl_built=False), "rank 1 ran a Horovod without NCCL"),
    "gradients on the host": (with_report(1, gradients_device="cpu"), "gradients of rank 1 were not on the GPU"),
    "gradients elsewhere": (with_report(1, gradients_device="xla"),
        "the gradients of rank 1 were not on the GPU when they were reduced"),
    "torn record": (changed(damaged=("2.exit.json: bad",)), "a record cannot be read: 2.exit.json: bad"),
    "too many ranks": (changed(starts=GOOD.starts | {4: start(4)}), "beyond the plan: rank 4"),
    "too many reports": (changed(reports=GOOD.reports | {4: report(4, ends_s=())}), "beyond the plan: rank 4"),
    "no start record where compute times were recorded": (changed(starts={r: start(r) for r in (0, 1, 3)},
        reports=on_all(report, compute_quarters_p50_s=(0.1,) * 4)), "no start record of rank 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNPROVEN)
def test_what_is_not_proven_is_reported_and_has_no_figure(name: str) -> None:
    evidence, says = UNPROVEN[name]
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.exit_code, verdict.images_per_s) == ("not-proven", 6, None)
    assert any(says in reason for reason in verdict.reasons), verdict.reasons


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
        "often out of memory: it had used 0 MiB; the job has all memory of its nodes", "rank 0 failed too")),
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
        ("rank 2 on n1 did not finish the program", "3 of 4 ranks ended with status 0")),
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
    # Whatever its ranks left.
    "a job that was killed outright": (changed(state=JobState("ended", "KILLED"), marker=None), "failed", ()),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_the_cause_stands_first_and_what_followed_after_it(name: str) -> None:
    evidence, outcome, sentences = ENDS[name]
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.exit_code) == (
        outcome, {"failed": 5, "cancelled": 5, "not-proven": 6, "infrastructure": 8}[outcome],
    )  # fmt: skip
    assert verdict.reasons[: len(sentences)] == sentences


def test_the_line_and_the_fix_are_those_of_the_cause() -> None:
    line = judge(failed(exits={1: {"status": 7, "exit_code": 7}}, rank_lines={1: "boom", 0: "other"}))
    assert (line.rank, line.log) == (1, "logs/rank-1.err: boom")
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


@pytest.mark.parametrize(
    "line",
    [
        "ch-run[7]: error: can't execve(2): /bin/bash: Transport endpoint is not connected (ch_core.c 107)",
        "ch-run[7]: error: join: no PID 2947: /proc/2947/ns/user not found (ch_core.c:372)",
    ],
)
def test_a_rank_that_took_its_nodes_image_with_it_is_the_cause(line: str) -> None:
    """Under Charliecloud the first rank of a node serves the image to the others, which join its container."""
    bare = without_container(line)
    assert judge(bare).outcome == "infrastructure"
    verdict = judge(replace(bare, task_ends={1: "Exited with exit code 3", 0: "Exited with exit code 1"}))
    assert (verdict.outcome, verdict.exit_code) == ("failed", 5)
    assert verdict.reasons[0] == "rank 1 left no exit record; srun reports: Exited with exit code 3"


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
        lines = {3: "Segmentation fault"}
        verdict = judge(changed(state=JobState("ended", name), exits=exits_and_crash, rank_lines=lines, result=None))
        is_first = ended_s < 100.0
        assert verdict.outcome == ("cancelled" if name == "CANCELLED" else "failed")
        assert (before in verdict.reasons) is is_first
        assert (verdict.rank, verdict.log) == ((3, "logs/rank-3.err: Segmentation fault") if is_first else (None, ""))


@pytest.mark.parametrize(
    ("state", "marker", "outcome", "code"),
    [
        (JobState("ended", "NODE_FAIL", "NodeDown", "n1"), None, "infrastructure", 8),
        (JobState("ended", "PREEMPTED"), None, "infrastructure", 8),
        (JobState("ended", "TIMEOUT"), None, "failed", 5),
        (JobState("ended", "OUT_OF_MEMORY"), None, "failed", 5),
        (JobState("ended", "CANCELLED"), None, "cancelled", 5),
        (JobState("ended", "FAILED", exit_code=71), None, "infrastructure", 8),
        (JobState("ended", "FAILED", exit_code=9), None, "failed", 5),
        (JobState("unknown"), None, "unknown", 9),
        (JobState("ended", "SPECIAL_EXIT"), None, "unknown", 9),
        (JobState("unknown"), ExitMarker("41", 0, 0.0), "measured", 0),
        (JobState("unknown"), ExitMarker("41", 3, 0.0), "failed", 5),
        (COMPLETED, None, "measured", 0),
    ],
)
def test_every_end_that_a_scheduler_reports(
    state: JobState, marker: ExitMarker | None, outcome: str, code: int
) -> None:
    verdict = judge(changed(state=state, marker=marker))
    assert (verdict.outcome, verdict.exit_code) == (outcome, code)


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "measured"),
        ({"result": None, "reports": {}}, "ran"),
        ({"reports": on_all(report, gradient_checksum="g")}, "not-proven"),
        ({"result": None, "damaged": ("result.json: torn",)}, "not-proven"),
    ],
)
def test_a_users_program_is_measured_only_if_it_leaves_a_result_that_is_proven(
    changes: dict[str, Any], outcome: str
) -> None:
    assert judge(with_plan(result="if-left", framework="none", of=changed(**changes))).outcome == outcome


def test_a_check_that_was_overridden_is_shown_with_the_verdict() -> None:
    for evidence in (GOOD, changed(state=JobState("ended", "TIMEOUT"))):
        assert judge(evidence).forced == ()
        assert judge(replace(evidence, forced=("submit-directory",))).forced == ("submit-directory",)


def starts(**by_rank: Any) -> dict[int, Any]:
    """Start records of four ranks; each argument is called with the rank."""
    return {rank: start(rank, **{name: value(rank) for name, value in by_rank.items()}) for rank in range(4)}


@pytest.mark.parametrize(
    "of_rank",
    [
        {"host": lambda rank: "localhost", "boot_id": lambda rank: f"boot-{rank // 2}"},
        {"host": lambda rank: f"container{rank}", "boot_id": lambda rank: f"boot-{rank // 2}"},
        {"host": lambda rank: f"container{rank}", "node_name": lambda rank: f"n{rank // 2}"},
        {"host": lambda rank: f"n{rank // 2}", "boot_id": lambda rank: "one kernel"},
        {"node_name": lambda rank: f"n{rank // 2}", "boot_id": lambda rank: "one kernel"},
    ],
    ids=["one host name", "a host name each", "a host name each, named", "nodes of one kernel", "the same, named"],
)
def test_a_good_run_is_measured_whatever_its_hosts_are_called(of_rank: dict[str, Any]) -> None:
    exits = {rank: ended(rank, host="localhost") for rank in range(4)}
    verdict = judge(changed(starts=starts(**of_rank), exits=exits))
    assert (verdict.outcome, verdict.reasons) == ("measured", ())


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


def test_devices_and_ranks_are_counted_by_node() -> None:
    seen = starts(host=lambda rank: "localhost", boot_id=lambda rank: f"b{rank // 2}", device_uuid=lambda rank: None)
    same_indexes = with_plan(changed(starts=seen, reports={}, result=None), result="none")
    assert judge(same_indexes).outcome == "ran"
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
