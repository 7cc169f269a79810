"""The page: every picture has a name, a description and a table; nothing is fetched, runs, or leaves its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runner.figures.report
from runner.figures.report.gallery import MOST_ROWS, gallery
from runner.figures.report.gather import runs_report, study_report
from runner.figures.report.page import page
from runner.figures.report.picture import Markup, escaped, join, tag
from runner.model.report import Report, Row, RunReport
from runner.model.study import Estimate, Loss, LossRow, PointFacts, StudyFacts
from tests.support.pages import Element, parsed
from tests.support.reports import estimate, launch_facts, loss, measured_run, study_facts

HOSTILE = "</style><script>alert('x')</script>\"><img src=http://h/>\x1b[2J\u202e&#60;"
STYLE = Path(runner.figures.report.__file__).with_name("style.css").read_text()


def figures(document: str) -> list[Element]:
    return list(parsed(document).all("figure"))


def test_every_picture_has_a_name_a_description_and_a_table(report: Report) -> None:
    shown = figures(page(report))
    assert [next(each.all("h2")).text for each in shown] == [
        "Throughput per GPU", "Weak-scaling efficiency", "Compute time by rank, 16 GPUs", "Where the rest goes",
        "Throughput of all GPUs", "Step times, 16 GPUs", "Step times, 8 GPUs", "Step times, 4 GPUs",
    ]  # fmt: skip
    for figure in shown:
        (svg,) = figure.all("svg")
        names = {element.attributes["id"]: element.text for tag in ("title", "desc") for element in svg.all(tag)}
        assert svg.attributes["role"] == "img"
        assert all(names[key] for key in svg.attributes["aria-labelledby"].split())
        (table,) = figure.all("table")
        widths = {len([cell for cell in row.children]) for row in table.all("tr")}
        assert len(widths) == 1 and len(list(table.all("tr"))) > 1
        assert next(table.all("caption")).text


def test_nothing_is_fetched_nothing_runs_and_ids_are_unique(report: Report) -> None:
    elements = list(parsed(page(report)).all())
    ids = [element.attributes["id"] for element in elements if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    assert not {"script", "img", "link", "iframe", "object", "image", "use"} & {element.tag for element in elements}
    for element in elements:
        for name, value in element.attributes.items():
            assert name not in ("src", "href", "style") and not name.startswith("on"), (element.tag, name)
            assert "url(" not in value or value.startswith("url(#"), value
    assert "@import" not in STYLE and "url(" not in STYLE
    (policy,) = [each for each in elements if each.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.attributes["content"].startswith("default-src 'none'")


def test_expected_stands_in_the_curve_and_in_a_table_with_its_causes(study: StudyFacts) -> None:
    rate = estimate(27_000.0)  # of 16 GPUs: below the range
    points = [msgspec.structs.replace(each, images_per_s=rate) if each.gpus == 16 else each for each in study.points]
    document = page(study_report(msgspec.structs.replace(study, points=tuple(points))))
    (curves,) = figures(document)[0].all("svg")
    assert any(each.attributes.get("class") == "band expected" for each in curves.all("path"))
    (section,) = [each for each in parsed(document).all("section") if "Measured against expected" in each.text]
    assert [next(row.all("td")).text for row in list(section.all("tr"))[1:]] == ["1", "2", "4", "8", "16"]
    assert "What may be the cause: slow ranks (shown" in section.text


def test_a_demonstration_is_labelled_on_each_picture(study: StudyFacts, report: Report) -> None:
    label = "demonstration, no performance claim: CPU"
    shown = figures(page(study_report(msgspec.structs.replace(study, demonstration=label))))
    assert len(shown) == 8
    for figure in shown:
        (svg,) = figure.all("svg")
        assert "DEMONSTRATION, NO PERFORMANCE CLAIM" in [text.text for text in svg.all("text")]
        assert "Demonstration, no performance claim." in next(svg.all("desc")).text
    assert "DEMONSTRATION" not in page(report)


def test_values_stand_in_the_pictures_and_in_their_tables_and_parts_differ_without_colour(report: Report) -> None:
    """Bars by pattern, series by marker and dash."""
    per_gpu, efficiency, ranks, losses, *_ = figures(page(report))
    for figure, wanted in ((per_gpu, "2\u202f313"), (efficiency, "90.7\u202f%"), (ranks, "+6"), (losses, "3.4\u202f%")):
        (svg,) = figure.all("svg")
        assert any(wanted in text.text for text in svg.all("text")), wanted
    assert "dgx01" in next(ranks.all("table")).text
    assert "waiting for slower ranks" in next(losses.all("table")).text

    fills = [each.attributes.get("fill", "") for each in losses.all("rect")]
    assert len({fill for fill in fills if fill.startswith("url(#loss-pattern")}) == 6
    patterns = [next(each.all("path")).attributes["d"] for each in losses.all("pattern")]
    assert len(set(patterns)) == len(patterns) == 6
    assert any("point s1" in each.attributes.get("class", "") for each in efficiency.all("polygon"))
    assert any("point s0" in each.attributes.get("class", "") for each in efficiency.all("circle"))
    dashes = re.findall(r"\.curve\.s[1-3] \{ stroke-dasharray: ([^;]+);", STYLE)
    assert len(set(dashes)) == 3


def test_hostile_names_and_words_are_shown_and_do_nothing(tmp_path: Path) -> None:
    run = measured_run(
        tmp_path, "20261122-120000-r-16", 16, host=lambda node: f"{HOSTILE}{node}", script=HOSTILE, recipe=HOSTILE,
        compute_s=lambda rank: 0.09 if rank < 8 else 0.08,
    )  # fmt: skip
    facts = launch_facts(
        run, 16, 1, 0, why=HOSTILE, nodes=(HOSTILE,), settings=((HOSTILE, HOSTILE),), demonstration=HOSTILE
    )
    point = PointFacts(16, "full", ((HOSTILE, HOSTILE),), 1, 1, estimate(1000.0), estimate(0.9), estimate(0.95))
    losses = Loss(16, ((HOSTILE, HOSTILE),), estimate(0.9), (LossRow(HOSTILE, estimate(0.1), None, HOSTILE),))
    missing = launch_facts(None, 16, 2, 1, why=HOSTILE)
    names = {"name": HOSTILE, "site": HOSTILE, "demonstration": HOSTILE}
    document = page(study_report(study_facts([facts, missing], [point], [losses], **names)))
    tags = {element.tag for element in parsed(document).all()}
    assert "script" not in tags and "img" not in tags
    assert "\x1b" not in document and "\u202e" not in document
    assert "alert(&#x27;x&#x27;)" in document
    assert len(figures(document)) == 6


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4096), st.floats(1e-3, 1e7), st.none() | st.floats(0.0, 0.5), st.floats(-0.2, 0.9)),
        min_size=1, max_size=8, unique_by=lambda each: each[0],
    ),
    st.booleans(),
)  # fmt: skip
def test_any_study_has_pictures_whose_parts_lie_in_them(
    values: list[tuple[int, float, float | None, float]], strong: bool
) -> None:
    points = [
        PointFacts(
            gpus,
            "full",
            (),
            1,
            1,
            estimate(rate, half),
            estimate(1.0 - lost, half),
            None,
            scaling="strong" if strong else "weak",
        )
        for gpus, rate, half, lost in values
    ]
    losses = [
        Loss(gpus, (), Estimate(1.0 - lost), (LossRow("a", Estimate(lost)), LossRow("b", Estimate(-lost / 3))))
        for gpus, _, _, lost in values
    ]
    rows = tuple(
        Row(f"k{gpus}", "r", "", gpus, "proven", "full", (), 1, rate, rate / gpus) for gpus, rate, _, _ in values
    )
    empty = study_report(study_facts([], points, losses))
    for picture in gallery(msgspec.structs.replace(empty, rows=rows)):
        (svg,) = parsed(picture.svg).all("svg")
        _, _, width, height = map(float, svg.attributes["viewbox"].split())
        for text in svg.all("text"):
            assert 0.0 <= float(text.attributes["x"]) <= width
            assert 0.0 <= float(text.attributes["y"]) <= height, (picture.key, text.text)
        assert "nan" not in picture.svg and "inf" not in picture.svg


def test_many_settings_are_drawn_as_the_best_four_and_the_rest_is_in_the_table() -> None:
    points = [
        PointFacts(gpus, "full", (("batch-size", str(batch)),), 3, 3, estimate(gpus * batch * 0.9), estimate(0.9), None)
        for batch in range(1, 7)
        for gpus in (1, 8)
    ]
    first, *_ = gallery(study_report(study_facts([], points)))
    names = [text.text for text in parsed(first.svg).all("text")]
    assert [name for name in names if name.startswith("batch-size")] == [f"batch-size={n}" for n in (6, 5, 4, 3)]
    assert "2 more settings are in the table" in first.takeaway
    assert len(first.table.rows) == 12


def test_many_ranks_are_drawn_by_node(tmp_path: Path) -> None:
    slow: dict[str, Any] = {"compute_s": lambda rank: 0.08 * (1.07 if rank // 2 == 99 else 1.0), "per_node": 2}
    document = page(runs_report([(measured_run(tmp_path, "20261122-120000-r-256", 256, groups=31, **slow), "")]))
    (ranks,) = [each for each in figures(document) if "Compute time" in next(each.all("h2")).text]
    cells = [each for each in ranks.all("rect") if "heat" in each.attributes.get("class", "")]
    assert len(cells) == 128 + 5  # and the scale's
    assert any("dgx99: 7.0\u202f% slower" in text.text for text in ranks.all("text"))
    assert len(list(next(ranks.all("table")).all("tr"))) == 128 + 1
    assert len(document) < 300_000


def test_of_very_many_runs_the_page_shows_some_and_says_where_the_rest_is() -> None:
    facts = [launch_facts(None, 2, repeat, repeat, why="it was never started") for repeat in range(1, 1001)]
    document = page(study_report(study_facts(facts, [PointFacts(2, "full", (), 0, 1000)])))
    assert f"{1000 - MOST_ROWS} more runs are in runs.csv." in document
    assert len(document) < 200_000


def luminance(colour: str) -> float:
    """Relative luminance: https://www.w3.org/TR/WCAG21/#dfn-relative-luminance."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


TEXTS = [*((ink, ground) for ink in ("ink", "quiet", "label") for ground in ("paper", "card")), ("ink", "label-paper")]
TEXTS += [("onheat" if step < 3 else "onheat-strong", f"heat{step}") for step in range(5)]
LINES = [(f"s{series}", "card") for series in range(4)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast_and_steps_differ_in_grey(scheme: str) -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    parts = (light, dark.partition("* {")[0] if scheme == "dark" else "")
    colour = {
        name: luminance(value) for part in parts for name, value in re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)
    }
    for pairs, least in ((TEXTS, 4.5), (LINES, 3.0)):
        for pair in pairs:
            darker, lighter = sorted(colour[each] for each in pair)
            assert (lighter + 0.05) / (darker + 0.05) >= least, pair
    greys = [colour[f"heat{step}"] for step in range(5)]
    assert greys == sorted(greys, reverse=scheme == "light")


def test_an_attribution_that_gains_is_drawn_to_the_left() -> None:
    rows = (LossRow("gain", Estimate(-0.02)), LossRow("cost", Estimate(0.05)))
    study = study_facts([], [PointFacts(4, "full", (), 1, 1, estimate(10.0))], [Loss(4, (), estimate(0.97), rows)])
    (picture,) = [each for each in gallery(study_report(study)) if each.key == "loss"]
    bars = [each for each in parsed(picture.svg).all("rect") if each.attributes.get("class", "").startswith("part p")]
    gain, cost, *_ = ((float(each.attributes["x"]), float(each.attributes["width"])) for each in bars)
    assert gain[0] + gain[1] == pytest.approx(cost[0], abs=0.02)
    assert cost[1] == pytest.approx(2.5 * gain[1], rel=0.01)
    assert "\N{MINUS SIGN}2.00\u202f%" in [text.text for text in parsed(picture.svg).all("text")]


def test_without_attribution_and_without_figures_the_page_says_why() -> None:
    point = PointFacts(4, "full", (), 1, 1, estimate(10.0), estimate(0.9))
    why = Loss(4, (), None, (), "separate jobs give no attribution")
    assert why.why in page(study_report(study_facts([], [point], [why, loss(8, 1.0)])))
    row = Row("k", "20261122-120000-probe-2", "", 2, "ran", why="it measures nothing")
    made = msgspec.structs.replace(runs_report([]), rows=(row,), detailed=(RunReport(row, problem="gone"),))
    document = page(made)
    assert figures(document) == []
    assert "it measures nothing" in document
    (section,) = [each for each in parsed(document).all("section") if "Records that do not hold" in each.text]
    assert "gone." in section.text


@given(st.text(st.characters()) | st.sampled_from(("</style>", "a\x00b\x1b[2J", "\u202egnp", "\udcff")))
def test_any_text_is_one_text_and_any_attribute_one_attribute(value: str) -> None:
    made = tag("p", value, title=value, data_x=value)
    (element,) = parsed(made).children
    assert not isinstance(element, str)
    assert (element.tag, set(element.attributes)) == ("p", {"title", "data-x"})
    assert all(isinstance(child, str) for child in element.children)
    assert made.encode("utf-8") and all(each.isprintable() or each in "\n\t\u202f" for each in made)


def test_markup_stays_what_it_is_numbers_are_short_and_control_characters_are_shown_by_their_codes() -> None:
    assert escaped("a\x1bb\u202ec\udcff") == "a\\x1bb\\u202ec\\udcff"
    assert join(Markup("<b>"), "<b>", None, [Markup("<i>"), "x"]) == "<b>&lt;b&gt;<i>x"
    assert tag("line", x1=1.0, y1=2.345, class_="a", d=None) == '<line x1="1" y1="2.35" class="a"></line>'
