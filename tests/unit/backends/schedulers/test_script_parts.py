"""What all job scripts share, in a real bash: a clean environment, where ranks meet, which versions ran."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from gpu_runner_inside.launcher import network

from runner.backends.runtimes import charliecloud
from runner.backends.runtimes.common import PREFIX
from runner.backends.schedulers import render
from runner.backends.schedulers.script_parts import (
    ENTER,
    SHELL,
    environment,
    grouped,
    needs_profile,
    owners,
    unlock_memory,
    versions,
)
from runner.backends.schedulers.script_parts import begin as begin_of
from runner.model.exit_codes import ANOTHERS_DIRECTORY, codes
from runner.model.plan import ListedHosts
from runner.model.step import StepSpec, texts
from tests.support.plans import PLAN
from tests.support.shell_files import bash, library, stand_in
from tests.support.users import ALICE, AS_ROOT, BOB

Export = Literal["none", "nil", "all"]

# As a cluster's: a default module, and what it needs to be whole. MODULES_READY: guards against a second time.
PROFILE = """\
if [ -z "$MODULES_READY" ]; then
  export MODULES_READY=1 LOADEDMODULES=craype:libfabric LD_LIBRARY_PATH=/opt/libfabric/lib64 https_proxy=http://p:1
  declare -x DECLARED=yes
  PATH=/opt/craype/bin:/usr/bin:/bin
  module() { echo "module $*"; }
fi
"""
# As Slurm's login shell leaves it, or the submitting shell.
LOGIN = {
    "PATH": "/home/e/bin:/opt/slurm/bin:/usr/bin:/bin", "HOME": "/home/e", "MODULES_READY": "1",
    "LOADEDMODULES": "craype:libfabric:mine", "LD_LIBRARY_PATH": "/opt/libfabric/lib64:/home/e/lib",
    "MINE": "a b\n$(c)", "SLURM_JOB_ID": "7", "SLURM_NODELIST": "n[1-2]", "CUDA_VISIBLE_DEVICES": "0",
    "BASH_FUNC_module%%": "() { echo stale; }", "HOROVOD_RANK": "3",
    "PYTHONPYCACHEPREFIX": "/tmp/x", "PYTHONUSERBASE": "/tmp/x",
}  # fmt: skip


def begin(tmp_path: Path, env: dict[str, str], export: Export = "none", runtime: str = "native") -> dict[str, str]:
    """The exported environment after the script's first lines, and what ``module`` says."""
    (tmp_path / "profile").write_text(PROFILE)
    plan = msgspec.structs.replace(PLAN, runtime=runtime, scheduler_settings={"export": export})
    code = "\n".join((*environment(plan), "export SAID=$(type -t module &>/dev/null && module x)", "env -0"))
    done = bash(library(tmp_path, profile=("/etc/profile", str(tmp_path / "profile"))), code, env)
    assert (done.returncode, done.stderr) == (0, "")
    assert needs_profile(plan) is ("profile.sh" in code)
    return dict(entry.partition("=")[::2] for entry in done.stdout.split("\0") if entry)


@pytest.mark.parametrize("export", ["none", "nil", "all"])
def test_modules_of_a_login_shell_are_loaded_anew_and_whole(tmp_path: Path, export: Export) -> None:
    env = begin(tmp_path, LOGIN, export)
    assert (env["LOADEDMODULES"], env["LD_LIBRARY_PATH"]) == ("craype:libfabric", "/opt/libfabric/lib64")
    assert env["PATH"] == "/opt/craype/bin:/usr/bin:/bin:/home/e/bin:/opt/slurm/bin:/usr/bin:/bin"
    assert (env["SAID"], env["DECLARED"]) == ("module x", "yes")
    assert (env["SLURM_JOB_ID"], env["SLURM_NODELIST"], env["CUDA_VISIBLE_DEVICES"]) == ("7", "n[1-2]", "0")
    assert not {"MINE", "HOROVOD_RANK", "https_proxy"} & set(env)


def test_without_any_environment_there_is_all_that_a_job_needs(tmp_path: Path) -> None:
    env = begin(tmp_path, {"SLURM_JOB_ID": "7"}, "nil")
    assert env["PATH"] == "/opt/craype/bin:/usr/bin:/bin:/usr/local/bin:/usr/bin:/bin"
    assert env["HOME"].startswith("/")
    assert env["USER"]
    assert env["SAID"] == "module x"


def test_a_job_that_has_no_path_has_none_with_the_current_directory(tmp_path: Path) -> None:
    """Bash has one for itself, and Python without any takes its library from there."""
    assert begin(tmp_path, {"SLURM_JOB_ID": "7"})["PATH"] == "/usr/local/bin:/usr/bin:/bin"


def test_who_is_trusted_at_the_submission_is_trusted_in_the_job() -> None:
    plan = msgspec.structs.replace(PLAN, trust="bob,@the lab")
    assert "export RUNNER_TRUST='bob,@the lab'" in begin_of(plan)
    assert not any("RUNNER_TRUST" in line for line in environment(PLAN))


def test_a_login_shell_without_modules_stays_as_it_is(tmp_path: Path) -> None:
    """The default is what it was."""
    plain = {name: value for name, value in LOGIN.items() if name not in ("LOADEDMODULES", "MODULES_READY")}
    env = begin(tmp_path, plain)
    assert (env["PATH"], env["MINE"], env["SAID"]) == (plain["PATH"], plain["MINE"], "stale")
    assert not {"LD_LIBRARY_PATH", "HOROVOD_RANK", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE"} & set(env)


@pytest.mark.parametrize("export", ["none", "nil", "all"])
def test_libraries_of_the_host_stay_out_of_a_container(tmp_path: Path, export: Export) -> None:
    assert "LD_LIBRARY_PATH" not in begin(tmp_path, LOGIN, export, "charliecloud")


@pytest.mark.parametrize("job", ["0", "15999", "16000", "4294967295", "12.pbs-1"])
def test_a_script_and_the_launcher_make_the_same_port_of_a_jobs_number(tmp_path: Path, job: str) -> None:
    done = bash(library(tmp_path), f'runner_meet here {job}; echo "$RUNNER_RDV_HOST $RUNNER_RDV_PORT"')
    assert done.stdout == f"here {network.FIRST_PORT + int(job.partition('.')[0]) % network.PORTS}\n"


def test_each_start_of_a_script_has_a_key_of_its_own(tmp_path: Path) -> None:
    code = "runner_meet here 7; printenv RUNNER_RDV_KEY; runner_meet here 7; printenv RUNNER_RDV_KEY"
    first, second = bash(library(tmp_path), code).stdout.split()
    assert first != second
    assert len(first) == len(second) == 24


@pytest.mark.parametrize(
    ("changes", "matters"),
    [
        ({}, True),
        ({"transport": None}, True),
        ({"transport": "libfabric"}, True),
        ({"transport": "sockets"}, False),
        ({"device": "cpu"}, False),
        ({"tasks_per_node": (4,)}, False),
    ],
)
def test_the_limit_on_locked_memory_is_reported_only_where_rdma_may_need_it(
    tmp_path: Path, changes: dict[str, object], matters: bool
) -> None:
    line = unlock_memory(msgspec.structs.replace(PLAN, **changes))
    done = bash(library(tmp_path), f"ulimit() {{ [ $# -eq 1 ] && echo 64; }}; {line}")
    assert ("memlock is 64 kB: RDMA registration may fail" in done.stderr) is matters


WARNING = "echo '/bin/bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8)' >&2"


@pytest.mark.parametrize(
    ("srun", "enroot", "lines"),
    [
        ("echo slurm 22.05.8; echo more", "echo 4.1.2 >&2", ["slurm\tslurm 22.05.8", "enroot\t4.1.2"]),
        ("echo slurm 22.05.8", f"{WARNING}; echo 4.1.2", ["slurm\tslurm 22.05.8", "enroot\t4.1.2"]),
        ("echo no version of mine; exit 3", "echo 4.1.2", ["enroot\t4.1.2"]),
        ("exec sleep 60", "echo 4.1.2", None),
    ],
)
def test_versions_are_queried_on_the_side_and_never_waited_for(
    tmp_path: Path, srun: str, enroot: str, lines: list[str] | None
) -> None:
    (tmp_path / "bin").mkdir()
    for name, body in (("srun", srun), ("enroot", enroot)):
        stand_in(tmp_path / "bin", name, body)
    (line,) = versions(PLAN)
    began = time.monotonic()
    waits = "" if lines is None else "; wait"
    bash(library(tmp_path), f"{line.partition('  #')[0]} {waits}", {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    assert time.monotonic() - began < 8
    if lines is not None:
        assert (tmp_path / "versions").read_text().splitlines() == lines


@pytest.mark.parametrize(
    ("changes", "wait_s"),
    [
        ({"result": "throughput"}, 60),
        ({"result": "if-left"}, 0),
        ({"result": "none"}, 0),
        ({"result": "if-left", "scheduler_settings": {"wait_s": 600}}, 600),
        ({"result": "throughput", "scheduler_settings": {"wait_s": 0}}, 0),
    ],
)
def test_how_long_the_others_may_go_on_after_one_has_ended_well(changes: dict[str, Any], wait_s: int) -> None:
    """Rank 0 of a user's program may evaluate or save alone; ranks that serve their node's image stay."""
    plan = msgspec.structs.replace(PLAN, **changes)
    words = " ".join(word for word in render(plan, charliecloud.step(plan)).text.split() if word != "\\")
    assert f"--kill-on-bad-exit=1 --wait={wait_s} " in words
    assert f"--leave-together {wait_s} " in words
    alone = StepSpec(command=texts("python3", "main.py"))
    usual = 60 if plan.result == "throughput" else 0  # of a scheduler without such a setting
    here = msgspec.structs.replace(plan, scheduler="local", scheduler_settings={}, tasks_per_node=(2,))
    assert f"\nrunner_supervise 60 {usual} " in render(here, alone).text
    hosts = msgspec.structs.replace(plan, scheduler="hosts", scheduler_settings={}, hosts=ListedHosts(("a", "b")))
    assert f"\nrunner_follow_orders {usual} " in render(hosts, alone).text
    assert f"runner_control 60 {usual} " in render(hosts, alone).text


@pytest.mark.parametrize(
    "words", [("p", "/lib/rank.sh", "--"), ("/lib/rank.sh",), ("a", "/lib/launch.py", "x"), ("--",)]
)
def test_words_stay_the_same_whatever_they_look_like(words: tuple[str, ...]) -> None:
    for command in (texts(*words), charliecloud.step(msgspec.structs.replace(PLAN, program=words)).command):
        step = StepSpec(command=command)
        assert tuple(word for group in grouped(step) for word in group) == command


def test_no_shell_file_starts_a_step() -> None:
    """Each line that does stands in the script; ssh is called as `runner_ssh`, by `runner_control` of the script."""
    starts = re.compile(r"^[^#\n]*\b(srun|mpiexec|coproc) ", re.MULTILINE)
    assert [path.name for path in SHELL.glob("*.sh") if starts.search(path.read_text())] == []


def test_every_exit_of_a_shell_file_has_its_meaning() -> None:
    """Those below 70 are a fault's of what is run once a node, which ends the job with a code of its own."""
    known = codes("batch script")
    for path in SHELL.glob("*.sh"):
        exits = {int(code) for code in re.findall(r"\bexit (\d+)", path.read_text())}
        assert {code for code in exits if code > 1} <= set(known), path.name


def test_the_prefix_of_variables_is_the_one_that_a_rank_takes_off(tmp_path: Path) -> None:
    code = f"{PREFIX}A='a b' RUNNER_LIBRARY_PATH=/s: LD_LIBRARY_PATH=/i bash lib/rank.sh --cd / env"
    env = bash(library(tmp_path), code).stdout.splitlines()
    assert {"A=a b", "LD_LIBRARY_PATH=/s:/i", "PWD=/"} <= set(env)


def test_a_network_whose_plugin_the_site_does_not_have_is_left_out(tmp_path: Path) -> None:
    """NCCL ends with ncclInvalidUsage where NCCL_NET names a network that no plugin has."""
    (tmp_path / "a plugin").mkdir()
    (tmp_path / "a plugin/libnccl-net.so").touch()
    for net, site, is_kept in (("AWS Libfabric", f"/s:{tmp_path}/a plugin", True), ("AWS Libfabric", "/s:/t", False),
                               ("AWS Libfabric", "", True), ("IB", "/s", True)):  # fmt: skip
        code = f"{PREFIX}NCCL_NET='{net}' RUNNER_LIBRARY_PATH='{site}' bash lib/rank.sh env"
        done = bash(library(tmp_path), code)
        assert (f"NCCL_NET={net}" in done.stdout.splitlines(), "is left out" in done.stderr) == (is_kept, not is_kept)


@AS_ROOT
def test_a_job_enters_no_directory_that_has_become_a_strangers(tmp_path: Path) -> None:
    """Of a user who is trusted, or had it at the submission, of the system or a server without this user's name."""
    plan = msgspec.structs.replace(PLAN, owners=((str(tmp_path / "it's"), ALICE),))
    (tmp_path / "it's").mkdir()
    for user, trust, is_entered in ((0, "", True), (1, "", True), (65534, "", True), (ALICE, "", True),
                                    (BOB, "", False), (BOB, f"root,{BOB}", True), (BOB, "@root,x", False)):  # fmt: skip
        os.chown(tmp_path / "it's", user, user)
        code = "\n".join((ENTER, *owners(plan), "pwd"))
        done = bash(library(tmp_path), code, {"RUNNER_TRUST": trust, "PATH": "/usr/bin:/bin"})
        assert done.returncode == (0 if is_entered else ANOTHERS_DIRECTORY), (user, trust, done.stderr)
        assert done.stdout == (f"{tmp_path}\n" if is_entered else "")
        assert ("it's is another user's by now, or open to all; submit again, from" in done.stderr) != is_entered
    (tmp_path / "it's").chmod(0o1777)
    for user in (0, 1):  # this user's, or the system's, as a stranger's link could lead to
        os.chown(tmp_path / "it's", user, user)
        for enters in (code, f'{ENTER}\nrunner_enter "$(echo "$PWD"/it*)"'):
            assert bash(library(tmp_path), enters, {"PATH": "/usr/bin:/bin"}).returncode == ANOTHERS_DIRECTORY, user
    (tmp_path / "it's").chmod(0o755)
    os.chown(tmp_path / "it's", 0, 0)
    (tmp_path / "its").symlink_to(f"/{tmp_path}/it's")
    plan = msgspec.structs.replace(PLAN, owners=((f"{tmp_path}/./its/", ALICE),))
    for user, status in ((0, 0), (ALICE, 0), (BOB, ANOTHERS_DIRECTORY)):
        os.chown(tmp_path / "its", user, user, follow_symlinks=False)
        assert bash(library(tmp_path), "\n".join((ENTER, *owners(plan)))).returncode == status, "whose link it is"
    os.chown(tmp_path / "its", 0, 0, follow_symlinks=False)
    (tmp_path / "it's/run").mkdir()
    below = f"{ENTER}\nrunner_enter {tmp_path}/its/run"
    for mode, user, status in ((0o1777, 0, 0), (0o1777, BOB, ANOTHERS_DIRECTORY), (0o755, BOB, 0)):
        tmp_path.chmod(mode)  # BOB's directory in the place of this user's, with one of this user's in it
        os.chown(tmp_path / "it's", user, user)
        assert bash(library(tmp_path), below).returncode == status, (mode, user)
    os.chown(tmp_path / "it's", 0, 0)
    (tmp_path / "it's/run").rmdir()
    gone = 'stat() { [[ $* != *its ]] && command stat "$@"; }'  # as a link that comes and goes
    assert bash(library(tmp_path), "\n".join((gone, ENTER, *owners(plan)))).returncode == ANOTHERS_DIRECTORY
    (tmp_path / "it's").rmdir()
    for user, status in ((ALICE, ANOTHERS_DIRECTORY), (-1, 0)):
        plan = msgspec.structs.replace(PLAN, owners=((str(tmp_path / "it's"), user),))
        assert bash(library(tmp_path), "\n".join((ENTER, *owners(plan)))).returncode == status, "it is gone, or may be"
