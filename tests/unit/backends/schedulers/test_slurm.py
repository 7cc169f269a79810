"""Slurm's answers, messages and keeper: nothing is submitted twice, no other run's job is touched."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import datetime
from functools import reduce
from pathlib import Path

import pytest

from runner.backends import schedulers
from runner.backends.schedulers.slurm import client
from runner.backends.schedulers.slurm.client import Slurm, explained, fix, more_than_there_is
from runner.core.errors import NotAcceptedError, RefusedError, UnknownStateError
from runner.jobs import creation
from runner.jobs.directory import Run
from runner.jobs.states import scheduler_of
from runner.model.exit_codes import NODE_NOT_READY
from runner.model.job import ExitMarker, JobState, Submitted
from runner.model.step import texts
from runner.render import folded
from tests.support.shell_files import bash, library, stand_in

SHOWN = f"""\
JobId=5 JobName=j
   UserId=u({os.geteuid()}) GroupId=g(1) MCS_label=N/A
   JobState={{state}} Reason={{reason}} Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={{code}}
   NodeList=dgx[01-02]
   Command=/x JobState=FAILED
   WorkDir={{directory}}
   Comment=JobState=TIMEOUT
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose submission was cut off before Slurm answered."""
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    made = creation.create(tmp_path / "runs", "probe-1", 0.0)
    made.write("job.json", Submitted("slurm", "", str(tmp_path), "", 0.0))
    return made


def shows(clients: Path, directory: str = "/r", state: str = "RUNNING", reason: str = "None", code: str = "0:0") -> str:
    """What scontrol says of job 5."""
    text = SHOWN.format(state=state, reason=reason, code=code, directory=directory)
    (clients / "answer").write_text(text)
    stand_in(clients, "scontrol", f"cat '{clients}/answer'")
    return text


def test_the_users_variables_of_squeue_leave_no_job_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    lists = '[ -n "${SQUEUE_PARTITION-}" ] || echo "7|RUNNING|None|/runs/a"'
    stand_in(tmp_path, "squeue", f'case " $* " in *" --all "*) {lists} ;; esac')
    assert Slurm(tmp_path).find(Path("/runs/a")) == "7"


def test_no_job_of_another_number_or_user_stands_for_a_run_by_its_directory(tmp_path: Path) -> None:
    """Anybody's job may begin in any directory, and have a line of another in its name."""
    rows = "".join(f"{job}|{state}|None|{tmp_path}\n" for job, state in ((7, "PENDING"), (9, "TIMEOUT")))
    own = f'case " $* " in *" --user={os.geteuid()} "*) printf "{rows}" ;; esac'
    stand_in(tmp_path, "squeue", own)
    stand_in(tmp_path, "sacct", f"echo '9|COMPLETED|0:0|dgx01|{tmp_path}'")
    assert Slurm(tmp_path).states({tmp_path: "7"})[tmp_path].name == "PENDING"
    assert Slurm(tmp_path).states({tmp_path: "8"})[tmp_path].phase == "unknown"


@pytest.mark.parametrize("name", ["AllocTRES", "TRES"])  # since Slurm 23.02, and before
def test_what_the_job_got_is_read_once_it_has_nodes(tmp_path: Path, name: str) -> None:
    answer = f"{shows(tmp_path)}   ReqTRES=cpu=1\n   {name}=cpu=8,gres/gpu:a100=4\n"
    for text, allocated in ((answer, "cpu=8,gres/gpu:a100=4"), (answer.replace("dgx[01-02]", "(null)"), "")):
        (tmp_path / "answer").write_text(text)
        assert Slurm(tmp_path).state("5", Path("/r")).allocated == allocated


# scontrol of 22.05.8, of a job that waits.
WAITING = """\
   Priority=4294901754 Nice=0 Account=lab42 QOS=normal
   JobState=PENDING Reason=Resources Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=1-01:10:00 TimeMin=N/A
   StartTime=2026-11-23T20:50:23 EndTime=2026-11-23T22:00:23 Deadline=N/A
   Partition=gpu-long AllocNode:Sid=login:1
   NodeList=(null)
   WorkDir=/r
"""


def test_where_a_job_is_and_for_how_long_is_in_the_answer_about_its_state(tmp_path: Path) -> None:
    stand_in(tmp_path, "scontrol", f"cat {tmp_path}/answer")
    where = {"partition": "gpu-long", "account": "lab42", "limit_s": 90_600}
    start_s = datetime(2026, 11, 23, 20, 50, 23).timestamp()
    runs = {"PENDING": "RUNNING", "Resources": "None", "RunTime=00:00:00": "RunTime=01:02:03"}
    for changes, state in (
        ({}, {**where, "start_s": start_s}),
        ({"2026-11-23T20:50:23": "Unknown", "Account=lab42": "Account=(null)"}, {**where, "account": ""}),
        (runs, {**where, "elapsed_s": 3723}),
        ({"TimeLimit=1-01:10:00": "TimeLimit=UNLIMITED", "StartTime=2026": "StartTime=x"}, {**where, "limit_s": None}),
    ):
        text = reduce(lambda text, change: text.replace(*change), changes.items(), WAITING)
        (tmp_path / "answer").write_text(text)
        said = Slurm(tmp_path).state("5", Path("/r"))
        names = ("partition", "account", "limit_s", "elapsed_s", "start_s")
        assert {name: value for name in names if (value := getattr(said, name)) or name in state} == state


@pytest.mark.parametrize(
    ("sbatch", "at"),
    [
        ("echo 'sbatch: Job 9 to start at 2026-11-23T20:50:23 using 8 processors on nodes n in partition p' >&2", True),
        ("echo 'allocation failure: Invalid account' >&2; exit 1", False),
        ("sleep 30", False),
    ],
)
def test_a_start_is_estimated_by_a_trial_and_a_submission_does_not_wait_for_it(
    sbatch: str, at: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_ESTIMATE_S", 0.5 if sbatch == "sleep 30" else 5.0)
    stand_in(tmp_path, "sbatch", f'[ "$*" = "--test-only job.sh" ] || exit 9\n{sbatch}')
    expected = datetime(2026, 11, 23, 20, 50, 23).timestamp() if at else None
    assert Slurm(tmp_path).estimate(tmp_path, "job.sh") == expected
    assert Slurm(tmp_path / "nowhere").estimate(tmp_path, "job.sh") is None


@pytest.mark.parametrize(
    ("refusal", "client", "answer", "says"),
    [
        (
            "Batch job submission failed: Invalid account or account/partition",
            "sacctmgr",
            "printf 'lab42\\ncourse7\\nlab42\\n'",
            "yours: lab42, course7",
        ),
        ("Batch job submission failed: Invalid account or account/partition", "sacctmgr", "exit 1", "sacctmgr show"),
        (
            "sbatch: error: invalid partition specified: gpu",
            "sinfo",
            "printf 'batch\\nlong\\nbatch\\n'",
            "cluster's: batch, long",
        ),
        ("sbatch: error: invalid partition specified: gpu", "sinfo", "exit 1", "sinfo --summarize"),
    ],
)
def test_whose_account_or_partition_is_refused_learns_of_those_that_there_are(
    refusal: str, client: str, answer: str, says: str, tmp_path: Path
) -> None:
    stand_in(tmp_path, "sbatch", f"echo '{refusal}' >&2; exit 1")
    stand_in(tmp_path, client, answer)
    with pytest.raises(NotAcceptedError) as error:
        Slurm(tmp_path).submit(tmp_path, "job.sh")
    assert says in error.value.fix


NODES = "dgx[01-02]"
ODD = "/runs/JobState=COMPLETED x"


@pytest.mark.parametrize(
    ("job", "sacct", "state"),
    [
        ({"directory": ODD}, "", JobState("running", "RUNNING", nodes=NODES, exit_code=0)),
        ({"directory": "/other"}, "", JobState("unknown")),  # another job of that id
        (
            {"state": "FAILED", "reason": "NonZeroExitCode", "code": "71:0"},
            "",
            JobState("ended", "FAILED", "NonZeroExitCode", NODES, 71),
        ),
        (
            {"state": "CANCELLED"},
            "echo '5|CANCELLED by 1000|0:15|n1|/r'",
            JobState("ended", "CANCELLED", "by uid 1000", NODES, 0),
        ),
        ({"state": "CANCELLED"}, "exit 1", JobState("ended", "CANCELLED", "", NODES, 0)),
        (
            {"state": "CANCELLED"},
            "echo '5|CANCELLED by 1000|0:15|n1|/other'",
            JobState("ended", "CANCELLED", "", NODES, 0),
        ),
        (None, "", JobState("unknown")),  # the controller has forgotten it, and there is no sacct
        (None, "echo 'Slurm accounting storage is disabled' >&2; exit 1", JobState("unknown")),
        (None, "echo '5|CANCELLED by 0|0:15|n1|/r'", JobState("ended", "CANCELLED", "by uid 0", "n1", 0)),
        (None, "echo '5|COMPLETED|0:0|n1|/other'", JobState("unknown")),
        (None, "echo '5|A_NEW_STATE|0:0|n1|/r'", JobState("unknown", "A_NEW_STATE", nodes="n1", exit_code=0)),
    ],
)
def test_a_state_is_read_from_the_controller_and_from_accounting(
    tmp_path: Path, job: dict[str, str] | None, sacct: str, state: JobState
) -> None:
    if job is not None:
        shows(tmp_path, **job)
    else:
        stand_in(tmp_path, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    if sacct:
        stand_in(tmp_path, "sacct", sacct)
    assert Slurm(tmp_path).state("5", Path(ODD if job and ODD in job.values() else "/r")) == state


@pytest.mark.parametrize(
    ("states", "says"),
    [("COMPLETED FAILED COMPLETED", "FAILED"), ("COMPLETED FAILED RUNNING", "RUNNING"), ("COMPLETED", "COMPLETED")],
)
def test_an_array_is_as_its_task_that_has_not_ended_or_not_ended_well(tmp_path: Path, states: str, says: str) -> None:
    task = "JobId={0} ArrayJobId=7 ArrayTaskId={0} JobName=a b\n   UserId=me({1})\n   JobState={2} Reason=None\n"
    tasks = [
        task.format(at, os.geteuid(), state) + f"   WorkDir={tmp_path}\n" for at, state in enumerate(states.split())
    ]
    stand_in(tmp_path, "scontrol", f"cat '{tmp_path}/answer'")
    (tmp_path / "answer").write_text("\n".join(tasks))
    found = client.record(tmp_path, "7")
    assert found is not None and (found.state.name, found.name) == (says, "a b")
    assert Slurm(tmp_path).state("7", tmp_path).name == says
    stand_in(tmp_path, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    rows = "\n".join(f"7_{at}|{state}|0:0|n1|{tmp_path}" for at, state in enumerate(states.split()))
    stand_in(tmp_path, "sacct", f"echo '{rows}'")
    assert Slurm(tmp_path).state("7", tmp_path).name == says


def test_a_job_is_not_ones_own_by_its_name(tmp_path: Path) -> None:
    named = f"JobId=7 JobName=x UserId=me({os.geteuid()})"
    answer = f"{named}\n   UserId=c({os.geteuid() + 1})\n   JobState=RUNNING Reason=None\n   WorkDir={tmp_path}\n"
    stand_in(tmp_path, "scontrol", f"echo '{answer}'")
    with pytest.raises(RefusedError, match="another user's"):
        client.record(tmp_path, "7")


@pytest.mark.parametrize("between", ["", "\n\nJobId=7 JobName=y"])
def test_a_job_is_not_ones_own_by_lines_in_its_name(tmp_path: Path, between: str) -> None:
    fields = "   UserId={}({})\n   JobState=COMPLETED Reason=None\n   WorkDir={}\n   StdOut=/notes\n"
    mine, hers = fields.format("me", os.geteuid(), tmp_path), fields.format("c", os.geteuid() + 1, "/c")
    stand_in(tmp_path, "scontrol", f"cat '{tmp_path}/answer'")
    (tmp_path / "answer").write_text(f"JobId=7 JobName=x{between}\n{mine}{hers}")
    with pytest.raises(RefusedError, match=rf"job 7 is another user's: c\({os.geteuid() + 1}\)"):
        client.record(tmp_path, "7")
    assert Slurm(tmp_path).state("7", tmp_path).phase == "unknown"
    stand_in(tmp_path, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    row = "7\x1f{}\x1fCOMPLETED\x1f0:0\x1fn1\x1f\x1f\x1f\x1f\x1fx"
    (tmp_path / "answer").write_text("\n".join(row.format(each) for each in (os.geteuid() + 1, os.geteuid())))
    stand_in(tmp_path, "sacct", f"cat '{tmp_path}/answer'")
    with pytest.raises(RefusedError, match=f"job 7 is another user's: {os.geteuid() + 1}"):
        client.record(tmp_path, "7")


def test_a_controller_that_does_not_answer_is_not_taken_for_an_end(tmp_path: Path) -> None:
    for program in ("scontrol", "squeue"):
        stand_in(tmp_path, program, "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    for query in (lambda: Slurm(tmp_path).state("5", Path("/r")), lambda: Slurm(tmp_path).states({Path("/r5"): "5"})):
        with pytest.raises(UnknownStateError, match="does not answer"):
            query()


@pytest.mark.parametrize(
    ("sbatch", "says"),
    [
        ("sleep 30", "did not answer"),
        ("Socket timed out on send/recv operation", "no job of this run is in the queue"),
        ("Unable to contact slurm controller (receive failure)", "no job of this run is in the queue"),
        ("Zero Bytes were transmitted or received", "no job of this run is in the queue"),
    ],
)
def test_an_sbatch_whose_answer_was_lost_may_have_submitted(
    tmp_path: Path, sbatch: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedulers, "TIMEOUT_S", 0.5 if sbatch == "sleep 30" else schedulers.TIMEOUT_S)
    lost = f"echo 'sbatch: error: Batch job submission failed: {sbatch}' >&2; exit 1"
    stand_in(tmp_path, "sbatch", sbatch if sbatch == "sleep 30" else lost)
    stand_in(tmp_path, "squeue", f"echo '6|RUNNING|None|/elsewhere'; echo '7|PENDING|Priority|{tmp_path}'")
    assert Slurm(tmp_path).submit(tmp_path, "job.sh") == "7"
    stand_in(tmp_path, "squeue", "true")
    with pytest.raises(UnknownStateError, match=says):
        Slurm(tmp_path).submit(tmp_path, "job.sh")


def test_an_sbatch_that_reached_no_controller_did_not_submit(tmp_path: Path) -> None:
    stand_in(tmp_path, "sbatch", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(NotAcceptedError, match="connect failure"):
        Slurm(tmp_path).submit(tmp_path, "job.sh")


@pytest.mark.parametrize("in_queue", [True, False])
def test_a_submission_that_was_cut_off_is_found_in_the_queue_or_by_what_the_job_left(
    run: Run, tmp_path: Path, in_queue: bool
) -> None:
    stand_in(tmp_path, "squeue", f"echo '8|RUNNING|None|{run.path}'" if in_queue else "exit 1")
    if not in_queue:
        run.write("exit.json", ExitMarker("8", 0, 0.0))
    assert scheduler_of(run)[1] == "8"


@pytest.mark.parametrize("squeue", ["true", "echo 'Unable to contact slurm controller' >&2; exit 1"])
def test_what_may_be_queued_is_not_to_be_submitted_again(run: Run, tmp_path: Path, squeue: str) -> None:
    stand_in(tmp_path, "squeue", squeue)
    with pytest.raises(UnknownStateError) as caught:
        scheduler_of(run)
    assert "submit again" not in str(caught.value)


def test_a_run_that_slurm_did_not_take_says_so(run: Run) -> None:
    run.write("job.json", Submitted("slurm", "", "", "", 0.0, refused="Slurm did not take the job: no such partition"))
    with pytest.raises(NotAcceptedError, match="no such partition"):
        scheduler_of(run)


def test_the_states_of_many_jobs_take_one_query_of_the_queue_and_one_of_accounting(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    for program, rows in {
        "squeue": ("5|RUNNING|None|/r5", "6|PENDING|Reqs, n1|/r|6", "7|COMPLETED|None|/x"),
        "sacct": ("7|NODE_FAIL|1:0|n1|/r7", "8|CANCELLED by 7|0:0|None assigned|/r8"),
    }.items():
        lists = "; ".join(f"echo '{row}'" for row in rows)
        stand_in(tmp_path, program, f"echo {program} \"$@\" >>'{calls}'; {lists}")
    jobs = {Path("/r5"): "5", Path("/r|6"): "", Path("/r7"): "7", Path("/r8"): "8", Path("/r9"): "9", Path("/r0"): ""}
    states = Slurm(tmp_path).states(jobs)
    phases = {str(run): (state.phase, state.name) for run, state in states.items()}
    assert phases == {
        "/r5": ("running", "RUNNING"), "/r|6": ("pending", "PENDING"), "/r7": ("ended", "NODE_FAIL"),
        "/r8": ("ended", "CANCELLED"), "/r9": ("unknown", ""), "/r0": ("unknown", ""),
    }  # fmt: skip
    assert {str(run): state.reason for run, state in states.items() if state.reason} == {"/r|6": "Reqs, n1"}
    assert [call.split()[0] for call in calls.read_text().splitlines()] == ["squeue", "sacct"]
    assert f"--jobs=7,8,9 --user={os.geteuid()}\n" in calls.read_text(), "lines of others' directories are not read"


def test_a_job_of_more_nodes_than_there_are_is_refused_with_both_numbers(tmp_path: Path) -> None:
    stand_in(tmp_path, "sbatch", "echo 'sbatch: error: More processors requested than permitted' >&2; exit 1")
    stand_in(tmp_path, "sinfo", 'case " $* " in *" --partition=gpu "*) echo "n1|gpu:8"; echo "n2|gpu:8" ;; esac')
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --partition=gpu\n#SBATCH --nodes=3\n")
    with pytest.raises(NotAcceptedError, match="More processors requested") as caught:
        Slurm(tmp_path).submit(tmp_path, "job.sh")
    assert caught.value.fix.startswith("the job needs 3 nodes; this cluster has 2 (16 GPUs)")


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        ("Batch job submission failed: Invalid account or account/partition combination specified", "--account"),
        ("Invalid qos specification", "--queue or --qos"),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "ask for fewer GPUs"),
        ("Invalid partition name specified", "sinfo --summarize"),
        ("User's group not permitted to use this partition", "sinfo --summarize"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "--time"),
        ("Requested node configuration is not available", "no node has so many GPUs"),
        ("Invalid feature specification", "constraint"),
        ("sbatch: unrecognized option '--image=docker:x'", "its plugin is not loaded"),
        ("sbatch: error: spank: /x.so: Dlopen of plugin file failed", "plugstack.conf) is broken"),
        ("sbatch: error: pyxis: no\nsbatch: error: Failed to initialize plugin stack", "broken"),
        ("Something new", "see the script"),
    ],
)
def test_a_refusal_has_its_fix(refusal: str, says: str) -> None:
    assert says in fix(f"sbatch: error: Batch job submission failed: {refusal}")


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("AssocGrpGRES", "the account's limit on GPUs is reached: it starts when"),
        ("AssocGrpCpuLimit", "the account's limit on CPUs is reached"),
        ("AssocMaxJobsLimit", "the account's limit on jobs at once is reached"),
        ("AssocMaxWallDurationPerJobLimit", "more than the account's limit on time of one job: it will never start"),
        ("QOSMaxGRESPerUser", "the QOS's limit on GPUs is reached"),
        ("QOSMaxGRESPerJob", "it will never start"),
        ("QOSGrpNewThing", "a limit of the QOS is reached"),
        ("ReqNodeNotAvail,_UnavailableNodes:dgx01", "down, drained or reserved"),
        ("user_env_retrieval_failed_requeued_held", "`slurm: {export: nil}`"),
        ("Resources", "the nodes that it needs are busy"),
    ],
)
def test_a_reason_stands_before_what_it_means(reason: str, says: str) -> None:
    assert explained(reason).startswith(f"{reason}: ")
    assert says in explained(reason)


@pytest.mark.parametrize("reason", ["", "None", "SomethingNew"])
def test_what_is_not_known_stays_as_it_is(reason: str) -> None:
    assert explained(reason) == reason


def test_more_nodes_than_the_cluster_has_are_counted() -> None:
    listing = ["dgx01|gpu:a100:8(S:0-1)", *["dgx02|gpu:a100:8(S:0-1)"] * 2]  # one node is of two partitions
    assert more_than_there_is(3, listing) == "the job needs 3 nodes; this cluster has 2 (16 GPUs): request no more"
    assert not more_than_there_is(2, listing)
    assert not more_than_there_is(3, [])


def job(directory: Path, nodes: str, keeper: str, then: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A script whose keeper is this code, up to its end."""
    (directory / "logs").mkdir(exist_ok=True)
    begin = (
        f"coproc RUNNER_KEEPER {{ exec {folded(texts('bash', '-c', keeper, 'bash', *words))}; }}\nrunner_until_ready"
    )
    return bash(directory, f"runner_hosts=({nodes})\ntrap runner_at_end EXIT\n{begin}\n{then}")


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("ready\nready\n", 0),
        ("job 7 on n1\nready\n\nlicences: 3\nready\n", 0),
        ("ready\nfailed\n", NODE_NOT_READY),
        ("ready\n", NODE_NOT_READY),
        ("job 7 on n1\n", NODE_NOT_READY),
        ("", NODE_NOT_READY),
    ],
)
def test_nodes_are_ready_when_each_of_them_is(tmp_path: Path, lines: str, code: int) -> None:
    stays = "cat" if lines.endswith("ready\n") and not code else ":"
    done = job(library(tmp_path), "n1 n2", 'printf %s "$1"; "$2" >&2', "echo begins", lines, stays)
    assert (done.returncode, done.stdout) == (code, "" if code else "begins\n")


@pytest.mark.parametrize(
    ("report", "lost"),
    [
        ("srun: error: n2: task 1: Killed", True),
        ("srun: error: n[1-2]: tasks 0-1: Killed", True),
        ("srun: error: task 1 launch failed: Slurmd could not connect IO", True),
        ("srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)", False),
    ],
)
def test_a_task_that_was_killed_is_not_waited_for(tmp_path: Path, report: str, lost: bool) -> None:
    """The other node is ready, and cleans up; a node that only takes long is waited for."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/batch.err").write_text(f"{report}\n")
    ready = "echo ready; sleep 1; echo ready; while read -r _; do :; done; touch cleaned"
    done = job(library(tmp_path, slurm=("read -r -t 10 ", "read -r -t 0.3 ")), "n1 n2", ready, "echo begins")
    assert (done.returncode, done.stdout) == ((NODE_NOT_READY, "") if lost else (0, "begins\n"))
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize(("at_end", "longest_s", "late"), [("sleep 1", 20, False), ("exec sleep 60", 1, True)])
def test_a_clean_up_that_hangs_keeps_no_nodes(tmp_path: Path, at_end: str, longest_s: int, late: bool) -> None:
    """It is waited for, though not for ever, and the script's exit code is its own."""
    library(tmp_path, slurm=("runner_most=600", f"runner_most={longest_s}"))
    began = time.monotonic()
    assert job(tmp_path, "n1", f"echo ready; read -r _; {at_end}; touch cleaned", "exit 3").returncode == 3
    assert time.monotonic() - began < 40
    assert (tmp_path / "cleaned").exists() is not late
    assert (tmp_path / "logs" / "cleanup.log").exists() is late


@pytest.mark.parametrize(
    ("report", "code"),
    [
        ("srun: error: task 2 launch failed: Plugin initialization failed", 143),
        ("srun: error: n2: task 1: Exited with exit code 3", 0),
    ],
)
def test_a_task_that_cannot_be_launched_ends_the_step(tmp_path: Path, report: str, code: int) -> None:
    """The other ranks would wait for it, and keep their GPUs, until their rendezvous gives up."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/batch.err").write_text(f"{report}\n")
    step = 'sleep 2 & runner_wait $!; echo "$runner_exit"'
    assert bash(library(tmp_path, slurm=("sleep 3", "sleep 0.2")), step).stdout == f"{code}\n"


def test_each_nodes_slurm_is_recorded_beside_the_first_ones_programs(tmp_path: Path) -> None:
    answer = 'case "$*" in *--nodes=n1,n2\\ *) printf "slurm\\\\t23.02.7\\\\t%s\\\\n" n1 n2 ;; esac'
    stand_in(tmp_path, "sinfo", answer)
    ask = f"PATH={tmp_path}:$PATH; runner_hosts=(n1 n2); runner_record_versions slurm 'echo slurm 23.02.6'; wait"
    bash(library(tmp_path), ask)
    lines = ["slurm\tslurm 23.02.6", "slurm\t23.02.7\tn1", "slurm\t23.02.7\tn2"]
    assert (tmp_path / "versions").read_text().splitlines() == lines
