"""Containers that did not start: which cause, on which node, by all logs of a run together."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runner.jobs import directory
from runner.jobs.collect import collect
from runner.jobs.directory import Run
from runner.jobs.verdict import judge
from runner.model.job import ExitMarker, JobState
from runner.model.verdict import Verdict
from tests.support.evidence import ended, start, write_record
from tests.support.plans import PLAN

FAILED = JobState("ended", "FAILED", exit_code=1)
MISSING = "[ERROR] No such file or directory: /lustre/u/images/x.sqsh"
CANCELLED = "slurmstepd: error: *** STEP 7.0 ON n0 CANCELLED AT 2026-11-22T02:06:49 ***"
SRUN = """\
srun: error: n1: tasks 2-3: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=7.0
srun: error: n0: tasks 0-1: Exited with exit code 1
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of four ranks on n0 and n1."""
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    made = directory.create(tmp_path / "runs", "probe-4", 0.0)
    made.write("plan.json", PLAN)
    return made


def log(run: Run, name: str, *lines: str) -> None:
    (run.logs / name).write_text("".join(f"{line}\n" for line in lines))


def pyxis(*enroot: str) -> list[str]:
    said = ("pyxis: child 9 failed with error code: 1", "pyxis: printing enroot log file:")
    return [f"slurmstepd: error: {line}" for line in (*said, *(f"pyxis:     {line}" for line in enroot), "spank: x")]


def verdict(run: Run, state: JobState = FAILED) -> Verdict:
    return judge(collect(run, state))


def test_the_node_is_that_of_the_cause_and_not_the_one_that_was_stopped(run: Run) -> None:
    (run.logs / "batch.err").write_text(SRUN)
    log(run, "rank-0.err", CANCELLED, *pyxis("[INFO] Extracting squashfs filesystem..."))
    log(run, "rank-2.err", *pyxis(MISSING))
    found = verdict(run)
    assert found.reasons == (f"the container did not start on n1: the image {PLAN.image.path} is not there",)
    assert (found.outcome, found.log) == ("infrastructure", f"logs/rank-2.err: {MISSING}")
    assert (found.who, found.fix[:11]) == ("site", "keep images")


def test_a_cause_that_all_nodes_show(run: Run) -> None:
    (run.logs / "batch.err").write_text(SRUN)
    for rank in (1, 3):
        log(run, f"rank-{rank}.err", *pyxis(MISSING))
    assert verdict(run).reasons[0].startswith("the container did not start on any node: the image")


def test_of_lines_that_name_no_cause_that_of_the_first_reported_node_counts(run: Run) -> None:
    """The cancelled node's own log is in the file of a rank that does not say it was cancelled."""
    (run.logs / "batch.err").write_text(SRUN)
    log(run, "rank-1.err", *pyxis())
    log(run, "rank-2.err", *pyxis())
    assert verdict(run).reasons[0].startswith("the container did not start on n1: Enroot ended without a message")


def test_ranks_that_started_and_waited_do_not_hide_the_node_that_did_not(run: Run) -> None:
    for rank in (0, 1):
        write_record(run, start(rank, met=False))
    write_record(run, ended(0, status=113, exit_code=None, error="rendezvous-timeout", message="2 of 4 came"))
    log(run, "rank-2.err", *pyxis("Write on output file failed because No space left on device"))
    log(run, "rank-0.err", "container")
    (run.path / "nodes").write_text("n0\nn1\n")
    found = verdict(run)
    assert found.reasons[0].startswith("the container did not start on n1: there is no room to unpack the image")
    assert "ranks 2, 3 never started" in found.reasons
    assert found.exit_code == 8


def test_a_node_that_could_not_be_made_ready_is_named_by_its_own_log(run: Run) -> None:
    (run.logs / "batch.err").write_text(
        "srun: error: n1: task 1: Exited with exit code 1\n"
        f"{CANCELLED}\nsrun: error: n0: task 0: Terminated\nsrun: Force Terminated StepId=7.0\n"
    )
    log(run, "node-n0.log", "[INFO] Extracting squashfs filesystem...", CANCELLED)
    log(run, "node-n1.log", "bash: line 1: exec: enroot: not found")
    run.write("exit.json", ExitMarker("7", 71, 0.0))
    found = verdict(run, JobState("ended", "FAILED", exit_code=71))
    assert found.reasons == ("the container did not start on n1: enroot is not there, or not in PATH",)
    log(run, "node-n1.log", "the tool of this site: no licence")
    found = verdict(run, JobState("ended", "FAILED", exit_code=71))
    assert found.reasons == ("the container could not be prepared on every node",)
    assert found.log == "logs/node-n1.log: the tool of this site: no licence"


def test_a_launcher_that_failed_before_its_start_record_was_in_its_container(run: Run) -> None:
    """What the image's own shell says beside it is no container's fault."""
    write_record(run, ended(0, status=112, exit_code=None, error="world-unknown", message="no rank"))
    log(run, "rank-0.err", "This container image and its contents are governed by a licence", "launch: world-unknown")
    found = verdict(run)
    assert found.reasons[0].startswith("rank 0 on n0")
    assert "container did not start" not in str(found.reasons)


def test_a_damaged_record_shows_that_its_launcher_ran(run: Run) -> None:
    """What its program says of containers is its own."""
    for rank in (0, 1, 3):
        write_record(run, start(rank))
        write_record(run, ended(rank, status=1, exit_code=1))
    (run.ranks / "2.start.json").write_text("{")
    log(run, "rank-2.err", *pyxis(MISSING))
    assert collect(run, FAILED).container_faults == ()


def test_a_cause_far_from_the_end_of_a_log(run: Run) -> None:
    log(run, "rank-2.err", *pyxis(MISSING), *("slurmstepd: error: and so on" for _ in range(5000)))
    assert verdict(run).log == f"logs/rank-2.err: {MISSING}"


@pytest.mark.parametrize(("code", "says"), [(73, "nodes"), (74, "module")])
def test_a_script_that_stopped_before_any_container_is_no_containers_fault(run: Run, code: int, says: str) -> None:
    log(run, "batch.err", "While processing the module container/1.2")
    found = verdict(run, JobState("ended", "FAILED", exit_code=code))
    assert says in found.reasons[0]
    assert "container did not start" not in str(found.reasons)


def test_without_a_container_none_has_failed(run: Run) -> None:
    run.write("plan.json", msgspec.structs.replace(PLAN, runtime="native"))
    log(run, "rank-0.err", "bash: container/activate: No such file or directory")
    assert collect(run, FAILED).container_faults == ()


def test_what_the_clean_up_says_is_no_evidence(run: Run) -> None:
    log(run, "cleanup.log", "[ERROR] No such file or directory: /var/tmp/data/runner-7", *SRUN.splitlines())
    evidence = collect(run, FAILED)
    assert (evidence.container_faults, evidence.task_ends) == ((), {})


def test_nodes_that_were_made_ready_are_no_evidence_once_ranks_have_started(run: Run) -> None:
    write_record(run, start(0))
    log(run, "node-n1.log", MISSING)
    assert collect(run, FAILED).container_faults == ()


def test_an_image_that_cannot_be_read_is_not_the_ranks_fault(run: Run) -> None:
    """A damaged image that is mounted, not unpacked, shows while a program runs."""
    for rank in range(4):
        write_record(run, start(rank))
        write_record(run, ended(rank, status=0 if rank != 2 else 1, exit_code=0 if rank != 2 else 1))
    log(run, "rank-2.err", "Traceback", "OSError: [Errno 5] Input/output error")
    found = verdict(run)
    assert (found.outcome, found.exit_code) == ("infrastructure", 8)
    assert found.reasons[0].startswith("rank 2 on n1 exited with code 1: it met an input/output error")
    assert "images verify" in found.fix


def test_ranks_that_were_never_launched_explain_a_time_limit(run: Run) -> None:
    for rank in (0, 1):
        write_record(run, start(rank, met=False))
    log(run, "batch.err", *(f"srun: error: task {rank} launch failed: Plugin initialization failed" for rank in (2, 3)))
    (run.path / "nodes").write_text("n0\nn1\n")
    found = verdict(run, JobState("ended", "TIMEOUT", reason="TimeLimit", exit_code=143))
    assert found.reasons[0].startswith("ranks 2, 3 on n1 left no exit record; srun reports: launch failed: Plugin")
    assert found.reasons[1] == "the job ran into its time limit"
    assert (found.outcome, found.who) == ("infrastructure", "site")


def test_the_batch_scripts_line_is_a_cause_and_not_what_followed(run: Run) -> None:
    log(run, "batch.err", "srun: error: n1: task 1: Exited with exit code 9", CANCELLED, "srun: error: n0: Terminated")
    assert collect(run, FAILED).batch_line == "srun: error: n1: task 1: Exited with exit code 9"
    log(run, "batch.err", CANCELLED)
    assert collect(run, FAILED).batch_line == CANCELLED
