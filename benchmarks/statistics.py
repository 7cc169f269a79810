"""How often the rules of runner.statistics err, by simulation with fixed seeds: ``make bench-statistics``.

Tables in Markdown, as docs/measurement.md shows them. About two minutes on one core.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import accumulate
from random import Random
from statistics import fmean

from benchmarks import planted_losses
from benchmarks.planted_losses import HEALTHY, PLANTED, share_in_its_row
from runner.model.job import CommandLine
from runner.model.study import Arm, Estimate, LaunchFacts, Study
from runner.statistics.launches import compare
from runner.statistics.loss import attribution
from runner.statistics.precision import mean_interval
from runner.statistics.run import RankWindow, analyse_groups, throughput
from runner.statistics.steadiness import steadiness
from runner.statistics.stragglers import stragglers
from runner.study.gather import scaling
from runner.study.plan import launches

MEAN_S = 0.1
COUNTS = (30, 60, 150, 600)
Series = Callable[[Random, int], list[float]]


def autoregressive(root: float, deviation: float = 0.01) -> Series:
    """Noise with that autocorrelation at lag one, around MEAN_S."""

    def draw(random: Random, count: int) -> list[float]:
        noise, times = random.gauss(0.0, 1.0), []
        for _ in range(count):
            times.append(MEAN_S * (1.0 + deviation * noise))
            noise = root * noise + math.sqrt(1.0 - root * root) * random.gauss(0.0, 1.0)
        return times

    return draw


def spiky(random: Random, count: int) -> list[float]:
    """4 % of the groups take 30 % longer; the mean is MEAN_S."""
    base = MEAN_S / (1.0 + 0.04 * 0.3)
    return [base * (1.0 + 0.3 * (random.random() < 0.04) + random.gauss(0.0, 0.01)) for _ in range(count)]


def two_states(random: Random, count: int) -> list[float]:
    """Two levels 2 % apart that change at random, every 50 groups on the average."""
    state, times = random.choice((-1.0, 1.0)), []
    for _ in range(count):
        state = -state if random.random() < 0.02 else state
        times.append(MEAN_S * (1.0 + 0.01 * state + random.gauss(0.0, 0.003)))
    return times


def sine(period: float) -> Series:
    def draw(random: Random, count: int) -> list[float]:
        phase = random.random() * 2 * math.pi
        return [
            MEAN_S * (1.0 + 0.01 * math.sin(phase + 2 * math.pi * i / period) + random.gauss(0.0, 0.003))
            for i in range(count)
        ]

    return draw


SERIES: dict[str, Series] = {
    "independent": autoregressive(0.0),
    "autocorrelation 0.6": autoregressive(0.6),
    "autocorrelation 0.9": autoregressive(0.9),
    "wave, 40 groups": sine(40.0),
    "wave, 200 groups": sine(200.0),
    "4 % of groups +30 %": spiky,
    "random, two levels": two_states,
}


def coverage(runs: int) -> None:
    """How often the 95 % interval covers the true mean, with its half width."""
    print(
        "| series | " + " | ".join(f"{count} groups" for count in COUNTS) + " |\n|---" * 1 + "|---" * len(COUNTS) + "|"
    )
    for name, draw in SERIES.items():
        cells = []
        for count in COUNTS:
            random, covered, width = Random(count), 0, 0.0
            for _ in range(runs):
                interval = mean_interval(draw(random, count))
                assert interval is not None
                covered += interval.low <= MEAN_S <= interval.high
                width += (interval.high - interval.low) / 2 / MEAN_S
            cells.append(f"{covered / runs:.2f} ({100 * width / runs:.2g} %)")
        print(f"| {name} | " + " | ".join(cells) + " |")


def coverage_where_samples_vary(runs: int) -> None:
    """How often the 95 % interval covers the true rate where groups take as long and hold other numbers of tokens."""
    _head("tokens of a group vary by", *(f"{count} groups" for count in COUNTS))
    for deviation in (0.05, 0.1, 0.2):
        cells = []
        for count in COUNTS:
            random, covered, width = Random(count), 0, 0.0
            for _ in range(runs):
                taken = [max(1, round(10_000 * random.gauss(1.0, deviation))) for _ in range(count)]
                ends_s = list(accumulate(autoregressive(0.0, 0.002)(random, count)))
                made = throughput([RankWindow(0, 1, ends_s, taken)])
                assert made.low is not None
                assert made.high is not None
                covered += made.low <= 10_000 / MEAN_S <= made.high
                width += (made.high - made.low) / 2 / (10_000 / MEAN_S)
            cells.append(f"{covered / runs:.2f} ({100 * width / runs:.2g} %)")
        print(f"| {100 * deviation:g} % | " + " | ".join(cells) + " |")


def steadiness_where_samples_vary(runs: int) -> None:
    """Verdicts where tokens vary at one rate, and where the rate falls in the middle though steps take as long."""
    _head("tokens of a group vary by", "rate the same", "rate 20 % lower from the middle on")
    for deviation in (0.0, 0.02, 0.1):
        cells = []
        for fall in (0.0, 0.2):
            random, verdicts = Random(7), []
            for _ in range(runs):
                count = 150
                taken = [
                    round(10_000 * random.gauss(1.0, deviation) * (1.0 - fall * (i >= count // 2)))
                    for i in range(count)
                ]
                times = autoregressive(0.0, 0.002)(random, count)
                if not fall:  # a step of more tokens takes longer
                    times = [time * tokens / 10_000 for time, tokens in zip(times, taken, strict=True)]
                verdicts.append(throughput([RankWindow(0, 1, list(accumulate(times)), taken)]).analysis.steady.verdict)
            cells.append(_shares(verdicts, "steady", "not steady", "cannot tell"))
        print(f"| {100 * deviation:g} % | " + " | ".join(cells) + " |")


def _shares(values: Sequence[str | None], *wanted: str | None) -> str:
    return " / ".join(f"{100 * values.count(each) / len(values):.0f}" for each in wanted)


def first_launches(runs: int) -> None:
    """False verdicts of two equal sides whose first launch is slower, by its excess over the deviation of a launch."""
    excesses = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0)
    _head("order", "verdicts", *(f"{excess:g} deviations" for excess in excesses))
    for order in ("ABBABA", "ABBAAB", "ABBABBA", "ABABBBAA", "ABBAABBA", "ABBAABBAAB", "ABBABBAA", "ABBBABAA"):
        cells, has_verdicts = [], True
        for excess in excesses:
            random, false = Random(3), 0
            for _ in range(runs):
                logs = [random.gauss(0.0, 0.01) - 0.01 * excess * (place == 0) for place in range(len(order))]
                made = compare(order, list(map(math.exp, logs)))
                has_verdicts = made.is_balanced
                false += made.low is not None and made.high is not None and not made.low <= 0.0 <= made.high
            cells.append(f"{100 * false / runs:.1f} %")
        print(f"| {order} | {'yes' if has_verdicts else 'none: would be false in'} | " + " | ".join(cells) + " |")


def kinds_of_scaling(runs: int) -> None:
    """What a study on 1 to 16 GPUs is called by the batches that its ranks recorded over 42 groups."""
    sizes = (1, 2, 4, 8, 16)
    arms: tuple[Arm, ...] = ("full",)
    wanted, now = launches(sizes, arms, ((),), 3), datetime.now(timezone.utc)
    asked = Study(
        "1",
        "",
        now,
        CommandLine((), "/"),
        "",
        "",
        "separate",
        sizes,
        ("full",),
        ((),),
        3,
        strong=False,
        launches=wanted,
    )
    _head("batch of a GPU", "weak / strong / none")
    batches: dict[str, Callable[[Random, int], float]] = {
        "the same": lambda _random, _gpus: 64.0,
        "a whole batch over the GPUs": lambda _random, gpus: 1024.0 / gpus,
        "tokens, groups vary by 10 %": lambda random, _gpus: random.gauss(8192.0, 819.2 / math.sqrt(42)),
        "tokens of a whole batch, groups vary by 10 %": lambda random, gpus: (
            random.gauss(8192.0, 819.2 / math.sqrt(42)) / gpus
        ),
        "the same up to 8 GPUs, half of it on 16": lambda _random, gpus: 64.0 if gpus < 16 else 32.0,
    }
    for name, batch in batches.items():
        random, kinds = Random(5), []
        for _ in range(max(runs // 10, 1)):
            made = [LaunchFacts(each, "proven", batch=batch(random, each.gpus)) for each in asked.launches]
            kinds.append(scaling(asked, (), made)[0])
        print(f"| {name} | {_shares(kinds, 'weak', 'strong', None)} |")


def false_cuts(runs: int) -> None:
    """How often a start is cut from a series that has none, and by how much that moves the figure."""
    _head("series", *(f"{count} groups" for count in COUNTS))
    for name, draw in SERIES.items():
        cells = []
        for count in COUNTS:
            random, cut, moved = Random(count), 0, 0.0
            for _ in range(runs):
                start = analyse_groups(tuple(draw(random, count))).start
                cut += start.kind == "cut"
                moved += start.change
            cells.append(f"{100 * cut / runs:.1f} % ({100 * moved / runs:+.3f} %)")
        print(f"| {name} | " + " | ".join(cells) + " |")


def trends(runs: int) -> None:
    """Verdicts on steadiness at true trends over the window."""
    sizes = (0.0, 0.005, 0.01, 0.02, 0.05)
    _head("groups", *(f"{100 * size:g} %" for size in sizes))
    for count in COUNTS:
        cells = []
        for size in sizes:
            random, verdicts = Random(count), []
            for _ in range(runs):
                times = autoregressive(0.0)(random, count)
                moved = [time * (1.0 + size * (i / count - 0.5)) for i, time in enumerate(times)]
                verdicts.append(steadiness(moved).verdict)
            shares = [100 * verdicts.count(verdict) / runs for verdict in ("steady", "not steady", "cannot tell")]
            cells.append(" / ".join(f"{share:.0f}" for share in shares))
        print(f"| {count} | " + " | ".join(cells) + " |")


def slow_ranks(runs: int) -> None:
    """How often a rank or node that is 10 % slower is named, and how often a healthy one is."""
    _head("ranks, nodes", "spread", "slow rank named", "slow node named", "false names")
    for nodes, per_node in ((1, 8), (2, 8), (8, 8)):
        for spread in (0.0, 0.01, 0.02):
            rank, node, false = (
                _named(runs, nodes, per_node, spread, slow_rank=0.1),
                _named(runs, nodes, per_node, spread, slow_node=0.1) if nodes > 1 else None,
                _named(runs, nodes, per_node, spread),
            )
            by_node = "-" if node is None else f"{100 * node:.0f} %"
            label = f"{nodes * per_node}, {nodes}"
            print(f"| {label} | {100 * spread:g} % | {100 * rank:.0f} % | {by_node} | {100 * false:.1f} % |")


def _named(
    runs: int, nodes: int, per_node: int, spread: float, *, slow_rank: float = 0.0, slow_node: float = 0.0
) -> float:
    """Share of runs in which the slow unit (or, where there is none, any unit) is named."""
    count, random, named = nodes * per_node, Random(5), 0
    hosts = [f"node{rank // per_node}" for rank in range(count)]
    for _ in range(runs):
        quarters = []
        for rank in range(count):
            level = random.gauss(0.0, spread)
            excess = slow_rank * (rank == count - 1) + slow_node * (rank >= count - per_node)
            quarters.append([MEAN_S * math.exp(level + random.gauss(0.0, 0.002)) * (1.0 + excess) for _ in range(4)])
        found = stragglers(quarters, hosts, 2 * MEAN_S)
        if slow_rank:
            named += count - 1 in found.ranks
        elif slow_node:
            named += hosts[-1] in found.nodes
        else:
            named += bool(found.ranks or found.nodes)
    return named / runs


def own_rows(runs: int) -> None:
    """How much of a planted loss lands in its own row: mean, and the least and the most of all studies."""
    sizes = {2: 40, 4: 40, 16: 20, 128: 5, 512: 3}
    _head("planted", "row", *(f"{gpus} GPUs" for gpus in sizes))
    for name, (_, row) in PLANTED.items():
        cells = []
        for gpus, most in sizes.items():
            shares = [share_in_its_row(seed, gpus, name)[0] for seed in range(min(most, runs))]
            cells.append(f"{100 * fmean(shares):.0f} % ({100 * min(shares):.0f} to {100 * max(shares):.0f})")
        print(f"| {name} | {row} | " + " | ".join(cells) + " |")


def covered(runs: int) -> None:
    """How often the 95 % intervals of the efficiency and of a row cover what infinitely many launches would give."""
    _head("GPUs", "3 repeats: efficiency", "rows", "6 repeats: efficiency", "rows")
    for gpus in (4, 16):
        cells = []
        for repeats in (3, 6):
            truth = attribution(gpus, (), planted_losses.launches(Random(1), gpus, HEALTHY, 400), "one-allocation")
            hits, rows = 0, 0
            count = max(runs // 10, 1)
            for seed in range(count):
                # The same GPUs, other launches.
                made = attribution(
                    gpus, (), planted_losses.launches(Random(1), gpus, HEALTHY, repeats, noise=seed), "one-allocation"
                )
                hits += _covers(made.efficiency, truth.efficiency)
                rows += sum(_covers(one.loss, other.loss) for one, other in zip(made.rows, truth.rows, strict=True))
            cells += [f"{hits / count:.2f}", f"{rows / count / len(truth.rows):.2f}"]
        print(f"| {gpus} | " + " | ".join(cells) + " |")


def _covers(made: Estimate | None, truth: Estimate | None) -> bool:
    assert made is not None
    assert truth is not None
    return made.low is not None and made.high is not None and made.low <= truth.value <= made.high


def cost() -> None:
    """Seconds for one run, at sizes that grow."""
    _head("group times", "s", "ranks", "s")
    for count, ranks in ((1_000, 256), (10_000, 2_048), (100_000, 16_384)):
        times = autoregressive(0.3)(Random(1), count)
        began = time.perf_counter()
        analyse_groups(tuple(times))
        groups_s = time.perf_counter() - began
        random = Random(2)
        quarters = [[MEAN_S * math.exp(random.gauss(0.0, 0.01)) for _ in range(4)] for _ in range(ranks)]
        hosts = [f"node{rank // 8}" for rank in range(ranks)]
        began = time.perf_counter()
        stragglers(quarters, hosts, 2 * MEAN_S)
        print(f"| {count} | {groups_s:.3f} | {ranks} | {time.perf_counter() - began:.3f} |")


def _head(*columns: str) -> None:
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="series drawn for each cell")
    runs = parser.parse_args().runs
    print("Coverage of the 95 % interval (mean half width):")
    coverage(runs)
    coverage_where_samples_vary(runs)
    print("\nSteady / not steady / cannot tell, in %, where samples vary (150 groups):")
    steadiness_where_samples_vary(runs)
    print("\nFalse verdicts of `compare` with a slow first launch:")
    first_launches(runs)
    print("\nWhat scaling is called, in %:")
    kinds_of_scaling(runs)
    print("\nFalse cuts (how far they move the figure):")
    false_cuts(runs)
    print("\nSteady / not steady / cannot tell, in %, at a true trend over the window (one group deviates by 1 %):")
    trends(runs)
    print("\nStragglers of 10 %:")
    slow_ranks(runs)
    print("\nA planted loss in its own row, in % of what it takes (3 repeats; 1 % of the launches' rate is noise):")
    own_rows(runs)
    print("\nCoverage of the 95 % intervals of efficiency and rows:")
    covered(runs)
    print("\nCost:")
    cost()


if __name__ == "__main__":
    main()
