"""Ranks are placed by the identity of their nodes, not by host names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.jobs.collect import nodes_of
from runner.jobs.verdict import judge
from tests.support.evidence import GOOD, changed, ended, start
from tests.support.plans import PLAN


def starts(**by_rank: Any) -> dict[int, Any]:
    """Start records of four ranks; each argument is called with the rank."""
    return {rank: start(rank, **{name: value(rank) for name, value in by_rank.items()}) for rank in range(4)}


@pytest.mark.parametrize(
    "of_rank",
    [
        {"host": lambda rank: "localhost", "boot_id": lambda rank: f"boot-{rank // 2}"},
        {"host": lambda rank: f"container{rank}", "boot_id": lambda rank: f"boot-{rank // 2}"},
        {"host": lambda rank: f"container{rank}", "node_name": lambda rank: f"n{rank // 2}"},
        {"host": lambda rank: f"n{rank // 2}", "boot_id": lambda rank: "one kernel"},
        {"node_name": lambda rank: f"n{rank // 2}", "boot_id": lambda rank: "one kernel"},
    ],
    ids=["one host name", "a host name each", "a host name each, named", "nodes of one kernel", "the same, named"],
)
def test_a_good_run_is_measured_whatever_its_hosts_are_called(of_rank: dict[str, Any]) -> None:
    exits = {rank: ended(rank, host="localhost") for rank in range(4)}
    verdict = judge(changed(starts=starts(**of_rank), exits=exits))
    assert (verdict.outcome, verdict.reasons) == ("measured", ())


def test_the_same_device_index_on_nodes_of_one_name_is_no_shared_device() -> None:
    plan = msgspec.structs.replace(PLAN, result="none")
    seen = starts(host=lambda rank: "localhost", boot_id=lambda rank: f"b{rank // 2}", device_uuid=lambda rank: None)
    assert judge(changed(plan=plan, starts=seen, reports={}, result=None)).outcome == "ran"


def test_ranks_on_another_node_than_planned_are_reported_by_its_name() -> None:
    placed = starts(host=lambda rank: "localhost", boot_id=lambda rank: "aaaaaaaa1" if rank < 3 else "bbbbbbbb2")
    reasons = judge(changed(starts=placed)).reasons
    assert "the ranks were placed as localhost (aaaaaaaa): 3, localhost (bbbbbbbb): 1, planned 2,2" in reasons


def test_thousands_of_nodes_are_one_short_sentence() -> None:
    plan = msgspec.structs.replace(PLAN, tasks_per_node=(4,) * 1000)
    places = {rank: f"n{rank // 4:04d}" for rank in range(4000)} | {3999: "n0500"}
    placed = {rank: start(rank, size=4000, host=host, node_name=host) for rank, host in places.items()}
    (sentence,) = [each for each in judge(changed(plan=plan, starts=placed)).reasons if "placed" in each]
    assert sentence.startswith("the ranks were placed as n0500: 5, n0999: 3, n0000: 4, ")
    assert sentence.endswith(" and 992 nodes more, planned 4 on each of 1000 nodes")


def test_ranks_are_named_with_the_nodes_of_their_own_names() -> None:
    assert nodes_of(GOOD.starts, (2, 2)) == {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
    shared = starts(host=lambda rank: "localhost", node_name=lambda rank: f"gpu{rank // 2}")
    assert set(nodes_of(shared, (2, 2)).values()) == {"localhost (gpu0)", "localhost (gpu1)"}
    assert nodes_of({}, (2, 2)) == {}


def test_an_identity_that_not_every_rank_has_does_not_count() -> None:
    some = starts(boot_id=lambda rank: "b" if rank else None)
    assert nodes_of(some, (2, 2)) == {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
