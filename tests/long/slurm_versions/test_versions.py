"""The same jobs on each Slurm that a box can have: Debian 12's, Debian 13's, and that of unstable, which has no PMIx.

What the tests of 22.05 in tests/integration and tests/long/faults see at length, in short.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import box
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.daemons import Daemons, held_allocation, own_box
from tests.support.endings import ENDINGS, leaves_nothing
from tests.support.planted_faults import (
    FAULTS,
    LATE_FAULTS,
    MEASURED,
    Planted,
    assert_placed_as_planned,
    is_reported,
    started,
    submit_one_of_each,
    submitted,
)
from tests.support.rank_records import ranks_by_node, records

ALL_FAULTS = {"good": MEASURED} | FAULTS | LATE_FAULTS


@pytest.fixture(scope="module", params=list(box.SUITES))
def daemons(request: pytest.FixtureRequest) -> Iterator[Daemons]:
    with own_box(f"versions-{str(request.param).replace('.', '-')}", slurm=request.param) as made:
        yield Daemons(made)


@pytest.fixture(scope="module")
def runner(daemons: Daemons, squashfs: StoredImage, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner.at(daemons.box.site, tmp_path_factory.mktemp("runs"), daemons.box.bin_dir, runs="my runs")


@pytest.fixture(scope="module")
def planted(runner: Runner) -> dict[str, Path]:
    """All faults, submitted together, so that the time limit runs beside the others."""
    return submitted(runner, ALL_FAULTS)


def test_the_version_is_the_requested_one(daemons: Daemons) -> None:
    """Debian may have moved on: then SUITES and the proofs are out of date."""
    assert daemons.inside("sinfo", "--version").startswith(f"slurm-wlm {daemons.box.spec.slurm}.")


def test_torch_ranks_on_two_nodes_are_measured(runner: Runner) -> None:
    done = runner("submit", "--gpus", "4", "--nodes", "2", "--wait", code=0)
    assert "verdict: measured" in done.out
    assert {start["host"] for start in records(runner.newest(), "start").values()} == {"dgx01", "dgx02"}


def test_ranks_meet_however_a_site_asks_for_them(runner: Runner, tmp_path: Path) -> None:
    """8 + 5 among them."""
    assert_placed_as_planned(runner, submit_one_of_each(runner, tmp_path))


@pytest.mark.parametrize("name", ALL_FAULTS)
def test_a_planted_fault_is_reported(runner: Runner, planted: dict[str, Path], name: str) -> None:
    is_reported(runner, planted[name], ALL_FAULTS[name])


def test_steps_of_an_allocation_that_is_held(runner: Runner) -> None:
    """As many ranks on each node, on one node of two, and more on the first."""
    hold = ("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--cpus-per-task=32")
    with held_allocation(runner.clients, *hold) as job:
        for gpus, nodes, spread in (("8", "2", [4, 4]), ("2", "1", [2]), ("3", "2", [2, 1])):
            words = ("run", "--recipe", "probe", "--gpus", gpus, "--nodes", nodes)
            runner(*words, code=0, env={"SLURM_JOB_ID": job})
            assert ranks_by_node(runner.newest()) == spread


@pytest.mark.parametrize(
    ("act", "planted"),
    [
        ("scontrol", Planted("nap:600", "infrastructure", 8, ("the scheduler reports NODE_FAIL: dgx02 failed",))),
        ("cancel", Planted("nap:600", "cancelled", 5, ("the job was cancelled by",))),
    ],
    ids=["a node fails", "it is cancelled"],
)
def test_a_job_that_is_ended(runner: Runner, daemons: Daemons, act: str, planted: Planted) -> None:
    run = started(runner, planted)
    if act == "cancel":
        runner("cancel", str(run), code=0)
    else:
        daemons.inside("scontrol", "update", "NodeName=dgx02", "State=DOWN", "Reason=planted")
    is_reported(runner, run, planted)
    daemons.await_up("dgx02")


@pytest.mark.parametrize("ending", ["well, unevenly", "cancelled", "killed outright on one node"])
def test_however_a_job_ends_its_copies_are_removed(runner: Runner, daemons: Daemons, ending: str) -> None:
    """By a step of its own beside the ranks, or by the next job there."""
    leaves_nothing(runner, daemons, ENDINGS[ending], "--stage")


def test_which_mpi_plugins_there_are(daemons: Daemons) -> None:
    """Where ``srun --mpi=list`` has PMIx it works between nodes; Debian's 26.05 has none."""
    listed = subprocess.run(
        [daemons.box.bin_dir / "srun", "--mpi=list"], capture_output=True, text=True, check=True, timeout=60
    )
    kinds = {kind for kind in ("pmix", "pmi2") if kind in listed.stdout + listed.stderr}
    assert kinds == ({"pmi2"} if daemons.box.spec.slurm == "26.05" else {"pmix", "pmi2"})
    for kind in sorted(kinds):
        ranks = daemons.inside("srun", f"--mpi={kind}", "--nodes=2", "sh", "-c", "echo ${PMIX_RANK:-$PMI_RANK}")
        assert sorted(ranks.split()) == ["0", "1"]
