"""What a run is worth: each fault gets its own sentence and exit code; nothing unproven counts as success."""

from __future__ import annotations

import dataclasses
import re
from random import Random
from typing import Any

import msgspec
import pytest

from runner.diagnosis import logs
from runner.diagnosis.logs import NcclLog
from runner.jobs.collect import Evidence
from runner.jobs.verdict import judge
from runner.model.job import Cancelled, ExitMarker, JobState
from tests.support.evidence import COMPLETED, GOOD, RESULT, changed, ended, long_run, report, start, with_report
from tests.support.plans import PLAN
from tests.support.series import group_times


def test_all_proven_is_measured_with_the_figure_of_the_ranks_own_records() -> None:
    verdict = judge(GOOD)
    assert (verdict.outcome, verdict.exit_code, verdict.reasons) == ("measured", 0, ())
    assert verdict.images_per_s == verdict.uncut_images_per_s == pytest.approx(240 / 3.3)
    assert (verdict.window_s, verdict.precision, verdict.steady) == (3.3, None, None)


def test_a_program_without_a_result_of_ours_ran_and_gets_no_figure() -> None:
    verdict = judge(changed(plan=msgspec.structs.replace(PLAN, result="none"), reports={}, result=None))
    assert (verdict.outcome, verdict.exit_code, verdict.images_per_s) == ("ran", 0, None)


def test_the_demonstration_label_goes_with_every_verdict() -> None:
    plan = msgspec.structs.replace(PLAN, demonstration="CPU, fake GPUs")
    assert judge(changed(plan=plan)).demonstration == "CPU, fake GPUs"
    assert judge(changed(plan=plan, exits={})).demonstration == "CPU, fake GPUs"


def test_a_figure_that_claims_something_has_an_interval_and_says_whether_it_is_steady() -> None:
    verdict = judge(long_run(group_times(Random(1), 60, deviation=0.001, mean_s=1.0)))
    assert (verdict.outcome, verdict.demonstration, verdict.steady, verdict.remarks) == ("measured", "", True, ())
    assert verdict.precision is not None
    assert verdict.precision[0] < 400.0 < verdict.precision[1]


def test_what_was_cut_is_reported_with_the_figure_of_the_whole_window() -> None:
    verdict = judge(long_run(group_times(Random(1), 600, start=0.3, decay=0.02, mean_s=1.0)))
    assert verdict.uncut_images_per_s is not None and verdict.images_per_s is not None
    assert verdict.images_per_s > verdict.uncut_images_per_s * 1.002
    assert f"the first {verdict.cut_steps} steps" in verdict.remarks[0]
    assert f"the whole window gives {verdict.uncut_images_per_s:.1f} images/s" in verdict.remarks[0]


def test_a_run_that_slows_down_is_not_steady_and_its_shift_is_reported() -> None:
    verdict = judge(long_run(group_times(Random(1), 200, deviation=0.002, step=0.05, mean_s=1.0)))
    assert verdict.steady is False
    assert "groups the steps were 4.9 % slower (99 %: 4." in verdict.remarks[0]
    verdict = judge(long_run(group_times(Random(1), 200, deviation=0.002, step=-0.05, mean_s=1.0)))
    assert "groups the steps were 5." in verdict.remarks[0]
    assert "% faster (99 %: 5." in verdict.remarks[0]


def test_a_run_of_which_the_window_cannot_tell_whether_it_is_steady_says_what_would_tell() -> None:
    verdict = judge(long_run(group_times(Random(1), 60, deviation=0.01, mean_s=1.0)))
    assert (verdict.outcome, verdict.steady) == ("measured", None)
    (remark,) = verdict.remarks
    found = re.fullmatch(
        r"a change of up to ([0-9.]+) % can hide in this window, and 1\.0 % is the limit; "
        r"a window of about (\d+) s may tell: --set window-seconds=(\d+)",
        remark,
    )
    assert found
    assert (float(found[1]) > 1.0, 100 < int(found[2]) < 300, found[3]) == (True, True, found[2])


def test_a_change_near_the_limit_is_no_matter_of_a_longer_window() -> None:
    verdict = judge(long_run(group_times(Random(1), 600, deviation=0.002, trend=0.0055, mean_s=1.0)))
    assert verdict.steady is None
    assert verdict.remarks[-1].endswith(
        " % can hide in this window, and 1.0 % is the limit: a longer one may not tell either"
    )


def test_a_start_that_is_no_warm_up_is_kept_and_reported() -> None:
    verdict = judge(long_run(group_times(Random(1), 200, deviation=0.002, step=0.05, step_at=0.2, mean_s=1.0)))
    assert verdict.steady is False
    assert verdict.remarks[0] == (
        "the first 40 groups were 4.7 % faster: a change of level and no warm-up, so nothing was left out"
    )


def test_a_slow_rank_is_reported_with_its_cost() -> None:
    evidence = long_run(group_times(Random(1), 60, mean_s=1.0), compute_quarters_p50_s=(0.05,) * 4)
    slow = msgspec.structs.replace(evidence.reports[3], compute_quarters_p50_s=(0.06,) * 4)
    verdict = judge(dataclasses.replace(evidence, reports=evidence.reports | {3: slow}))
    assert verdict.remarks[-1] == "slow ranks: 3 (by 20.0 %); without them a step takes up to 10.0 % less"


@pytest.mark.parametrize("compute_s", [1e308, 5e-324, float("nan")])
def test_compute_times_that_no_clock_measured_name_no_slow_rank(compute_s: float) -> None:
    evidence = long_run([1.0] * 60, compute_quarters_p50_s=(0.05,) * 4)
    odd = msgspec.structs.replace(evidence.reports[3], compute_quarters_p50_s=(compute_s,) * 4)
    verdict = judge(dataclasses.replace(evidence, reports=evidence.reports | {3: odd}))
    assert verdict.outcome == "measured"
    assert not any("rank" in sentence for sentence in verdict.remarks)


@pytest.mark.parametrize(
    ("evidence", "label"),
    [
        (long_run([1.0] * 60, warmup_s=12.0), "short warm-up (50 steps, 12 s; 50 and 30 s are needed)"),
        (long_run([0.1] * 60), "short window (600 steps, 6 s; 200 and 30 s are needed)"),
        (
            dataclasses.replace(
                long_run([1.0] * 60),
                starts={rank: start(rank, environment={"HOROVOD_AUTOTUNE": "1"}) for rank in range(4)},
            ),
            "HOROVOD_AUTOTUNE changed the run while it was timed",
        ),
    ],
)
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
    starts = {rank: start(rank, environment={"HOROVOD_AUTOTUNE": value}) for rank in range(4)}
    verdict = judge(dataclasses.replace(long_run([1.0] * 60), starts=starts))
    assert ("HOROVOD_AUTOTUNE" in verdict.demonstration) is tunes


def test_a_device_that_two_ranks_report_is_shared_though_another_rank_reports_none() -> None:
    some = {0: report(0), 1: report(1, device_uuid="GPU-0"), 2: report(2), 3: report(3, device_uuid=None)}
    assert judge(changed(reports=some)).reasons == ("ranks 0, 1 shared one device (GPU-0)",)


def test_what_a_framework_reports_of_its_device_counts_before_the_launchers_guess() -> None:
    starts = {rank: start(rank, device_uuid=f"GPU-{rank // 2 * 2}") for rank in range(4)}  # two ranks, one guess
    some = {rank: report(rank, device_uuid=f"GPU-{rank}" if rank != 3 else None) for rank in range(4)}
    assert judge(changed(starts=starts, reports=some)).outcome == "measured"
    none = {rank: report(rank, device_uuid=None) for rank in range(4)}
    assert judge(changed(starts=starts, reports=none)).reasons == (
        "ranks 0, 1 shared one device (GPU-0 on n0)",
        "ranks 2, 3 shared one device (GPU-2 on n1)",
    )


def reduced(*errors: float | None) -> Evidence:
    """A good run whose ranks compared the gradients that they reduced with their mean."""
    return changed(reports={rank: report(rank, reduced_gradients_error=error) for rank, error in enumerate(errors)})


def test_divided_parameters_are_synchronised_if_what_was_reduced_is_the_mean() -> None:
    good = judge(reduced(0.0, 1e-6, 0.01, 0.0))
    assert good.outcome == "measured"
    assert any("what they reduced was their mean in the first step" in sentence for sentence in good.proven)
    whole = judge(GOOD)
    assert any("before the first allreduce" in sentence for sentence in whole.proven)


@pytest.mark.parametrize(
    ("errors", "says"),
    [
        ((0.0, 0.0, 0.98, 0.0), "the gradients were not reduced over all ranks"),
        ((0.06, 0.06, 0.06, 0.06), "they are not the mean of the ranks' own (relative difference 0.06)"),
        ((0.0, 0.0, None, 0.0), "not every rank compared the reduced gradients"),
    ],
)
def test_gathered_parameters_that_are_equal_prove_nothing_of_the_gradients(
    errors: tuple[float | None, ...], says: str
) -> None:
    bad = judge(reduced(*errors))
    assert bad.outcome == "not-proven"
    assert any(says in reason for reason in bad.reasons)


def test_a_recipe_that_divides_its_parameters_must_have_compared_them() -> None:
    """Without a comparison on any rank, equal gathered parameters are all that there is."""
    bad = judge(changed(reports={rank: report(rank, sharded="FSDP2") for rank in range(4)}))
    assert bad.reasons == ("not every rank compared the reduced gradients with the ranks' own",)


def test_gradients_on_any_other_device_than_the_gpu_are_a_fault() -> None:
    verdict = judge(with_report(1, gradients_device="xla"))
    assert verdict.reasons == ("the gradients of rank 1 were not on the GPU when they were reduced",)


def test_devices_are_called_distinct_only_by_the_frameworks_uuids() -> None:
    assert "4 distinct devices, by the UUIDs that the framework reported" in judge(GOOD).proven
    own = {rank: report(rank, device_uuid="index-0") for rank in range(4)}  # each rank sees its own GPU only
    verdict = judge(changed(reports=own))
    assert verdict.outcome == "measured"
    assert any("it is assumed that each rank used its own" in sentence for sentence in verdict.proven)


def test_parts_of_one_gpu_are_devices_of_their_own() -> None:
    starts = {rank: start(rank, device_kind="cpu", device_uuid=None) for rank in range(4)}
    slices = {rank: report(rank, device_uuid=f"MIG-{rank}") for rank in range(4)}
    assert judge(changed(starts=starts, reports=slices)).outcome == "measured"


UNPROVEN: dict[str, tuple[Evidence, str]] = {
    "no start record": (changed(starts={r: start(r) for r in (0, 1, 3)}), "no start record of rank 2"),
    "no exit record": (changed(exits={r: ended(r) for r in (0, 1, 2)}), "no exit record of rank 3"),
    "no report": (changed(reports={r: report(r) for r in (0, 1)}), "ranks 2, 3 left no report"),
    "worlds of one": (changed(reports={r: report(r, world_size=1, world_rank=0) for r in range(4)}), "size 1, planned"),
    "one rank in a world of one": (with_report(2, world_size=1), "rank 2 saw a world of size 1, planned 4"),
    "same rank twice": (with_report(2, world_rank=1), "several processes had the same rank"),
    "started alone": (changed(starts=GOOD.starts | {1: start(1, size=1)}), "started in a world of 1"),
    "never met": (changed(starts=GOOD.starts | {1: start(1, met=False)}), "never met"),
    "wrong placement": (changed(starts=GOOD.starts | {2: start(2, host="n0", device_uuid="x")}), "n0: 3, n1: 1"),
    "wrong device": (with_report(1, device_kind="cpu"), "did not compute on cuda"),
    "no GPU seen": (
        changed(
            starts=GOOD.starts | {1: start(1, device_kind="cpu")},
            reports=GOOD.reports | {1: report(1, device_uuid=None)},
        ),
        "rank 1 saw no GPU",
    ),
    "sockets": (changed(nccl=NcclLog(networks=frozenset({"Socket"}))), "NCCL used sockets"),
    "shared device": (with_report(1, device_uuid="GPU-0"), "ranks 0, 1 shared one device"),
    "same gradients": (with_report(1, gradient_checksum="g0"), "trained on the same data"),
    "other parameters": (with_report(1, parameter_checksum="q"), "not synchronised"),
    "one-hot": (with_report(1, onehot_ok=False), "one-hot"),
    "not-a-number loss": (with_report(3, loss_finite=False), "not finite on rank 3"),
    "nothing learnt": (with_report(3, parameters_moved=False), "did not change"),
    "silent on gradients": (with_report(3, gradient_checksum=None), "not every rank says what its gradients"),
    "no result": (changed(result=None), "left no result"),
    "another figure": (
        changed(result=msgspec.structs.replace(RESULT, preliminary_images_per_s=99.0)),
        "records give 72.727",
    ),
    "no figure": (changed(result=msgspec.structs.replace(RESULT, preliminary_images_per_s=None)), "gives no figure"),
    "result of another world": (changed(result=msgspec.structs.replace(RESULT, size=1)), "world of 1, planned 4"),
    "program's doubt": (changed(result=msgspec.structs.replace(RESULT, proof_reasons=("x",))), "the program says: x"),
    "no times": (
        changed(reports={r: report(r, ends_s=()) for r in range(4)}),
        "lack what a throughput",
    ),
    "fewer groups on one rank": (with_report(2, ends_s=(1.0, 2.0)), "did not do the same steps"),
    "another batch on one rank": (with_report(2, batch_size=1000), "did not do the same steps"),
    "negative counts": (
        changed(reports={r: report(r, batch_size=-10, group_steps=-2) for r in range(4)}),
        "lack what a throughput",
    ),
    "times that fall": (with_report(2, ends_s=(2.0, 1.0, 3.2)), "times of rank 2 do not rise"),
    "times without end": (with_report(2, ends_s=(1.0, 2.0, float("inf"))), "times of rank 2 do not rise"),
    "time of the window by itself": (with_report(2, elapsed_s=2.9), "says that its window took 2.900 s"),
    "number of steps by itself": (with_report(2, steps=60), "says that it did 60 steps"),
    "window before the program": (with_report(2, window_began_monotonic_s=990.0), "outside its program's life of 10.0"),
    "window after the program": (with_report(2, window_began_monotonic_s=1008.0), "outside its program's life of 10.0"),
    "no clock of the window": (with_report(2, window_began_monotonic_s=None), "does not say when its window began"),
    "no clock of the launcher": (
        changed(exits=GOOD.exits | {2: ended(2, ended_monotonic_s=None)}),
        "launcher of rank 2 does not say when",
    ),
    "another window in the result": (
        changed(result=msgspec.structs.replace(RESULT, window_s=3.0)),
        "window took 3.000",
    ),
    "another batch than planned": (
        changed(plan=msgspec.structs.replace(PLAN, samples_per_step=256)),
        "took batches of 10, planned 256",
    ),
    "two job steps": (
        changed(starts={r: start(r, token="ab"[r // 2]) for r in range(4)}),
        "2 different tokens of job steps",
    ),
    "two jobs": (changed(starts={r: start(r, job_id=f"4{r // 2}") for r in range(4)}), "2 different job ids"),
    "another plan": (changed(plan_sha256="f" * 64), "did not see the plan that lies in the run directory"),
    "records of the first version": (
        changed(reports={r: report(r, schema="1") for r in range(4)}),
        "older version (1)",
    ),
    "no NCCL": (with_report(1, nccl_built=False), "rank 1 ran a Horovod without NCCL"),
    "gradients on the host": (with_report(1, gradients_device="cpu"), "gradients of rank 1 were not on the GPU"),
    "torn record": (changed(damaged=("2.exit.json: bad",)), "a record cannot be read: 2.exit.json: bad"),
    "too many ranks": (changed(starts=GOOD.starts | {4: start(4)}), "beyond the plan: rank 4"),
    "too many reports": (changed(reports=GOOD.reports | {4: report(4, ends_s=())}), "beyond the plan: rank 4"),
    "no start record where compute times were recorded": (
        changed(
            starts={r: start(r) for r in (0, 1, 3)},
            reports={r: report(r, compute_quarters_p50_s=(0.1,) * 4) for r in range(4)},
        ),
        "no start record of rank 2",
    ),
    "times below a clock's resolution": (
        with_report(2, ends_s=(5e-324, 1e-323, 2e-323)),
        "times of rank 2 do not rise",
    ),
    "times of centuries": (with_report(2, ends_s=(1.0, 2.0, 1e300)), "times of rank 2 do not rise"),
}


@pytest.mark.parametrize("name", UNPROVEN)
def test_what_is_not_proven_is_reported_and_has_no_figure(name: str) -> None:
    evidence, says = UNPROVEN[name]
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.exit_code, verdict.images_per_s) == ("not-proven", 6, None)
    assert any(says in reason for reason in verdict.reasons), verdict.reasons


def test_the_first_rank_that_fails_by_itself_is_the_cause_not_those_killed_with_it() -> None:
    exits = {
        0: ended(0, status=143, exit_code=None, signal=15, ended_s=10.0),
        1: ended(1, status=7, exit_code=7, ended_s=11.0),
        2: ended(2, status=143, exit_code=None, signal=15, ended_s=12.0, signals_forwarded=(15,)),
        3: ended(3, status=1, exit_code=1, ended_s=13.0),
    }
    verdict = judge(changed(state=JobState("ended", "FAILED", exit_code=143), exits=exits, rank_lines={1: "boom"}))
    assert (verdict.outcome, verdict.exit_code) == ("failed", 5)
    assert verdict.reasons[0] == "rank 1 on n0 exited with code 7"
    assert verdict.reasons[1:3] == ("ranks 0, 2 were then stopped too", "rank 3 failed too")
    assert verdict.log == "logs/rank-1.err: boom"


def test_a_program_that_was_killed_by_itself_is_the_cause() -> None:
    """srun's own SIGKILL takes the launcher, too: a record of a killed program tells of the kernel's."""
    exits = {
        0: ended(0, status=1, exit_code=1, ended_s=10.2),
        3: ended(3, status=137, exit_code=None, signal=9, ended_s=10.0),
    }
    verdict = judge(changed(state=JobState("ended", "FAILED", exit_code=1), exits=exits))
    assert verdict.reasons[:2] == (
        "rank 3 on n1 was ended by signal 9 (SIGKILL)",
        "often out of memory: it had used 0 MiB; the job has all memory of its nodes",
    )
    assert verdict.reasons[2] == "rank 0 failed too"
    assert "(`sacct -j 41 --format=JobID,MaxRSS,ReqMem`)" in verdict.fix


def test_a_program_that_lost_its_image_tells_nothing_of_a_cancelled_job() -> None:
    lost = "job.sh: line 107: 30422 Bus error  ( exec ch-run )"
    exits = {rank: ended(rank, **STOPPED) for rank in range(4)}
    cancelled = changed(state=JobState("ended", "CANCELLED"), exits=exits, batch_line=lost)
    assert judge(cancelled).log == ""
    assert judge(changed(state=FAILED, exits=exits, batch_line=lost)).log == f"logs/batch.err: {lost}"


def test_a_rank_that_was_killed_with_its_launcher_is_often_out_of_memory() -> None:
    exits = {rank: ended(rank, **STOPPED) for rank in (0, 1, 3)}
    plan = msgspec.structs.replace(PLAN, directives=(("mem", "250G"),))
    verdict = judge(changed(plan=plan, state=FAILED, exits=exits, task_ends={2: "Killed"}))
    assert verdict.reasons[:2] == (
        "rank 2 on n1 left no exit record; srun reports: Killed",
        "often out of memory; the job asked for mem=250G",
    )
    assert "sacct -j 41" in verdict.fix
    assert verdict.rank == 2


def test_a_program_named_python_that_is_not_there() -> None:
    """The launcher itself was started by python3."""
    missing = ended(
        0, status=127, exit_code=None, error="program-not-found", message="python: No such file or directory"
    )
    verdict = judge(changed(exits=GOOD.exits | {0: missing}))
    assert verdict.reasons[1] == "the image has python3, not python"


def without_container(line: str) -> Evidence:
    """No rank started, and this is in rank 0's log."""
    fault = logs.container_fault([line], some_started=False)
    assert fault is not None
    faults = (dataclasses.replace(fault, file="rank-0.err", rank=0),)
    state = JobState("ended", "FAILED", exit_code=1)
    return changed(state=state, marker=None, starts={}, exits={}, reports={}, container_faults=faults)


def test_a_container_that_never_started_is_reported_with_the_runtimes_message() -> None:
    verdict = judge(without_container("pyxis: couldn't start container"))
    assert (verdict.outcome, verdict.exit_code) == ("infrastructure", 8)
    assert verdict.reasons == ("the container did not start",)
    assert verdict.log == "logs/rank-0.err: pyxis: couldn't start container"


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
    verdict = judge(dataclasses.replace(bare, task_ends={1: "Exited with exit code 3", 0: "Exited with exit code 1"}))
    assert (verdict.outcome, verdict.exit_code) == ("failed", 5)
    assert verdict.reasons[0] == "rank 1 left no exit record; srun reports: Exited with exit code 3"


STOPPED = {"status": 143, "exit_code": None, "error": "stopped-before-start", "message": "stopped by SIGTERM"}
FAILED = JobState("ended", "FAILED", exit_code=143)


def reasons_of(evidence: Evidence) -> tuple[str, ...]:
    return judge(evidence).reasons


def test_a_rank_without_a_record_is_reported_with_sruns_message() -> None:
    """It died before its launcher began, and the others were stopped: they are not the cause."""
    exits = {rank: ended(rank, **STOPPED) for rank in (0, 2)}
    told = {3: "Terminated", 0: "Bus error", 1: "Exited with exit code 3"}
    starts = {rank: start(rank, met=False) for rank in (0, 2)}
    verdict = judge(changed(state=FAILED, exits=exits, starts=starts, reports={}, task_ends=told))
    assert verdict.reasons[0] == "rank 1 left no exit record; srun reports: Exited with exit code 3"
    assert (verdict.outcome, verdict.exit_code) == ("failed", 5)


def test_a_rank_that_lost_its_image_with_another_rank_is_not_the_cause() -> None:
    evidence = changed(
        state=FAILED, marker=ExitMarker("1", 127, 0.0), exits={}, starts={}, reports={},
        task_ends={0: "Exited with exit code 127", 1: "Exited with exit code 3"},
        rank_lines={0: "/bin/bash: error while loading shared libraries: libtinfo.so.6: cannot open: Error 107"},
    )  # fmt: skip
    assert reasons_of(evidence)[:2] == (
        "rank 1 left no exit record; srun reports: Exited with exit code 3",
        "rank 0 left no exit record; srun reports: Exited with exit code 127 (its image went away)",
    )


def test_a_rank_that_hangs_while_the_others_end_is_named() -> None:
    exits = {rank: ended(rank) for rank in (0, 1, 3)}
    reports = {rank: report(rank) for rank in (0, 1, 3)}
    killed = changed(state=FAILED, marker=None, exits=exits, reports=reports, task_ends={2: "Killed"})
    assert reasons_of(killed)[:2] == ("rank 2 on n1 did not finish the program", "3 of 4 ranks ended with status 0")


@pytest.mark.parametrize(
    ("starts", "sentences"),
    [
        ((0, 1, 2), ("rank 3 never started", "ranks 0, 1, 2 waited for the others to start")),
        ((), ("ranks 0, 1, 2, 3 never started",)),
    ],
)
def test_who_was_waited_for_at_the_time_limit(starts: tuple[int, ...], sentences: tuple[str, ...]) -> None:
    exits = {rank: ended(rank, **STOPPED) for rank in starts}
    waiting = {rank: start(rank, met=False) for rank in starts}
    evidence = changed(state=JobState("ended", "TIMEOUT"), exits=exits, starts=waiting, reports={})
    assert reasons_of(evidence) == ("the job ran into its time limit", *sentences)


def test_a_program_out_of_memory_is_reported_as_such() -> None:
    exits = GOOD.exits | {2: ended(2, status=137, exit_code=None, signal=9, max_rss_bytes=183 << 20)}
    plan = msgspec.structs.replace(PLAN, memory_mb=200)
    told = "it ran out of memory: the kernel ended it at 183 MiB; the job has 200 MiB on each node"
    assert told in reasons_of(changed(plan=plan, state=FAILED, exits=exits, task_ends={2: "Out Of Memory"}))
    assert told not in reasons_of(changed(plan=plan, state=FAILED, exits=exits, task_ends={2: "Killed"}))


def test_a_bus_error_beside_a_dead_rank_of_the_node_is_not_the_cause() -> None:
    """That rank may have served the image to all of its node."""
    exits = {0: ended(0), 1: ended(1), 3: ended(3, status=135, exit_code=None, signal=7)}
    assert reasons_of(changed(state=FAILED, exits=exits, task_ends={2: "Killed"}))[0] == (
        "rank 2 on n1 left no exit record; srun reports: Killed"
    )
    assert (
        reasons_of(changed(state=FAILED, exits=exits, task_ends={}))[0] == "rank 3 on n1 was ended by signal 7 (SIGBUS)"
    )


@pytest.mark.parametrize("error", ["rendezvous-port-taken", "rendezvous-timeout", "record-not-written"])
def test_what_kept_a_launcher_from_its_program_may_be_gone_next_time(error: str) -> None:
    exits = GOOD.exits | {2: ended(2, status=114, exit_code=None, error=error, message="why")}
    verdict = judge(changed(state=FAILED, exits=exits))
    assert (verdict.outcome, verdict.exit_code) == ("infrastructure", 8)
    assert verdict.reasons[0] == f"rank 2 on n1 did not start its program: {error}: why"


def test_a_rank_with_another_jobs_token_is_named() -> None:
    exits = GOOD.exits | {0: ended(0, status=113, exit_code=None, error="rendezvous-timeout", message="rank 2")}
    starts = {rank: start(rank, met=False, token="stale" if rank == 2 else "t") for rank in range(4)}
    assert "rank 2 on n1 presented the token of another job step" in reasons_of(changed(exits=exits, starts=starts))


def test_a_full_disk_is_reported_even_where_no_rank_could_write_it_down() -> None:
    state = JobState("ended", "FAILED", exit_code=116)
    bare: dict[str, Any] = {"state": state, "marker": None, "exits": {}, "starts": {}, "reports": {}, "result": None}
    assert reasons_of(changed(**bare)) == ("the job could not write to its run directory (exit code 116)",)
    full = judge(changed(**bare, disk_full=True))
    assert full.reasons[-1] == "the disk of the run directory is full"
    assert (full.outcome, full.exit_code) == ("infrastructure", 8)


def test_who_cancelled_is_reported_as_far_as_it_is_known() -> None:
    cancelled = JobState("ended", "CANCELLED")
    by_uid = msgspec.structs.replace(cancelled, reason="by uid 0")
    assert reasons_of(changed(state=cancelled))[0] == "the job was cancelled; the scheduler does not say by whom"
    assert reasons_of(changed(state=by_uid))[0] == "the job was cancelled by uid 0"
    told = reasons_of(changed(state=cancelled, cancelled=Cancelled("ann", "login1", 0.0)))[0]
    assert told == "the job was cancelled by ann on login1, through `cancel` or Ctrl-C"


@pytest.mark.parametrize("name", ["CANCELLED", "TIMEOUT"])
def test_a_crash_before_the_end_from_outside_is_reported_with_it(name: str) -> None:
    """Ranks that hang after a crash are ended by hand or by the limit: the crash is what the user looks for."""
    stopped = {rank: ended(rank, **STOPPED, ended_s=100.0) for rank in range(3)}
    crash = {"status": 139, "exit_code": None, "signal": 11}
    before = "before that, rank 3 on n1 was ended by signal 11 (SIGSEGV)"
    for exits, ended_s in ((stopped, 50.0), ({}, 50.0), (stopped, 101.0)):
        evidence = changed(
            state=JobState("ended", name),
            exits=exits | {3: ended(3, **crash, ended_s=ended_s)},
            rank_lines={3: "Segmentation fault"},
            result=None,
        )
        verdict = judge(evidence)
        is_first = ended_s < 100.0
        assert verdict.outcome == ("cancelled" if name == "CANCELLED" else "failed")
        assert (before in verdict.reasons) is is_first
        assert (verdict.rank, verdict.log) == ((3, "logs/rank-3.err: Segmentation fault") if is_first else (None, ""))


def test_the_node_that_failed_is_named() -> None:
    state = JobState("ended", "NODE_FAIL", "NodeDown", "n[0-1]")
    assert reasons_of(changed(state=state, failed_nodes=("n1",))) == (
        "the scheduler reports NODE_FAIL: n1 failed (NodeDown)",
    )


def test_a_rank_ended_by_a_signal_of_its_own() -> None:
    exits = GOOD.exits | {2: ended(2, status=139, exit_code=None, signal=11)}
    assert judge(changed(exits=exits)).reasons[0] == "rank 2 on n1 was ended by signal 11 (SIGSEGV)"


def test_a_world_that_is_not_the_planned_one_is_not_proven() -> None:
    exits = GOOD.exits | {2: ended(2, status=111, exit_code=None, error="world-mismatch", message="1, planned 4")}
    verdict = judge(changed(exits=exits))
    assert (verdict.outcome, verdict.exit_code) == ("not-proven", 6)


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


def test_a_job_that_was_killed_outright_is_no_success_whatever_its_ranks_left() -> None:
    verdict = judge(dataclasses.replace(GOOD, state=JobState("ended", "KILLED"), marker=None))
    assert (verdict.outcome, verdict.exit_code) == ("failed", 5)


def test_a_users_program_is_measured_only_if_it_leaves_a_result_that_is_proven() -> None:
    own = msgspec.structs.replace(PLAN, result="if-left", framework="none")
    assert judge(dataclasses.replace(GOOD, plan=own)).outcome == "measured"
    assert judge(dataclasses.replace(GOOD, plan=own, result=None, reports={})).outcome == "ran"
    same = {rank: report(rank, gradient_checksum="g") for rank in range(4)}
    assert judge(dataclasses.replace(GOOD, plan=own, reports=same)).outcome == "not-proven"
    torn = dataclasses.replace(GOOD, plan=own, result=None, damaged=("result.json: torn",))
    assert judge(torn).outcome == "not-proven"


def test_a_check_that_was_overridden_is_shown_with_the_verdict() -> None:
    for evidence in (GOOD, dataclasses.replace(GOOD, state=JobState("ended", "TIMEOUT"))):
        assert judge(evidence).forced == ()
        assert judge(dataclasses.replace(evidence, forced=("submit-directory",))).forced == ("submit-directory",)
