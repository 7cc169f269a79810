"""Which rank failed first: by the launchers' own clocks, compared when the ranks met."""

from __future__ import annotations

from typing import Any

from runner.jobs.collect import Evidence
from runner.jobs.verdict import judge
from runner.model.job import JobState
from tests.support.evidence import GOOD, changed, ended, start

FAILED = JobState("ended", "FAILED", exit_code=1)
CRASH: dict[str, Any] = {"status": 139, "exit_code": None, "signal": 11}
ERROR: dict[str, Any] = {"status": 1, "exit_code": 1}


def failed(exits: dict[int, Any], **clocks: tuple[float | None, float | None]) -> Evidence:
    """Ranks 0 and 1 on n0, 2 and 3 on n1, whose clock differs from rank 0's as ``n1`` says: offset and error."""
    offset_s, error_s = clocks.get("n1", (0.0, 0.001))
    starts = {rank: start(rank) for rank in (0, 1)} | {
        rank: start(rank, clock_offset_s=offset_s, clock_error_s=error_s) for rank in (2, 3)
    }
    return changed(state=FAILED, starts=starts, exits=GOOD.exits | exits)


def test_a_node_whose_clock_is_behind_does_not_take_the_blame() -> None:
    """Rank 3 crashed at 100 s; the clock of rank 0's node is 60 s behind n1's."""
    exits = {0: ended(0, **ERROR, ended_s=41.0), 3: ended(3, **CRASH, ended_s=100.0)}
    verdict = judge(failed(exits, n1=(-60.0, 0.001)))
    assert verdict.reasons[:2] == ("rank 3 on n1 was ended by signal 11 (SIGSEGV)", "rank 0 failed too")


def test_the_best_comparison_of_a_nodes_ranks_counts() -> None:
    evidence = failed({0: ended(0, **ERROR, ended_s=100.5), 3: ended(3, **ERROR, ended_s=100.0)}, n1=(0.0, 9.0))
    better = evidence.starts | {2: start(2, clock_offset_s=0.0, clock_error_s=0.01)}
    assert judge(changed(state=FAILED, starts=better, exits=evidence.exits)).reasons[0].startswith("rank 3 on n1")


def test_within_the_clocks_error_the_signal_goes_first_and_the_doubt_is_reported() -> None:
    exits = {0: ended(0, **ERROR, ended_s=100.0), 3: ended(3, **CRASH, ended_s=100.2)}
    verdict = judge(failed(exits, n1=(0.0, 0.5)))
    assert verdict.reasons[0] == "rank 3 on n1 was ended by signal 11 (SIGSEGV)"
    assert (
        "it cannot be determined which failed first, rank 3 or rank 0: the clocks of their nodes are known only to "
        "0.5 s" in verdict.reasons
    )
    certain = judge(failed(exits, n1=(0.0, 0.05)))
    assert certain.reasons[:2] == ("rank 0 on n0 exited with code 1", "rank 3 failed too")


def test_clocks_that_were_not_compared_order_nothing_across_nodes() -> None:
    exits = {0: ended(0, **ERROR, ended_s=50.0), 1: ended(1, **CRASH, ended_s=51.0), 3: ended(3, **ERROR, ended_s=70.0)}
    reasons = judge(failed(exits, n1=(None, None))).reasons
    assert reasons[0] == "rank 0 on n0 exited with code 1"
    assert any(reason.endswith("rank 0 or rank 3: the clocks of their nodes were not compared") for reason in reasons)


def test_a_long_run_knows_its_clocks_less_well() -> None:
    """Nothing compares them after the start; quartz drifts by up to 20 millionths."""
    exits = {
        0: ended(0, **ERROR, started_s=0.0, ended_s=100_000.0),
        3: ended(3, **CRASH, started_s=0.0, ended_s=100_003.0),
    }
    assert judge(failed(exits)).reasons[0].startswith("rank 3 on n1")


def test_a_crash_after_the_warning_of_the_time_limit_is_a_crash() -> None:
    exits: dict[int, Any] = {
        rank: ended(rank, status=143, exit_code=None, signal=15, signals_forwarded=(10, 15)) for rank in (0, 1, 3)
    }
    exits[2] = ended(2, **CRASH, signals_forwarded=(10,), ended_s=99.0)
    reasons = judge(failed(exits)).reasons
    assert reasons[:2] == ("rank 2 on n1 was ended by signal 11 (SIGSEGV)", "ranks 0, 1, 3 were then stopped too")


def test_a_rank_that_fails_on_sigterm_was_stopped() -> None:
    exits = {2: ended(2, **ERROR, signals_forwarded=(15,), ended_s=99.0), 3: ended(3, **CRASH)}
    assert judge(failed(exits)).reasons[:2] == (
        "rank 3 on n1 was ended by signal 11 (SIGSEGV)",
        "rank 2 was then stopped too",
    )
