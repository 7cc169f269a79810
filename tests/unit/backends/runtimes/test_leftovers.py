"""What a job removes of earlier jobs on a node: its user's, of this node, of jobs that have ended, and nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from runner.backends import LEFTOVERS
from runner.backends.runtimes import common, runtime
from runner.backends.runtimes.common import live_jobs
from runner.model.step import RUN_DIRECTORY, StepSpec, Text
from runner.model.step import Var as Variable
from tests.support.plans import PLAN
from tests.support.shell_files import library, stand_in
from tests.support.users import AS_ROOT, CAROL

NODE = os.uname().nodename
LIVE = "11 12"  # the jobs that Slurm knows; ours is 12


def once_a_node(step: StepSpec, run: Path, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """What a job runs once a node, with the script's variables filled in."""
    values = {RUN_DIRECTORY: str(library(run)), "runner_job": "12", "runner_live": LIVE, **variables}
    command = ["".join(p.value if isinstance(p, Text) else values[p.name] for p in parts) for parts in step.once_a_node]
    env = {**os.environ, "PATH": path or f"{run}:{os.environ['PATH']}"}
    return subprocess.run(command, cwd=run, env=env, capture_output=True, text=True, check=False)


class Staged(NamedTuple):
    """What another job has staged; ``session``: what of it differs from this test's own, None where none stands."""

    job: str
    removed: bool = False
    node: str = NODE
    session: dict[str, str] | None = None

    @property
    def name(self) -> str:
        return f"gpu-runner-stage-{self.job}"


OWN = "gpu-runner-stage-12~34"
ENDED = {"number": "4194305"}  # more than any process number
STAGED = [
    Staged("5", removed=True),  # an ended job of this node
    Staged("6.4711.123.abcd1234", removed=True),  # in an allocation
    Staged("5~12345", removed=True),
    Staged("11"),  # Slurm knows it
    Staged("11~12345"),
    Staged("11.4711.123.abcd1234"),  # it runs in an allocation that Slurm knows
    Staged("13"),  # it began after Slurm was asked
    Staged("4711.123.abcd1234"),  # a run without a scheduler
    Staged("7", node="another"),  # the disk is one that nodes share
    Staged("mine"),  # no job's
    Staged("4711.1.abcd1234", session={}),  # a process of its session is left
    Staged("4711.2.abcd1234", removed=True, session=ENDED),
    Staged("4711.2.abcd1234~77", removed=True, session=ENDED),
    Staged("4711.3.abcd1234", removed=True, session={"boot": "0"}),  # the machine has been started anew
    Staged("4711.4.abcd1234", session={**ENDED, "space": "pid:[1]"}),  # its numbers are of another container
    Staged("4711.pbs-1.example", session=ENDED),  # a job of PBS
    Staged("11.4711.5.abcd1234", session=ENDED),  # in an allocation that Slurm knows
    Staged("4711.6.abcd1234", node="another", session=ENDED),
]


def stage(tmp_path: Path, others: list[Staged], *, whole_nodes: bool) -> Path:
    """Run a job that stages, on a disk with what others have staged."""
    own = {
        "number": str(os.getsid(0)),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "space": str(Path("/proc/self/ns/pid").readlink()),
    }
    disk, image = tmp_path / "a disk", tmp_path / "i.sqsh"
    disk.mkdir()
    for other in others:
        (disk / other.name).mkdir(mode=0o700)
        (disk / other.name / "image.sqsh").write_bytes(b"x")
        (disk / other.name / "node").write_text(f"{other.node}\n")
        if other.session is not None:
            (disk / other.name / "session").write_text(" ".join((own | other.session).values()) + "\n")
    image.write_bytes(bytes(1000))
    planned = msgspec.structs.replace(PLAN.image, path=str(image), size_bytes=1000)
    plan = msgspec.structs.replace(PLAN, stage=str(disk), image=planned, whole_nodes=whole_nodes)
    (tmp_path / "elsewhere").mkdir()
    (disk / "gpu-runner-stage-4").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/node").write_text(f"{NODE}\n")
    done = once_a_node(common.staged_step(plan, runtime("apptainer")), tmp_path, runner_stage=f"{disk}/{OWN}")
    refused = "is no disk of this node alone" in done.stderr
    assert done.returncode == refused
    assert (disk / OWN / "image.sqsh").stat().st_size == (1 if refused else 1000)
    return disk


@pytest.mark.parametrize(
    "before", [[], [Staged("12"), Staged("12~5")]], ids=["first", "again"]
)  # a second start of the same job
@pytest.mark.parametrize("whole_nodes", [True, False])
def test_what_is_staged_of_ended_jobs_is_removed_and_nothing_that_may_be_in_use(
    tmp_path: Path, whole_nodes: bool, before: list[Staged]
) -> None:
    disk = stage(tmp_path, [*STAGED, *before], whole_nodes=whole_nodes)
    stays = {other.name for other in STAGED if not other.removed}
    assert {path.name for path in disk.iterdir()} == {*stays, OWN, "gpu-runner-stage-4"}
    assert all((disk / name / "image.sqsh").exists() for name in stays)
    assert (tmp_path / "elsewhere/node").exists(), "a directory behind a link"
    ours, same = (disk / name / "session" for name in (OWN, "gpu-runner-stage-4711.1.abcd1234"))
    assert ours.read_text() == same.read_text()


def test_a_disk_that_nodes_share_is_refused(tmp_path: Path) -> None:
    disk = stage(tmp_path, [Staged("12~34", node="another")], whole_nodes=True)
    assert (disk / OWN / "image.sqsh").read_bytes() == b"x"


@AS_ROOT
def test_a_disk_of_another_user_is_refused(tmp_path: Path) -> None:
    disk, old = tmp_path / "disk", tmp_path / "disk/gpu-runner-stage-5"
    old.mkdir(parents=True)  # ours, which that user may have renamed
    (old / "node").write_text(f"{NODE}\n")
    os.chown(disk, CAROL, CAROL)
    disk.chmod(0o1777)
    plan = msgspec.structs.replace(PLAN, stage=str(disk))
    done = once_a_node(common.staged_step(plan, runtime("apptainer")), tmp_path, runner_stage=f"{disk}/{OWN}")
    assert done.returncode == 1 and "others may exchange what lies in" in done.stderr
    assert [path.name for path in disk.iterdir()] == [old.name]


def test_of_enroots_containers_only_those_of_this_node_and_of_ended_jobs(tmp_path: Path) -> None:
    """A stand-in lists containers as one data path that nodes share holds them."""
    mine = [f"runner-{job}-{NODE}" for job in ("5", "11", "12", "13", "4711.123.abcd1234")]
    says = f"echo '[ERROR] No such file or directory: {tmp_path}/gpu-runner-none' >&2"
    removes = f"case $2 in gpu-runner-none) {says} ;; *) echo $3 >>removed ;; esac"
    stand_in(tmp_path, "enroot", f"case $1 in list) cat names ;; remove) {removes} ;; esac")
    (tmp_path / "names").write_text("\n".join([*mine, "runner-6-another", f"own-{NODE}", "my runner-7-x", ""]))
    step = runtime("enroot").step(msgspec.structs.replace(PLAN, runtime="enroot"))
    assert once_a_node(step, tmp_path).returncode == 0
    assert (tmp_path / "removed").read_text().split() == [f"runner-5-{NODE}"]


@AS_ROOT
def test_enroot_unpacks_nothing_where_another_user_could_exchange_it(tmp_path: Path) -> None:
    named = f"[ERROR] No such file or directory: {tmp_path}/data/gpu-runner-none"
    closed = f"mkdir: cannot create directory '{tmp_path}/data': Permission denied"  # as long as its owner wishes
    (tmp_path / "data").mkdir()
    step = runtime("enroot").step(msgspec.structs.replace(PLAN, runtime="enroot"))
    cases = ((CAROL, named, "another user could exchange"), (0, closed, closed), (0, "", "does not say where"))
    for owner, said, refused in (*cases, (0, named, "")):
        says = f'[ -z "{said}" ] || {{ echo "{said}" >&2; exit 1; }}'
        body = f'case "$1 $2" in "remove gpu-runner-none") {says} ;; create*) touch unpacked ;; esac'
        stand_in(tmp_path, "enroot", body)
        os.chown(tmp_path / "data", owner, owner)
        done = once_a_node(step, tmp_path)
        assert (done.returncode, (tmp_path / "unpacked").exists()) == (bool(refused), not refused), done.stderr
        assert refused in done.stderr


OF_ENDED_STEPS = {"pyxis_5.0", "pyxis_5_5.12"}  # the second where Pyxis's containers are a job's
OTHERS = {
    "pyxis_11.0", "pyxis_11_11.0",  # Slurm knows the job
    "pyxis_12.0",  # another step of this job
    "pyxis_13.0",  # the job began after Slurm was asked, or is of an earlier count of jobs
    "pyxis_5", "pyxis_25.02", "pyxis_05.1", "pyxis_5_mine.0", "pyxis_5_6.0", "pyxis_5.0-old",  # named containers
    "x_pyxis_5.0",
}  # fmt: skip


UNPACKED = {"pyxis_8.1", "pyxis_14.1", "pyxis_4.1"}  # their jobs were killed before they had a mount point
RECORDS = {f".gpu-runner-job-{job}" for job in ("4", "8", "9", "14")}


def test_of_pyxis_containers_only_steps_of_ended_jobs(tmp_path: Path) -> None:
    """And none without a mount point of ours, behind a link, on a disk that machines share, or of an unknown path."""
    data = tmp_path / "data dir"
    for name in (*OF_ENDED_STEPS, *OTHERS, "pyxis_6.10", "linked"):
        (data / name / "results").mkdir(parents=True)
    (data / "pyxis_6.10/results").rmdir()
    (data / ".gpu-runner-job-9").touch()
    for name in UNPACKED:  # 14 began after Slurm was asked; 4.1 is older than the job of that number
        (data / name).mkdir()
    for job in ("8", "14", "4"):
        (data / f".gpu-runner-job-{job}").touch()
        os.utime(data / f".gpu-runner-job-{job}", (1e9, 1e9))
    os.utime(data / "pyxis_4.1", (9e8, 9e8))
    (data / "linked").rename(tmp_path / "linked")
    (data / "pyxis_7.0").symlink_to(tmp_path / "linked")
    (tmp_path / "logs").mkdir()

    def left(message: str = "[ERROR] No such file or directory: $data/gpu-runner-none", stat: str = "") -> set[str]:
        stand_in(tmp_path, "stat", stat or 'exec /usr/bin/stat "$@"')
        stand_in(tmp_path, "enroot", f'data="{data}"\n[ "$1 $2" = "remove --force" ] && rm -r "$data/$3"\n'
                 f'[ "$*" = "remove gpu-runner-none" ] && {{ echo "{message}" >&2; exit 1; }}; :')  # fmt: skip
        assert once_a_node(runtime("pyxis").step(PLAN), tmp_path).returncode == 0
        return {path.name for path in data.iterdir()}

    every = {*OF_ENDED_STEPS, *OTHERS, *UNPACKED, *RECORDS, "pyxis_6.10", "pyxis_7.0"}
    assert left(stat="echo 6969") == left("[ERROR] Invalid argument") == every
    removed = {*OF_ENDED_STEPS, "pyxis_8.1"}
    ours = {".gpu-runner-job-12", ".gpu-runner-job-14"}
    assert left() == every - removed - RECORDS | ours
    (tmp_path / "precious").write_text("thesis")
    (data / ".gpu-runner-job-12").unlink()
    (data / ".gpu-runner-job-12").symlink_to(tmp_path / "precious")  # by another user, who may write there
    assert left() == every - removed - RECORDS | ours
    assert (tmp_path / "precious").read_text() == "thesis"
    log = {f"{NODE}: removing {name}, of a job that has ended" for name in removed}
    assert set((tmp_path / "logs/cleanup.log").read_text().splitlines()) == log


def test_nodes_without_enroot_or_run_directory_fail_no_job_of_pyxis(tmp_path: Path) -> None:
    """What is missing there is reported by the ranks' own step."""
    (tmp_path / "sed").symlink_to("/bin/sed")
    assert once_a_node(runtime("pyxis").step(PLAN), tmp_path, path=str(tmp_path)).returncode == 0


@pytest.mark.parametrize(
    ("job", "live", "alone", "own", "left"),
    [
        ("5", "", "yes", "12", True),  # without an answer of Slurm, only an exclusive job removes
        ("5", " ", "yes", "12", True),
        ("5", "", "no", "12", False),
        ("12", "", "yes", "12", False),
        ("5.pbs-1.hsn.example.org", "", "yes", "6.pbs-1.hsn.example.org", True),
    ],
)
def test_what_is_left_over(job: str, live: str, alone: str, own: str, left: bool) -> None:
    command = ["bash", "-c", f'. {LEFTOVERS}; is_left "$@"', "bash", job, live, alone, own]
    assert (subprocess.run(command, check=False).returncode == 0) is left


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
