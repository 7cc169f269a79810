"""What a report takes from run directories, and what it says first."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.figures.report.gallery import gallery
from runner.figures.report.gather import MOST_POINTS, runs_report, step_times, study_report
from runner.jobs.directory import Run
from runner.model.report import Report
from runner.model.study import Estimate, PointFacts, SingleGpus, StudyFacts
from runner.model.verdict import Verdict
from tests.support.reports import estimate, figure_of, launch_facts, measured_run, study_facts, whole_study


def values(report: Report) -> dict[str, tuple[str, str]]:
    return {
        each.name: (each.value.replace("\u202f", " "), each.note.replace("\u202f", " ")) for each in report.highlights
    }


def test_first_come_throughput_per_gpu_efficiency_the_slow_node_and_the_cause(report: Report) -> None:
    shown = values(report)
    assert list(shown)[:4] == ["Throughput per GPU at 16 GPUs", "Efficiency", "Slowest", "Largest loss"]
    assert shown["Efficiency"][0] == "90.7 %"
    assert shown["Slowest"][0] == "node dgx01"
    assert "6.1 % slower" in shown["Slowest"][1]
    assert shown["Largest loss"][0] == "waiting for slower ranks"
    assert "3.4 % of the ideal; 95 %: 2.7 % to 4.1 %" in shown["Largest loss"][1]
    assert [(each.gpus, each.state) for each in report.expected][-1] == (16, "within")


def test_what_is_below_the_expectation_is_shown_with_its_cause(study: StudyFacts) -> None:
    rate = estimate(27_000.0)
    points = [msgspec.structs.replace(each, images_per_s=rate) if each.gpus == 16 else each for each in study.points]
    made = study_report(msgspec.structs.replace(study, points=tuple(points)))
    assert [(each.gpus, each.state) for each in made.expected][-1] == (16, "below")
    shown = values(made)["Expected at 16 GPUs"]
    assert shown[0] == "more than measured"
    assert "measured; shown: slow ranks" in shown[1]


@pytest.mark.parametrize(
    ("loss", "value", "says"),
    [
        (Estimate(0.095, -0.182, 0.371), "cannot tell", "it may be nothing; 95 %: \N{MINUS SIGN}18.2 % to 37.1 %"),
        (Estimate(-0.01, -0.02, -0.005), "none", "takes \N{MINUS SIGN}1.00 % of the ideal, and no part more"),
        (Estimate(0.02), "coordination", "takes 2.00 % of the ideal"),
    ],
)
def test_no_part_is_named_as_the_cause_that_may_take_nothing(
    study: StudyFacts, loss: Estimate, value: str, says: str
) -> None:
    (last,) = [each for each in study.losses if each.gpus == 16]
    rows = (msgspec.structs.replace(last.rows[0], name="coordination", loss=loss),)
    made = study_report(msgspec.structs.replace(study, losses=(msgspec.structs.replace(last, rows=rows),)))
    shown = values(made)["Largest loss"]
    assert shown[0] == value
    assert says in shown[1]
    (picture,) = [each for each in gallery(made) if each.key == "loss"]
    assert "most of it" not in picture.takeaway


@pytest.mark.parametrize("demonstration", ["", "CPU: demonstration"])
def test_the_difference_between_single_gpus_comes_after_and_a_demonstration_names_none(
    study: StudyFacts, demonstration: str
) -> None:
    alone = (SingleGpus("solo", (), 15, 16, 2, 0.019, "GPU 3 of node 1", 0.041),)
    made = study_report(msgspec.structs.replace(study, single_gpus=alone, demonstration=demonstration))
    value, note = values(made)["Difference between GPUs, each alone"]
    assert value == "1.9 %"
    assert "15 of 16 GPUs" in note
    assert ("slowest: GPU 3 of node 1, 4.1 % below the mean" in note) is (not demonstration)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"demonstration": "CPU"}, "nothing is expected of a demonstration (CPU)"),
        ({"site": "nowhere"}, "no site"),
        ({"points": (PointFacts(8, "full", (), 3, 3, estimate(1.0), scaling="strong"),)}, "strong scaling"),
        ({"points": (PointFacts(8, "full", (), 3, 3, estimate(1.0), why="no batch"),)}, "no batch"),
        (
            {"recipe": "probe", "points": (PointFacts(8, "full", (), 3, 3, estimate(1.0)),)},
            "not cover the recipe probe",
        ),
    ],
)
def test_why_nothing_is_expected(study: StudyFacts, changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    made = study_report(msgspec.structs.replace(study, directory=str(tmp_path), **changes))
    assert made.expected == () and why in made.why_not_expected, made.why_not_expected


def test_studies_without_what_is_usual(tmp_path: Path) -> None:
    point = PointFacts(8, "full", (), 3, 3, estimate(1000.0), None, estimate(0.95))
    value, note = values(study_report(study_facts([], [point])))["Efficiency"]
    assert value == "95.0 %"
    assert note.startswith("of as many GPUs at once that do not communicate; 95 %: 93.9 %")
    none = study_report(study_facts([launch_facts(None, 2, 1, 0, why="the queue is closed")], [], state="incomplete"))
    assert values(none) == {"Throughput per GPU": ("not proven", "the queue is closed")}
    assert none.detailed == ()
    one = study_report(study_facts([launch_facts(measured_run(tmp_path, "20261122-120000-r-1", 1), 1, 1, 0)], []))
    assert "on technion, 1 GPU; 1 of 1 run proven" in one.subtitle


def test_of_each_size_the_median_run_is_shown_in_detail(study: StudyFacts, report: Report) -> None:
    assert [each.row.gpus for each in report.detailed] == [16, 8, 4, 2, 1]
    figures = sorted(each.images_per_s or 0.0 for each in study.launches if each.launch.gpus == 16)
    assert report.detailed[0].row.images_per_s == figures[1]
    ranks = report.detailed[0].ranks  # each held against those that are not slow
    assert [rank.slow for rank in ranks] == [False] * 8 + [True] * 8
    assert all(abs(rank.relative) < 0.005 for rank in ranks[:8])
    assert all(0.055 < rank.relative < 0.068 for rank in ranks[8:])


def test_what_to_cite_has_the_figure_its_interval_what_it_ran_on_and_what_is_missing(
    study: StudyFacts, report: Report
) -> None:
    first, made_of, *_, last = (sentence.replace("\u202f", " ") for sentence in report.cite)
    assert "horovod-pytorch on 16 GPUs of technion: 37 002 images/s (95 % interval over 3 launches: " in first
    assert "weak-scaling efficiency 90.7 % of one GPU alone (90.0 % to 91.4 %)" in first
    assert f"image digest sha256:{'ab' * 32}" in made_of
    assert last == "1 of 16 runs not proven, and in no figure."
    (missing,) = [row for row in report.rows if row.state != "proven"]
    assert (missing.gpus, missing.state, missing.why) == (32, "missing", "its job was cancelled before it started")
    again = (msgspec.structs.replace(study.launches[0], attempts=2), *study.launches[1:])
    label = "demonstration, no performance claim: CPU"
    made = study_report(msgspec.structs.replace(study, demonstration=label, launches=again))
    assert made.cite[-1] == "Of several runs the first proven one counts: 1 launch."
    assert made.cite[0] == "Demonstration, no performance claim: CPU."
    assert "on 16 ranks (a demonstration) of technion" in made.cite[1] and "GPU" not in made.cite[1]
    assert not any("its own device" in each for each in made.cite)
    names = [each.name for each in made.highlights]
    assert "Stands out (demonstration)" in names and "Slowest" not in names


def test_the_environment_names_each_value_with_its_runs_where_they_differ(tmp_path: Path) -> None:
    runs = [measured_run(tmp_path, f"2026112{n}-120000-r-2", 2, recipe="a" if n else "b", site="s") for n in range(3)]
    facts = {fact.name: fact.value for fact in runs_report([(run, "") for run in runs]).environment}
    assert (facts["site"], facts["recipe"], facts["NCCL's networks"]) == ("s", "b (1 run); a (2 runs)", "IB")


def test_a_run_whose_directory_is_gone_is_still_in_the_report(tmp_path: Path) -> None:
    study = whole_study(tmp_path, (1, 2), repeats=1)
    shutil.rmtree(next(each.directory for each in study.launches if each.launch.gpus == 2))
    made = study_report(study)
    assert [each.problem for each in made.detailed if each.row.gpus == 2] == [""]
    assert made.detailed[0].steps is None
    assert [row.state for row in made.rows] == ["proven", "proven", "missing"]


def test_single_runs_have_their_own_precision_and_make_no_claim(tmp_path: Path) -> None:
    run = measured_run(tmp_path, "20261122-120000-resnet-4", 4)
    made = runs_report([(run, "")])
    (row,) = made.rows
    assert row.images_per_s == pytest.approx(figure_of(run))
    assert (row.low or 0.0) < figure_of(run) < (row.high or 0.0)
    assert "single runs are no claim about scaling" in made.subtitle
    assert "no claim about other launches" in made.cite[0]


def test_a_run_of_a_sweep_has_its_values_and_is_apart_from_those_of_the_same_ones_only(tmp_path: Path) -> None:
    runs = [
        measured_run(
            tmp_path,
            f"2026112{n}-120000-r-2",
            2,
            step_s=(lambda _: 0.1, lambda _: 0.2)[n],
            swept=(("workers", f"{n}"),),
        )
        for n in range(2)
    ]
    made = runs_report([(run, "") for run in runs])
    (note,) = (each.note for each in made.highlights if "per GPU" in each.name)
    picture = next(each.takeaway for each in gallery(made) if each.key == "per-gpu")
    for says in (note, picture):
        assert "workers=0; the fastest of 2 runs" in says and "differ" not in says
    assert [f"(workers={n}): " in made.cite[n] for n in range(2)] == [True, True]


def slower(run: Run) -> None:
    record = run.path / "ranks/2.report.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"elapsed_s": 70.0}))


NOT_SO = "its verdict.json says 10240.2 images/s, which is not what its records give, and does not count"
# What was done to a run, and: its state, why it is not proven, the problem of its details.
BROKEN: dict[str, tuple[Callable[[Run], object], str, str, str]] = {
    "no verdict": (lambda run: (run.path / "verdict.json").unlink(), "running", "it has no verdict yet", ""),
    "no plan": (lambda run: (run.path / "plan.json").unlink(), "not-proven", "its plan cannot be read", ""),
    "no records": (
        lambda run: (run.path / "ranks/2.report.json").write_text("{"), "not-proven", NOT_SO, "",
    ),
    "other records": (slower, "not-proven", NOT_SO, ""),
    "another verdict": (
        lambda run: run.write("verdict.json", Verdict("measured", images_per_s=3e4, steady=True)), "proven", "",
        "the verdict says 30000.0 images/s, and the records give ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_run_that_lacks_something_or_whose_records_do_not_hold(case: str, tmp_path: Path) -> None:
    change, state, why, problem = BROKEN[case]
    run = measured_run(tmp_path, "20261122-120000-resnet-4", 4)
    change(run)
    made = runs_report([(run, "running")])
    assert [(row.state, row.why, row.images_per_s is None) for row in made.rows] == [(state, why, bool(why))]
    if problem:
        assert made.detailed[0].ranks == () and problem in made.detailed[0].problem
        assert made.cite[-1] == f"Not to be quoted: {run.run_id}: {made.detailed[0].problem}."


def test_secrets_of_the_job_are_not_in_its_script(tmp_path: Path) -> None:
    secret, token = "correct 'horse", "hf_" + "a1B2" * 8
    quoted = shlex.quote(secret)
    script = f"#!/bin/bash\nexport API_KEY={quoted}\nexport OTHER='{token}'\nexport PROXY=http://me:pw1234@h:1\n"
    script += f"srun --export=X={quoted} python3 main.py\n"
    run = measured_run(tmp_path, "20261122-120000-r-2", 2, script=script, env=(("API_KEY", secret),))
    made = msgspec.json.encode(runs_report([(run, "")])).decode()
    assert "python3 main.py" in made
    assert [hidden for hidden in ("horse", token, "pw1234") if hidden in made] == []


def test_of_a_long_script_the_first_part_is_read(tmp_path: Path) -> None:
    token = "hf_" + "a1B2" * 8
    script = f"#!/bin/bash\nexport A={token}; {f'export B={token};' * 4000}"
    run = measured_run(tmp_path, "20261122-120000-r-2", 2, script=script)
    with (run.path / "job.sh").open("ab") as file:
        file.truncate(4 << 30)
    shown = runs_report([(run, "")]).detailed[0].script
    assert shown.startswith("#!/bin/bash\nexport A=***; export B=***;")
    assert shown.endswith(f"\n... ({4 << 30} bytes in all)\n")
    assert token[:8] not in shown
    assert len(shown) < 110_000


def test_a_long_time_line_is_drawn_by_points_that_keep_what_stands_out() -> None:
    ends = [float(group + 1) + (3.0 if group >= 2500 else 0.0) for group in range(5000)]
    steps = step_times(ends, 10, 40.0)
    assert len(steps.at_s) <= MOST_POINTS
    assert max(steps.high_s) == pytest.approx(0.4)
    assert (steps.at_s[-1], steps.groups, steps.cut_s) == (5003.0, 5000, 40.0)
