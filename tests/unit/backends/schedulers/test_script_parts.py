"""What batch scripts and the launcher inside containers must do alike, since neither can import the other."""

from __future__ import annotations

import subprocess

import msgspec
import pytest
from gpu_runner_inside.launcher import network

from runner.backends.schedulers.script_parts import memlock, port
from tests.support.plans import PLAN


@pytest.mark.parametrize("job", [0, 1, 15999, 16000, 4294967295])
def test_a_script_and_the_launcher_make_the_same_port_of_a_jobs_number(job: int) -> None:
    code = f'{port(str(job))}\necho "$RUNNER_RDV_PORT"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == network.FIRST_PORT + job % network.PORTS


@pytest.mark.parametrize(
    ("changes", "matters"),
    [
        ({}, True),
        ({"transport": None}, True),
        ({"transport": "libfabric"}, True),
        ({"transport": "sockets"}, False),
        ({"device": "cpu"}, False),
        ({"tasks_per_node": (4,)}, False),
    ],
)
def test_the_limit_on_locked_memory_is_reported_only_where_rdma_may_need_it(
    changes: dict[str, object], matters: bool
) -> None:
    line = memlock(msgspec.structs.replace(PLAN, **changes))
    assert line.startswith("ulimit -l unlimited")
    assert ("RDMA registration may fail" in line) is matters
