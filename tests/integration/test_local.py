"""Jobs on this very machine, with no Slurm: natively, and in a container that needs no privilege."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.json_schema import check
from tests.support.local_jobs import PROBE, SLEEPS, assert_runs_as_printed, leader, session
from tests.support.planted_faults import RECIPE
from tests.support.rank_records import document_of, has_started, outcome, printed, records
from tests.support.timed import SUBMIT as TIMED

pytestmark = pytest.mark.integration


def test_a_job_runs_in_the_environment_that_submits(local: Runner) -> None:
    foreign = {"SLURM_PROCID": "5", "SLURM_JOB_ID": "1", "PMI_RANK": "7", "OMPI_COMM_WORLD_RANK": "8"}
    for probe in assert_runs_as_printed(local, *PROBE, "--runtime", "native", **foreign).values():
        assert not [name for name in probe["environment_names"] if name.startswith(("SLURM", "PMI", "OMPI"))]


def test_a_users_own_program_runs_where_it_lies(local: Runner, tmp_path: Path) -> None:
    """No recipe, nothing of ours in it: it gets its arguments, its directory, and its place by the usual names."""
    (tmp_path / "train it.py").write_text(
        "import os, sys\n"
        "names = 'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR'\n"
        "print(*sys.argv[1:], os.getcwd(), *map(os.environ.get, names))\n"
    )
    words = ("submit", "--gpus", "2", "--runtime", "native", "--wait", "--")
    local(*words, sys.executable, "train it.py", "--lr", "0.1", code=0, cwd=tmp_path)
    run = local.newest()
    assert (outcome(run), document_of(run, "plan")["job_name"]) == ("ran", "train-it")
    assert printed(run, 1) == f"--lr 0.1 {tmp_path} 1 2 1 127.0.0.1\n"


def test_a_shell_natively(local: Runner, tmp_path: Path) -> None:
    words = ("shell", "--site", "local", "--runs", str(local.runs), "--gpus", "1", "--runtime", "native")
    tail = ("--", "bash", "-c", "echo $RUNNER_RANK $PWD; exit 6")
    assert local(*words, *tail, code=6, cwd=tmp_path).out.endswith(f"\n0 {tmp_path}\n")
    program = ("sh", "-c", "[ $RANK = 0 ] || sleep 300")
    run = local.submitted(lambda run: (run / "ranks/0.exit.json").exists(), "submit", "--gpus", "2", "--", *program)
    assert local("shell", run.name, "--rank", "1", *tail, code=6).out.startswith("1 ")
    assert "rank 0 has ended" in local("shell", run.name, *tail, code=2).err
    local("cancel", run.name, code=0)


def test_the_main_job_in_a_container(contained: Runner) -> None:
    """Horovod's ranks in a rootless container with no scheduler, proven like any other run; a dirty shell stays out."""
    env = {"USER": "root", "PYTHONPATH": "/nowhere", "OMPI_MCA_btl": "tcp"}
    done = contained("submit", "--gpus", "2", "--wait", code=0, env=env)
    run = contained.newest()
    assert (document_of(run, "plan")["runtime"], outcome(run)) == ("charliecloud", "measured")
    assert "no performance claim" in done.out
    assert not {"OMPI_MCA_btl", "PYTHONPATH"} & set(records(run, "start")[0]["environment_names"])


def test_a_program_that_this_environment_cannot_run_is_refused(local: Runner, tmp_path: Path) -> None:
    """With the commands that provide what is lacking. This python3 has no torch, whatever the host's has."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = local("submit", "--gpus", "2", "--runtime", "native", code=3, env=env)
    assert "has no torch and no horovod" in done.err
    assert "env create NAME --framework pytorch" in done.err
    assert "apt-get install charliecloud" in done.err
    assert not local.runs.exists()


@pytest.mark.parametrize(
    ("faults", "what", "code", "says"),
    [
        (("exit:7@1",), "failed", 5, "rank 1"),
        (("exit:7@1", "hang@0"), "failed", 5, "rank 1"),  # rank 0 would stay for ever
        (("signal:11@1",), "failed", 5, "ended by signal 11"),
        (("kill-launcher@0",), "failed", 5, "no exit record of rank 0"),
        (("size-one",), "not-proven", 6, "saw a world of size 1, planned 3"),
    ],
)
def test_a_planted_fault_is_reported(local: Runner, faults: tuple[str, ...], what: str, code: int, says: str) -> None:
    planted = [word for fault in faults for word in ("--fault", fault)]
    local("submit", "--recipe", str(RECIPE), "--gpus", "3", "--wait", "--", *planted, code=code)
    run = local.newest()
    verdict = document_of(run, "verdict")
    assert verdict["outcome"] == what
    assert any(says in reason for reason in verdict["reasons"]), verdict
    assert len(faults) == 1 or says in verdict["reasons"][0]
    assert session(leader(run)) == []


@pytest.mark.parametrize(
    ("wrong", "code", "says"),
    [
        (None, 0, "parameters are equal after the last step"),
        ("diverge", 6, "parameters differ between ranks"),
        ("same-data", 6, "they train on the same data"),
    ],
)
def test_the_timed_stand_in_is_measured_and_what_it_does_wrong_is_seen(
    local: Runner, wrong: str | None, code: int, says: str
) -> None:
    planted = ("--set", f"wrong={wrong}") if wrong else ()
    done = local(*TIMED, "--gpus", "3", "--set", "window-seconds=0.5", *planted, code=code)
    assert says in done.out
    assert ("images/s over" in done.out) is (wrong is None)


def test_arms_take_turns_in_one_process(local: Runner) -> None:
    """What is planted in a step shows in the arms that have it; the main arm is the run's figure."""
    planted = {"arms": "uncoupled,coordination,full", "window-seconds": 1, "coordination-seconds": 0.02}
    words = [word for name, value in planted.items() for word in ("--set", f"{name}={value}")]
    local(*TIMED, "--gpus", "2", *words, code=0)
    run = local.newest()
    verdict = document_of(run, "verdict")
    uncoupled, coordination, full = verdict["arms"]
    assert full["samples_per_s"] == verdict["images_per_s"]
    assert coordination["step_s"] - uncoupled["step_s"] > 0.015
    assert abs(full["step_s"] / coordination["step_s"] - 1.0) < 0.3
    for kind in ("report", "node"):
        check(records(run, kind)[0])
    assert "arms" in local(*TIMED, "--gpus", "2", "--set", "arms=full,full", code=2).err


def test_the_time_limit(local: Runner) -> None:
    local(*SLEEPS[:5], "--time", "0:03", "--wait", *SLEEPS[5:], code=5)
    run = local.newest()
    assert "time limit" in document_of(run, "verdict")["reasons"][0]
    assert document_of(run, "exit")["exit"] == 124


def test_near_the_time_limit_a_program_gets_a_signal(local: Runner, tmp_path: Path) -> None:
    """SIGUSR1 after four fifths of it, to programs that listen; one that leaves then has ended well."""
    (tmp_path / "train.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print('checkpoint')))\n"
        "time.sleep(300)\n"
    )
    words = ("submit", "--gpus", "2", "--runtime", "native", "--time", "0:05", "--wait")
    local(*words, "--", sys.executable, "train.py", code=0, cwd=tmp_path)
    assert printed(local.newest(), 1) == "checkpoint\n"


def test_cancel_from_another_process_and_directory(local: Runner, tmp_path: Path) -> None:
    run = local.submitted(has_started(2), *SLEEPS)
    assert result(local("status", run.name, "--json", code=0, cwd=tmp_path).out)["state"] == "running"
    local("cancel", run.name, code=0, cwd=tmp_path)
    assert session(leader(run)) == []
    assert "the job was cancelled" in local("wait", run.name, code=5).out
    assert "has already ended" in local("cancel", run.name, code=0).out


def test_the_ranks_key_is_in_no_file_and_on_no_command_line(local: Runner, tmp_path: Path) -> None:
    program = ("sh", "-c", 'printf %s "$RUNNER_RDV_KEY" >"$0-$RUNNER_RANK"; sleep 60', str(tmp_path / "key"))
    kept = [tmp_path / f"key-{rank}" for rank in (0, 1)]
    words = ("submit", "--gpus", "2", "--runtime", "native", "--", *program)
    run = local.submitted(lambda _: all(each.is_file() and each.read_bytes() for each in kept), *words)
    key = kept[0].read_bytes()
    assert len(key) > 20 and not [each for each in run.rglob("*") if each.is_file() and key in each.read_bytes()]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            assert key not in process.read_bytes()
    local("cancel", run.name, code=0)


def test_a_job_outlives_the_process_that_submitted_it(local: Runner) -> None:
    child, run = local.start_until(has_started(2), *PROBE, "--wait", "--", "--sleep", "2")
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert "2 of 2 ranks met" in local("logs", run.name, "-f", code=0).out
    assert result(local("wait", run.name, "--json", code=0).out)["verdict"]["outcome"] == "ran"


def test_a_job_that_is_killed_outright_is_no_success(local: Runner) -> None:
    run = local.submitted(has_started(2), *SLEEPS)
    pid = leader(run)
    os.kill(pid, signal.SIGKILL)
    # Its ranks are there still: the job goes on, and can be cancelled.
    assert result(local("status", run.name, "--json", code=0).out)["state"] == "running"
    local("cancel", run.name, code=0)
    assert session(pid) == []
    assert "killed outright" in local("wait", run.name, code=5).out


def test_the_shipped_site_is_this_machine(local: Runner) -> None:
    shown = result(local("site", "show", "local", "--json", code=0).out)
    assert shown["node"]["cores"] == len(os.sched_getaffinity(0))
    assert shown["node"]["count"] == 1
    assert "this site has 1" in local("submit", "--recipe", "probe", "--gpus", "2", "--nodes", "2", code=3).err
    assert "--queue x" in local(*PROBE, "--partition", "x", code=2).err
    assert "plugin of Slurm" in local(*PROBE, "--runtime", "pyxis", code=2).err
