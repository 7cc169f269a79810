"""A comparison in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from runner.core.text import change, counted, gpus_text, percent, plain, rate, span
from runner.model.expectation import AgainstReference, Compared, ComparedPoint, ComparedSide, Judgement
from runner.model.figure import in_words
from runner.statistics.launches import CHANGES, LEAST_LAUNCHES, MOST_LAUNCHES


def point_lines(point: ComparedPoint, compared: Compared) -> Iterator[str]:
    """What is known of B against A at one point; the last line is the verdict, or the judgement by --fail-below."""
    yield f"A: {_side(point.first)}"
    yield f"B: {_side(point.second)}"
    yield from (f"forced: {finding.what}" for finding in compared.findings if finding.forced)
    if point.spread is not None and point.verdict == "no verdict":
        needed = ", ".join(
            f"{percent(each, 0)}: {point.launches_needed.get(f'{each:g}', f'over {MOST_LAUNCHES}')}" for each in CHANGES
        )
        yield f"launches differ by {percent(point.spread)}; launches of each side to find a change of {needed}"
    elif point.verdict == "no verdict" and min(len(point.first.runs), len(point.second.runs)) < LEAST_LAUNCHES:
        yield (
            "a verdict needs at least 3 launches of each side, in turns (ABBAAB), one after the other on the same "
            "nodes and GPUs; where launches differ by 1 %, 6 find a change of 2 %"
        )
    yield _verdict_line(point, compared.margin)
    if (limit := compared.fail_below) is not None:
        holds_it = point.low is not None and point.high is not None and point.low < limit - 1.0 <= point.high
        if point.judgement == "cannot tell" and not holds_it:
            yield f"cannot tell whether B reaches {limit:g} of A: {point.why}"
        else:
            yield f"{_JUDGED[point.judgement]} {limit:g} of A"


def _verdict_line(point: ComparedPoint, margin: float) -> str:
    """``B is faster: +1.8 % (95 %: +0.9 % to +2.7 %)``."""
    interval = span(point.low, point.high, change)
    made = f"{change(point.change)}{f' (95 %: {interval})' if interval else ''}"
    if point.verdict == "no verdict":
        return f"no verdict: {point.why}; B against A: {made}"
    kind, _, within = point.verdict.partition(", ")
    what = "equivalent" if kind == "equivalent" else f"B is {kind}"
    limit = f" (margin {percent(margin)})" if within or kind == "equivalent" else ""
    return f"{what}{', ' if within else ''}{within}{limit}: {made}"


def point_name(each: ComparedPoint | AgainstReference) -> str:
    """``16 GPUs fp16=true``."""
    return " ".join((gpus_text(each.gpus), *each.settings))


def reference_lines(each: AgainstReference) -> Iterator[str]:
    """A figure, its reference, and how they stand."""
    interval = ""
    if each.low is not None and each.high is not None:
        of_what = f"of {len(each.runs)} launches" if each.interval_of == "launches" else "of this run alone"
        interval = f" (95 %, {of_what}: {span(each.low, each.high, rate)})"
    figure = f"{counted(len(each.runs), 'launch')} on {point_name(each)}: {rate(each.figure)} {each.unit}{interval}"
    yield "; ".join(filter(None, (figure, in_words(each.doubts, labelled=True))))
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
    more = f", {side.not_proven} more not proven" if side.not_proven else ""
    figure = f"{rate(side.images_per_s)} {side.unit}/s, {counted(len(side.runs), 'launch')}{more}"
    # Of a demonstration the comparison is labelled as a whole.
    return "; ".join(filter(None, (figure, in_words(side.doubts, labelled=True))))


Result = Literal["passed", "failure", "error", "skipped"]
_RESULTS: dict[Judgement, Result] = {"below": "failure", "cannot tell": "error"}


@dataclass(frozen=True)
class Case:
    """One row: what was held against what, how it came out, and the words for it."""

    name: str
    result: Result
    lines: tuple[str, ...]


def cases(compared: Compared) -> Iterator[Case]:
    """A row for each refusal, point and reference."""
    for finding in compared.findings:
        if finding.severity == "refuse":
            yield Case(finding.code, "error", (finding.what,))
    for point in compared.points:
        name = f"{point_name(point)}: B against A"
        is_open = not point.judgement and point.verdict == "no verdict"
        result = "skipped" if is_open else _RESULTS.get(point.judgement, "passed")
        yield Case(name, result, tuple(point_lines(point, compared)))
    for each in compared.references:
        name = f"{point_name(each)}: A against the reference of {each.date}"
        yield Case(name, _RESULTS.get(each.judgement, "passed"), tuple(reference_lines(each)))
    for sentence in compared.missing:
        yield Case(sentence.partition(":")[0], "error" if compared.has_limit else "skipped", (sentence,))


def junit(compared: Compared) -> str:
    """JUnit XML: below a limit is a failure; a limit that cannot be judged, or a refusal, is an error; no verdict where
    no limit was given is skipped.
    """
    rows = list(cases(compared))
    counts = {kind: sum(row.result == kind for row in rows) for kind in ("failure", "error", "skipped")}
    about = (
        f'name="gpu-runner compare" tests="{len(rows)}" failures="{counts["failure"]}" errors="{counts["error"]}" '
        f'skipped="{counts["skipped"]}"'
    )
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites {about}>", f"  <testsuite {about}>"]
    for row in rows:
        lines.append(f'    <testcase classname="gpu-runner.compare" name={_attribute(row.name)}>')
        if row.result != "passed":
            lines.append(f"      <{row.result} message={_attribute(row.lines[-1])}/>")
        shown = plain("\n".join(filter(None, (*row.lines, compared.demonstration))), keep="\n")
        lines += [f"      <system-out>{escape(shown)}</system-out>", "    </testcase>"]
    return "\n".join([*lines, "  </testsuite>", "</testsuites>", ""])


def markdown(compared: Compared) -> str:
    """A table, and below it what each row says in full."""
    signs = {"passed": "ok", "failure": "**below**", "error": "cannot tell", "skipped": "no verdict"}
    rows = list(cases(compared))
    sides = zip("AB", (compared.first, compared.second), strict=True)
    lines = ["### Comparison", "", *(f"- {letter}: {_cell(each)}" for letter, each in sides if each), ""]
    if compared.demonstration:
        lines += [f"*{_cell(compared.demonstration)}*", ""]
    lines += ["| what | result | |", "|---|---|---|"]
    lines += [f"| {_cell(row.name)} | {signs[row.result]} | {_cell('; '.join(row.lines))} |" for row in rows]
    if compared.differences:
        lines += ["", f"Differs: {_cell(', '.join(compared.differences))}"]
    return "\n".join([*lines, ""])


def _attribute(text: str) -> str:
    return quoteattr(plain(text, keep="\n"), {"\n": "&#10;"})


def _cell(text: str) -> str:
    """Text that no table, HTML or link of Markdown comes of."""
    return "".join(f"\\{each}" if each in r"\`*_{}[]<>#|~" else each for each in plain(text))
