"""A comparison in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runner.core.numbers import change, percent, rate, span
from runner.core.text import counted, gpus_text
from runner.model.compared import AgainstReference, Compared, ComparedPoint, ComparedSide
from runner.model.figure import Doubt, in_words
from runner.statistics.comparison import LEAST_LAUNCHES
from runner.statistics.launches import CHANGES, MOST_LAUNCHES

_CLAIM = (
    "a verdict needs at least 3 launches of each side, in turns (ABBABA), one after the other on the same nodes and "
    "GPUs"
)


def point_lines(point: ComparedPoint, compared: Compared) -> Iterator[str]:
    """What is known of B against A at one point; the last line is the verdict, or the judgement by --fail-below."""
    yield f"A: {_side(point.first)}"
    yield f"B: {_side(point.second)}"
    if point.spread is not None and point.verdict == "no verdict":
        needed = ", ".join(
            f"{percent(each, 0)}: {point.launches_needed.get(f'{each:g}', f'over {MOST_LAUNCHES}')}" for each in CHANGES
        )
        yield f"launches differ by {percent(point.spread)}; launches of each side to find a change of {needed}"
    elif point.verdict == "no verdict" and min(len(point.first.runs), len(point.second.runs)) < LEAST_LAUNCHES:
        yield f"{_CLAIM}; where launches differ by 1 %, 6 find a change of 2 %"
    yield verdict_line(point, compared.margin)
    if compared.fail_below is not None:
        yield _judged(point, compared.fail_below)


def _judged(point: ComparedPoint, limit: float) -> str:
    """The judgement in words. Without one, the interval holds the limit, or it does not count, or there is none."""
    holds_it = point.low is not None and point.high is not None and point.low < limit - 1.0 <= point.high
    if point.judgement == "cannot tell" and not holds_it:
        return f"cannot tell whether B reaches {limit:g} of A: {point.why}"
    return f"{_JUDGED[point.judgement]} {limit:g} of A"


def verdict_line(point: ComparedPoint, margin: float) -> str:
    """``verdict: B is faster: +1.8 % (95 %: +0.9 % to +2.7 %)``."""
    interval = span(point.low, point.high, change)
    made = f"{change(point.change)}{f' (95 %: {interval})' if interval else ''}"
    if point.verdict == "no verdict":
        return f"no verdict: {point.why}; B against A: {made}"
    kind, _, within = point.verdict.partition(", ")
    what = "equivalent" if kind == "equivalent" else f"B is {kind}"
    limit = f" (margin {percent(margin)})" if within or kind == "equivalent" else ""
    return f"{what}{', ' if within else ''}{within}{limit}: {made}"


def reference_lines(each: AgainstReference) -> Iterator[str]:
    """A figure, its reference, and how they stand."""
    interval = ""
    if each.low is not None and each.high is not None:
        of_what = f"of {len(each.runs)} launches" if each.interval_of == "launches" else "of this run alone"
        interval = f" (95 %, {of_what}: {span(each.low, each.high, rate)})"
    count = counted(len(each.runs), "launch")
    doubts = _doubts(each.doubts)
    yield f"{count} on {gpus_text(each.gpus)}: {rate(each.figure)} {each.unit}{interval}{doubts and f'; {doubts}'}"
    most = "" if each.at_most is None else f", at most {rate(each.at_most)}"
    known = f"{each.source}, {each.date}"
    yield f"reference: {rate(each.value)} {each.unit}, at least {rate(each.at_least)}{most} ({known})"
    if each.above:
        yield "above its reference: the reference is out of date, or the run is not what it is for"
    else:
        by = "" if each.interval_of != "none" else ", by the figure alone: there is no interval"
        yield f"{_JUDGED[each.judgement]} {rate(each.at_least)} {each.unit}{by}"


_JUDGED = {
    "good": "good: at least",
    "below": "below",
    "cannot tell": "cannot tell: the interval does not exclude",
    "": "",
}


def _side(side: ComparedSide) -> str:
    count = counted(len(side.runs), "launch")
    more = f", {side.not_proven} more not proven" if side.not_proven else ""
    return "; ".join(filter(None, (f"{rate(side.images_per_s)} {side.unit}/s, {count}{more}", _doubts(side.doubts))))


def _doubts(doubts: Iterable[Doubt]) -> str:
    """Of a demonstration the comparison is labelled as a whole."""
    return in_words(doubts, labelled=True)
