"""How long the other ranks may go on after one has ended well: rank 0 may evaluate or save alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.backends.runtimes import charliecloud
from runner.backends.schedulers import render
from runner.model.plan import ListedHosts, Plan
from runner.model.step import StepSpec, texts
from tests.support.plans import PLAN

STEP = StepSpec(prelude=(), once_a_node=(), launcher=(), command=texts("python3", "main.py"))


def planned(**changes: Any) -> Plan:
    return msgspec.structs.replace(PLAN, **changes)


@pytest.mark.parametrize(
    ("plan", "wait_s"),
    [
        (planned(result="throughput"), 60),
        (planned(result="if-left"), 0),
        (planned(result="none"), 0),
        (planned(result="if-left", scheduler_settings={"wait_s": 600}), 600),
        (planned(result="throughput", scheduler_settings={"wait_s": 0}), 0),
    ],
)
def test_srun_waits_for_programs_of_the_users_own_and_as_the_site_says(plan: Plan, wait_s: int) -> None:
    step = charliecloud.step(plan)
    words = " ".join(word for word in render(plan, step).split() if word != "\\")
    assert f"--kill-on-bad-exit=1 --wait={wait_s} " in words
    assert f"--leave-together {wait_s} " in words  # ranks that serve their node's image stay just as long


@pytest.mark.parametrize("scheduler", ["local", "hosts"])
def test_ranks_that_this_machine_starts_are_ended_only_where_they_measure(scheduler: Any) -> None:
    hosts = ListedHosts(names=("a", "b")) if scheduler == "hosts" else None
    shape = {"scheduler": scheduler, "hosts": hosts, "tasks_per_node": (2, 2) if hosts else (2,)}
    late = "SECONDS - runner_first"
    assert late in render(planned(**shape, result="throughput"), STEP)
    assert late not in render(planned(**shape, result="if-left"), STEP)
