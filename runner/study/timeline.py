"""The time line of a chain: where the time of its attempts went, by the times of files that they left in one file
system.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from runner.core.files import Folder
from runner.jobs.campaign import Campaign
from runner.jobs.cost import last_sign_s
from runner.jobs.directory import EXIT, LAUNCHES, Run, utc
from runner.model.report import AttemptTimes, ChainTimes
from runner.study.directory import CHECKPOINTS, DONE, name_of

_BEGAN, _RESUMES = "began", "resumes"  # of an attempt: chain.sh
_FIRST_STEP = "first-step"  # which a program may leave


def timelines(runs: Sequence[Run]) -> Iterator[ChainTimes]:
    """Of each chain all of whose attempts that have begun are among these runs, and noted which checkpoint they had:
    those of earlier versions did not.
    """
    for chain in dict.fromkeys(run.chain for run in runs if run.chain):
        there = (run for key in Run(chain).names_in(LAUNCHES) for run in Campaign(chain).runs(key))
        begun = [run for run in there if run.time_s(_BEGAN) and run.chain == chain]
        if begun and {run.path for run in begun} <= {run.path for run in runs if (run.path / _RESUMES).exists()}:
            yield timeline(chain, sorted(begun, key=lambda run: int(run.path.parent.name)))


def timeline(chain: Path, attempts: Sequence[Run]) -> ChainTimes:
    """Of a chain's attempts that have begun, in order. One without a verdict may go on: it is in no sum."""
    after = [*attempts[1:], None]
    rows = tuple(_times(chain, run, later) for run, later in zip(attempts, after, strict=True))
    ended = [row for row in rows if row.end]
    start_up, kept, lost = (sum(getattr(row, f"{name}_s") for row in ended) for name in ("start_up", "kept", "lost"))
    return ChainTimes(
        chain=chain.name,
        name=name_of(chain.name),
        attempts=rows,
        start_up_s=start_up,
        kept_s=kept,
        lost_s=lost,
        goodput=kept / (kept + lost) if kept + lost else None,
        by_first_step=all(run.time_s(_FIRST_STEP) for run in attempts),
    )


def _times(chain: Path, run: Run, later: Run | None) -> AttemptTimes:
    began_s, verdict = run.time_s(_BEGAN), run.verdict
    end_s = max(began_s, run.time_s(EXIT) or last_sign_s(run))
    starts_s = [run.time_s(f"ranks/{rank}.start.json") for rank in range(run.tasks)]  # written again as all had met
    first_s = run.time_s(_FIRST_STEP) or (max(starts_s) if all(starts_s) else end_s)
    first_s = min(max(first_s, began_s), end_s)
    kept_s = min(max(_newest_s(chain, run, later), first_s), end_s)
    return AttemptTimes(
        attempt=int(run.path.parent.name),
        run=run.run_id,
        began=utc(began_s),
        start_up_s=first_s - began_s,
        kept_s=kept_s - first_s,
        lost_s=end_s - kept_s,
        end="" if verdict is None else "; ".join((verdict.outcome, *verdict.reasons[:1])),
    )


def _newest_s(chain: Path, run: Run, later: Run | None) -> float:
    """When the newest checkpoint was written that the attempt left; its end where the program was done."""
    if later is not None:
        with suppress(ValueError):
            return float(later.content(_RESUMES) or 0)
        return 0.0
    if run.chain_end == DONE:
        return math.inf
    return Folder(chain / CHECKPOINTS).newest_s()
