"""Series of group times as runs give them: independent, autocorrelated, with a start, a trend, a step or spikes."""

import math
from random import Random


def group_times(
    random: Random,
    count: int,
    *,
    deviation: float = 0.01,
    autocorrelation: float = 0.0,
    start: float = 0.0,
    decay: float = 0.05,
    trend: float = 0.0,
    step: float = 0.0,
    step_at: float = 0.5,
    mean_s: float = 0.1,
) -> list[float]:
    """``count`` group times in seconds.

    Args:
        deviation: of one group, share of the mean; autocorrelation: of an AR(1), at lag one.
        start: how much slower the first group is; decay: time constant of that, share of the window.
        trend: how much slower the window's end is than its begin; step: likewise after ``step_at`` of the window.
    """
    noise = random.gauss(0.0, 1.0)
    times = []
    for group in range(count):
        at = group / count
        level = 1.0 + start * math.exp(-at / decay) + trend * (at - 0.5) + (step if at >= step_at else 0.0)
        times.append(mean_s * level * (1.0 + deviation * noise))
        noise = autocorrelation * noise + math.sqrt(1.0 - autocorrelation**2) * random.gauss(0.0, 1.0)
    return times
