"""Reports in a real browser: as a phone and a desktop show them, light and dark, and what a screen reader gets."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.cli.results import json_schema
from runner.figures.report.gather import runs_report, study_report
from runner.figures.report.writing import write
from tests.support.browser import Scheme, Tab, tab
from tests.support.commands import ran
from tests.support.json_schema import faults
from tests.support.reports import launch_facts, measured_run, study_facts, whole_study
from tests.support.timed import SUBMIT

ROOT = Path(__file__).resolve().parents[3]
SCREENS: tuple[tuple[int, Scheme], ...] = ((360, "light"), (360, "dark"), (1440, "light"), (1440, "dark"))
HOSTILE = "</style><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\x1b[2J\u202e"
WIDE = "a-host-name-without-any-place-to-break-it-" * 4
# What a person sees of each text: its colour and what lies below it, blended, and where it stands.
TEXTS = """
(() => {
  const channels = (text) => { const found = text.match(/[\\d.]+/g); return found ? found.map(Number) : [0, 0, 0, 0]; };
  const opaque = (c) => c.length > 3 ? c[3] : 1;
  const luminance = (c) => { const l = c.slice(0, 3).map((v) => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2]; };
  const over = (top, share, below) => below.map((v, i) => top[i] * share + v * (1 - share));
  const paint = (element) => {
    const style = getComputedStyle(element);
    if (element instanceof SVGElement && !(element instanceof SVGSVGElement)) {
      const isBare = style.fill === 'none' || style.fill.startsWith('url');
      if (element instanceof SVGTextElement || isBare) return [[0, 0, 0], 0];
      const own = channels(style.fill);
      return [own, opaque(own) * Number(style.fillOpacity) * Number(style.opacity)];
    }
    const own = channels(style.backgroundColor);
    return [own, opaque(own)];
  };
  const ground = (element, x, y) => {
    const layers = [];
    for (const below of document.elementsFromPoint(x, y)) {
      if (below === element) continue;
      const [colour, share] = paint(below);
      if (share > 0) layers.push([colour, share]);
      if (share >= 1) break;
    }
    let colour = [255, 255, 255];
    for (const [top, share] of layers.reverse()) colour = over(top, share, colour);
    return colour;
  };
  const seen = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility() || element.closest('title, desc')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getClientRects()[0];
    if (!box || !box.width) continue;
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    if (!document.elementsFromPoint(x, y).includes(element)) continue;  // scrolled out of a table's frame
    const style = getComputedStyle(element), isSvg = element instanceof SVGElement;
    const ink = channels(isSvg ? style.fill : style.color);
    const hasHalo = isSvg && style.stroke !== 'none' && parseFloat(style.strokeWidth) >= 3;
    const below = hasHalo ? channels(style.stroke) : ground(element, x, y);
    const [light, dark] = [luminance(ink), luminance(below)].sort((a, b) => b - a);
    const svg = element.closest('svg');
    seen.push({text: node.data.trim().slice(0, 60), contrast: (light + 0.05) / (dark + 0.05),
      size: box.height, svg: svg ? svg.getAttribute('aria-labelledby') : null,
      box: [box.left, box.top, box.right, box.bottom],
      frame: svg ? (({left, top, right, bottom}) => [left, top, right, bottom])(svg.getBoundingClientRect()) : null});
  }
  return seen;
})()
"""
OVERFLOW = """
(() => [...document.body.querySelectorAll('*')].filter((e) => !e.closest('.scroll, pre, svg')
  && e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML.slice(0, 100)))()
"""
OPEN = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    with tab() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name -> address: of a study, of a run on 1,024 ranks, and of one whose every name is hostile or very long."""
    root = tmp_path_factory.mktemp("reports")
    study = whole_study(root / "runs of the study")
    study = msgspec.structs.replace(study, demonstration="demonstration, no performance claim: CPU")
    large = measured_run(
        root, "20261122-120000-r-1024", 1024, compute_s=lambda rank: 0.08 * (1.07 if rank // 8 in (5, 99) else 1.0)
    )
    hostile = measured_run(
        root, f"20261122-120000-{WIDE}-16", 16, host=lambda node: f"{WIDE}{HOSTILE}{node}", script=HOSTILE + WIDE,
        recipe=HOSTILE, compute_s=lambda rank: 0.09 if rank < 8 else 0.08,
    )  # fmt: skip
    facts = [launch_facts(hostile, 16, 1, 0, why=HOSTILE + WIDE, settings=((HOSTILE, WIDE),))]
    reports = {
        "study": study_report(study),
        "large": runs_report([(large, "")]),
        "hostile": study_report(
            study_facts(facts, study.points, study.losses, name=WIDE + HOSTILE, demonstration=HOSTILE)
        ),
    }
    for name, report in reports.items():
        write(report, root / name, print)
    return {name: (root / name / "report.html").as_uri() for name in reports}


def test_a_real_study_is_reported(browser: Tab, tmp_path: Path) -> None:
    """Of the timed stand-in, by the command line, from the plan to the page."""
    own = os.environ | {"RUNNER_STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    scale = ("scale", *SUBMIT[1:], "--site", "local", "--gpus", "1,2", "--repeats", "2", "--name", "real", "--yes")
    for words in (scale, ("report", "real", "-o", "report", "--json")):
        printed = ran([sys.executable, "-m", "runner", *words], cwd=tmp_path, env=own).out
    document = json.loads(printed)
    assert faults(document, json_schema()) == []
    result = document["result"]
    assert [row["state"] for row in result["rows"]] == ["proven"] * 4
    assert [len(each["ranks"]) for each in result["detailed"]] == [2, 1]
    assert "no performance claim" in result["demonstration"]
    browser.complaints.clear()
    browser.open((tmp_path / "report/report.html").as_uri(), 360, "dark")
    names = browser.names("image")
    assert len(names) >= 5 and all("Demonstration, no performance claim." in name for name in names)
    assert browser.complaints == []


@pytest.mark.parametrize("name", ["study", "large", "hostile"])
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_page_fits_is_legible_and_asks_for_nothing(
    browser: Tab, pages: dict[str, str], name: str, width: int, scheme: Scheme
) -> None:
    browser.complaints.clear()
    browser.open(pages[name], width, scheme)
    browser.evaluate(OPEN)
    height = browser.evaluate("document.documentElement.scrollHeight")
    browser.resize(width, height)
    assert browser.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    assert browser.evaluate(OVERFLOW) == []
    texts = browser.evaluate(TEXTS)
    assert len(texts) > 50
    faint = [(each["text"], round(each["contrast"], 2), each["svg"]) for each in texts if each["contrast"] < 4.5]
    assert not faint
    small = [(each["text"], each["size"]) for each in texts if each["size"] < 9.0]
    assert not small
    drawn = [each for each in texts if each["svg"]]
    outside = [
        each["text"]
        for each in drawn
        if each["box"][0] < each["frame"][0] - 1 or each["box"][2] > each["frame"][2] + 1
        or each["box"][1] < each["frame"][1] - 1 or each["box"][3] > each["frame"][3] + 1
    ]  # fmt: skip
    assert not outside
    assert list(overlaps(drawn)) == []
    assert browser.evaluate("window.hacked") is None
    assert browser.complaints == []


def overlaps(texts: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Texts of one picture that stand on each other."""
    for number, one in enumerate(texts):
        for other in texts[:number]:
            if one["svg"] == other["svg"]:
                (left, top, right, bottom), (left2, top2, right2, bottom2) = one["box"], other["box"]
                wide = min(right, right2) - max(left, left2)
                high = min(bottom, bottom2) - max(top, top2)
                if wide > 1.5 and high > 0.35 * min(bottom - top, bottom2 - top2):
                    yield one["text"], other["text"]


def test_a_screen_reader_gets_a_name_and_a_table_for_each_picture(browser: Tab, pages: dict[str, str]) -> None:
    browser.open(pages["study"], 1440, "light")
    pictures = [name for name in browser.names("image") if name]
    assert len(pictures) == browser.evaluate("document.querySelectorAll('figure').length") == 8
    assert all("Demonstration, no performance claim." in name for name in pictures)
    browser.evaluate(OPEN)
    tables = browser.names("table")
    assert all(tables) and len(tables) == 8 + browser.evaluate("document.querySelectorAll('section table').length")


def test_it_is_printed_with_its_pictures(browser: Tab, pages: dict[str, str], tmp_path: Path) -> None:
    browser.open(pages["study"], 1440, "light")
    assert browser.printed().startswith(b"%PDF-")
