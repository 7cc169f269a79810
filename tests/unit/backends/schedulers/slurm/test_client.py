"""What is made of Slurm's answers, where it answers badly: no double submission, no other run's job touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.backends import schedulers
from runner.backends.schedulers.slurm.client import Slurm
from runner.core.errors import NotAcceptedError, UnknownStateError
from runner.jobs import directory
from runner.jobs.directory import Run
from runner.jobs.states import scheduler_of
from runner.model.job import ExitMarker, JobState, Submitted

SHOWN = """\
JobId=5 JobName=j
   UserId=u(1) GroupId=g(1) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}
   NodeList=dgx[01-02]
   Command=/x JobState=FAILED
   WorkDir={directory}
   Comment=JobState=TIMEOUT
"""


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    """A directory for stand-ins of Slurm's clients, each one shell script."""
    path = tmp_path / "clients"
    path.mkdir()
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose submission was cut off before Slurm answered."""
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    made = directory.create(tmp_path / "runs", "probe-1", 0.0)
    made.write("job.json", Submitted("slurm", "", str(tmp_path / "clients"), "", 0.0))
    return made


def says(clients: Path, program: str, body: str) -> None:
    path = clients / program
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def shows(clients: Path, directory: str, state: str = "RUNNING", reason: str = "None", code: str = "0:0") -> None:
    text = SHOWN.format(state=state, reason=reason, code=code, directory=directory)
    (clients / "answer").write_text(text)
    says(clients, "scontrol", f"cat '{clients}/answer'")


def test_the_users_variables_of_squeue_leave_no_job_out(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    says(
        clients,
        "squeue",
        'case " $* " in *" --all "*) [ -n "${SQUEUE_PARTITION-}" ] || echo "7|RUNNING|None|/runs/a" ;; esac',
    )
    assert Slurm(clients).find(Path("/runs/a")) == "7"


@pytest.mark.parametrize("name", ["AllocTRES", "TRES"])  # since Slurm 23.02, and before
def test_what_the_job_got_is_read_once_it_has_nodes(clients: Path, name: str) -> None:
    shows(clients, "/r")
    answer = (clients / "answer").read_text()
    tres = f"   ReqTRES=cpu=1\n   {name}=cpu=8,gres/gpu:a100=4\n"
    (clients / "answer").write_text(f"{answer}{tres}")
    assert Slurm(clients).state("5", Path("/r")).allocated == "cpu=8,gres/gpu:a100=4"
    (clients / "answer").write_text(f"{answer}{tres}".replace("dgx[01-02]", "(null)"))
    assert Slurm(clients).state("5", Path("/r")).allocated == ""


def test_a_state_is_read_from_its_own_line(clients: Path) -> None:
    shows(clients, "/runs/JobState=COMPLETED x", state="RUNNING")
    state = Slurm(clients).state("5", Path("/runs/JobState=COMPLETED x"))
    assert state == JobState("running", "RUNNING", nodes="dgx[01-02]", exit_code=0)
    shows(clients, "/r", state="FAILED", reason="NonZeroExitCode", code="71:0")
    assert Slurm(clients).state("5", Path("/r")) == JobState("ended", "FAILED", "NonZeroExitCode", "dgx[01-02]", 71)


def test_a_job_of_that_id_from_another_directory_is_another_job(clients: Path) -> None:
    shows(clients, "/runs/other")
    assert Slurm(clients).state("5", Path("/runs/mine")) == JobState("unknown")


def test_a_controller_that_does_not_answer_is_not_taken_for_an_end(clients: Path) -> None:
    says(clients, "scontrol", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(UnknownStateError, match="does not answer"):
        Slurm(clients).state("5", Path("/r"))


@pytest.mark.parametrize(
    ("sacct", "state"),
    [
        (None, JobState("unknown")),
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", JobState("unknown")),
        ("echo 'CANCELLED by 0|0:15|n1|/r'", JobState("ended", "CANCELLED", "by uid 0", "n1", 0)),
        ("echo 'COMPLETED|0:0|n1|/other'", JobState("unknown")),
        ("echo 'A_NEW_STATE|0:0|n1|/r'", JobState("unknown", "A_NEW_STATE", nodes="n1", exit_code=0)),
    ],
)
def test_a_job_that_the_controller_has_forgotten(clients: Path, sacct: str | None, state: JobState) -> None:
    says(clients, "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    if sacct is not None:
        says(clients, "sacct", sacct)
    assert Slurm(clients).state("5", Path("/r")) == state


def test_an_sbatch_that_does_not_answer_but_did_submit_is_found_again(
    clients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedulers, "TIMEOUT_S", 0.5)
    says(clients, "sbatch", "sleep 30")
    says(clients, "squeue", f"echo '6|RUNNING|None|/elsewhere'; echo '7|PENDING|Priority|{tmp_path}'")
    assert Slurm(clients).submit(tmp_path, "job.sh") == "7"
    says(clients, "squeue", "true")
    with pytest.raises(UnknownStateError, match="did not answer"):
        Slurm(clients).submit(tmp_path, "job.sh")


@pytest.mark.parametrize(
    "words",
    [
        "Batch job submission failed: Socket timed out on send/recv operation",
        "Batch job submission failed: Unable to contact slurm controller (receive failure)",
        "Batch job submission failed: Zero Bytes were transmitted or received",
    ],
)
def test_an_sbatch_that_lost_the_answer_may_have_submitted(clients: Path, tmp_path: Path, words: str) -> None:
    says(clients, "sbatch", f"echo 'sbatch: error: {words}' >&2; exit 1")
    says(clients, "squeue", f"echo '7|PENDING|Priority|{tmp_path}'")
    assert Slurm(clients).submit(tmp_path, "job.sh") == "7"
    says(clients, "squeue", "true")
    with pytest.raises(UnknownStateError, match="no job of this run is in the queue"):
        Slurm(clients).submit(tmp_path, "job.sh")


def test_an_sbatch_that_reached_no_controller_did_not_submit(clients: Path, tmp_path: Path) -> None:
    says(clients, "sbatch", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(NotAcceptedError, match="connect failure"):
        Slurm(clients).submit(tmp_path, "job.sh")


@pytest.mark.parametrize(
    ("sacct", "reason"),
    [
        ("echo 'CANCELLED by 1000|0:15|n1|/r'", "by uid 1000"),
        ("exit 1", ""),
        ("echo 'CANCELLED by 1000|0:15|n1|/other'", ""),
    ],
)
def test_accounting_shows_who_cancelled(clients: Path, sacct: str, reason: str) -> None:
    shows(clients, "/r", state="CANCELLED")
    says(clients, "sacct", sacct)
    assert Slurm(clients).state("5", Path("/r")).reason == reason


def test_a_submission_that_was_cut_off_is_found_by_what_the_job_left(run: Run, clients: Path) -> None:
    says(clients, "squeue", "exit 1")
    run.write("exit.json", ExitMarker("8", 0, 0.0))
    assert scheduler_of(run)[1] == "8"


def test_a_submission_that_was_cut_off_is_looked_for_in_the_queue(run: Run, clients: Path) -> None:
    says(clients, "squeue", f"echo '9|RUNNING|None|{run.path}'")
    assert scheduler_of(run)[1] == "9"


@pytest.mark.parametrize("squeue", ["true", "echo 'Unable to contact slurm controller' >&2; exit 1"])
def test_what_may_be_queued_is_not_to_be_submitted_again(run: Run, clients: Path, squeue: str) -> None:
    says(clients, "squeue", squeue)
    with pytest.raises(UnknownStateError) as caught:
        scheduler_of(run)
    assert "submit again" not in str(caught.value)


def test_a_run_that_slurm_did_not_take_says_so(run: Run) -> None:
    run.write("job.json", Submitted("slurm", "", "", "", 0.0, refused="Slurm did not take the job: no such partition"))
    with pytest.raises(NotAcceptedError, match="no such partition"):
        scheduler_of(run)


def counted(clients: Path, program: str, body: str) -> Path:
    """A stand-in that leaves a line for each of its calls in this file."""
    says(clients, program, f"echo \"$@\" >>'{clients}/{program}.calls'; {body}")
    return clients / f"{program}.calls"


def test_the_states_of_many_jobs_take_one_query_of_the_queue_and_one_of_accounting(clients: Path) -> None:
    queue = counted(
        clients, "squeue", "echo '5|RUNNING|None|/r5'; echo '6|PENDING|Reqs, n1|/r|6'; echo '7|COMPLETED|None|/x'"
    )
    accounting = counted(clients, "sacct", "echo 'NODE_FAIL|1:0|n1|/r7'; echo 'CANCELLED by 7|0:0|None assigned|/r8'")
    jobs = {Path("/r5"): "5", Path("/r|6"): "", Path("/r7"): "7", Path("/r8"): "8", Path("/r9"): "9", Path("/r0"): ""}
    states = Slurm(clients).states(jobs)
    phases = {str(run): (state.phase, state.name) for run, state in states.items()}
    assert phases == {
        "/r5": ("running", "RUNNING"), "/r|6": ("pending", "PENDING"), "/r7": ("ended", "NODE_FAIL"),
        "/r8": ("ended", "CANCELLED"), "/r9": ("unknown", ""), "/r0": ("unknown", ""),
    }  # fmt: skip
    assert {str(run): state.reason for run, state in states.items() if state.reason} == {"/r|6": "Reqs, n1"}
    assert len(queue.read_text().splitlines()) == len(accounting.read_text().splitlines()) == 1
    assert "--jobs=7,8,9" in accounting.read_text()


def test_states_are_unknown_while_the_controller_does_not_answer(clients: Path) -> None:
    says(clients, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(UnknownStateError, match="does not answer"):
        Slurm(clients).states({Path("/r5"): "5"})


def test_a_job_of_more_nodes_than_there_are_is_refused_with_both_numbers(clients: Path, tmp_path: Path) -> None:
    says(clients, "sbatch", "echo 'sbatch: error: More processors requested than permitted' >&2; exit 1")
    says(clients, "sinfo", 'case " $* " in *" --partition=gpu "*) echo "n1|gpu:8"; echo "n2|gpu:8" ;; esac')
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --partition=gpu\n#SBATCH --nodes=3\n")
    with pytest.raises(NotAcceptedError, match="More processors requested") as caught:
        Slurm(clients).submit(tmp_path, "job.sh")
    assert caught.value.fix.startswith("the job needs 3 nodes; this cluster has 2 (16 GPUs)")
