"""The evidence of a good run whose arms took turns, and variants of it."""

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from runner.jobs.collect import Evidence
from runner.model.records import ArmRecord
from runner.model.verdict import RunArm
from tests.support.evidence import changed, ended, report
from tests.support.plans import PLAN

TURNS: tuple[RunArm, ...] = ("uncoupled", "coordination", "full", "coordination", "uncoupled")
_BEGAN_S = (1001.0, 1003.0, 1005.0, 1009.0, 1011.0)
Change = Callable[[int, int, dict[str, Any]], dict[str, Any]]


def alternating(change: Change = lambda _rank, _place, window: window, **of_report: Any) -> Evidence:
    """Four ranks whose computing takes 0.3 s a step (rank 3: 0.4 s), in each window but the run's own two groups.

    Args:
        change: what becomes of a window's fields, by rank and place. of_report: further fields of every report.
    """
    plan = msgspec.structs.replace(PLAN, arms=("uncoupled", "coordination", "full"))
    reports = {}
    for rank in range(4):
        own_s = 0.4 if rank == 3 else 0.3
        windows = []
        for place, arm in enumerate(TURNS):
            ends_s = {"uncoupled": (2 * own_s, 4 * own_s), "coordination": (0.9, 1.8)}.get(
                arm, (1.0, 2.0, 3.0 + rank / 10)
            )
            window: dict[str, Any] = {
                "arm": arm, "group_steps": 2, "began_monotonic_s": _BEGAN_S[place], "ends_s": ends_s,
                "compute_s": (own_s,) * (2 * len(ends_s)),
            }  # fmt: skip
            window = change(rank, place, window)
            packed = struct.pack(f"<{len(window['ends_s'])}d", *window["ends_s"])
            windows.append(ArmRecord(**{"ends_checksum": hashlib.sha256(packed).hexdigest()[:16], **window}))
        reports[rank] = report(rank, **({"arms": tuple(windows)} | of_report))
    exits = {rank: ended(rank, program_started_monotonic_s=1000.0, ended_monotonic_s=1015.0) for rank in range(4)}
    return changed(plan=plan, reports=reports, exits=exits)
