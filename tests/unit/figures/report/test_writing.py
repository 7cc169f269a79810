"""A report's files: all of them complete, or none, whatever happens."""

from __future__ import annotations

import csv
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from PIL import Image, ImageFont

from runner.cli.report import report_lines
from runner.core.errors import InfrastructureError, RunnerError, UsageError
from runner.core.lock import locked
from runner.figures.report import png as slide
from runner.figures.report import writing
from runner.figures.report.gallery import gallery
from runner.figures.report.gather import runs_report, study_report
from runner.figures.report.page import page
from runner.figures.report.writing import NAMES, csv_files, write
from runner.jobs.directory import Run
from runner.model.figure import Doubt, figure_keys, figure_of
from runner.model.report import Report
from runner.model.study import StudyFacts
from runner.model.verdict import Verdict
from tests.support.evidence import leave
from tests.support.limits import largest_file
from tests.support.reports import measured_run
from tests.support.users import ALICE, AS_ROOT, BOB, open_directory, outcome_as


def silent(_line: str) -> None:
    pass


def test_a_study_has_a_page_a_picture_tables_and_json(report: Report, tmp_path: Path) -> None:
    made = write(report, tmp_path / "new" / "report", silent)
    files = {path.name: path for path in (tmp_path / "new/report").iterdir()}
    assert set(files) == set(NAMES) == set(made.files)
    assert msgspec.json.decode(files["report.json"].read_bytes(), type=Report) == made
    with Image.open(files["report.png"]) as picture:
        assert picture.size == (1920, 1080)
    rows = list(csv.DictReader(files["runs.csv"].open()))
    assert [row["state"] for row in rows] == ["proven"] * 15 + ["missing"]
    assert float(rows[0]["images_per_s_per_gpu"]) == pytest.approx(float(rows[0]["images_per_s"]))
    ranks = list(csv.DictReader(files["ranks.csv"].open()))
    assert {row["node"] for row in ranks if row["slow"] == "true"} == {"dgx01"}
    points = list(csv.DictReader(files["points.csv"].open()))
    assert [row["gpus"] for row in points] == ["1", "2", "4", "8", "16", "32"]
    assert points[-1]["images_per_s"] == ""
    losses = list(csv.DictReader(files["losses.csv"].open()))
    assert sum(float(row["loss"]) for row in losses if row["gpus"] == "16") == pytest.approx(0.093)


def test_the_table_of_losses_has_the_doubts_of_its_sizes(report: Report) -> None:
    assert report.study is not None
    doubts = {1: (Doubt("one", "ONE"),), 8: (Doubt("eight", "EIGHT"),), 16: (Doubt("one", "ONE"), Doubt("x", "X"))}
    points = tuple(msgspec.structs.replace(each, doubts=doubts.get(each.gpus, ())) for each in report.study.points)
    made = msgspec.structs.replace(report, study=msgspec.structs.replace(report.study, points=points))
    rows = list(csv.DictReader(csv_files(made)["losses.csv"].splitlines()))
    assert {row["doubts"] for row in rows if row["gpus"] == "16"} == {"ONE; X"}


def test_its_files_are_closed_to_others_in_a_directory_that_is_not(report: Report, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    write(report, tmp_path, silent)
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("place", "why"),
    [("", "holds something else than a report: mine"), ("mine", "no directory"), ("mine/below", "no directory")],
)
def test_only_a_new_directory_or_that_of_a_report_is_written(
    report: Report, place: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UsageError, match=why) as caught:
        write(report, tmp_path / place, silent)
    assert "-o" in caught.value.fix
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_without_room_nothing_changes(report: Report, tmp_path: Path) -> None:
    with largest_file(20_000), pytest.raises(InfrastructureError, match="cannot be written: File too large"):
        write(report, tmp_path / "new", silent)
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    (tmp_path / "old/report.html").write_text("earlier")
    with largest_file(20_000), pytest.raises(InfrastructureError, match="File too large"):
        write(report, tmp_path / "old", silent)
    assert {path.name: path.read_text() for path in (tmp_path / "old").iterdir()} == {"report.html": "earlier"}


@AS_ROOT
def test_without_permission_the_message_says_where(report: Report) -> None:
    with open_directory() as place:
        (place / "closed").mkdir(mode=0o755)
        outcome = outcome_as(ALICE, write, report, place / "closed" / "report", silent)
        assert "Permission denied" in outcome.what and str(place / "closed") in outcome.where
        assert list((place / "closed").iterdir()) == []


@AS_ROOT
def test_a_directory_that_another_user_could_exchange_for_a_link_gets_no_report(report: Report) -> None:
    with open_directory() as place:
        os.chown(place, BOB, BOB)
        (place / "report").mkdir()
        (place / "report").chmod(0o777)
        outcome = outcome_as(ALICE, write, report, place / "report", silent)
        assert "another user could exchange the report" in outcome.what
        assert list((place / "report").iterdir()) == []


WRITER = """
import os, pathlib, sys
import msgspec
from runner.model.figure import figure_keys
from runner.model.report import Report
from runner.figures.report.writing import write

left = 4  # files that are made safe before it is killed

def synced(number, sync=os.fsync):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), 9)
    sync(number)

os.fsync = synced
write(msgspec.json.decode(pathlib.Path(sys.argv[1]).read_bytes(), type=Report), pathlib.Path(sys.argv[2]), print)
"""


def test_two_at_once_take_turns(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_LIMIT_S", 0.1)
    with locked(tmp_path / writing._LOCK, silent), pytest.raises(RunnerError, match="another process"):
        write(report, tmp_path, silent)
    assert list(tmp_path.iterdir()) == [tmp_path / writing._LOCK]
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as another user may, who can read it
    write(report, tmp_path, silent)
    os.close(handle)
    assert {each.name for each in tmp_path.iterdir()} <= {*NAMES}


def test_one_that_is_killed_while_it_writes_leaves_what_was_there(report: Report, tmp_path: Path) -> None:
    directory = tmp_path / "report"
    write(report, directory, silent)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    words = [sys.executable, "-c", WRITER, str(directory / "report.json"), str(directory)]
    assert subprocess.run(words, timeout=120, check=False).returncode == -9
    assert {name: (directory / name).read_bytes() for name in before} == before
    run = measured_run(tmp_path / "runs", "20261122-120000-resnet-4", 4)
    write(runs_report([(run, "")]), directory, silent)
    left = {path.name for path in directory.iterdir()}
    assert left == set(NAMES) - {"points.csv", "losses.csv"}, "what it left behind is gone, and tables that were more"
    assert "resnet: a run" in (directory / "report.html").read_text()


def in_tokens(run: Run) -> None:
    assert run.verdict is not None
    run.write("verdict.json", msgspec.structs.replace(run.verdict, unit="tokens"))


def test_every_file_names_what_the_program_counts(study: StudyFacts, tmp_path: Path) -> None:
    counted = tuple(msgspec.structs.replace(each, unit="tokens") for each in study.launches)
    run = measured_run(tmp_path / "runs", "20261122-120000-own-4", 4)
    in_tokens(run)
    for made in (study_report(msgspec.structs.replace(study, launches=counted)), runs_report([(run, "")])):
        shown = "\n".join(
            (page(made), *made.cite, *(each.value for each in made.highlights), *report_lines(made, None))
        )
        assert made.unit == "tokens" and any("tokens/s" in each for each in made.cite)
        assert "images/s" not in shown.lower()
        assert "tokens/s per GPU" in shown and "TOKENS/S" in shown
        tables = {name: text for name, text in csv_files(made).items() if name in ("runs.csv", "points.csv")}
        assert {next(csv.DictReader(text.splitlines()))["unit"] for text in tables.values()} == {"tokens"}


def test_runs_that_count_differently_are_not_all_called_images(tmp_path: Path) -> None:
    runs = [measured_run(tmp_path / "runs", f"20261122-12000{place}-own-4", 4) for place in range(2)]
    in_tokens(runs[1])
    made = runs_report([(run, "") for run in runs])
    assert [row.unit for row in made.rows] == ["images", "tokens"]
    assert made.unit == "images or tokens"
    assert ["images/s" in each for each in made.cite[:2]] == [True, False]
    assert [(each.key, each.title) for each in gallery(made)][:2] == [
        ("per-gpu", "Throughput per GPU, images"),
        ("per-gpu-1", "Throughput per GPU, tokens"),
    ]
    assert [len(each.table.rows) for each in gallery(made)][:2] == [1, 1], "no curve has runs of both"
    assert [each.value.split()[-1] for each in made.highlights[:2]] == ["images/s", "tokens/s"]
    assert made.subtitle.endswith("kept apart: they differ in what they count")
    shown = report_lines(made, None)
    assert any("RATE  PER GPU" in line for line in shown)
    assert [[unit in line for unit in ("images/s", "tokens/s")] for line in shown if " proven " in line][-2:] == [
        [True, False], [False, True],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"program": ("python3", "main.py", "--model", "vgg16")}, "model"),
        ({"recipe": "", "program": ("python3", "other.py", "--model", "resnet50")}, "program"),
    ],
)
def test_runs_of_different_work_are_on_no_common_curve(changes: dict[str, Any], differs: str, tmp_path: Path) -> None:
    recipe = "" if differs == "program" else "horovod-pytorch"
    same: dict[str, Any] = {"program": ("python3", "main.py", "--model", "resnet50"), "recipe": recipe}
    plans: dict[str, tuple[int, dict[str, Any]]] = {"a-2": (2, {}), "a-4": (4, {}), "b-4": (4, changes)}
    runs = [
        measured_run(tmp_path / "runs", f"20261122-120000-{name}", ranks, **(same | more))
        for name, (ranks, more) in plans.items()
    ]
    made = runs_report([(run, "") for run in runs])
    kinds = [row.settings for row in made.rows]
    assert [name for name, _ in kinds[0]] == [differs]
    assert kinds[0] == kinds[1] != kinds[2]
    assert f"kept apart: they differ in {differs}" in made.subtitle
    (picture,) = [each for each in gallery(made) if each.key == "per-gpu"]
    assert "joined by no line" in picture.takeaway
    curves = re.findall(r'<path d="([^"]*)" class="curve s\d', str(picture.svg))
    assert len(curves) == 3, "two pieces in the legend, and one line: a single point has none"
    assert f"{differs}=" in "\n".join(report_lines(made, None))
    assert f"({differs}=" in " ".join(made.cite)
    alike = runs_report([(run, "") for run in runs[:2]])
    assert alike.rows[0].settings == () and "kept apart" not in alike.subtitle


def test_a_figure_of_another_arm_is_no_figure_of_training(tmp_path: Path) -> None:
    runs = [measured_run(tmp_path / "runs", f"20261122-120000-{name}-4", 4) for name in ("own", "alone")]
    leave(runs[1], "plan.json", msgspec.structs.replace(runs[1].needed_plan(), arms=("uncoupled",)))
    both, alone = runs_report([(run, "") for run in runs]), runs_report([(runs[1], "")])
    assert [row.arm for row in both.rows] == ["", "uncoupled"]
    (picture,) = [each for each in gallery(both) if each.key == "per-gpu"]
    assert len(picture.table.rows) == 1
    assert ["no figure of training" in each for each in both.cite[:2]] == [False, True]
    assert any("arm uncoupled" in line for line in report_lines(both, None))
    assert "and trained in step where they trained together." in " ".join(both.cite)
    assert "trained in step" not in " ".join(alone.cite)
    first = alone.highlights[0]
    assert (first.value, first.note) == ("not proven", "arm uncoupled: no figure of training")
    runs[0].write("verdict.json", Verdict("ran"))
    ran = runs_report([(runs[0], "")])
    assert ran.highlights[0].value == "not measured"
    assert ran.cite[-1] == "1 of 1 run ran and measured nothing, and in no figure."
    assert [line for line in report_lines(ran, None) if "proven" in line] == []
    assert not [each for each in gallery(alone) if each.key == "per-gpu"]


@pytest.mark.parametrize("demonstration", ["", "demonstration: CPU"])
def test_a_demonstration_names_no_slow_node_as_its_verdict(demonstration: str, tmp_path: Path) -> None:
    """What stands out is shown, in these words."""
    slow: dict[str, Any] = {"compute_s": lambda rank: 0.09 if rank == 3 else 0.08}
    run = measured_run(tmp_path / "runs", "20261122-120000-r-8", 8, demonstration=demonstration, **slow)
    made = runs_report([(run, "")])
    shown, text, verdict = page(made), report_lines(made, None), run.verdict
    assert verdict is not None and list(made.detailed[0].slow_ranks) == ["3"]
    is_named = any("slow ranks: 3" in each for each in verdict.remarks)
    assert is_named == ("Slow: rank 3" in shown) == ("named as slow" in shown) == (not demonstration)
    stands_out = "What stands out in this demonstration, which names none as slow: rank 3"
    assert (stands_out in shown) == bool(demonstration)
    (row,) = (row for row in csv.DictReader(csv_files(made)["ranks.csv"].splitlines()) if row["stands_out"] == "true")
    assert (row["rank"], row["slow"], row["demonstration"]) == ("3", "" if demonstration else "true", demonstration)
    assert row["doubts"] == demonstration
    first = "Stands out (demonstration): rank 3" if demonstration else "Slowest: rank 3"
    assert any(line.startswith(first) for line in text)


def test_words_to_cite_claim_no_more_than_the_verdicts(study: StudyFacts) -> None:
    unexamined = Verdict("measured", images_per_s=1000.0, steady=True, synchronisation="not-examined")
    keys = figure_keys(unexamined, figure_of(unexamined))
    divided = tuple(msgspec.structs.replace(each, **keys) for each in study.launches[:3])
    made = study_report(msgspec.structs.replace(study, launches=(*divided, *study.launches[3:])))
    said = " ".join(made.cite)
    assert "Synchronisation was not examined in 3 of 15 runs" in said
    assert "trained in step" not in said
    assert page(made).count(">synchronisation not examined; no interval</td>") == 3
    assert "all ranks ran, each on its own device, and trained in step." in " ".join(study_report(study).cite)


@pytest.mark.parametrize("count", [1, 9])
def test_a_picture_for_slides_has_room_for_a_long_title(report: Report, count: int, tmp_path: Path) -> None:
    """Nothing is cut off at its right edge."""
    long = msgspec.structs.replace(report, title="a long name of runs, " * count, demonstration="demonstration: CPU")
    write(long, tmp_path, silent)
    with Image.open(tmp_path / "report.png") as picture:
        edge = picture.convert("L").crop((1900, 0, 1920, 200))
        assert edge.getextrema() == (255, 255)


@pytest.mark.parametrize("fonts", ["of the machine", "none"])
def test_the_slide_has_the_pictures_of_the_page(
    report: Report, fonts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the style's colours: a curve, its expected range, the slow node, parts of the loss; also where no font is."""
    if fonts == "none":
        monkeypatch.setattr(slide, "_FONTS", ())
        slide._font.cache_clear()
    write(msgspec.structs.replace(report, title="\N{BLACK UP-POINTING TRIANGLE} \u4e2d \x1b"), tmp_path, silent)
    slide._font.cache_clear()
    with Image.open(tmp_path / "report.png") as picture:
        seen = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    for name in ("s0", "s1", "ink", "heat0", "heat4", "part1", "part2"):
        colour = slide._colours()[name]
        assert tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5)) in seen, name


def test_what_a_picture_is_made_of_and_no_slide_can_draw_is_an_error() -> None:
    with pytest.raises(KeyError):
        slide._draw(ElementTree.fromstring("<svg><ellipse/></svg>"), Image.new("RGB", (9, 9)), (0.0, 0.0), 1.0)


def test_no_font_is_taken_from_where_it_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's could have other digits."""
    (tmp_path / "DejaVuSans.ttf").touch()
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "home/.local/share/fonts/any/DejaVuSans.ttf"
    own.parent.mkdir(parents=True)
    own.touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ImageFont, "truetype", lambda name, _size: name)
    assert str(slide._font.__wrapped__(12, bold=False)) == str(own)
