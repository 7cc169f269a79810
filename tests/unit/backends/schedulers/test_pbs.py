"""PBS: directives read back by a parser as strict as qsub's, scripts run with a recording mpiexec, and its clients."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.backends.schedulers.pbs.client import Pbs, allocation
from runner.backends.schedulers.pbs.script import salloc
from runner.core.errors import NotAcceptedError, RefusedError, UnknownStateError, UsageError
from runner.jobs.creation import write_script
from runner.model.job import AllocatedNode, Allocation, JobState
from runner.model.plan import Plan, PlannedImage
from runner.model.request import Recipe, Request
from runner.model.site import NodeShape, Site
from runner.model.step import JobScript
from runner.planning.plan import plan
from runner.render import pbs_directive
from tests.support.hostile import HOSTILE
from tests.support.shell_files import stand_in

RECIPE = Recipe(name="r", description="", image="i", program=("python3", "main.py"))
SITE = Site(
    name="s", description="", scheduler="pbs", runtimes=("apptainer",),
    node=NodeShape(cores=32, memory_mb=512_000, gpus=4),
)  # fmt: skip


def planned(site: Site = SITE, held: Allocation | None = None, **changes: Any) -> Plan:
    return plan(RECIPE, site, Request(**({"gpus": 8} | changes)), PlannedImage("i", "", "/i.sif"), allocation=held)


def script(site: Site = SITE, held: Allocation | None = None, **changes: Any) -> JobScript:
    decided = planned(site, held, **changes)
    return render(decided, runtime(decided.runtime).step(decided))


def arguments_of(line: str) -> list[str]:
    """As ``make_argv`` of OpenPBS's qsub splits a directive."""
    assert line.startswith("#PBS ")
    made: list[str] = []
    word, inside, index = "", False, len("#PBS ")
    while index < len(line):
        character = line[index]
        if character in "\"'":
            end = line.index(character, index + 1)
            word, inside, index = word + line[index + 1 : end], True, end
        elif character == "\\":
            index += 1
            word, inside = word + line[index], True
        elif character.isspace():
            made += [word] if inside else []
            word, inside = "", False
        else:
            word, inside = word + character, True
        index += 1
    return [*made, word] if inside else made


def directives(script: JobScript) -> dict[str, str]:
    """Option or resource -> value, of the lines above the first command; none may come twice."""
    values: dict[str, str] = {}
    for line in script.text.splitlines()[1:]:
        if not line.startswith("#"):
            break
        option, value = arguments_of(line)
        name, _, resource = value.partition("=") if option == "-l" else (option, "", value)
        assert name not in values
        values[name] = resource
    return values


@settings(max_examples=150, deadline=None)
@given(HOSTILE)
@example("'\"\\ '")
def test_a_directive_is_read_back_as_it_was_or_refused(value: str) -> None:
    try:
        line, resource = pbs_directive("M", value), pbs_directive("filesystems", value)
    except UsageError:
        assert any(character in value for character in "\n\r\0")
        return
    assert arguments_of(line) == ["-M", value]
    assert arguments_of(resource) == ["-l", f"filesystems={value}"]


def test_chunks_say_what_a_node_gives_and_an_uneven_request_has_one_of_its_own() -> None:
    requested = directives(script())
    assert requested["select"] == "2:ncpus=32:ngpus=4:mpiprocs=4:mem=512000mb"
    assert (requested["place"], requested["walltime"]) == ("scatter", "00:20:00")
    assert (requested["-r"], requested["-S"]) == ("n", "/bin/bash")
    uneven = "1:ncpus=32:ngpus=4:mpiprocs=4:mem=512000mb+1:ncpus=24:ngpus=3:mpiprocs=3:mem=384000mb"
    assert directives(script(gpus=7))["select"] == uneven


@pytest.mark.parametrize(
    ("option", "value", "letter", "written"),
    [
        ("dependency", "afterok:12.s:13,afterany:14", "-W", "depend=afterok:12.s:13,afterany:14"),
        ("begin", "2027-01-02T03:04:05", "-a", "202701020304.05"),
        ("begin", "16:00", "-a", "1600"),
        ("mail-type", "END,fail", "-m", "ea"),
        ("mail-user", "o'brien@x.org", "-M", "o'brien@x.org"),
    ],
)
def test_options_in_the_words_of_sbatch_are_those_of_qsub(option: str, value: str, letter: str, written: str) -> None:
    assert directives(script(scheduler_options=((option, value),)))[letter] == written


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(({"scheduler_options": ((option, "x"),)}, f"--scheduler-option {option}")
          for option in ("select", "walltime", "q", "V", "J")),
        *(({"scheduler_options": ((option, value),)}, f"--{option}")
          for option, value in (("dependency", "singleton"), ("begin", "now+1hour"), ("mail-type", "TIME_LIMIT"),
                                ("nodelist", "n1"), ("exclude", "n1"), ("constraint", "x"), ("reservation", "R"))),
        ({"gpus": 7, "nodes": 3}, "4,2,1"),
        ({"runtime": "pyxis"}, "Slurm"),
    ],
)  # fmt: skip
def test_what_the_plan_decides_or_mpiexec_cannot_do_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        script(**changes)
    assert says in str(caught.value)


_MPIEXEC = """#!/bin/bash
# As PALS: one process for each rank, with its variables, in the directory that it was called from.
printf '%s\\0' "$@" >"$RECORD/mpiexec"
case "$*" in *slow) exec sleep 60 ;; esac
while [ "$1" != -n ]; do shift; done; ranks=$2
while [ "$1" != --cpu-bind ]; do shift; done; shift 2
for (( rank = 0; rank < ranks; rank++ )); do PMI_RANK=$rank "$@" || exit; done
"""
_APPTAINER = """#!/bin/bash
while [ "$1" != /bin/bash ]; do shift; done
exec "$1" "${2/#\\/results/$PBS_O_WORKDIR}" "${@:3}"
"""
_PYTHON = """#!/bin/bash
printf '%s\\0' "$@" >"$RECORD/program"
echo "rank $PMI_RANK"; echo "trouble $PMI_RANK" >&2; echo "$RUNNER_RDV_HOST $RUNNER_RDV_PORT $NOTE" >"$RECORD/world"
"""


def in_job(directory: Path, script: JobScript, nodes: str) -> tuple[int, str, Path]:
    """Run a script as PBS would on these nodes; returns its exit status, its standard error and its run directory."""
    stubs, run = directory / "bin", directory / "a run's $dir"
    stubs.mkdir(exist_ok=True)
    for name in ("logs", "ranks", "nccl"):
        (run / name).mkdir(parents=True, exist_ok=True)
    write_script(run, script)
    for name, content in (("mpiexec", _MPIEXEC), ("apptainer", _APPTAINER), ("python3", _PYTHON)):
        (stubs / name).write_text(content)
        (stubs / name).chmod(0o755)
    (directory / "nodefile").write_text("".join(f"{node}\n" for node in nodes.split()))
    env = {
        "PATH": f"{stubs}:{os.environ['PATH']}", "RECORD": str(directory), "PBS_O_WORKDIR": str(run),
        "PBS_JOBID": "1234.pbs-01", "PBS_NODEFILE": str(directory / "nodefile"),
        "BASH_FUNC_module%%": '() { echo "$*" >>"$RECORD/modules"; }',
    }  # fmt: skip
    way = ["-c", script.text] if "#PBS" in script.text else [str(run / "job.sh")]
    done = subprocess.run(["bash", *way], env=env, capture_output=True, check=False, cwd="/", timeout=60)
    return done.returncode, done.stderr.decode(errors="replace"), run


@pytest.mark.parametrize(("gpus", "nodes", "exits"), [(8, "n1 n2", 0), (8, "n1", 73), (7, "n2 n2 n2 n2 n1 n1 n1", 0)])
def test_the_script_runs_its_ranks_and_leaves_a_file_for_each(
    tmp_path: Path, gpus: int, nodes: str, exits: int
) -> None:
    note = 'it\'s "a" $note\n`x`'
    text = script(gpus=gpus, env=(("NOTE", note),), arguments=("", "a b", "$x;*"))
    code, said, run = in_job(tmp_path, text, nodes)
    assert code == exits, said
    if exits:
        return
    recorded = (tmp_path / "mpiexec").read_text().split("\0")
    assert recorded[:6] == ["--hostfile", str(tmp_path / "nodefile"), "-n", str(gpus), "--ppn", "4"]
    assert (tmp_path / "program").read_text().split("\0")[-4:-1] == ["", "a b", "$x;*"]
    assert (tmp_path / "world").read_text() == f"{nodes.split(maxsplit=1)[0]} 13234 {note}\n"
    assert sorted(path.name for path in (run / "logs").glob("rank-*.out")) == [f"rank-{n}.out" for n in range(gpus)]
    assert (run / "logs/rank-5.out").read_text() == "rank 5\n"
    assert (run / "logs/rank-5.err").read_text() == "trouble 5\n"
    marker = json.loads((run / "exit.json").read_text())
    assert (marker["job"], marker["exit"]) == ("1234.pbs-01", 0)


def test_a_second_start_finds_nothing_of_the_first(tmp_path: Path) -> None:
    """With ``-S r=y`` PBS starts a job again that it has ended, in the same directory."""
    text = script(scheduler_options=(("r", "y"),))
    assert ("#PBS -r y" in text.text, "#PBS -r n" in text.text) == (True, False)
    run = in_job(tmp_path, text, "n1 n2")[2]
    assert not list(run.glob("start-before-*"))
    for name in ("ranks/0.start.json", "logs/rank-0.out", "exit.json", "result.json"):
        (run / name).write_text("first")
    assert in_job(tmp_path, text, "n1 n2")[0] == 0
    (before,) = run.glob("start-before-*")
    left = {path.name: path for path in before.rglob("*") if path.is_file()}
    assert {"0.start.json", "rank-0.out", "exit.json", "result.json"} <= left.keys()
    assert all(left[name].read_text() == "first" for name in ("0.start.json", "rank-0.out", "exit.json"))
    assert not list((run / "ranks").iterdir()) and not (run / "result.json").exists()
    assert (run / "logs/rank-0.out").read_text() == "rank 0\n"
    assert json.loads((run / "exit.json").read_text())["exit"] == 0


HELD = Allocation("1234.pbs-01", (AllocatedNode("n1", 8, 1), AllocatedNode("n2.x.org", 32, 4)))


def test_a_step_runs_on_its_nodes_and_keeps_its_own_time(tmp_path: Path) -> None:
    code, said, run = in_job(tmp_path, script(held=HELD, gpus=4, env=(("NOTE", "x"),)), "n1 n2.x.org")
    assert code == 0, said
    recorded = (tmp_path / "mpiexec").read_text().split("\0")
    assert recorded[:6] == ["--hostfile", "nodes", "-n", "4", "--ppn", "4"]
    assert (run / "nodes").read_text() == "n2.x.org\n"
    assert (tmp_path / "world").read_text() == "n2.x.org 13234 x\n"
    marker, job = json.loads((run / "exit.json").read_text()), (run / "job.id").read_text().strip()
    assert (marker["job"], marker["exit"], marker["why"]) == (job, 0, "")


def test_a_step_ends_at_its_time_limit(tmp_path: Path) -> None:
    code, said, run = in_job(tmp_path, script(held=HELD, gpus=4, walltime_s=5, arguments=("slow",)), "n2.x.org")
    assert (code, json.loads((run / "exit.json").read_text())["why"]) == (124, "TIMEOUT"), said
    assert (run / "notices").read_text() == "USR1\n"


@pytest.mark.parametrize(
    ("vnodes", "whole", "nodes"),
    [
        (
            "(n1:ncpus=8:ngpus=1:mem=1gb)+(n2[0]:ncpus=4:ngpus=2+n2[1]:ncpus=4)",
            False,
            (("n1", 8, 1), ("n2.x.org", 8, 2)),
        ),
        ("(n1:ncpus=1)+(n2:ncpus=1)", True, (("n1", 32, 4), ("n2.x.org", 32, 4))),
    ],
)
def test_what_an_interactive_job_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vnodes: str, whole: bool, nodes: tuple[Any, ...]
) -> None:
    site = msgspec.structs.replace(SITE, scheduler_settings={"whole_nodes": whole})
    monkeypatch.delenv("PBS_JOBID", raising=False)
    assert allocation(tmp_path, site) is None
    (tmp_path / "nodefile").write_text("n1\nn1\nn2.x.org\n")
    monkeypatch.setenv("PBS_JOBID", "7.pbs")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodefile"))
    shows(tmp_path, "/", job_state="R", exec_vnode=vnodes)
    assert allocation(tmp_path, site) == Allocation("7.pbs", tuple(AllocatedNode(*each) for each in nodes))
    shows(tmp_path, "/", job_state="F", exec_vnode=vnodes)
    with pytest.raises(RefusedError, match="not running: F"):
        allocation(tmp_path, site)
    (tmp_path / "nodefile").unlink()
    with pytest.raises(RefusedError, match="no shell of its job"):
        allocation(tmp_path, site)


def test_the_command_for_an_allocation_asks_for_what_the_job_would() -> None:
    decided = planned(gpus=4, account="a b", queue="q")
    command = salloc(decided, runtime(decided.runtime).step(decided))
    asked = "qsub -I -N r -q q -A 'a b' -l select=1:ncpus=32:ngpus=4:mpiprocs=4:mem=512000mb -l place=scatter"
    assert command == f"{asked} -l walltime=00:20:00"


def shows(tmp_path: Path, directory: str, **fields: Any) -> None:
    job = {"Variable_List": {"PBS_O_WORKDIR": directory}, **fields}
    (tmp_path / "answer").write_text(json.dumps({"Jobs": {"7.pbs": job}}))
    stand_in(tmp_path, "qstat", f"cat '{tmp_path}/answer'")


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"job_state": "Q", "comment": "Not Running"}, JobState("pending", "Q", "Not Running")),
        ({"job_state": "R", "exec_host": "n1/0*32"}, JobState("running", "R", "", "n1/0*32")),
        ({"job_state": "F", "Exit_status": 0, "substate": 92}, JobState("ended", "COMPLETED", exit_code=0)),
        ({"job_state": "F", "Exit_status": 5, "substate": 93}, JobState("ended", "FAILED", exit_code=5)),
        ({"job_state": "F", "Exit_status": 271, "substate": 91}, JobState("ended", "CANCELLED", exit_code=271)),
        ({"job_state": "F", "substate": 91}, JobState("ended", "CANCELLED")),
        ({"job_state": "F", "Exit_status": -29, "substate": 93}, JobState("ended", "TIMEOUT")),
        ({"job_state": "F", "Exit_status": -27}, JobState("ended", "OUT_OF_MEMORY")),
        ({"job_state": "F", "Exit_status": -1}, JobState("ended", "LAUNCH_FAILED")),
        ({"job_state": "?"}, JobState("unknown", "?")),
    ],
)
def test_a_state_is_read_from_qstat(tmp_path: Path, fields: dict[str, Any], state: JobState) -> None:
    shows(tmp_path, "/runs/1", **fields)
    assert Pbs(tmp_path).state("7.pbs", Path("/runs/1")) == state


def test_a_job_that_is_gone_or_anothers_is_unknown_and_a_silent_server_is_reported(tmp_path: Path) -> None:
    shows(tmp_path, "/runs/2", job_state="R")
    assert Pbs(tmp_path).state("7.pbs", Path("/runs/1")).phase == "unknown"
    stand_in(tmp_path, "qstat", "echo 'qstat: Unknown Job Id 7.pbs' >&2; exit 153")
    assert Pbs(tmp_path).state("7.pbs", Path("/r")).phase == "unknown"
    for body, says_so in (
        ("echo 'cannot connect to server' >&2; exit 255", "cannot connect"),
        ("echo '{not json'", "{not json"),
    ):
        stand_in(tmp_path, "qstat", body)
        with pytest.raises(UnknownStateError, match=says_so):
            Pbs(tmp_path).state("7.pbs", Path("/r"))


def test_a_strangers_job_leads_to_no_server_of_his(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "qstat", f"echo \"$@\" >'{tmp_path}/asked'; echo '{{}}'")
    for user, asked in ((os.geteuid(), "7.theirs"), (4711, "7")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert Pbs(tmp_path).state("7.theirs", tmp_path).phase == "unknown"
        assert (tmp_path / "asked").read_text().split()[-1] == asked


def test_qsub_answers_with_the_id_or_with_its_reason(tmp_path: Path) -> None:
    stand_in(tmp_path, "qsub", '[ "$PWD/$1" -ef job.sh ] && echo 7.pbs')
    (tmp_path / "job.sh").touch()
    assert Pbs(tmp_path).submit(tmp_path, "job.sh") == "7.pbs"
    stand_in(tmp_path, "qsub", "echo 'qsub: Unknown queue' >&2; exit 170")
    with pytest.raises(NotAcceptedError) as caught:
        Pbs(tmp_path).submit(tmp_path, "job.sh")
    assert "Unknown queue" in caught.value.what


def test_a_job_is_found_by_its_directory(tmp_path: Path) -> None:
    stand_in(tmp_path, "qselect", "echo 7.pbs; echo 8.pbs")
    shows(tmp_path, "/runs/1", job_state="R")
    assert Pbs(tmp_path).find(Path("/runs/1")) == "7.pbs"
    assert Pbs(tmp_path).find(Path("/runs/3")) is None
    asked = {Path("/runs/1"): "7.pbs", Path("/runs/3"): "9.pbs"}
    assert {str(run): state.phase for run, state in Pbs(tmp_path).states(asked).items()} == {
        "/runs/1": "running",
        "/runs/3": "unknown",
    }
    stand_in(tmp_path, "qselect", "true")
    assert Pbs(tmp_path).find(Path("/runs/1")) is None


@pytest.mark.parametrize(("body", "fails"), [("true", False), ("echo 'qdel: Job has finished' >&2; exit 35", False),
    ("echo 'qdel: Unauthorized Request' >&2; exit 1", True)])  # fmt: skip
def test_a_job_that_has_ended_may_be_cancelled(tmp_path: Path, body: str, fails: bool) -> None:
    stand_in(tmp_path, "qdel", body)
    if not fails:
        Pbs(tmp_path).cancel("7.pbs")
        return
    with pytest.raises(UnknownStateError, match="Unauthorized Request"):
        Pbs(tmp_path).cancel("7.pbs")
