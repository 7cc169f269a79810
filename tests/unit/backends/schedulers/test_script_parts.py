"""What batch scripts and the launcher inside containers must do alike, since neither can import the other."""

from __future__ import annotations

import base64
import subprocess

import msgspec
import pytest
from gpu_runner_inside.launcher import network

from runner.backends.schedulers.script_parts import KEY, memlock, port
from tests.support.plans import PLAN


@pytest.mark.parametrize("job", [0, 1, 15999, 16000, 4294967295])
def test_a_script_and_the_launcher_make_the_same_port_of_a_jobs_number(job: int) -> None:
    code = f'{port(str(job))}\necho "$RUNNER_RDV_PORT"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == network.FIRST_PORT + job % network.PORTS


def test_each_run_of_a_script_makes_a_key_of_its_own() -> None:
    code = f"{KEY}\nprintenv RUNNER_RDV_KEY"
    runs = [subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    keys = {base64.b64decode(run.stdout, validate=False) for run in runs}
    assert [len(key) for key in keys] == [16, 16]


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
