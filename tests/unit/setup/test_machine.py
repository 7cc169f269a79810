"""What a machine lacks, whether it is a cluster's, and that a checkout's scripts work below any path."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.setup import machine
from runner.setup.quoted_scripts import quote
from tests.support.shell_files import stand_in


@pytest.mark.parametrize(
    ("absent", "engine", "debian", "root", "expected"),
    [
        pytest.param("", True, True, True, [], id="a complete machine"),
        pytest.param("dockerd", True, True, True, ["docker.io"], id="no engine answers"),
        pytest.param("dockerd", False, True, True, [], id="an engine answers"),
        pytest.param("newuidmap", False, False, False, ["uidmap", "debian-archive-keyring"], id="an ordinary user"),
    ],
)
def test_what_a_machine_lacks_is_named_with_the_reason(
    absent: str, engine: bool, debian: bool, root: bool, expected: list[str]
) -> None:
    lacking = machine.missing_packages(engine=engine, has=lambda name: name != absent, debian=debian, root=root)
    assert [package.name for package in lacking if package.why] == expected


@pytest.mark.parametrize(
    ("env", "files", "programs", "expected"),
    [
        ({}, set(), set(), None),
        ({}, set(), {"sbatch", "sinfo"}, None),
        ({}, {"/etc/slurm/slurm.conf"}, set(), None),
        ({}, {"/etc/slurm/slurm.conf"}, {"sbatch"}, "sbatch is here and /etc/slurm/slurm.conf too"),
        ({"SLURM_CONF": "/x"}, {"/x"}, {"sinfo"}, "sinfo is here and /x too"),
        ({"SLURM_CONF": "/x"}, {"/etc/slurm/slurm.conf"}, {"sinfo"}, None),
        ({}, {"/etc/pbs.conf"}, {"qstat"}, "qstat is here and /etc/pbs.conf too"),
        ({"SLURM_JOB_ID": "7"}, set(), set(), "SLURM_JOB_ID is set: this is a job"),
    ],
)
def test_a_real_cluster_has_clients_and_their_configuration(
    env: dict[str, str], files: set[str], programs: set[str], expected: str | None
) -> None:
    assert machine.cluster_reason(env, files.__contains__, programs.__contains__) == expected


def test_two_installations_never_overlap(tmp_path: Path) -> None:
    """Two processes, with an apt-get that only looks: the policy is there for the whole of each."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "sbin").mkdir()
    looks = f"sleep 0.2\ntest -e {tmp_path}/sbin/policy-rc.d && echo seen >> {tmp_path}/log"
    for name, body in (("apt-get", looks), ("sudo", 'shift\nexec "$@"')):
        stand_in(tmp_path / "bin", name, body)
    code = (
        "import sys, pathlib; from runner.setup import machine; machine.POLICY = pathlib.Path(sys.argv[1]);"
        "machine.install_packages(machine.NEEDED[:1], lambda line: None)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "sbin" / "policy-rc.d")]
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    both = []
    for _ in range(2):
        both.append(subprocess.Popen(command, env=env))
        time.sleep(0.3)  # so that the first ends in the middle of the second
    assert [one.wait(30) for one in both] == [0, 0]
    assert (tmp_path / "log").read_text().split() == ["seen"] * 4
    assert not (tmp_path / "sbin" / "policy-rc.d").exists()


@pytest.mark.parametrize("name", ["a b", "a $HOME b", "a `id` $(id)", "it's \\ $x"])
def test_activation_and_commands_work_below_any_path(tmp_path: Path, name: str) -> None:
    root = tmp_path / name / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
    by_pip = f"'''exec' \"{root}/bin/python\" \"$0\" \"$@\"\n' '''\nimport sys\nprint(sys.prefix, sys.argv[1:])"
    stand_in(root / "bin", "command", by_pip)
    quote(root)
    quote(root)  # as `make venv` does again when the lock changes
    script = '. "$1/bin/activate"; command -v python; exec "$1/bin/command" "a b"'
    done = subprocess.run(["sh", "-c", script, "sh", root], capture_output=True, text=True, check=True)
    assert done.stdout == f"{root}/bin/python\n{root} ['a b']\n"
