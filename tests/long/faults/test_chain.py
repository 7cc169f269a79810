"""Long chains: twenty time limits, and each other end of an attempt five times."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.chains import Chain, kill, lose_node, reach_limit, requeue
from tests.support.commands import Runner
from tests.support.daemons import Daemons, own_box

pytestmark = pytest.mark.integration
NODES = "Nodes=dgx01,dgx02 State=UP"


@pytest.fixture(scope="module")
def preempting() -> Iterator[Daemons]:
    with own_box("chains") as box:
        partitions = f"batch {NODES} Default=YES PriorityTier=1\nPartitionName=urgent {NODES} PriorityTier=2"
        preemption = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
        Daemons(box).configure(**preemption, PartitionName=partitions)
        yield Daemons(box)


def preempt(chain: Chain, _attempt: int) -> None:
    """Slurm would put the job back into the queue, which it does not allow."""
    chain.daemons.inside("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--wrap=sleep 1")


@pytest.mark.parametrize(("end", "times"), [(reach_limit, 20), (preempt, 5), (kill, 5), (lose_node, 5), (requeue, 5)])
def test_a_long_chain_ends_as_if_it_had_never_stopped(
    end: Callable[[Chain, int], None], times: int, preempting: Daemons, tmp_path: Path
) -> None:
    runner = Runner.at(preempting.box.site, tmp_path, preempting.box.bin_dir)
    words = ("--runtime", "native", "--attempts", str(times + 1))
    goodput = Chain(runner, preempting, tmp_path / "x").submit(*words).goes_through(*[end] * times)
    assert end is not reach_limit or goodput >= 0.95
