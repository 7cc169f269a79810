"""A comparison for continuous integration: JUnit XML, and Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from runner.core.text import gpus_text, plain
from runner.figures.compare.text import point_lines, reference_lines
from runner.model.compared import Compared, Judgement

Result = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True)
class Case:
    """One row: what was held against what, how it came out, and the words for it."""

    name: str
    result: Result
    lines: tuple[str, ...]


def cases(compared: Compared) -> tuple[Case, ...]:
    """A row for each refusal, point and reference."""
    return tuple(_cases(compared))


def junit(compared: Compared) -> str:
    """JUnit XML: below a limit is a failure; a limit that cannot be judged, or a refusal, is an error; no verdict where
    no limit was given is skipped.
    """
    rows = cases(compared)
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
        text = "\n".join((*row.lines, compared.demonstration) if compared.demonstration else row.lines)
        shown = plain(text, keep="\n")
        lines += [f"      <system-out>{escape(shown)}</system-out>", "    </testcase>"]
    return "\n".join([*lines, "  </testsuite>", "</testsuites>", ""])


def markdown(compared: Compared) -> str:
    """A table, and below it what each row says in full."""
    signs = {"passed": "ok", "failure": "**below**", "error": "cannot tell", "skipped": "no verdict"}
    rows = cases(compared)
    sides = zip("AB", (compared.first, compared.second), strict=True)
    lines = ["### Comparison", "", *(f"- {letter}: {_cell(each)}" for letter, each in sides if each), ""]
    if compared.demonstration:
        lines += [f"*{_cell(compared.demonstration)}*", ""]
    lines += ["| what | result | |", "|---|---|---|"]
    lines += [f"| {_cell(row.name)} | {signs[row.result]} | {_cell('; '.join(row.lines))} |" for row in rows]
    if compared.differences:
        lines += ["", f"Differs: {_cell(', '.join(compared.differences))}"]
    return "\n".join([*lines, ""])


def _cases(compared: Compared) -> Iterator[Case]:
    for found in compared.findings:
        if found.severity == "refuse":
            yield Case(found.code, "error", (found.what,))
    for point in compared.points:
        name = f"{' '.join((gpus_text(point.gpus), *point.settings))}: B against A"
        result = _result(point.judgement)
        if not point.judgement and point.verdict == "no verdict":
            result = "skipped"
        yield Case(name, result, tuple(point_lines(point, compared)))
    for each in compared.references:
        name = f"{gpus_text(each.gpus)}: A against the reference of {each.date}"
        yield Case(name, _result(each.judgement), tuple(reference_lines(each)))


def _result(judgement: Judgement) -> Result:
    results: dict[Judgement, Result] = {"below": "failure", "cannot tell": "error"}
    return results.get(judgement, "passed")


def _attribute(text: str) -> str:
    return quoteattr(plain(text, keep="\n"), {"\n": "&#10;"})


def _cell(text: str) -> str:
    """Text that no table, HTML or link of Markdown comes of."""
    return "".join(f"\\{each}" if each in r"\`*_{}[]<>#|~" else each for each in plain(text))
