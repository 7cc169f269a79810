"""What is read out of a run directory's logs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from runner.backends.schedulers.slurm.client import Slurm
from runner.core.errors import UsageError
from runner.jobs import directory
from runner.jobs.collect import collect
from runner.jobs.directory import Run
from runner.jobs.states import cancel
from runner.jobs.verdict import judge
from runner.model.job import JobState
from tests.support.evidence import GOOD, ended, node, start, write_plan, write_record
from tests.support.plans import PLAN

ENDED = JobState("ended", "FAILED", exit_code=1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    made = directory.create(tmp_path / "runs", "probe-4", 0.0)
    made.write("plan.json", PLAN)
    return made


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


def test_the_last_word_of_a_rank_that_left_no_record(run: Run) -> None:
    (run.logs / "rank-2.err").write_text("one\ncannot go on\n\n")
    assert collect(run, ENDED).rank_lines == {2: "cannot go on"}


def test_who_cancels_leaves_word(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scancel = tmp_path / "scancel"
    scancel.write_text("#!/bin/sh\nexit 0\n")
    scancel.chmod(0o755)
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


@pytest.mark.parametrize("made", NO_FILES)
def test_a_plan_that_is_no_file_cannot_be_read(run: Run, made: str) -> None:
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
