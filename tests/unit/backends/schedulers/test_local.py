"""This machine as a scheduler, with real processes: a job is known by its start, and its end by what it left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from runner.backends.schedulers.hosts.client import SshHosts
from runner.backends.schedulers.local.client import JobProcesses, Local
from runner.backends.schedulers.script_parts import SUPERVISE
from runner.backends.schedulers.slurm import client as slurm
from runner.core import process_identity
from runner.core.errors import NotAcceptedError, UnknownStateError
from runner.jobs.directory import Run
from runner.jobs.states import cancel, connected
from runner.model.job import JobState, Submitted
from runner.model.plan import ListedHosts, StepNodes
from tests.support.plans import PLAN
from tests.support.users import ALICE, run_as
from tests.support.waiting import until

HERE = os.uname().nodename
BOOT = process_identity.boot_id().partition("-")[0]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def submitted(run: Path, script: str) -> str:
    (run / "job.sh").write_text(script)
    return Local().submit(run, "job.sh")


def leaves(run: Path, exit_code: int, why: str = "", job: str = "x") -> None:
    (run / "exit.json").write_text(json.dumps({"job": job, "exit": exit_code, "end_s": 0.0, "why": why}))


@pytest.mark.parametrize(
    ("exit_code", "why", "name"),
    [(0, "", "COMPLETED"), (7, "", "FAILED"), (7, "FAILED", "FAILED"), (124, "TIMEOUT", "TIMEOUT"),
     (143, "CANCELLED", "CANCELLED")],
)  # fmt: skip
def test_an_end_is_recognised_by_its_marker(run: Path, exit_code: int, why: str, name: str) -> None:
    job = submitted(run, "true")
    leaves(run, exit_code, why)
    until(lambda: Local().state(job, run).phase == "ended", every_s=0.02)
    assert Local().state(job, run) == JobState("ended", name, nodes=HERE, exit_code=exit_code)


def test_a_process_that_works_elsewhere_is_no_job_of_the_run(run: Path, tmp_path: Path) -> None:
    """Else `cancel` of a copied run directory, or of another user's, ends whatever process its record names."""
    job = submitted(run, "exec sleep 60")
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    try:
        assert Local().state(job, run).phase == "running"
        assert Local().state(job, copy).phase == "unknown"
        if os.geteuid() == 0:  # where the directory that a process works in cannot be read
            assert run_as(ALICE, Local().state, job, run).phase == "unknown"
        with pytest.raises(UnknownStateError, match="is left alone"):
            cancel(Run(copy), Local(), job)
        record = Submitted("local", job, "", "", 0.0, place=str(run))  # whatever place it names
        Run(copy).write("job.json", record)
        with pytest.raises(UnknownStateError, match="is left alone"):
            cancel(Run(copy), connected(Run(copy), record), job)
        assert Local().state(job, run).phase == "running"
    finally:
        Local().cancel(job)


@pytest.mark.parametrize("has_output", [False, True])
def test_a_process_that_the_user_has_in_a_run_directory_is_no_script_of_it(run: Path, has_output: bool) -> None:
    if has_output:
        (run / "logs/batch.out").touch()
    with subprocess.Popen(("sleep", "60"), cwd=run, start_new_session=True) as shell:
        entry = process_identity.entry(shell.pid)
        assert entry is not None
        assert Local().state(f"{shell.pid}.{entry.start}.{BOOT}", run).phase == "unknown"
        shell.kill()


def test_the_first_process_is_never_a_job() -> None:
    """Whatever a run directory says: it starts the machine, or the container that all of this runs in."""
    first = process_identity.entry(1)
    assert first is not None
    assert not JobProcesses(f"1.{first.start}.{BOOT}").running()


def test_a_script_starts_clean_of_what_the_users_shell_exports(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option of it made a job of none of its commands, which ended with 0; a function could be sha256sum."""
    (run / "env.sh").write_text("echo from BASH_ENV\n")
    monkeypatch.setenv("BASH_ENV", str(run / "env.sh"))
    monkeypatch.setenv("SHELLOPTS", "noexec:xtrace")
    monkeypatch.setenv("BASH_FUNC_sha256sum%%", "() { echo planted; }")
    job = submitted(run, "sha256sum --version | head -1; bash -c 'echo program'; echo $SHELLOPTS\n")
    until(lambda: Local().state(job, run).phase == "ended", every_s=0.02)
    first, *rest = (run / "logs" / "batch.out").read_text().splitlines()
    assert "planted" not in first and rest[:2] == ["from BASH_ENV", "program"], "the program's shell is the user's"
    assert "noexec" not in rest[2] and not (run / "logs" / "batch.err").read_text()


def test_a_step_takes_no_path_of_this_ones_own_disk_to_other_nodes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{run}:/usr/bin")
    for nodes, path in ((("n1", HERE), "/usr/bin"), ((HERE,), f"{run}:/usr/bin"), ((), f"{run}:/usr/bin")):
        held = StepNodes(nodes, job_id="7") if nodes else None
        Run(run).write("plan.json", msgspec.structs.replace(PLAN, existing_allocation=held))
        assert Local().environment(run)["PATH"] == path
    (run / "sbatch").write_text("#!/bin/sh\nprintf %s $PATH")
    (run / "sbatch").chmod(0o755)
    for node, path in (("n1", "/usr/bin"), (HERE, f"{run}:/usr/bin")):
        (run / "sinfo").write_text(f"#!/bin/sh\necho {node}")
        (run / "sinfo").chmod(0o755)
        assert slurm.Slurm().submit(run, "job.sh") == path  # --export=ALL
    argv, env = slurm.beside(None, "7", "n1", ("id",), plan=None, terminal=False)
    assert (argv[0], env["PATH"]) == ("srun", "/usr/bin")


def test_a_job_is_found_again_by_what_it_left_itself(run: Path) -> None:
    assert Local().find(run) is None
    (run / "job.id").write_text("torn")
    assert Local().find(run) is None
    (run / "job.id").write_text("12.34.0123abcd\n")
    assert Local().find(run) == "12.34.0123abcd"


def test_a_pipe_in_place_of_what_a_job_leaves_blocks_nothing(run: Path) -> None:
    for name in ("exit.json", "job.id", "plan.json"):
        os.mkfifo(run / name)
    with ThreadPoolExecutor(1) as elsewhere:  # what blocks there ends when the pipe has a writer
        state = elsewhere.submit(Local().state, f"999999.1.{BOOT}", run)
        try:
            assert state.result(timeout=20) == JobState("ended", "KILLED", nodes=HERE)
            assert elsewhere.submit(Local().find, run).result(timeout=20) is None
            with pytest.raises(UnknownStateError, match="plan cannot be read"):
                elsewhere.submit(SshHosts().state, f"999999.1.{BOOT}", run).result(timeout=20)
        finally:
            for name in ("exit.json", "job.id", "plan.json"):
                os.close(os.open(run / name, os.O_RDWR | os.O_NONBLOCK))


def test_a_link_in_place_of_what_a_job_leaves_leads_nowhere(run: Path, tmp_path: Path) -> None:
    """In another user's run it could lead to what this user alone may read."""
    private, job = tmp_path / "private", f"999999.1.{BOOT}"
    private.mkdir()
    leaves(private, 7, "PRIVATE", job)
    (private / "job.id").write_text("12.34.0123abcd\n")
    hosts = ListedHosts(("private-host",), "", (), ())
    (private / "plan.json").write_text(json.dumps(msgspec.to_builtins(msgspec.structs.replace(PLAN, hosts=hosts))))
    assert (Local().find(private), SshHosts().state(job, private).nodes) == ("12.34.0123abcd", "private-host")
    for name in ("exit.json", "job.id", "plan.json"):
        (run / name).symlink_to(private / name)
    assert (Local().find(run), Local().state(job, run).name) == (None, "KILLED")
    with pytest.raises(UnknownStateError, match="plan cannot be read"):
        SshHosts().state(job, run)


@pytest.mark.parametrize("own", [True, False])
def test_the_jobs_end_marker_counts_before_any_process_and_that_of_another_job_ends_no_job(
    run: Path, own: bool
) -> None:
    """A job that has left its marker has ended, whatever still runs under its number."""
    job = submitted(run, "sleep 300")
    assert Local().state(job, run).phase == "running"
    leaves(run, 3, job=job if own else "x")
    ended = JobState("ended", "FAILED", nodes=HERE, exit_code=3)
    assert Local().state(job, run) == (ended if own else JobState("running", "RUNNING", nodes=HERE))
    Local().cancel(job)
    assert Local().state(job, run).phase == "ended"


@contextmanager
def strangers(*, with_leader: bool) -> Iterator[tuple[int, set[process_identity.Entry]]]:
    """A session that is no job's: its number, and what runs in it."""
    last = "wait" if with_leader else "exit"
    leader = subprocess.Popen(["bash", "-c", f"sleep 300 & sleep 300 & {last}"], start_new_session=True)
    try:
        if not with_leader:
            leader.wait()
        until(lambda: len(set(process_identity.session(leader.pid))) == 2 + with_leader, every_s=0.02)
        yield leader.pid, set(process_identity.session(leader.pid))
    finally:
        for each in process_identity.session(leader.pid):
            process_identity.send(each, signal.SIGKILL)
        leader.wait()


@pytest.mark.parametrize("scheduler", [Local(), SshHosts()], ids=["local", "hosts"])
@pytest.mark.parametrize("with_leader", [True, False], ids=["leader", "leader-gone"])
def test_a_number_that_was_given_out_again_is_not_the_job(run: Path, scheduler: Local, with_leader: bool) -> None:
    """Other processes have the job's number, as their own or as their session's: they are not called running, and
    cancelling the job leaves all of them alone.
    """
    with strangers(with_leader=with_leader) as (number, processes):
        job = f"{number}.1.{BOOT}"
        assert Local().state(job, run) == JobState("ended", "KILLED", nodes=HERE)
        leaves(run, 0, job=job)
        assert Local().state(job, run) == JobState("ended", "COMPLETED", nodes=HERE, exit_code=0)
        scheduler.cancel(job)
        assert set(process_identity.session(number)) == processes


def test_a_job_of_another_boot_is_unknown_and_not_touched(run: Path) -> None:
    with strangers(with_leader=True) as (number, processes):
        start = next(each.start for each in processes if each.pid == number)
        job = f"{number}.{start}.00000000"
        assert Local().state(job, run).phase == "unknown"
        for each in (job, "nonsense", "1.1.00000000"):
            Local().cancel(each)
            with pytest.raises(UnknownStateError, match="is not on this machine"):
                SshHosts().cancel(each)
        assert set(process_identity.session(number)) == processes


def kill_script(job: str) -> None:
    """Kill the job's script alone, and take it out of the process table."""
    number = int(job.partition(".")[0])
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)


def test_what_is_left_of_a_killed_script_is_still_the_job(run: Path) -> None:
    """The script exports the job's id, and what it has started is known by that."""
    job = submitted(run, f". '{SUPERVISE}'; runner_be_job; trap - EXIT\nbash -c 'touch started; sleep 300' & wait")
    until((run / "started").exists, every_s=0.02)
    kill_script(job)
    assert Local().state(job, run) == JobState("running", "RUNNING", nodes=HERE)
    Local().cancel(job)
    assert Local().state(job, run) == JobState("ended", "KILLED", nodes=HERE)
    assert not list(process_identity.session(int(job.partition(".")[0])))


def test_what_outlives_a_cancelled_script_is_killed_though_it_dropped_its_environment(run: Path) -> None:
    """It was seen in the session while the script ran."""
    job = submitted(run, "env -i sleep 300 & touch started; wait")
    until((run / "started").exists, every_s=0.02)
    number = int(job.partition(".")[0])
    with ThreadPoolExecutor(1) as reaper:
        reaper.submit(os.waitpid, number, 0)
        Local().cancel(job)
    assert process_identity.entry(number) is None
    assert not list(process_identity.session(number))


def test_a_script_that_ignores_sigterm_is_killed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.backends.schedulers.local.client.GRACE_S", 0.5)
    job = submitted(run, "trap '' TERM; touch deaf; while :; do sleep 0.1; done")
    until((run / "deaf").exists, every_s=0.02)
    Local().cancel(job)
    assert Local().state(job, run).name == "KILLED"


def test_a_job_that_cannot_be_started(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(run))
    with pytest.raises(NotAcceptedError, match="bash"):
        submitted(run, "true")
