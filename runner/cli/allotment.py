"""Where a job waits or runs and for how long, and how busy the GPUs of its ranks are, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from runner.core.columns import Column, for_terminal
from runner.core.text import age, duration, first_of, percent
from runner.model.output import Allotment, RankGpu, RunFacts

_IDLE = 5.0  # percent: what is less does no work to speak of
_MOST = 16  # GPUs in a table


def lines_of_standing(facts: RunFacts, width: int | None) -> Iterator[str]:
    """Of a run that has not ended."""
    if facts.allotment is not None:
        yield from allotment_lines(facts.allotment, facts.site)
    yield from gpu_lines(facts.rank_gpus, width)


def allotment_lines(given: Allotment, site: str) -> Iterator[str]:
    """Where, for how long, and when the job starts or ends."""
    where = f"partition {given.partition}" if given.partition else f"queue {given.queue}" if given.queue else ""
    account = f"account {given.account}" if given.account else ""
    default = f" (the default of {site}: --time changes it)" if given.limit_is_default else ""
    yield ", ".join(filter(None, (where, account, f"limit {duration(given.limit_s)}{default}")))
    if given.estimated_start is not None:
        now, start = datetime.now(timezone.utc), given.estimated_start.astimezone()
        day = "" if start.date() == now.astimezone().date() else f"{start:%Y-%m-%d} "
        in_s = (given.estimated_start - now).total_seconds()
        yield f"the scheduler estimates that it starts at {day}{start:%H:%M}, in {age(in_s)}"
    if given.elapsed_s and given.left_s is not None:
        yield f"running for {duration(given.elapsed_s)}, {duration(given.left_s)} left"


def gpu_lines(gpus: Sequence[RankGpu], width: int | None) -> Iterator[str]:
    """A table of the ranks' GPUs, and those that are idle by name."""
    if not gpus:
        return
    columns = (
        Column[RankGpu]("rank", lambda each: "?" if each.rank is None else str(each.rank), right=True),
        Column[RankGpu]("node", values="node", leave=2),
        Column[RankGpu]("GPU", values="gpu", right=True, leave=1),
        Column[RankGpu]("busy", lambda each: _with_unit(each.busy_percent, "%"), right=True),
        Column[RankGpu]("memory", _memory, right=True),
        Column[RankGpu]("power", lambda each: _with_unit(each.power_w, "W"), right=True, leave=3),
    )
    yield f"GPUs, means of 30 s, read {age(max(each.age_s for each in gpus))} ago:"
    yield from (f"  {line}" for line in for_terminal(columns, gpus[:_MOST], width and width - 4) or ())
    if len(gpus) > _MOST:
        yield f"  and {len(gpus) - _MOST} more: --json has them all"
    idle = [_name(each) for each in gpus if each.busy_percent is not None and each.busy_percent < _IDLE]
    if idle:
        yield f"idle (busy for less than {percent(_IDLE / 100, 0)} of the time): {first_of(idle, _MOST)}"


def _name(gpu: RankGpu) -> str:
    where = f"GPU {gpu.gpu} of {gpu.node}"
    return where if gpu.rank is None else f"rank {gpu.rank} ({where})"


def _with_unit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"


def _memory(gpu: RankGpu) -> str:
    if gpu.memory_used_bytes is None or gpu.memory_bytes is None:
        return ""
    return f"{gpu.memory_used_bytes / 2**30:.1f} of {gpu.memory_bytes / 2**30:.1f} GiB"
