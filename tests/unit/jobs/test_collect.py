"""What is read out of a run directory: logs, records, and why containers did not start."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.backends.schedulers.slurm.client import Slurm
from runner.core.errors import UsageError
from runner.jobs.collect import collect
from runner.jobs.directory import Run
from runner.jobs.states import cancel
from runner.jobs.verdict import judge
from runner.model.job import ExitMarker, JobState
from runner.model.plan import PlanRecord
from runner.model.records import ExitRecord, StartRecord
from tests.support.evidence import GOOD, ended, node, start, write_plan, write_record
from tests.support.plans import PLAN
from tests.support.shell_files import stand_in

ENDED = JobState("ended", "FAILED", exit_code=1)


NO_RANKS = ("5-", "-", "1-2-3", "0-99999999999", "0-" + "9" * 5000, "--,,-1")


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
        + "".join(f"srun: error: dgx01: tasks {ranks}: Killed\n" for ranks in NO_RANKS)
    )
    evidence = collect(run, ENDED)
    three, io = "Exited with exit code 3", "launch failed: Slurmd could not connect IO"
    assert evidence.task_ends == {0: three, 1: three, 2: three, 5: three, 3: "Out Of Memory", 6: io}
    assert evidence.failed_nodes == ("dgx02",)
    assert not evidence.disk_full


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


def test_a_rank_has_one_name_for_its_record_and_a_users_own_file_is_no_result_of_ours(run: Run) -> None:
    for name in ("03", "\u0663", "\u00b3", "3 ", "-3", "9" * 200):
        run.write(f"ranks/{name}.exit.json", ended(3))
    run.write("plan.json", msgspec.structs.replace(PLAN, result="if-left"))
    run.write("result.json", {"accuracy": 0.9})
    evidence = collect(run, ENDED)
    assert (evidence.exits, evidence.result, evidence.damaged) == ({}, None, ())
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
    (run.path / "versions-n0").write_text("enroot\t4.1.2-14-g8ea147d\n")
    (run.path / "versions-n1").write_text("enroot\tenroot: line 1: enroot: command not found\n")
    verdict = judge(collect(run, ENDED))
    assert verdict.versions == {"slurm": "22.05.8", "pyxis": "0.24.0", "enroot": "4.1.2-14-g8ea147d"}
    assert verdict.remarks == ()
    (run.path / "versions-n1").write_text("enroot\t3.5.0\n")
    write_record(run, start(2, environment={"PYXIS_VERSION": "0.20.0"}))
    with (run.path / "versions").open("a") as file:
        file.write("slurm\t22.05.8\tn0\nslurm\t23.02.7\tn1\n")
    assert judge(collect(run, ENDED)).remarks == (
        "slurm is 22.05.8, but 23.02.7 on n1",
        "pyxis is 0.24.0, but 0.20.0 on n1",
        "enroot is 4.1.2-14-g8ea147d, but 3.5.0 on n1",
    )


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


def test_the_last_lines_of_logs_that_tell_of_an_end(run: Run) -> None:
    log(run, "rank-2.err", "one", "cannot go on", "")
    log(run, "batch.err", "srun: error: n1: task 1: Exited with exit code 9", CANCELLED, "srun: error: n0: Terminated")
    evidence = collect(run, ENDED)
    assert (evidence.rank_lines, evidence.rank_quotes) == ({2: "cannot go on"}, {2: "logs/rank-2.err: cannot go on"})
    assert evidence.batch_line == "srun: error: n1: task 1: Exited with exit code 9"
    log(run, "batch.err", CANCELLED)
    assert collect(run, ENDED).batch_line == CANCELLED


def test_of_a_rank_that_ended_by_itself_its_own_line_tells_though_slurm_adds_the_steps_end(run: Run) -> None:
    """To rank 0, which often fails first."""
    log(run, "rank-0.err", "FileNotFoundError: [Errno 2] No such file or directory: '/nope'", "", CANCELLED)
    for rank, how in (
        (0, {"status": 1, "exit_code": 1}),
        (1, {"status": 143, "signal": 15, "signals_forwarded": (15,)}),
    ):
        write_record(run, start(rank))
        write_record(run, ended(rank, **how))
    log(run, "rank-1.err", CANCELLED)
    evidence = collect(run, ENDED)
    assert evidence.rank_lines == {0: "FileNotFoundError: [Errno 2] No such file or directory: '/nope'", 1: CANCELLED}
    assert "it does not find /nope" in judge(evidence).reasons[0]


RAISED = ("Traceback (most recent call last):", '  File "t.py", line 1, in <module>', "ValueError: no rate", "bye")


@pytest.mark.parametrize(
    ("err", "out", "quoted"),
    [
        ((), RAISED, "out: ValueError: no rate"),  # python train.py 2>&1
        (("cannot go on",), RAISED, "out: ValueError: no rate"),
        (RAISED, ("KeyError: 'x'",), "err: ValueError: no rate"),
        ((), ("epoch 1", "no data, giving up"), "out: no data, giving up"),
        (("no data, giving up",), ("validation error: 0.31",), "err: no data, giving up"),
        ((" " * 49_000 + "x", "y" * 1500), (), "err: " + "y" * 1000),
    ],
)
def test_the_reason_may_stand_in_standard_output(
    run: Run, err: tuple[str, ...], out: tuple[str, ...], quoted: str
) -> None:
    log(run, "rank-2.err", *err)
    log(run, "rank-2.out", *out)
    began = time.process_time()
    assert collect(run, ENDED).rank_quotes == {2: f"logs/rank-2.{quoted}"}
    assert time.process_time() - began < 2.0


def test_what_is_no_evidence_of_a_container(run: Run) -> None:
    log(run, "cleanup.log", "[ERROR] No such file or directory: /var/tmp/data/runner-7", *SRUN)
    evidence = collect(run, ENDED)
    assert (evidence.container_faults, evidence.task_ends) == ((), {})
    for rank in (0, 1, 3):
        write_record(run, start(rank))
        write_record(run, ended(rank, status=1, exit_code=1))
    log(run, "node-n1.log", MISSING)  # of nodes that were made ready, once ranks have started
    (run.ranks / "2.start.json").write_text("{")  # its launcher ran: what its program says of containers is its own
    log(run, "rank-2.err", *pyxis(MISSING))
    assert collect(run, ENDED).container_faults == ()
    for record in run.ranks.iterdir():
        record.unlink()
    run.write("plan.json", msgspec.structs.replace(PLAN, runtime="native"))
    assert collect(run, ENDED).container_faults == ()


def code(number: int, name: str = "FAILED", **fields: Any) -> JobState:
    return JobState("ended", name, exit_code=number, **fields)


NOT_STARTED = "the container did not start on"
ONLY_UNPACKS = "[INFO] Extracting squashfs filesystem..."
NO_ROOM = "Write on output file failed because No space left on device"
TOO_SOON = ("slurmstepd-n0: error: pyxis: container exited too soon", *pyxis()[1:])
NOT_MADE = "slurmstepd-n1: error: pyxis: failed to create container filesystem for image: /lustre/u/images/x.sqsh"
NO_PLUGIN = [f"srun: error: task {rank} launch failed: Plugin initialization failed" for rank in (2, 3)]
BTL = "[n0][btl_tcp_endpoint.c:626] connect() to 10.0.0.2:1024 failed: No route to host (113)"
NO_IO = "srun: error: task 1 launch failed: Slurmd could not connect IO"
SRUN_KILLED = "lib/common.sh: line 85: 35933 Killed                  srun --mpi=none --nodes=2"
FAILED_STEP = "slurmstepd-n0: error: *** STEP 7.0 ON n0 FAILED (non-zero exit code or other failure mode) ***"
WAITING = [start(rank, met=False) for rank in (0, 1)]
ONE_NODE_FAILED = ("srun: error: n1: task 1: Exited with exit code 1", CANCELLED, "srun: error: n0: task 0: Terminated",
    "srun: Force Terminated StepId=7.0")  # fmt: skip
STARTED: list[StartRecord | ExitRecord] = [
    *map(start, range(4)),
    *(ended(rank, status=int(rank == 2), exit_code=int(rank == 2)) for rank in range(4)),
]
PORT_TAKEN = ended(0, status=114, exit_code=None, error="rendezvous-port-taken", message="why")
UNSEEN = PlanRecord(**msgspec.structs.asdict(PLAN), forced=("image-unusable",))  # the image is on the nodes alone
# Logs, records, the job's end, and of the verdict how its first sentence and the line that it quotes begin.
Left = tuple[dict[str, Sequence[str]], Sequence[StartRecord | ExitRecord], JobState, str, str]
CONTAINERS: dict[str, Left] = {
    "the node of the cause, not the one that was stopped": ({"batch.err": SRUN,
        "rank-0.err": (CANCELLED, *pyxis(ONLY_UNPACKS)), "rank-2.err": pyxis(MISSING)}, (), ENDED,
        f"{NOT_STARTED} n1: the image {PLAN.image.path} is not there", f"logs/rank-2.err: {MISSING}"),
    "all nodes": ({"batch.err": SRUN, "rank-1.err": pyxis(MISSING), "rank-3.err": pyxis(MISSING)}, (), ENDED,
        f"{NOT_STARTED} any node: the image", f"logs/rank-1.err: {MISSING}"),
    # The cancelled node's own log is in the file of a rank that does not say it was cancelled.
    "lines that name no cause: the first reported node": ({"batch.err": SRUN, "rank-1.err": pyxis(),
        "rank-2.err": pyxis()}, (), ENDED, f"{NOT_STARTED} n1: Enroot ended without a message",
        "logs/rank-2.err: Enroot"),
    # As seen with an unsquashfs that exits 2 on n1: n0 was stopped, which its log does not say.
    "the same, where the other node's log is empty": ({"batch.err": SRUN, "rank-1.err": TOO_SOON,
        "rank-2.err": (NOT_MADE, *pyxis(ONLY_UNPACKS))}, (), ENDED, f"{NOT_STARTED} n1", "logs/rank-2.err: pyxis: "),
    "far from the end of a log": ({"rank-2.err": (*pyxis(MISSING), *["slurmstepd: error: and so on"] * 5000)}, (),
        ENDED, NOT_STARTED.removesuffix(" on"), f"logs/rank-2.err: {MISSING}"),
    **{f"a script that stopped before any, with {number}": ({"batch.err": ("While processing the module container/1.2",
        )}, (), code(number), says, "") for number,
        says in ((73, "the allocation has other nodes"), (74, "a file that the script read"))},
    # Ranks that started and waited do not hide the node that did not.
    "other ranks waited": ({"rank-2.err": pyxis(NO_ROOM), "rank-0.err": ("container",)}, [*WAITING, ended(0, status=113,
        exit_code=None, error="rendezvous-timeout", message="2 of 4 came")], ENDED,
        f"{NOT_STARTED} n1: there is no room to unpack the image", "logs/rank-2.err: Write on output file"),
    "a node that could not be made ready, by its own log": ({"batch.err": ONE_NODE_FAILED,
        "node-n0.log": (ONLY_UNPACKS, CANCELLED), "node-n1.log": ("bash: line 1: exec: enroot: not found",)}, (),
        code(71), f"{NOT_STARTED} n1: enroot is not there, or not in PATH", "logs/node-n1.log: bash"),
    "srun itself was killed": ({"batch.err": (SRUN_KILLED,), "rank-0.err": (FAILED_STEP, *TOO_SOON)}, WAITING,
        code(137), "srun was killed on n0, which ended all ranks", f"logs/batch.err: {SRUN_KILLED}"),
    # Its tasks are numbered as nodes, not as ranks: task 1 is n1's.
    "a node where nothing could be launched": ({"batch.err": (NO_IO,)}, (), code(71),
        "the task that makes n1 ready left no exit record; srun reports: launch failed", f"logs/batch.err: {NO_IO}"),
    "and whose log names no cause": ({"batch.err": ONE_NODE_FAILED, "node-n1.log": ("a tool: no licence",)}, (),
        code(71), "the container could not be prepared on every node", "logs/node-n1.log: a tool: no licence"),
    # What the image's own shell says beside a launcher that failed before its start record is no container's fault.
    "a launcher that failed": ({"rank-0.err": ("This container image and its contents are governed by a licence",
        "launch: rendezvous-port-taken")}, [PORT_TAKEN], ENDED,
        "rank 0 on n0 did not start its program", "logs/rank-0.err"),
    # A damaged image that is mounted, not unpacked, shows while a program runs.
    "an image that cannot be read": ({"rank-2.err": ("Traceback", "OSError: [Errno 5] Input/output error")}, STARTED,
        ENDED, "rank 2 on n1 exited with code 1: it met an input/output error", "logs/rank-2.err: OSError"),
    "ranks that were never launched explain a time limit": ({"batch.err": NO_PLUGIN}, WAITING, code(143, "TIMEOUT",
        reason="TimeLimit"), "ranks 2, 3 on n1 left no exit record; srun reports: launch failed: Plugin",
        "logs/batch.err: srun"),
    # As seen where the ranks of the other node had no time to leave an exit record.
    "and a step that was killed for them": ({"batch.err": (*NO_PLUGIN, "srun: error: n0: tasks 0-1: Killed")}, WAITING,
        code(137), "rank 2 on n1 left no exit record; srun reports: launch failed: Plugin", ""),
}  # fmt: skip


def test_an_image_that_was_removed_is_reported_as_gone(run: Run, tmp_path: Path) -> None:
    """And not that the node lacks it, as long as it is there, or where it was submitted without being seen."""
    image = tmp_path / "my $image.sqsh"
    log(run, "rank-0.err", f"ch-run[7]: error: can't stat: {image}: No such file or directory (ch_core.c:255 2)")
    for plan, is_there, outcome, says in (
        (PLAN, True, "infrastructure", "is not there"), (PLAN, False, "failed", "is gone: something removed it"),
        (UNSEEN, False, "infrastructure", "is not there"),
    ):  # fmt: skip
        image.touch() if is_there else image.unlink(missing_ok=True)
        run.write(
            "plan.json", msgspec.structs.replace(plan, image=msgspec.structs.replace(PLAN.image, path=str(image)))
        )
        judged = judge(collect(run, ENDED))
        assert judged.outcome == outcome
        assert f"the image {image} {says}" in judged.reasons[0]


def test_a_container_that_another_nodes_rank_stopped_is_not_blamed(run: Run) -> None:
    """As seen with a program that fails at once: n1's container was just being started."""
    ends = (
        "srun: error: n0: tasks 0-1: Exited with exit code 127",
        "srun: error: n1: tasks 2-3: Exited with exit code 1",
    )
    for file, lines in {"batch.err": ends, "rank-0.err": ("an odd line",), "rank-2.err": TOO_SOON}.items():
        log(run, file, *(line.replace("slurmstepd-n0", "slurmstepd-n1") for line in lines))
    judged = judge(collect(run, code(127)))
    assert judged.reasons[0] == "rank 0 on n0 left no exit record; srun reports: Exited with exit code 127"
    assert judged.log == "logs/rank-0.err: an odd line"


def test_processes_that_did_not_reach_each_other_explain_a_time_limit(run: Run) -> None:
    for rank, line in enumerate(("step 3", BTL, BTL)):
        write_record(run, start(rank))
        log(run, f"rank-{rank}.err", line, CANCELLED)
    _limit, why, *others = judge(collect(run, code(143, "TIMEOUT", reason="TimeLimit"))).reasons
    assert why == f"before that, in logs/rank-1.err: {BTL}"
    assert BTL not in " ".join(others)


@pytest.mark.parametrize("name", CONTAINERS)
def test_why_ranks_did_not_run_by_logs_and_records_together(run: Run, name: str) -> None:
    logs, records, state, says, line = CONTAINERS[name]
    run.write("plan.json", UNSEEN)
    for file, lines in logs.items():
        log(run, file, *lines)
    for record in records:
        write_record(run, record)
    if records or NO_IO in logs.get("batch.err", ()):
        (run.path / "nodes").write_text("n0\nn1\n")
    if state.exit_code == 71:
        run.write("exit.json", ExitMarker("7", 71, 0.0))
    judged = judge(collect(run, state))
    assert (judged.outcome, judged.exit_code, judged.reasons[0][: len(says)]) == ("infrastructure", 8, says)
    assert judged.log.startswith(line)
    assert len(judged.reasons) == 1 or records
