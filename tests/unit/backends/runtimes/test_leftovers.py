"""What a job removes of earlier jobs on a node: its user's, of this node, of jobs that have ended, and nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from runner.backends.runtimes import common, runtime
from runner.backends.runtimes.common import LEFTOVERS, live_jobs
from runner.model.step import RUN_DIRECTORY, Argument, Text
from runner.model.step import Var as Variable
from tests.support.plans import PLAN
from tests.support.shell_files import library

NODE = os.uname().nodename


def arguments(argv: tuple[Argument, ...], values: dict[str, str]) -> list[str]:
    """The words of a command, with the script's variables filled in."""
    return ["".join(p.value if isinstance(p, Text) else values[p.name] for p in parts) for parts in argv]


def in_run(directory: Path) -> dict[str, str]:
    """The variable of a run directory that has the shell files."""
    return {RUN_DIRECTORY: str(library(directory))}


def stage(disk: Path, job: str, live: str, *, whole_nodes: bool = True) -> subprocess.CompletedProcess[str]:
    """Run what a job that stages runs once a node."""
    image = disk.parent / "i.sqsh"
    image.write_bytes(bytes(1000))
    planned = msgspec.structs.replace(PLAN.image, path=str(image), size_bytes=1000)
    plan = msgspec.structs.replace(PLAN, stage=str(disk), image=planned, whole_nodes=whole_nodes)
    values = {"runner_stage": f"{disk}/gpu-runner-stage-{job}", "runner_live": live} | in_run(disk.parent)
    command = arguments(common.staged_step(plan, runtime("apptainer")).once_a_node, values)
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)


def left_of(disk: Path, job: str, node: str = NODE) -> Path:
    """What another job has staged."""
    made = disk / f"gpu-runner-stage-{job}"
    made.mkdir(mode=0o700)
    (made / "image.sqsh").write_bytes(b"x")
    (made / "node").write_text(f"{node}\n")
    return made


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    made = tmp_path / "a disk"
    made.mkdir()
    return made


def test_an_ended_job_of_this_node_is_swept(disk: Path) -> None:
    ended, in_allocation = left_of(disk, "5"), left_of(disk, "6.4711.123.abcd1234")
    assert stage(disk, "12", "11 12").returncode == 0
    assert not ended.exists()
    assert not in_allocation.exists()
    assert (disk / "gpu-runner-stage-12" / "image.sqsh").stat().st_size == 1000


@pytest.mark.parametrize("whole_nodes", [True, False])
@pytest.mark.parametrize(
    ("job", "node", "why"),
    [
        ("11", NODE, "Slurm knows it"),
        ("11.4711.123.abcd1234", NODE, "it runs in an allocation that Slurm knows"),
        ("13", NODE, "it began after Slurm was asked"),
        ("4711.123.abcd1234", NODE, "a run without a scheduler"),
        ("5", "another", "the disk is one that nodes share"),
        ("mine", NODE, "no job's"),
    ],
)
def test_what_may_be_in_use_stays(disk: Path, job: str, node: str, why: str, whole_nodes: bool) -> None:
    other = left_of(disk, job, node)
    assert stage(disk, "12", "11 12", whole_nodes=whole_nodes).returncode == 0
    assert (other / "image.sqsh").exists(), why


GONE = {"session": "4194305"}  # more than any process number


@pytest.mark.parametrize(
    ("changed", "removed", "why"),
    [
        ({}, False, "a process of its session is left"),
        (GONE, True, "no process of its session is left"),
        ({"boot": "0"}, True, "the machine has been started anew"),
        ({**GONE, "space": "pid:[1]"}, False, "its numbers are of another container"),
        ({**GONE, "name": "4711.pbs-1.example"}, False, "a job of PBS"),
        ({**GONE, "name": "11.4711.123.abcd1234"}, False, "a run in an allocation that Slurm knows"),
        ({**GONE, "node": "another"}, False, "the disk is one that nodes share"),
    ],
)
def test_a_run_without_a_scheduler_that_was_killed_outright_is_swept(
    disk: Path, changed: dict[str, str], removed: bool, why: str
) -> None:
    own = {
        "session": str(os.getsid(0)),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "space": str(Path("/proc/self/ns/pid").readlink()),
    }
    other = left_of(disk, changed.get("name", "4711.123.abcd1234"), changed.get("node", NODE))
    (other / "session").write_text(" ".join(changed.get(key, value) for key, value in own.items()) + "\n")
    assert stage(disk, "12", "11 12", whole_nodes=False).returncode == 0
    assert other.exists() is not removed, why
    if not changed:
        assert (disk / "gpu-runner-stage-12/session").read_text() == (other / "session").read_text()


def test_a_directory_behind_a_link_stays(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    own = left_of(tmp_path / "d", "5")
    (disk / "gpu-runner-stage-5").symlink_to(own)
    assert stage(disk, "12", "12").returncode == 0
    assert (own / "image.sqsh").exists()


def test_a_disk_that_nodes_share_is_refused(disk: Path) -> None:
    other = left_of(disk, "12", "another")
    done = stage(disk, "12", "12")
    assert done.returncode == 1
    assert "is no disk of this node alone" in done.stderr
    assert (other / "image.sqsh").read_bytes() == b"x"


def test_a_second_start_of_the_same_job_stages_anew(disk: Path) -> None:
    left_of(disk, "12")
    assert stage(disk, "12", "12").returncode == 0
    assert (disk / "gpu-runner-stage-12" / "image.sqsh").stat().st_size == 1000


def test_of_enroots_containers_only_those_of_this_node_and_of_ended_jobs(tmp_path: Path) -> None:
    """A stand-in lists containers as one data path that nodes share holds them."""
    mine = [f"runner-{job}-{NODE}" for job in ("5", "11", "12", "13", "4711.123.abcd1234")]
    (tmp_path / "enroot").write_text(
        f"#!/bin/sh\ncase $1 in list) cat {tmp_path}/names ;; remove) echo $3 >>{tmp_path}/removed ;; esac\n"
    )
    (tmp_path / "enroot").chmod(0o755)
    (tmp_path / "names").write_text("\n".join([*mine, "runner-6-another", f"own-{NODE}", "my runner-7-x", ""]))
    plan = msgspec.structs.replace(PLAN, runtime="enroot")
    values = {"runner_job": "12", "runner_live": "11 12"} | in_run(tmp_path)
    command = arguments(runtime("enroot").step(plan).once_a_node, values)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(command, env=path, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "removed").read_text().split() == [f"runner-5-{NODE}"]


@pytest.mark.parametrize(
    ("name", "removed", "why"),
    [
        ("pyxis_5.0", True, "a step of a job that has ended"),
        ("pyxis_5_5.12", True, "the same, where Pyxis's containers are a job's"),
        ("pyxis_11.0", False, "Slurm knows the job"),
        ("pyxis_11_11.0", False, "Slurm knows the job"),
        ("pyxis_12.0", False, "another step of this job"),
        ("pyxis_13.0", False, "the job began after Slurm was asked, or is of an earlier count of jobs"),
        ("pyxis_5", False, "a named container"),
        ("pyxis_25.02", False, "a named container: no step is 02"),
        ("pyxis_05.1", False, "a named container: no job is 05"),
        ("pyxis_5_mine.0", False, "a named container of a job"),
        ("pyxis_5_6.0", False, "a named container of a job"),
        ("pyxis_5.0-old", False, "a named container"),
        ("x_pyxis_5.0", False, "not Pyxis's"),
    ],
)
def test_of_pyxis_containers_only_steps_of_ended_jobs(tmp_path: Path, name: str, removed: bool, why: str) -> None:
    container = container_of_pyxis(tmp_path, name)
    sweep(tmp_path)
    assert container.exists() is not removed, why


def test_pyxis_containers_of_others_stay(tmp_path: Path) -> None:
    """Without a mount point of ours, behind a link, on a disk that machines share; and of a path that is unknown."""
    (container_of_pyxis(tmp_path, "pyxis_6.10") / "results").rmdir()
    container_of_pyxis(tmp_path, "pyxis_5.0").rename(tmp_path / "elsewhere")
    (tmp_path / "data dir" / "pyxis_5.0").symlink_to(tmp_path / "elsewhere")
    shared = container_of_pyxis(tmp_path, "pyxis_7.0")
    sweep(tmp_path, stat="echo 6969")
    assert shared.exists()
    sweep(tmp_path, message="[ERROR] Invalid argument")
    assert shared.exists()
    sweep(tmp_path)
    assert sorted(path.name for path in (tmp_path / "data dir").iterdir()) == ["pyxis_5.0", "pyxis_6.10"]
    assert (tmp_path / "logs/cleanup.log").read_text() == f"{NODE}: removing pyxis_7.0, of a job that has ended\n"


def test_nodes_without_enroot_or_run_directory_fail_no_job_of_pyxis(tmp_path: Path) -> None:
    """What is missing there is reported by the ranks' own step."""
    (tmp_path / "sed").symlink_to("/bin/sed")
    subprocess.run(
        sweep_command(tmp_path), env={"PATH": str(tmp_path)}, cwd=tmp_path, check=True, stderr=subprocess.DEVNULL
    )


def container_of_pyxis(directory: Path, name: str) -> Path:
    made = directory / "data dir" / name
    (made / "results").mkdir(parents=True)
    return made


def sweep_command(directory: Path) -> list[str]:
    values = {"runner_job": "12", "runner_live": "11 12"} | in_run(directory)
    return arguments(runtime("pyxis").step(PLAN).once_a_node, values)


def sweep(
    directory: Path,
    *,
    message: str = "[ERROR] No such file or directory: $data/gpu-runner-none",
    stat: str = "exec /usr/bin/stat",
) -> None:
    """Run what a job under Pyxis runs once a node, with a stand-in of Enroot."""
    programs = {
        "enroot": f"""data="{directory}/data dir"
            [ "$*" = "remove gpu-runner-none" ] && {{ echo "{message}" >&2; exit 1; }}
            [ "$1 $2" = "remove --force" ] && rm -r "$data/$3"; :""",
        "stat": f'{stat} "$@"',
    }
    for name, code in programs.items():
        (directory / name).write_text(f"#!/bin/sh\n{code}\n")
        (directory / name).chmod(0o755)
    (directory / "logs").mkdir(exist_ok=True)
    path = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}
    subprocess.run(sweep_command(directory), env=path, cwd=directory, check=True)


def is_left(job: str, live: str, alone: str, own: str = "12") -> bool:
    command = ["bash", "-c", f'. {LEFTOVERS}; is_left "$@"', "bash", job, live, alone, own]
    return subprocess.run(command, check=False).returncode == 0


def test_without_an_answer_of_slurm_only_an_exclusive_job_removes() -> None:
    assert [is_left("5", live, "yes") for live in ("", " ")] == [True, True]
    assert not is_left("5", "", "no")
    assert not is_left("12", "", "yes")
    assert is_left("5.pbs-1.hsn.example.org", "", "yes", "6.pbs-1.hsn.example.org")


@pytest.mark.parametrize(
    ("change", "alone"),
    [
        ({}, "yes"),
        ({"whole_nodes": False}, "no"),
        ({"scheduler_settings": {"exclusive": False}}, "no"),
        ({"directives": (("exclusive", "user"),)}, "no"),
        ({"scheduler": "pbs"}, "yes"),
        ({"scheduler": "pbs", "scheduler_settings": {}}, "yes"),
    ],
)
def test_all_gpus_of_a_node_are_not_the_node(change: dict[str, object], alone: str) -> None:
    """Without ``--exclusive``, another job of the same user may have the rest of the node."""
    live, last = live_jobs(msgspec.structs.replace(PLAN, **change))
    assert last == (Text(alone),)
    assert isinstance(live[0], Variable) is ("scheduler" not in change)
