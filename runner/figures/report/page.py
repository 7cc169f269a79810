"""The page: one file that needs no network and no script. Everything that comes from a run is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.core.columns import Table
from runner.core.text import DASH, counted, gpus_text, rate
from runner.figures.report.gallery import MOST_ROWS, gallery, rows_table
from runner.figures.report.picture import Markup, Picture, tag
from runner.figures.report.summary import against
from runner.figures.tables import interval, launch_text
from runner.model.expectation import Comparison
from runner.model.figure import in_words
from runner.model.report import Report, RunReport

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
    body = tag("body", _header(report), tag("main", *_main(report)), _footer(report))
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'


def _header(report: Report) -> Markup:
    doubts = in_words(report.doubts, labelled=True)
    label = tag("p", f"{_sentence(report.demonstration)}", class_="demonstration") if report.demonstration else None
    return tag(
        "header",
        tag("p", "gpu-runner report", class_="eyebrow"),
        tag("h1", report.title),
        tag("p", *_prose(f"{report.subtitle}."), class_="subtitle"),
        label,
        tag("p", f"Doubts: {doubts}.", class_="subtitle") if doubts else None,
    )


def _main(report: Report) -> Iterator[Markup]:
    if report.highlights:
        yield tag(
            "dl", [_highlight(each.name, each.value, each.note) for each in report.highlights], class_="highlights"
        )
    pictures = [_figure(picture) for picture in gallery(report)]
    if pictures:
        yield tag("div", pictures, class_="pictures")
    yield from _gaps(report)
    yield from _expected(report)
    yield from _problems(report)
    yield from _not_proven(report)
    yield _section("Runs", _table(rows_table(report.rows), "Every run of this report"), _rest(len(report.rows)))
    if report.environment:
        facts = Table(("what", "value"), tuple((fact.name, fact.value) for fact in report.environment))
        yield _section("Environment and provenance", _table(facts, "As plans, nodes and logs recorded it", "facts"))
    yield from _scripts(report.detailed)
    if report.cite:
        yield _section("Words to cite", tag("blockquote", [tag("p", sentence) for sentence in report.cite]))


def _gaps(report: Report) -> Iterator[Markup]:
    if report.study is not None and report.study.gaps:
        gaps = [tag("p", f"{each}.") for each in report.study.gaps]
        yield _section("Launched, and gone: figures without these runs may be chosen ones", *gaps)


def _highlight(name: str, value: str, note: str) -> Markup:
    return tag(
        "div",
        tag("dt", name),
        tag("dd", value, class_="value"),
        tag("dd", note, class_="note") if note else None,
    )


def _figure(picture: Picture) -> Markup:
    return tag(
        "figure",
        tag("figcaption", tag("h2", picture.title), tag("p", picture.takeaway)),
        picture.svg,
        tag(
            "details",
            tag("summary", f"Table: {picture.title[:1].lower()}{picture.title[1:]}"),
            _table(picture.table, picture.title),
        ),
        class_="card",
        id=picture.key,
    )


def _table(table: Table, caption: str, kind: str = "") -> Markup:
    head = tag("thead", tag("tr", [tag("th", cell, scope="col") for cell in table.head]))
    body = tag("tbody", [tag("tr", [_cell(cell, place, kind) for place, cell in enumerate(row)]) for row in table.rows])
    name = tag("caption", caption)
    inner = tag("table", name, head, body, class_=kind or None)
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cell(cell: str, place: int, kind: str) -> Markup:
    return tag("th", cell, scope="row") if kind == "facts" and place == 0 else tag("td", cell)


def _section(title: str, *children: Markup | None) -> Markup:
    return tag("section", tag("h2", title), *children, class_="card")


def _rest(count: int) -> Markup | None:
    return tag("p", f"{count - MOST_ROWS} more runs are in runs.csv.") if count > MOST_ROWS else None


def _problems(report: Report) -> Iterator[Markup]:
    """Runs whose records do not give what a verdict said of them."""
    unsound = [each for each in report.detailed if each.problem]
    if unsound:
        lines = [tag("p", tag("strong", f"{launch_text(each.row)}: "), f"{each.problem}.") for each in unsound]
        note = "Figures are those of the verdicts. The records of these runs do not hold them now, or cannot be read:"
        yield _section("Records that do not hold", tag("p", note), *lines)


def _expected(report: Report) -> Iterator[Markup]:
    """Measured against expected, and why a point may fall short; or why nothing is expected."""
    if report.why_not_expected:
        yield _section("Measured against expected", tag("p", f"No range: {report.why_not_expected}."))
    if not report.expected:
        return
    rows = tuple(
        (
            str(each.gpus), rate(each.measured.value), interval(each.measured, rate) or DASH,
            f"{rate(each.expected.low)} to {rate(each.expected.high)}", each.state,
        )
        for each in report.expected
    )  # fmt: skip
    head = ("GPUs", f"{report.unit}/s", "95 %", "expected", "measured is")
    causes = [
        tag("p", tag("strong", f"{gpus_text(each.gpus)}: "), f"{against(each, report.unit)}. ", _causes(each))
        for each in report.expected
        if each.state == "below"
    ]
    note = "By the cost model of `expect`, which is arithmetic: a range from what is known of the site and of one GPU."
    yield _section(
        "Measured against expected",
        tag("p", *_prose(note)),
        _table(Table(head, rows), "Measured and expected"),
        *causes,
    )


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
    yield _section(
        "Not proven",
        tag(
            "p",
            f"{len(missing)} of {counted(len(report.rows), 'run')} without a proven figure; no curve has any of them.",
        ),
        _table(Table(("run", "GPUs", "state", "why"), rows), "What was not proven, and why"),
        tag("p", f"{more} more are in runs.csv.") if more > 0 else None,
    )


def _scripts(detailed: Sequence[RunReport]) -> Iterator[Markup]:
    scripts: dict[str, list[str]] = {}
    for report in detailed:
        if report.script:
            scripts.setdefault(report.script, []).append(report.row.run)
    if not scripts:
        return
    blocks = [
        tag("details", tag("summary", f"Script of {', '.join(runs)}"), tag("pre", script, tabindex=0))
        for script, runs in scripts.items()
    ]
    note = tag("p", "Exactly as submitted; *** stands where something looked like a secret.")
    yield _section("Scripts", note, *blocks)


def _footer(report: Report) -> Markup:
    files = (
        f" Beside this page: {', '.join(name for name in report.files if name != 'report.html')}."
        if report.files
        else ""
    )
    return tag("footer", tag("p", f"Made {report.made:%Y-%m-%d %H:%M} UTC by gpu-runner {report.version}.{files}"))


def _prose(text: str) -> Iterator[str]:
    """A sentence of ours, in which `` ` `` marks what can be typed."""
    for place, part in enumerate(text.split("`")):
        yield tag("code", part) if place % 2 else part


def _sentence(label: str) -> str:
    return f"{label[:1].upper()}{label[1:]}."
