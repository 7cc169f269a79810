"""``run``: steps of an allocation that is held, on the real Slurm of the box."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.commands import Runner, ran
from tests.support.daemons import held_allocation
from tests.support.rank_records import document_of, has_started, ranks_by_node, records

pytestmark = pytest.mark.integration
PROBE = ("run", "--recipe", "probe")
Hold = Callable[..., dict[str, str]]


@pytest.fixture
def hold(runner: Runner) -> Iterator[Hold]:
    """Hold an allocation as ``salloc`` does; gives the environment of its shell, and gives it back at the end."""
    with ExitStack() as held:

        def salloc(*options: str) -> dict[str, str]:
            job = held.enter_context(held_allocation(runner.clients, *options))
            # As salloc sets them, for shapes that are not those of the steps.
            return {"SLURM_JOB_ID": job, "SLURM_NTASKS_PER_NODE": "1", "SLURM_GPUS_PER_TASK": "1", "SLURM_NNODES": "2"}

        yield salloc


def is_held(runner: Runner, env: dict[str, str]) -> bool:
    words = [runner.clients / "squeue", "--noheader", "--format=%T", f"--jobs={env['SLURM_JOB_ID']}"]
    return ran(words).out == "RUNNING\n"


def test_shapes_one_after_the_other_in_one_allocation(runner: Runner, hold: Hold) -> None:
    """As with the KISTI guide's salloc: 2 nodes x 4, then 1 x 2, then 2 + 1; what does not fit is refused."""
    env = hold("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--cpus-per-task=32")
    for gpus, nodes, spread in (("8", "2", [4, 4]), ("2", "1", [2]), ("3", "2", [2, 1])):
        done = runner(*PROBE, "--gpus", gpus, "--nodes", nodes, code=0, env=env)
        run = runner.newest()
        assert ranks_by_node(run) == spread
        assert f"{gpus} of {gpus} ranks met on {nodes} host" in done.out, "what rank 0 says is seen"
        assert "verdict: ran" in done.out
        assert document_of(run, "plan")["held"]["nodes"] == ["dgx01", "dgx02"][: int(nodes)]
        assert all("SLURM_GPUS_PER_TASK" not in probe["environment_names"] for probe in records(run, "probe").values())
    before = set(runner.runs.iterdir())
    refused = runner(*PROBE, "--gpus", "16", code=3, env=env)
    assert "2 nodes with 8 GPUs and 256 CPUs each does not fit" in refused.err
    assert "dgx01 with 4 GPUs and 128 CPUs" in refused.err
    assert set(runner.runs.iterdir()) == before


def test_an_allocation_with_too_few_cpus(runner: Runner, hold: Hold) -> None:
    env = hold("--nodes=1", "--gpus-per-node=2")
    assert "1 node with 2 GPUs and 64 CPUs" in runner(*PROBE, "--gpus", "2", code=3, env=env).err


def test_a_failed_step_is_reported_and_the_allocation_stays(runner: Runner, hold: Hold) -> None:
    env = hold("--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=a100:2", "--cpus-per-task=32")
    done = runner("run", "--gpus", "2", "--", "sh", "-c", "exit 7", code=5, env=env)
    assert "exited with code 7" in done.out
    assert is_held(runner, env)


def test_ctrl_c_ends_the_step_and_not_the_allocation(runner: Runner, hold: Hold) -> None:
    env = hold("--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=32")
    words = (*PROBE, "--gpus", "2", "--", "--sleep", "300")
    child, _run = runner.start_until(has_started(2), *words, env=env)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=90)
    assert child.returncode == 130, err
    assert b"the job was cancelled" in out
    assert is_held(runner, env)


def test_from_within_a_step_and_from_salloc_itself(runner: Runner, tmp_path: Path) -> None:
    """A shell that runs in a step holds what a further step needs: they share. Inside the box, as on a real node."""
    salloc = [str(runner.clients / "salloc"), "--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=2"]
    within = ["srun", "--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=64"]
    for step in ([], within):
        words = [*salloc, "--cpus-per-task=32", *step, *runner.argv(*PROBE, "--gpus", "2")]
        said = ran(words, env=runner.environment(), cwd=tmp_path).out
        assert "verdict: ran" in said
        assert re.search(r"^a step of job \d+: 2 ranks", said, re.MULTILINE), "Slurm's number"


def test_without_an_allocation(runner: Runner) -> None:
    """It says how to hold one, with the site's own shape, or what to use in its place."""
    done = runner(*PROBE, "--gpus", "16", code=3)
    assert "salloc --job-name=probe --nodes=2 --ntasks-per-node=8 --gpus-per-node=a100:8 --cpus-per-task=32" in done.err
    assert "submit" in done.err
    assert f"{runner.clients}/salloc --job-name" in done.err, (
        "where PATH has no Slurm, as here, the command runs as it is"
    )
    ended = runner(*PROBE, "--gpus", "2", code=3, env={"SLURM_JOB_ID": "999999"})
    assert "Slurm does not know it" in ended.err
