"""The page: one file that needs no network and no script. Everything that comes from a run is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.core.columns import Table, for_page
from runner.core.text import DASH, counted, gpus_text, rate
from runner.figures.report.gallery import MOST_ROWS, gallery, rows_table
from runner.figures.report.picture import Markup, Picture, tag
from runner.figures.report.summary import against
from runner.figures.tables import attempt_columns, goodput_text, interval, launch_text
from runner.model.expectation import Comparison
from runner.model.figure import in_words
from runner.model.report import Highlight, Report

# Nothing is fetched and nothing runs, whatever a record holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = Path(__file__).with_name("style.css")
_MOST_NOT_PROVEN = 100


def page(report: Report) -> str:
    """The whole document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="generator", content=f"gpu-runner {report.version}"),
        tag("title", report.title),
        Markup(f"<style>\n{_STYLE.read_text('utf-8')}</style>"),
    )
    label, doubts = report.demonstration, in_words(report.doubts, labelled=True)
    header = tag(
        "header",
        tag("p", "gpu-runner report", class_="eyebrow"),
        tag("h1", report.title),
        tag("p", *_prose(f"{report.subtitle}."), class_="subtitle"),
        tag("p", f"{label[:1].upper()}{label[1:]}.", class_="demonstration") if label else None,
        tag("p", f"Doubts: {doubts}.", class_="subtitle") if doubts else None,
    )
    files = ", ".join(name for name in report.files if name != "report.html")
    made = f"Made {report.made:%Y-%m-%d %H:%M} UTC by gpu-runner {report.version}."
    footer = tag("footer", tag("p", f"{made} Beside this page: {files}." if files else made))
    body = tag("body", header, tag("main", *_main(report)), footer)
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'


def _main(report: Report) -> Iterator[Markup]:
    if report.highlights:
        yield tag("dl", map(_highlight, report.highlights), class_="highlights")
    pictures = [_figure(picture) for picture in gallery(report)]
    if pictures:
        yield tag("div", pictures, class_="pictures")
    if report.study is not None and report.study.gaps:
        gaps = [tag("p", f"{each}.") for each in report.study.gaps]
        yield _section("Launched, and gone: figures without these runs may be chosen ones", *gaps)
    for chain in report.chains:
        about = tag("p", *_prose(f"{chain.name}: {goodput_text(chain)}."))
        yield _section("Time line", about, _table(for_page(attempt_columns(), chain.attempts), "Attempts of the chain"))
    yield from _expected(report)
    unsound = [each for each in report.detailed if each.problem]
    if unsound:
        lines = [tag("p", tag("strong", f"{launch_text(each.row)}: "), f"{each.problem}.") for each in unsound]
        note = "Figures are those of the verdicts. The records of these runs do not hold them now, or cannot be read:"
        yield _section("Records that do not hold", tag("p", note), *lines)
    yield from _not_proven(report)
    more = len(report.rows) - MOST_ROWS
    rest = tag("p", f"{more} more runs are in runs.csv.") if more > 0 else None
    yield _section("Runs", _table(rows_table(report.rows), "Every run of this report"), rest)
    if report.environment:
        facts = Table(("what", "value"), tuple((fact.name, fact.value) for fact in report.environment))
        yield _section("Environment and provenance", _table(facts, "As plans, nodes and logs recorded it", "facts"))
    scripts: dict[str, list[str]] = {}
    for each in report.detailed:
        if each.script:
            scripts.setdefault(each.script, []).append(each.row.run)
    if scripts:
        note = "Exactly as submitted; *** stands where something looked like a secret."
        blocks = [
            tag("details", tag("summary", f"Script of {', '.join(runs)}"), tag("pre", script, tabindex=0))
            for script, runs in scripts.items()
        ]
        yield _section("Scripts", tag("p", note), *blocks)
    if report.cite:
        yield _section("Words to cite", tag("blockquote", [tag("p", sentence) for sentence in report.cite]))


def _highlight(each: Highlight) -> Markup:
    note = tag("dd", each.note, class_="note") if each.note else None
    return tag("div", tag("dt", each.name), tag("dd", each.value, class_="value"), note)


def _figure(picture: Picture) -> Markup:
    caption = tag("figcaption", tag("h2", picture.title), tag("p", picture.takeaway))
    summary = tag("summary", f"Table: {picture.title[:1].lower()}{picture.title[1:]}")
    details = tag("details", summary, _table(picture.table, picture.title))
    return tag("figure", caption, picture.svg, details, class_="card", id=picture.key)


def _table(table: Table, caption: str, kind: str | None = None) -> Markup:
    def cell(text: str, place: int) -> Markup:
        return tag("th", text, scope="row") if kind == "facts" and place == 0 else tag("td", text)

    head = tag("thead", tag("tr", [tag("th", text, scope="col") for text in table.head]))
    body = tag("tbody", [tag("tr", [cell(text, place) for place, text in enumerate(row)]) for row in table.rows])
    inner = tag("table", tag("caption", caption), head, body, class_=kind)
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _section(title: str, *children: Markup | None) -> Markup:
    return tag("section", tag("h2", title), *children, class_="card")


def _expected(report: Report) -> Iterator[Markup]:
    """Measured against expected, and why a point may fall short; or why nothing is expected."""
    title = "Measured against expected"
    if report.why_not_expected:
        yield _section(title, tag("p", f"No range: {report.why_not_expected}."))
    if not report.expected:
        return
    rows = tuple(
        (
            str(each.gpus), rate(each.measured.value), interval(each.measured, rate) or DASH,
            f"{rate(each.expected.low)} to {rate(each.expected.high)}", each.state,
        )
        for each in report.expected
    )  # fmt: skip
    table = Table(("GPUs", f"{report.unit}/s", "95 %", "expected", "measured is"), rows)
    causes = [
        tag("p", tag("strong", f"{gpus_text(each.gpus)}: "), f"{against(each, report.unit)}. ", _causes(each))
        for each in report.expected
        if each.state == "below"
    ]
    note = "By the cost model of `expect`, which is arithmetic: a range from what is known of the site and of one GPU."
    yield _section(title, tag("p", *_prose(note)), _table(table, "Measured and expected"), *causes)


def _causes(each: Comparison) -> str:
    named = [
        f"{cause.name} ({cause.state}{f': {cause.evidence[0]}' if cause.evidence else ''})"
        for cause in each.causes
        if cause.state != "excluded"
    ]
    return f"What may be the cause: {'; '.join(named)}." if named else "No known cause is left by the records."


def _not_proven(report: Report) -> Iterator[Markup]:
    missing = [row for row in report.rows if row.state != "proven"]
    if not missing:
        return
    rows = tuple(
        (launch_text(row) or row.key, str(row.gpus), row.state, row.why or "no attempt was made")
        for row in missing[:_MOST_NOT_PROVEN]
    )
    more = len(missing) - _MOST_NOT_PROVEN
    of_all = f"{len(missing)} of {counted(len(report.rows), 'run')}"
    yield _section(
        "Without a proven figure",
        tag("p", f"{of_all} without a proven figure; no curve has any of them."),
        _table(Table(("run", "GPUs", "state", "why"), rows), "What has no figure, and why"),
        tag("p", f"{more} more are in runs.csv.") if more > 0 else None,
    )


def _prose(text: str) -> Iterator[str]:
    """A sentence of ours, in which `` ` `` marks what can be typed."""
    for place, part in enumerate(text.split("`")):
        yield tag("code", part) if place % 2 else part
