"""``shell`` on the real Slurm of the box: terminals on its nodes, and whose job ends with them."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from textwrap import indent

import pytest

from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner, ran
from tests.support.daemons import CONTROLLER, Daemons, held_allocation
from tests.support.shells import assert_shells, transcript, typed_into
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def jobs(runner: Runner) -> Callable[[], str]:
    """Names of the jobs that Slurm has."""
    words = [runner.clients / "squeue", "--noheader", "--format=%j"]
    return lambda: ran(words).out


def test_in_a_container(runner: Runner, squashfs: StoredImage, tmp_path: Path) -> None:
    assert_shells(runner, squashfs.digest, tmp_path)


def test_the_transcript_of_the_page(runner: Runner, squashfs: StoredImage, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/jobs.md").read_text()
    assert indent(transcript(runner, squashfs.digest, tmp_path), " " * 4) in page


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_what_ends_the_terminal_ends_its_job(
    number: int, runner: Runner, jobs: Callable[[], str], squashfs: StoredImage, tmp_path: Path
) -> None:
    """Ctrl-C while it waits for a node, which is typed; in the shell itself it is the program's."""
    waits = ("-S", "begin=now+1hour") if number == signal.SIGINT else ()
    shell = typed_into(runner, tmp_path, "--image", squashfs.digest, "--name", "mine", *waits)
    until(lambda: "mine" in jobs())
    if number == signal.SIGINT:
        shell.until("waiting for a node")
        shell.type("\x03")
    else:
        shell.until("/workspace# ")
        os.kill(shell.pid, number)
    assert shell.end() == 128 + number
    until(lambda: "mine" not in jobs())


def test_a_scheduler_that_is_gone_for_a_while(
    ill: Runner, daemons: Daemons, squashfs: StoredImage, tmp_path: Path
) -> None:
    shell = typed_into(ill, tmp_path, "--image", squashfs.digest, "-S", "begin=now+1hour")
    shell.until("waiting for a node")
    daemons.end(CONTROLLER)
    try:
        shell.until("Slurm does not answer")
        shell.type("\x03")
        shell.until("could not be cancelled")
        assert shell.end() == 130
    finally:
        daemons.start()
    until(lambda: ill("cancel", ill.newest().name, code=0))


def test_without_a_container_beside_a_job_of_sbatch_and_in_an_allocation(
    runner: Runner, squashfs: StoredImage, tmp_path: Path
) -> None:
    """The job starts in a directory of another user, as of a project."""
    script = "export MARK=yes; srun --nodes=1 --ntasks=1 sleep 600"
    if os.geteuid() == 0:
        os.chown(tmp_path, 4711, -1)
    job = ran([runner.clients / "sbatch", "--parsable", "--gpus=1", f"--wrap={script}"], cwd=tmp_path).out.strip()
    env = {"PATH": f"{runner.clients}:{os.environ['PATH']}"}
    until(lambda: f"{job}.0" in ran([runner.clients / "squeue", "--steps", "--noheader", "--format=%i"]).out)
    done = runner("shell", job, "--", "bash", "-c", "echo $MARK $PWD; exit 3", code=3, env=env)
    assert done.out == f"yes {tmp_path}\n"
    assert runner("shell", job, "--rank", "1", "--", "true", code=0, env=env)
    runner("cancel", job, code=0, env=env)
    until(lambda: "has ended" in runner("shell", job, "--", "true", code=2, env=env).err)

    with held_allocation(runner.clients, "--nodes=1", "--gpus-per-node=2", "--cpus-per-task=128") as allocation:
        words = ("shell", "--site", str(runner.site), "--runs", str(runner.runs), "--gpus", "2")
        tail = ("--image", squashfs.digest, "--", "bash", "-c", "echo $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES")
        assert runner(*words, *tail, code=0, env={"SLURM_JOB_ID": allocation}).out.endswith(f"\n{allocation} 0,1\n")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("shell --recipe probe", "`shell` runs no recipe"),
        ("shell @1 --gpus 2", "RUN runs already"),
        ("shell @1 ls", "a command stands behind --"),
        ("shell nothing", "no run"),
        ("serve --notebook --tensorboard .", "one server for a job"),
        ("serve --site box -- python3 -m http.server", "the command listens at {port}, or at {socket}"),
    ],
)
def test_what_it_and_serve_do_not_take(words: str, what: str, runner: Runner) -> None:
    assert what in runner(*words.split(), code=2).err
