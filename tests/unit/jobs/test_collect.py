"""What is read out of a run directory: logs, records, and why containers did not start."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from runner.backends.schedulers.slurm.client import Slurm
from runner.core.errors import UsageError
from runner.jobs.collect import collect
from runner.jobs.directory import Run
from runner.jobs.states import cancel
from runner.jobs.verdict import judge
from runner.model.job import ExitMarker, JobState
from runner.model.verdict import Verdict
from tests.support.evidence import GOOD, ended, node, start, write_plan, write_record
from tests.support.plans import PLAN
from tests.support.shell_files import stand_in

ENDED = JobState("ended", "FAILED", exit_code=1)


def test_what_srun_says_of_tasks(run: Run) -> None:
    """Lines as Slurm 22.05 writes them; the first word on a task counts."""
    (run.logs / "batch.err").write_text(
        "srun: error: dgx01: tasks 0-2,5: Exited with exit code 3\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=5.1\n"
        "srun: error: dgx02: task 3: Out Of Memory\n"
        "srun: error: dgx01: task 0: Killed\n"
        "srun: error: Node failure on dgx02\n"
        "srun: error: task 6 launch failed: Slurmd could not connect IO\n"
        "the program says srun: error: dgx01: task 7: Killed\n"
    )
    evidence = collect(run, ENDED)
    three, io = "Exited with exit code 3", "launch failed: Slurmd could not connect IO"
    assert evidence.task_ends == {0: three, 1: three, 2: three, 5: three, 3: "Out Of Memory", 6: io}
    assert evidence.failed_nodes == ("dgx02",)
    assert not evidence.disk_full


@pytest.mark.parametrize("ranks", ["5-", "-", "1-2-3", "0-99999999999", "0-" + "9" * 5000, "--,,-1"])
def test_lines_that_only_look_like_sruns_say_nothing_of_a_task(run: Run, ranks: str) -> None:
    (run.logs / "batch.err").write_text(f"srun: error: dgx01: tasks {ranks}: Killed\n")
    assert collect(run, ENDED).task_ends == {}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "", "\0" * 4096, "NaN", "[]", '{"rank": NaN}'])
def test_what_is_no_record_is_damaged_and_ends_nothing(run: Run, text: str) -> None:
    for name in ("ranks/1.start.json", "ranks/1.exit.json", "ranks/1.report.json", "result.json"):
        (run.path / name).write_text(text)
    (run.path / "exit.json").write_text(text)
    (run.path / "cancelled.json").mkdir()
    evidence = collect(run, ENDED)
    assert len(evidence.damaged) == 4
    assert (evidence.marker, evidence.cancelled) == (None, None)
    assert judge(evidence).outcome != "measured"


def test_a_rank_has_one_name_for_its_record(run: Run) -> None:
    for name in ("03", "\u0663", "\u00b3", "3 ", "-3", "9" * 200):
        run.write(f"ranks/{name}.exit.json", ended(3))
    assert collect(run, ENDED).exits == {}


def test_a_file_of_a_users_own_program_is_no_result_of_ours(run: Run) -> None:
    run.write("plan.json", msgspec.structs.replace(PLAN, result="if-left"))
    run.write("result.json", {"accuracy": 0.9})
    evidence = collect(run, ENDED)
    assert (evidence.result, evidence.damaged) == (None, ())
    run.write("plan.json", PLAN)
    assert len(collect(run, ENDED).damaged) == 1  # where a figure is promised, it must be one


def test_who_cancels_leaves_word(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "scancel", "exit 0")
    monkeypatch.setenv("LOGNAME", "ann")
    cancel(run, Slurm(tmp_path), "5")
    cancelled = collect(run, ENDED).cancelled
    assert cancelled is not None
    assert msgspec.to_builtins(cancelled)["user"] == "ann"


def empty(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a directory": Path.mkdir,
    "a loop of links": lambda path: path.symlink_to(path.name),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere"),
    "a terabyte of nothing": lambda path: empty(path, 1 << 40),
}


@pytest.mark.parametrize("made", NO_FILES)
def test_what_is_no_file_neither_blocks_nor_fills_memory(run: Run, made: str) -> None:
    names = [f"ranks/1.{kind}.json" for kind in ("start", "exit", "report", "node")]
    for name in (*names, "result.json", "exit.json", "cancelled.json", "nccl/n0.1.log", "logs/batch.err"):
        NO_FILES[made](run.path / name)
    evidence = collect(run, ENDED)
    damaged = {sentence.split(":")[0] for sentence in evidence.damaged}
    assert {"1.start.json", "1.exit.json", "1.report.json"} <= damaged
    assert (evidence.starts, evidence.exits, evidence.reports, evidence.watched) == ({}, {}, {}, {})
    assert (evidence.result, evidence.marker, evidence.cancelled) == (None, None, None)
    assert judge(evidence).outcome == "failed"
    (run.path / "plan.json").unlink()
    NO_FILES[made](run.path / "plan.json")
    with pytest.raises(UsageError, match="plan cannot be read"):
        collect(run, ENDED)


def test_a_watchers_record_counts_where_its_own_launcher_ran(run: Run) -> None:
    write_plan(run, GOOD)
    for rank in range(4):
        write_record(run, start(rank))
    kept = [node(0, [])]
    strangers = [
        node(1, [], token="u"), node(1, [], host="n9"), node(1, [], node_rank=0), node(1, [], rank=3),
        node(1, [], rank=9),
    ]  # fmt: skip
    for stranger in strangers:
        for record in (*kept, stranger):
            (run.ranks / f"{record.rank}.node.json").write_bytes(msgspec.json.encode(record))
        assert collect(run, ENDED).watched == {0: kept[0]}
        (run.ranks / f"{stranger.rank}.node.json").unlink()


def test_which_versions_ran_is_what_the_job_recorded(run: Run) -> None:
    """Pyxis has no command that says its version: since 0.21 the ranks see it in a variable."""
    run.write("plan.json", msgspec.structs.replace(PLAN, runtime="pyxis"))
    (run.path / "versions").write_text("slurm\tslurm 22.05.8\nother\t1.0\nhalf a line")
    verdict = judge(collect(run, ENDED))
    assert verdict.runtime == "pyxis"
    assert verdict.versions == {"slurm": "22.05.8", "pyxis": "unknown", "enroot": "unknown"}
    (run.path / "versions").write_text("slurm\tslurm 22.05.8\nenroot\t4.1.2-14-g8ea147d\n")
    write_record(run, start(0, environment={"PYXIS_VERSION": "0.24.0"}))
    assert collect(run, ENDED).versions == {"slurm": "22.05.8", "pyxis": "0.24.0", "enroot": "4.1.2-14-g8ea147d"}


FAILED = JobState("ended", "FAILED", exit_code=1)
MISSING = "[ERROR] No such file or directory: /lustre/u/images/x.sqsh"
CANCELLED = "slurmstepd: error: *** STEP 7.0 ON n0 CANCELLED AT 2026-11-22T02:06:49 ***"
SRUN = (
    "srun: error: n1: tasks 2-3: Exited with exit code 1",
    "srun: launch/slurm: _step_signal: Terminating StepId=7.0",
    "srun: error: n0: tasks 0-1: Exited with exit code 1",
)


def log(run: Run, name: str, *lines: str) -> None:
    (run.logs / name).write_text("".join(f"{line}\n" for line in lines))


def pyxis(*enroot: str) -> list[str]:
    said = ("pyxis: child 9 failed with error code: 1", "pyxis: printing enroot log file:")
    return [f"slurmstepd: error: {line}" for line in (*said, *(f"pyxis:     {line}" for line in enroot), "spank: x")]


def verdict(run: Run, state: JobState = FAILED) -> Verdict:
    return judge(collect(run, state))


def test_the_last_lines_of_logs_that_tell_of_an_end(run: Run) -> None:
    log(run, "rank-2.err", "one", "cannot go on", "")
    log(run, "batch.err", "srun: error: n1: task 1: Exited with exit code 9", CANCELLED, "srun: error: n0: Terminated")
    evidence = collect(run, FAILED)
    assert evidence.rank_lines == {2: "cannot go on"}
    assert evidence.batch_line == "srun: error: n1: task 1: Exited with exit code 9"
    log(run, "batch.err", CANCELLED)
    assert collect(run, FAILED).batch_line == CANCELLED


NOT_STARTED = "the container did not start on"
ONLY_UNPACKS = "[INFO] Extracting squashfs filesystem..."
# Logs, the job's exit code, the first sentence of the verdict, and the line that it quotes.
CONTAINERS: dict[str, tuple[dict[str, Sequence[str]], int, str, str]] = {
    "the node of the cause, not the one that was stopped": ({"batch.err": SRUN,
        "rank-0.err": (CANCELLED, *pyxis(ONLY_UNPACKS)), "rank-2.err": pyxis(MISSING)}, 1,
        f"{NOT_STARTED} n1: the image {PLAN.image.path} is not there", f"logs/rank-2.err: {MISSING}"),
    "all nodes": ({"batch.err": SRUN, "rank-1.err": pyxis(MISSING), "rank-3.err": pyxis(MISSING)}, 1,
        f"{NOT_STARTED} any node: the image", f"logs/rank-1.err: {MISSING}"),
    # The cancelled node's own log is in the file of a rank that does not say it was cancelled.
    "lines that name no cause: the first reported node": ({"batch.err": SRUN, "rank-1.err": pyxis(),
        "rank-2.err": pyxis()}, 1, f"{NOT_STARTED} n1: Enroot ended without a message", "logs/rank-2.err: Enroot"),
    "far from the end of a log": ({"rank-2.err": (*pyxis(MISSING), *["slurmstepd: error: and so on"] * 5000)}, 1,
        NOT_STARTED.removesuffix(" on"), f"logs/rank-2.err: {MISSING}"),
    **{f"a script that stopped before any, with {code}": ({"batch.err": ("While processing the module container/1.2",
        )}, code, says, "") for code,
        says in ((73, "the allocation has other nodes"), (74, "a file that the script read"))},
}  # fmt: skip


@pytest.mark.parametrize("name", CONTAINERS)
def test_why_containers_did_not_start_by_all_logs_together(run: Run, name: str) -> None:
    logs, code, says, line = CONTAINERS[name]
    for file, lines in logs.items():
        log(run, file, *lines)
    judged = verdict(run, JobState("ended", "FAILED", exit_code=code))
    assert (judged.outcome, judged.reasons[0][: len(says)]) == ("infrastructure", says)
    assert judged.log.startswith(line)


def test_what_is_no_evidence_of_a_container(run: Run) -> None:
    log(run, "cleanup.log", "[ERROR] No such file or directory: /var/tmp/data/runner-7", *SRUN)
    evidence = collect(run, FAILED)
    assert (evidence.container_faults, evidence.task_ends) == ((), {})
    for rank in (0, 1, 3):
        write_record(run, start(rank))
        write_record(run, ended(rank, status=1, exit_code=1))
    log(run, "node-n1.log", MISSING)  # of nodes that were made ready, once ranks have started
    (run.ranks / "2.start.json").write_text("{")  # its launcher ran: what its program says of containers is its own
    log(run, "rank-2.err", *pyxis(MISSING))
    assert collect(run, FAILED).container_faults == ()
    for record in run.ranks.iterdir():
        record.unlink()
    run.write("plan.json", msgspec.structs.replace(PLAN, runtime="native"))
    assert collect(run, FAILED).container_faults == ()


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
