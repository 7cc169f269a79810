"""The faults that take long to show, or need root and a cluster of their own: time limits, memory, disks, dead daemons.

Each in a real job, with the verdict, the telling sentence and the exit code that it must get. The quick ones are in
tests/integration/test_faults.py.
"""

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner, extended
from tests.support.daemons import CONTROLLER, Daemons, own_box
from tests.support.planted_faults import (
    FAULTS,
    LATE_FAULTS,
    MEASURED,
    Planted,
    is_reported,
    judge_what_is_left,
    killed_while_submitting,
    started,
    submitted,
    submitted_and_reported,
    under_way,
    with_sbatch,
)
from tests.support.users import AS_ROOT
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, AS_ROOT]
SHORT = ("--time", "1:00")
LATE = LATE_FAULTS | {
    "a rank that never starts, to the time limit": Planted(
        "", "failed", 5,
        (
            "the job ran into its time limit", "rank 3 on dgx02 never started",
            "ranks 0, 1, 2 waited for the others to start",
        ),
        before="exec sleep 1000@3", words=SHORT,
    ),
    "a rank that hangs before it meets": Planted(
        "late:1000@1", "failed", 5, ("the job ran into its time limit", "did not finish the program"), words=SHORT
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def late(runner: Runner) -> dict[str, Path]:
    return submitted(runner, LATE)


@pytest.mark.parametrize("name", LATE)
def test_a_job_that_does_not_end(runner: Runner, late: dict[str, Path], name: str) -> None:
    is_reported(runner, late[name], LATE[name])


def test_a_notice_near_the_time_limit_ends_no_program(runner: Runner) -> None:
    """48 s of a minute have passed: Slurm has sent USR1 to every process, and the job goes on to its own end."""
    submitted_and_reported(runner, Planted("nap:52", "measured", 0, words=SHORT))


@pytest.mark.usefixtures("squashfs")
def test_a_program_that_needs_more_memory_than_the_job_has(tmp_path: Path) -> None:
    """Slurm's own cgroups, as on a real cluster: the kernel kills it. 200 MiB for each rank."""
    with own_box("memory") as made:
        daemons = Daemons(made)
        daemons.inside("sh", "-c", 'printf "%s\n" "$@" >/etc/slurm/cgroup.conf', "sh", *CGROUPS)
        daemons.configure(TaskPlugin="task/cgroup", SelectTypeParameters="CR_Core_Memory")
        runner = Runner.at(extended(made.site, tmp_path, node={"memory_mb": 1600}), tmp_path, made.bin_dir)
        sentence = "it ran out of memory: the kernel ended it at"
        planted = Planted("memory:1000@2", "failed", 5, ("rank 2 on dgx02 was ended by signal 9", sentence))
        _run, verdict = submitted_and_reported(runner, planted)
        assert any("the job has 400 MiB on each node" in reason for reason in verdict["reasons"]), verdict
        submitted_and_reported(runner, Planted("memory:50", "measured", 0))


CGROUPS = ("CgroupPlugin=cgroup/v1", "CgroupAutomount=no", "ConstrainRAMSpace=yes")


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("small")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "small", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.fixture(scope="module")
def on_small_disk(
    small_disk: Path, squashfs: StoredImage, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """A box that sees it; runs are made there."""
    with own_box("disk") as made:
        runner = Runner.at(made.site, tmp_path_factory.mktemp("disk"), made.bin_dir)
        yield replace(runner, runs=small_disk / "runs")


@contextmanager
def full(directory: Path) -> Iterator[None]:
    filler = directory / "filler"
    try:
        with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        yield
    finally:
        filler.unlink()


def test_no_room_for_a_run_directory(on_small_disk: Runner, small_disk: Path) -> None:
    with full(small_disk):
        said = on_small_disk(*MEASURED.submission(), code=8)
        assert "the run directory cannot be filled: No space left on device" in said.err
        assert "nothing was submitted" in said.err
        assert list(on_small_disk.runs.glob("[!.]*")) == []


def test_no_room_for_the_ranks_records(on_small_disk: Runner, small_disk: Path, tmp_path: Path) -> None:
    """The disk fills up while the job waits in the queue."""
    later = extended(on_small_disk.site, tmp_path, slurm={"directives": {"begin": "now+4"}})
    runner = replace(on_small_disk, site=later)
    run = submitted(runner, {"": MEASURED})[""]
    with full(small_disk):
        said = runner("wait", str(run), code=8)
    assert "the job could not write to its run directory" in said.out
    assert "the disk of the run directory is full" in said.out
    assert "warning: verdict.json cannot be kept" in said.err


def test_no_room_for_the_results(on_small_disk: Runner) -> None:
    """Rank 0 fills the disk when all have started."""
    said = on_small_disk(*Planted("fill-disk@0", "infrastructure", 8).submission("--wait"), code=8)
    assert "the disk of the run directory is full" in said.out
    (on_small_disk.newest() / "filler").unlink()


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        (("dgx01", "dgx02"), "the scheduler could not start the script on dgx[01-02] (JobLaunchFailure)"),
        (("dgx02",), "srun reports: launch failed: Slurmd could not connect IO (its node may not write to logs/"),
    ],
)
def test_a_run_directory_that_nodes_may_not_write_to(
    ill: Runner, daemons: Daemons, nodes: tuple[str, ...], sentence: str
) -> None:
    ill.runs.mkdir(exist_ok=True)
    for node in nodes:
        daemons.on_node(node, "sh", "-c", READ_ONLY, "sh", str(ill.runs))
    try:
        patience = ("--env", "RUNNER_RDV_TIMEOUT_S=6")
        submitted_and_reported(ill, Planted("", "infrastructure", 8, (sentence,), words=patience))
    finally:
        for node in nodes:
            daemons.on_node(node, "umount", str(ill.runs))


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"'


def test_a_node_whose_power_is_cut(ill: Runner, daemons: Daemons) -> None:
    daemons.configure(SlurmdTimeout="10")
    sentence = "the scheduler reports NODE_FAIL: dgx02 failed"
    planted = Planted("nap:600", "infrastructure", 8, (sentence,))
    run = started(ill, planted)
    daemons.cut_power("dgx02")
    try:
        is_reported(ill, run, planted)
    finally:
        daemons.begin("dgx02")


def test_a_job_that_slurm_has_forgotten(ill: Runner, daemons: Daemons) -> None:
    """There is no accounting, and slurmctld keeps no ended job: the run directory tells."""
    daemons.configure(MinJobAge="2")
    said = "ranks 0, 1, 2, 3 left a report, but did not finish the program"
    planted = {
        "good": MEASURED,
        "bad": FAULTS["a rank exits with 7"],
        "torn away": Planted("nap:600", "failed", 5, (said,)),
    }
    runs = submitted(ill, planted)
    torn = runs["torn away"]
    until(lambda: under_way(4)(torn))
    daemons.inside("scancel", "--full", "--signal=KILL", *daemons.jobs_of(str(torn)))
    until(lambda: not any(daemons.jobs_of(str(run)) for run in runs.values()), timeout_s=240)
    verdicts = {name: is_reported(ill, run, planted[name]) for name, run in runs.items()}
    daemons.configure(MinJobAge="300")  # starting anew, slurmctld may remember the jobs again
    assert any("the scheduler no longer knows the job" in sentence for sentence in verdicts["good"]["proven"])


def test_a_controller_that_is_away_for_a_while(ill: Runner, daemons: Daemons) -> None:
    planted = Planted("nap:8", "measured", 0)
    child, run = ill.start_until(lambda run: any(run.glob("ranks/*.report.json")), *planted.submission("--wait"))
    daemons.end(CONTROLLER)
    time.sleep(12)
    daemons.start()
    _out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    is_reported(ill, run, planted)


def test_an_interrupt_that_cancels_ends_in_time_where_slurm_is_silent(ill: Runner, daemons: Daemons) -> None:
    planted = Planted("nap:600", "cancelled", 5, ("the job was cancelled",))
    words = planted.submission("--wait", "--cancel-on-interrupt")
    child, run = ill.start_until(lambda run: any(run.glob("ranks/*.report.json")), *words)
    daemons.signal(CONTROLLER, "STOP")
    try:
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        _out, err = child.communicate(timeout=120)
        assert time.monotonic() - began < 75
    finally:
        daemons.signal(CONTROLLER, "CONT")
    assert child.returncode == 9, err
    assert b"scancel" in err, err
    assert b"Traceback" not in err
    ill("cancel", run.name, code=0)
    is_reported(ill, run, planted)


def test_an_sbatch_that_never_answers_is_one_job(ill: Runner, daemons: Daemons, tmp_path: Path) -> None:
    """It is given a minute, then the queue is asked."""
    elsewhere = with_sbatch(ill, tmp_path, 'BIN/sbatch "$@" >/dev/null; exec sleep 600')
    run, _verdict = submitted_and_reported(elsewhere, MEASURED)
    assert len(daemons.jobs_of(str(run))) == 1


def test_an_sbatch_that_never_answers_nor_submits(ill: Runner, daemons: Daemons, tmp_path: Path) -> None:
    elsewhere = with_sbatch(ill, tmp_path, "exec sleep 600")
    said = elsewhere(*MEASURED.submission(), code=9)
    assert "sbatch did not answer, and no job of this run is in the queue" in said.err
    run = elsewhere.newest()
    assert "it is unknown whether the scheduler accepted it" in elsewhere("status", run.name, code=9).err
    assert daemons.jobs_of(str(run)) == []


def test_the_submitting_process_is_killed_at_any_moment(ill: Runner, daemons: Daemons) -> None:
    chance = random.Random(20261121)
    left = killed_while_submitting(ill, [chance.uniform(0.2, 1.1) for _ in range(24)])
    became = Counter(judge_what_is_left(ill, daemons, run) for run in left)
    print(f"of {len(left)} submissions that were killed: {dict(became)}")
    assert became["a job that was found again"] >= 1
    assert became["no run"] < len(left)
