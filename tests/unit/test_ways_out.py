"""A figure with every doubt leaves this program by every way that there is, and no doubt is lost on the way."""

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from PIL import Image

from runner.cli import run as runner
from runner.cli.export import run_fields, study_fields
from runner.core.errors import Exit
from runner.figures.export import WRITERS
from runner.jobs.directory import Run, index
from runner.jobs.expected import one_gpu_of
from runner.model.figure import DOUBTS, Doubt, figure_keys, figure_of, in_short
from runner.model.output import BundledRun, BundledStudy, Format
from runner.model.study import Estimate, PointFacts
from runner.model.verdict import Verdict
from tests.support.measured_runs import measured_run
from tests.support.studies import on_disk, study

EVERY = Verdict(
    "measured", proven=("4 of 4 ranks",), images_per_s=400.0, window_s=31.0, synchronisation="not-examined",
    batch="not-checked", transport="unproven", demonstration="a demonstration, of nothing", forced=("too-long",),
    steady=False, mixed="device: A on rank 0, B on rank 1", shared_batch="all ranks took the same first batch",
    anew=True, disturbed="its GPUs throttled",
)  # fmt: skip
VERDICTS = {"not steady": EVERY, "steadiness unknown": msgspec.structs.replace(EVERY, steady=None)}
Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", params=VERDICTS)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Run]]:
    """Two launches whose verdict has every doubt, of a study that has lost a third one; no way out changes them."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RUNNER_STATE", str(root / "state"))
        index().mkdir(parents=True)
        of = on_disk(root, study((4,), 3))
        keys = [each.key for each in of.study.launches]
        made = [measured_run(of.launches(key), place) for place, key in enumerate(keys[:2])]
        for key, run in zip(keys, (*made, Run(of.launches(keys[2]) / "20260921-120002-train-4")), strict=True):
            of.note("launched", key, [run])
        for run in made:
            run.write("plan.json", msgspec.structs.replace(run.needed_plan(), arms=("uncoupled",)))
            run.write("verdict.json", msgspec.structs.replace(VERDICTS[request.param], arm="uncoupled"))
            (index() / run.run_id).symlink_to(run.path)
        yield made[0], made[1]


def doubts_of(run: Run) -> tuple[Doubt, ...]:
    assert run.figure is not None
    return run.figure.doubts


def test_together_these_runs_have_every_doubt_also_of_their_study(runs: tuple[Run, Run]) -> None:
    figures = [figure_of(each, "uncoupled") for each in VERDICTS.values()]
    codes = {doubt.code for each in figures if each is not None for doubt in each.doubts}
    assert codes == set(DOUBTS) - {"gap", "replaced", "unequal"}, "these are of a study"
    assert Doubt("gap", "its study has 1 gap: it may be a chosen one") in doubts_of(runs[0])
    sound = Verdict("measured", images_per_s=1.0, steady=True, precision=(0.9, 1.1), transport="proven")
    figure = figure_of(sound)
    assert figure is not None and (figure.doubts, figure.claim) == ((), "performance")


def written(words: list[str], printed: Printed) -> str:
    assert runner(words) == Exit.GOOD, printed.readouterr().err
    return html.unescape(printed.readouterr().out)


def report_file(name: str) -> Callable[[Run, Run, Path, Printed], str]:
    def read(run: Run, _other: Run, _place: Path, printed: Printed) -> str:
        place = run.path.parent / "report"  # one for all ways that read it
        if not place.exists():
            written(["report", str(run.path), "-o", str(place)], printed)
        if name.endswith("png"):
            with Image.open(place / name) as picture:
                return str(picture.info["Comment"])
        return html.unescape((place / name).read_text("utf-8"))

    return read


def comparison(name: str) -> Callable[[Run, Run, Path, Printed], str]:
    def read(run: Run, other: Run, place: Path, printed: Printed) -> str:
        place.mkdir()
        files = ["--junit", str(place / "junit"), "--markdown", str(place / "markdown")]
        shown = written(["compare", str(run.path), str(other.path), *files], printed)
        text = (place / name).read_text() if name else shown
        return html.unescape(text).replace("\\", "")

    return read


def bundle(run: Run, _other: Run, _place: Path, _printed: Printed) -> str:
    made = BundledRun("r", "horovod", "s", 2, 1, None, True, "", (), "1", {}, **figure_keys(run.verdict, run.figure))
    point = PointFacts(2, "full", (), 1, 1, Estimate(400.0), doubts=doubts_of(run))
    fields = [*run_fields(made), *study_fields(BundledStudy("s", {"k": "r"}, (point,), ()), "images")]
    shown = [text for _, text in fields]
    for doubt in doubts_of(run):
        assert sum(doubt.words in text for text in shown) == 2, (doubt, shown)
    return msgspec.json.encode(made).decode()


def verb(*words: str) -> Callable[[Run, Run, Path, Printed], str]:
    return lambda run, _other, _place, printed: written(
        [run.run_id if each == "RUN" else each for each in words], printed
    )


WAYS: dict[str, Callable[[Run, Run, Path, Printed], str]] = {
    "the verdict": verb("status", "RUN"),
    "show": verb("show", "RUN"),
    "JSON of a run": verb("status", "RUN", "--json"),
    "JSON of the list": verb("status", "--all", "--json"),
    "JSON of show": verb("show", "RUN", "--json"),
    "report on the terminal": lambda run, _other, place, printed: written(
        ["report", str(run.path), "-o", str(place)], printed
    ),
    "report's page": report_file("report.html"),
    "report's picture": report_file("report.png"),
    "report's table": report_file("runs.csv"),
    "report's JSON": report_file("report.json"),
    "words to cite": lambda *given: re.findall('"cite": *(\\[[^]]*\\])', report_file("report.json")(*given))[0],
    "comparison": comparison(""),
    "JUnit": comparison("junit"),
    "Markdown": comparison("markdown"),
    "CSV": verb("export", "RUN", "--format", "csv"),
    "JSON of export": verb("export", "RUN", "--format", "json"),
    "bundle": bundle,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_doubt_is_in(way: str, runs: tuple[Run, Run], tmp_path: Path, capsys: Printed) -> None:
    said = re.sub(r"\s+", " ", WAYS[way](*runs, tmp_path / "out", capsys)).casefold()
    said = re.sub(r"has \d gaps?:", "has 1 gap:", said)  # who looks at the whole study finds more of them
    assert [doubt.words for doubt in doubts_of(runs[0]) if doubt.words.casefold() not in said] == [], said


@pytest.mark.parametrize("form", sorted({*get_args(Format)} & set(WRITERS) - {"csv", "json"}))
def test_other_programs_get_the_codes(form: Any, runs: tuple[Run, Run], capsys: Printed) -> None:
    said = written(["export", runs[0].run_id, "--format", form], capsys)
    assert [doubt.code for doubt in doubts_of(runs[0]) if doubt.code not in said] == []


def test_a_list_has_the_gravest_and_how_many_there_are(runs: tuple[Run, Run], capsys: Printed) -> None:
    assert in_short(doubts_of(runs[0])) == "demo, 12 more"
    assert written(["status", "--all"], capsys).count("400.0 images/s (demo, 12 more)") == 2


def test_a_rate_that_an_expectation_is_made_from_has_its_doubts(tmp_path: Path) -> None:
    run = measured_run(tmp_path, 0)
    run.write("plan.json", msgspec.structs.replace(run.needed_plan(), tasks_per_node=(1,), gpus_per_node=1))
    run.write("verdict.json", msgspec.structs.replace(EVERY, demonstration=""))
    assert [each.words for each in doubts_of(run) if each.words not in one_gpu_of(run).source] == []
