"""A user's program that ended well may have run as several worlds of one: what was seen of that is a note."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.jobs.verdict import judge
from tests.support.evidence import changed, ended
from tests.support.plans import PLAN

OWN = msgspec.structs.replace(PLAN, result="if-left", framework="none")


def remarks(of_rank_0: dict[str, Any], *used: bool | None) -> tuple[str, ...]:
    """The notes on a run whose rank 0 recorded that, and whose ranks saw MASTER_PORT ``used``."""
    exits = {
        rank: ended(rank, master_port_used=seen, **(of_rank_0 if rank == 0 else {})) for rank, seen in enumerate(used)
    }
    verdict = judge(changed(plan=OWN, exits=exits, reports={}, result=None))
    assert (verdict.outcome, verdict.exit_code) == ("ran", 0)
    return verdict.remarks


NONE = {"rendezvous_values": 0, "rendezvous_ranks": 0}


def test_programs_that_never_met_are_noted() -> None:
    (note,) = remarks(NONE, False, False, False, False)
    assert note.startswith("nothing shows that the ranks' programs met")
    assert "fix: " in note


def test_ranks_that_horovod_left_out_are_noted() -> None:
    (note,) = remarks({"rendezvous_values": 9, "rendezvous_ranks": 3}, False, False, False, False)
    assert note.startswith("the programs of only 3 of 4 ranks came to Horovod's rendezvous")


@pytest.mark.parametrize(
    ("of_rank_0", "used"),
    [
        (NONE, (False, False, True, False)),
        ({"rendezvous_values": 40, "rendezvous_ranks": 4}, (False,) * 4),
        ({"rendezvous_values": 1, "rendezvous_ranks": 0}, (False,) * 4),
        (NONE, (None,) * 4),
        (NONE, (False, None, False, False)),
        ({}, (False,) * 4),
    ],
    ids=["torch", "Horovod", "the launcher's store", "not visible", "not visible on one", "no rendezvous"],
)
def test_programs_that_met_or_cannot_be_seen_are_not(of_rank_0: dict[str, Any], used: tuple[bool | None, ...]) -> None:
    assert remarks(of_rank_0, *used) == ()
