"""A plan in an allocation that is held: it is put on the nodes that have what it needs, or refused with the numbers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from runner.backends.runtimes import runtime
from runner.backends.schedulers.slurm.client import allocation
from runner.backends.schedulers.slurm.script import salloc
from runner.core.errors import RefusedError, UnknownStateError
from runner.model.job import AllocatedNode, Allocation
from runner.model.plan import Plan, PlannedImage, StepNodes
from runner.model.request import Request
from runner.planning.plan import plan
from tests.support.plans import RECIPE, SITE

BIG, SMALL = AllocatedNode("big", cpus=128, gpus=4), AllocatedNode("small", cpus=64, gpus=2)


def planned(gpus: int, nodes: int, allocation: Allocation | None = None) -> Plan:
    return plan(RECIPE, SITE, Request(gpus=gpus, nodes=nodes), PlannedImage("i", "", "/i"), allocation=allocation)


@pytest.mark.parametrize(
    ("gpus", "nodes", "chosen"),
    [(4, 1, ("big",)), (2, 1, ("small",)), (4, 2, ("small", "big")), (3, 2, ("small", "big"))],
)
def test_the_first_nodes_that_have_what_is_needed(gpus: int, nodes: int, chosen: tuple[str, ...]) -> None:
    placed = planned(gpus, nodes, Allocation("1", (SMALL, BIG)))
    assert placed.existing_allocation == StepNodes(chosen, job_id="1")
    assert placed.started_by == "local"


@pytest.mark.parametrize(
    ("gpus", "nodes", "says"),
    [
        (8, 1, "1 node with 8 GPUs and 256 CPUs each"),
        (8, 2, "2 nodes with 4 GPUs and 128 CPUs each"),
        (3, 3, "3 nodes with 1 GPU and 32 CPUs each"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_sides(gpus: int, nodes: int, says: str) -> None:
    with pytest.raises(RefusedError) as caught:
        planned(gpus, nodes, Allocation("1", (SMALL, BIG)))
    assert says in caught.value.what
    assert "small with 2 GPUs and 64 CPUs, big with 4 GPUs and 128 CPUs" in caught.value.what


def test_too_few_cpus_are_reported_too() -> None:
    with pytest.raises(RefusedError, match="64 CPUs"):
        planned(2, 1, Allocation("1", (AllocatedNode("n", cpus=2, gpus=2),)))


SHOWN = """\
JobId=7 JobName=x
   JobState={state} Reason=None
   JOB_GRES=gpu:a100:6
     Nodes=n[01-02] CPU_IDs=0-63,128-191 Mem=0 GRES=gpu:a100:2(IDX:0-1)
     Nodes=n07 CPU_IDs=3 Mem=1000 GRES=gpu:a100:1(IDX:0),gpu:v100:1(IDX:5)
     Nodes=n08 CPU_IDs=0-1 Mem=1000 GRES=
   Comment=Nodes=evil CPU_IDs=0-999 Mem=0 GRES=gpu:99(IDX:0)
"""


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol that knows job 7."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    (tmp_path / "scontrol").write_text(
        f'#!/bin/sh\ncase $* in *hostnames*01-02*) echo n01; echo n02;; *hostnames*) echo "$3";;'
        f" *) cat '{tmp_path}/answer';; esac\n"
    )
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "answer").write_text(SHOWN.format(state="RUNNING"))
    return tmp_path


def test_what_slurm_says_of_an_allocation(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tuple(
        AllocatedNode(name, cpus=cpus, gpus=gpus)
        for name, cpus, gpus in (("n01", 128, 2), ("n02", 128, 2), ("n07", 1, 2), ("n08", 2, 0))
    )
    assert allocation(clients) == Allocation("7", nodes)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert allocation(clients) == Allocation("7", nodes, in_step=True)


def test_no_allocation_an_ended_one_and_a_silent_slurm(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clients / "answer").write_text(SHOWN.format(state="COMPLETED"))
    with pytest.raises(RefusedError, match="COMPLETED"):
        allocation(clients)
    (clients / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    with pytest.raises(UnknownStateError, match="does not answer"):
        allocation(clients)
    with pytest.raises(RefusedError, match="scontrol was not found"):
        allocation(clients / "nowhere")
    monkeypatch.delenv("SLURM_JOB_ID")
    assert allocation(clients) is None


def test_the_line_that_holds_an_allocation_has_the_jobs_shape(tmp_path: Path) -> None:
    """Pasted into a shell, where a constraint of two features must not send salloc into the background."""
    shaped = msgspec.structs.replace(planned(8, 2), directives=(("constraint", "gpu&hbm40g"),), account="a")
    stub = tmp_path / "salloc"
    stub.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    stub.chmod(0o755)
    line = salloc(shaped, runtime("pyxis").step(shaped))
    shell = subprocess.run(["bash", "-c", f"PATH={tmp_path}; {line}"], capture_output=True, text=True, check=True)
    assert shell.stdout.split() == [
        "--job-name=r", "--account=a", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--cpus-per-task=32",
        "--mem=500000M", "--constraint=gpu&hbm40g", "--time=00:20:00",
    ]  # fmt: skip
