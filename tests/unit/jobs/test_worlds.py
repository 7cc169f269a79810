"""Which worlds a run's programs formed, and what the verdict says of them."""

from typing import Any

import msgspec
import pytest

from runner.diagnosis.logs import parse, together
from runner.jobs import worlds
from runner.jobs.collect import Evidence
from runner.jobs.verdict import judge
from runner.model.records import Membership
from runner.planning.launchers import starters
from tests.support.evidence import GOOD, changed, ended, with_plan

TORCHRUN = ("python3", "-m", "torch.distributed.run", "train.py")
PLAIN = ("python3", "train.py")


def run(*seen: tuple[tuple[str, int, int], ...], **plan: Any) -> Evidence:
    """A program that measures nothing, on four GPUs of two nodes; of each of the launchers what it saw."""
    of_ranks = dict(enumerate(seen))
    exits = {
        rank: ended(rank, worlds=tuple(Membership(*each) for each in of_ranks.get(rank, ())))
        for rank in range(sum(plan.get("tasks_per_node", (2, 2))))
    }
    starts = {rank: each for rank, each in GOOD.starts.items() if rank in exits}
    if len(exits) < 4:  # one launcher a node
        starts = {
            rank: msgspec.structs.replace(GOOD.starts[2 * rank], rank=rank, size=len(exits), local_rank=0, local_size=1)
            for rank in exits
        }
    plan["starters"] = starters(plan.get("program", ()))
    plan = {"result": "if-left", "framework": "none", "program": PLAIN, "device": "cpu", "gpus_per_node": 2} | plan
    return with_plan(changed(exits=exits, starts=starts, reports={}, result=None), **plan)


def torch(rank: int, size: int) -> tuple[tuple[str, int, int]]:
    return (("torch", rank, size),)


ONE = tuple(torch(rank, 4) for rank in range(4))
ALONE = (torch(0, 1),) * 4
OWN = {"wireup": "own", "tasks_per_node": (1, 1)}
BOTH = torch(0, 2) + torch(1, 2)


@pytest.mark.parametrize(
    ("evidence", "devices", "outcome"),
    [
        (run(*ONE), (4,), "ran"),
        (run(*ONE, program=TORCHRUN, world=4), (4,), "ran"),
        (run(*ALONE), (1, 1, 1, 1), "ran"),
        (run(*ALONE, program=TORCHRUN), (1, 1, 1, 1), "not-proven"),
        (run(*ALONE, world=4), (1, 1, 1, 1), "not-proven"),
        (run(*ALONE, program=TORCHRUN, world="any"), (1, 1, 1, 1), "ran"),
        (run(*ALONE, program=TORCHRUN, world="none"), (1, 1, 1, 1), "ran"),
        (run(BOTH, BOTH, program=TORCHRUN, **OWN), (2, 2), "not-proven"),
        (run(torch(0, 4) + torch(1, 4), torch(2, 4) + torch(3, 4), program=TORCHRUN, **OWN), (4,), "ran"),
        # What was not seen is no worse, and one world that is too small is noted.
        (run(ONE[0], (), program=TORCHRUN, **OWN), (4,), "ran"),
        (run(program=TORCHRUN, **OWN), (), "ran"),
        (run(BOTH, (), program=TORCHRUN, **OWN), (2,), "ran"),
        # A process of JAX has all GPUs of its node.
        (run((("jax", 0, 2),), (("jax", 1, 2),), **OWN), (4,), "ran"),
        (run((("jax", 0, 1),), (("jax", 0, 1),), world=4, **OWN), (2, 2), "not-proven"),
        # MPI that a library loads, and MPI by which ranks were to meet.
        (run(*((("mpi", 0, 1),),) * 4, program=TORCHRUN), (), "ran"),
        (run(*((("mpi", 0, 1),),) * 4, program=("mpirun", "./a")), (1, 1, 1, 1), "not-proven"),
        (run(*((("mpi", 0, 1),),) * 4), (1, 1, 1, 1), "ran"),
        (run(*((("mpi", rank, 4),) for rank in range(4)), wireup="pmix"), (4,), "ran"),
    ],
)  # fmt: skip
def test_several_worlds_are_a_fault_only_where_one_is_requested(
    evidence: Evidence, devices: tuple[int, ...], outcome: str
) -> None:
    verdict = judge(evidence)
    assert (worlds.formed(evidence).devices, verdict.outcome) == (devices, outcome)
    is_one = devices == (4,)
    sentences = (*verdict.proven, *verdict.reasons, *verdict.remarks)
    assert any("formed 1 world of 4 devices" in each for each in verdict.proven) == is_one
    assert not any("started, connected" in each for each in sentences) or is_one or not devices
    noted = [each for each in (*verdict.reasons, *verdict.remarks) if "the programs formed" in each]
    assert all("fix: " in each for each in noted)
    silent = is_one or not devices or evidence.plan.world in ("any", "none")
    assert len(noted) == (0 if silent else 1)


def test_starts_of_a_program_are_no_ranks_that_met() -> None:
    starts = [run(program=program, **OWN) for program in (PLAIN, TORCHRUN)]
    alone = run(program=TORCHRUN, wireup="own", tasks_per_node=(1,))
    said = [judge(each).proven[0].split(", on")[0] for each in (*starts, alone, run(*ONE))]
    assert said[:2] == ["2 of 2 launchers started, exited with 0"] * 2
    assert said[2:] == [
        "1 of 1 launcher started, exited with 0",
        "4 of 4 ranks started, connected, exited with 0",
    ]


def test_gpus_that_one_process_may_have_left_idle_are_noted() -> None:
    says = {world: [each[:17] for each in judge(run(world=world, **OWN)).remarks] for world in (None, "none")}
    assert says == {None: ["no world was seen"], "none": []}
    assert judge(run(program=TORCHRUN, **OWN)).remarks == ()


def nccl(*processes: str) -> Evidence:
    """On GPUs, whose log says what no process of the program left."""
    of_each = (parse("\n".join(f"n0:9:9 [0] NCCL INFO comm 0x5 rank {line}" for line in each.split(";")))
               for each in processes)  # fmt: skip
    return changed(nccl=together(of_each))


@pytest.mark.parametrize(
    ("processes", "devices"),
    [
        # 2.18 to 2.27 write so; older ones give no id.
        (["0 nranks 4 cudaDev 0 nvmlDev 0 busId 4f000 commId 0x9ad9b5e4ab2566da - Init COMPLETE"] * 4, (4,)),
        (["0 nranks 4 cudaDev 0 busId e7000 - Init COMPLETE"] * 4, ()),
        ([f"0 nranks 1 cudaDev 0 nvmlDev 0 busId 65000 commId 0x{each} - Init START" for each in "abcd"], (1, 1, 1, 1)),
        # Groups of two each way are one world, and do not say how large it is.
        ([f"0 nranks 2 cudaDev 0 commId 0x{a} - Init;1 nranks 2 cudaDev 0 commId 0x{b} - Init"
          for a in "ab" for b in "cd"], ()),
        # A launch after the other: more devices than there are.
        ([f"0 nranks 4 cudaDev 0 commId 0x{each} - Init COMPLETE" for each in "ab"], ()),
    ],
)  # fmt: skip
def test_nccls_log_says_which_processes_are_in_one_world(processes: list[str], devices: tuple[int, ...]) -> None:
    assert worlds.formed(nccl(*processes)).devices == devices
