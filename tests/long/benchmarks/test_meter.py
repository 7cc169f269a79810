"""What the meter costs: ``make bench-meter`` prints a table; it belongs in docs/meter.md. About five minutes."""

import json
import math
from collections.abc import Sequence
from statistics import median

import pytest

from runner.statistics.precision import mean_interval
from tests.support.commands import Runner
from tests.support.rank_records import printed, records
from tests.support.recipes import SCRIPT

pytestmark = pytest.mark.integration
LARGEST_SHARE = 0.005  # of a step, in the meter's calls
WIDTHS, SECONDS = (4, 16, 64), 75
HEAD = (
    "| step ms | in the meter's calls | with the meter (95 %) | without, against without (95 %) | rounds |",
    "|---|---|---|---|---|",
)


def difference(one: Sequence[float], other: Sequence[float]) -> str:
    """By how much a step of the first takes longer: the mean over rounds, with the interval of a run's groups."""
    logs = [math.log(a / b) for a, b in zip(one, other, strict=True)]
    interval = mean_interval(logs)
    mean = math.expm1(math.fsum(logs) / len(logs))
    if interval is None:
        return f"{100 * mean:+.2f} % (too few rounds)"
    return f"{100 * mean:+.2f} % ({100 * math.expm1(interval.low):+.2f} to {100 * math.expm1(interval.high):+.2f} %)"


def test_the_share_of_a_step_that_the_meter_takes(contained: Runner) -> None:
    rows, shares = [], []
    for width in WIDTHS:
        words = ("--gpus", "1", "--wait", "--", "python3", "cost.py", str(width), str(SECONDS))
        contained("submit", *words, code=0, cwd=SCRIPT)
        run = contained.newest()
        report = records(run, "report")[0]
        times = json.loads(printed(run).splitlines()[-1])
        step_s = median(times["plain"])
        shares.append(report["instrumentation_s"] / report["steps"] / step_s)  # the window holds the other arms, too
        rows.append(
            f"| {1e3 * step_s:.2f} | {100 * shares[-1]:.3f} % | {difference(times['metered'], times['plain'])} | "
            f"{difference(times['control'], times['plain'])} | {len(times['plain'])} |"
        )
    print("\n" + "\n".join((*HEAD, *rows)))
    assert max(shares) < LARGEST_SHARE
