"""A study as it stands, from its runs' verdicts: what is proven makes points, and nothing else does."""

import math
import os
import re
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from runner.cli.study import facts_lines
from runner.jobs.directory import NODES, Run
from runner.model.figure import Doubt, Figure, in_words, shared_doubts
from runner.model.job import ExitMarker, JobState
from runner.model.plan import LaunchPlace
from runner.model.records import StartRecord
from runner.model.study import Launch
from runner.model.verdict import Verdict
from runner.study import gather
from runner.study.plan import launches
from runner.study.readers import exported_of, side
from tests.support.evidence import leave, report
from tests.support.plans import PLAN
from tests.support.reports import study_facts
from tests.support.studies import left_run, measured, on_disk, proven, study


def test_what_is_not_proven_is_shown_with_its_reason_and_enters_no_point(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1, 2), 2))
    left_run(of, "g0001-full-r1", measured(100.0))
    left_run(of, "g0001-full-r2", Verdict("not-proven", ("rank 1 computed the same gradients",)))
    left_run(of, "g0002-full-r1", measured(180.0, demonstration="CPU"))
    left_run(of, "g0002-full-r2", Verdict("ran"))
    found = gather.facts(of)
    states = {each.launch.key: (each.state, each.why, each.images_per_s) for each in found.launches}
    assert states["g0001-full-r2"] == ("not-proven", "rank 1 computed the same gradients", None)
    assert states["g0002-full-r2"] == ("not-proven", "it measures nothing", None)
    assert (found.state, found.demonstration) == ("incomplete", "CPU")
    doubts = [each.figure.doubts for each in found.launches if each.figure] + [each.doubts for each in found.points]
    assert [next(each.code for each in own) for own in doubts] == ["demonstration"] * 4, "each line says so"
    one, two = found.points
    assert (one.proven, one.wanted) == (1, 2)
    assert one.images_per_s is not None
    assert one.images_per_s.value == pytest.approx(100.0)
    assert two.efficiency_of_one is not None
    assert two.efficiency_of_one.value == pytest.approx(0.9)
    assert two.efficiency_of_one.low is None
    nothing = gather.facts(on_disk(tmp_path, study((4,), 1)))
    assert ([each.images_per_s for each in nothing.points], nothing.launches[0].state) == ([None], "missing")


@pytest.mark.parametrize(("last_s", "hours"), [(30.0, 30.0 / 3600.0), (1e6, PLAN.walltime_s / 3600.0)])
def test_a_job_that_was_killed_with_its_script_has_used_its_gpus_until_its_last_sign(
    tmp_path: Path, last_s: float, hours: float
) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    run = left_run(of, "g0001-full-r1", Verdict("infrastructure", ("a node failed",)))
    _began(run, last_s)
    assert gather.facts(of).gpu_hours == pytest.approx(hours)


@pytest.mark.parametrize("whole_nodes", [True, False])
def test_a_program_that_starts_its_own_processes_uses_all_gpus_of_its_task(tmp_path: Path, whole_nodes: bool) -> None:
    of = on_disk(tmp_path, study((8,), 1))
    run = left_run(of, "g0008-full-r1", Verdict("infrastructure", ("a node failed",)))
    own = {"wireup": "own", "tasks_per_node": (1, 1), "gpus_per_node": 4, "whole_nodes": whole_nodes}
    leave(run, "plan.json", msgspec.structs.replace(PLAN, **own))
    _began(run, 30.0)
    assert gather.facts(of).gpu_hours == pytest.approx(30.0 / 3600.0 * 8)


def test_in_one_allocation_such_a_program_has_the_gpus_of_its_nodes(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((8,), 1, way="one-allocation"))
    run = left_run(of, "g0008-full-r1", measured(800.0))
    own = {"wireup": "own", "tasks_per_node": (1, 1), "gpus_per_node": 4, "launch": LaunchPlace(node_gpus=4)}
    leave(run, "plan.json", msgspec.structs.replace(PLAN, **own))
    assert gather.facts(of).launches[0].gpus_by_node == (4, 4)


def test_the_base_of_a_size_is_the_mean_of_its_gpus_in_a_repeat_that_lacks_one() -> None:
    """GPU 1 is half as fast as GPU 0: in the repeat that lacks it, GPU 0 alone would be no base of both."""
    asked = study((2,), 3, way="one-allocation", arms=("full", "solo"),
                  launches=launches((2,), ("full", "solo"), ((),), 3, solo_places=(2,)))  # fmt: skip
    made = [
        msgspec.structs.replace(proven(each, 100.0 if each.device != 1 else 50.0), gpus_by_node=(2,) * (each.gpus > 1))
        for each in asked.launches
        if (each.device, each.repeat) != (1, 2)
    ]
    two = next(each for each in gather.points(asked, made) if each.gpus == 2)
    assert two.efficiency_of_one is not None
    assert two.efficiency_of_one.value == pytest.approx(50.0 / 5000.0**0.5)
    assert two.efficiency_of_one.low == pytest.approx(two.efficiency_of_one.high)
    two = gather.points(asked, [each for each in made if each.launch.device != 1])[1]
    assert in_words(two.doubts) == "efficiency: 1 of its 2 GPUs have no rate alone", "it is against the others"
    said = facts_lines(study_facts([], [two]), None)
    assert f"  doubt: {in_words(two.doubts)}" in said


def _began(run: Run, last_s: float) -> None:
    """Its rank 0 did, at the second 1000, and wrote last so many seconds later."""
    start, log = run.ranks / "0.start.json", run.logs / "rank-0.out"
    leave(run, "ranks/0.start.json", StartRecord("2", 0, 1, 0, 1, 0, "h", True, "cpu", time_s=1000.0))
    log.touch()
    os.utime(start, (1000.0, 1000.0))
    os.utime(log, (1000.0 + last_s, 1000.0 + last_s))


def test_a_proven_attempt_stands_whatever_came_before_or_after(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    left_run(of, "g0001-full-r1", Verdict("infrastructure", ("a node failed",)))
    second = left_run(of, "g0001-full-r1", measured(50.0))
    left_run(of, "g0001-full-r1", Verdict("failed", ("exit 1",)))
    (launch,) = gather.facts(of).launches
    assert (launch.state, launch.run, launch.attempts) == ("proven", second.run_id, 3)
    assert "  of several runs the first proven one counts: 1 launch" in facts_lines(gather.facts(of), None)


RANK = "ranks/0.start.json"


@pytest.mark.parametrize(
    ("before", "left", "outcome"),
    [
        (Verdict("failed", ("the job ran into its time limit",)), RANK, "failed"),
        (Verdict("cancelled"), RANK, "cancelled"),
        (Verdict("cancelled"), "", ""),  # in the queue
        (Verdict("infrastructure", ("a node failed",)), RANK, ""),
        (Verdict("infrastructure", ("Input/output error",)), RANK, "infrastructure"),  # the program's own last words
        (Verdict("ran"), RANK, "ran"),  # a program that ends by the clock measures nothing where it is slow
        (Verdict("not-proven"), "exit.json", "not-proven"),  # its script ended well, and had ranks
        (Verdict("not-proven"), "../../../allocations/1/launches", "not-proven"),  # so its allocation says
    ],
)
def test_what_is_left_where_an_earlier_run_was_cut_off_may_be_the_fast_ones(
    before: Verdict, left: str, outcome: str, tmp_path: Path
) -> None:
    of = on_disk(tmp_path, study((1,), 2))
    cut = left_run(of, "g0001-full-r1", allocation=str(of.path / "allocations/1"))
    (of.path / "allocations/1").mkdir(parents=True)
    if left:
        listed = f"1.5\t2.5\t0\t{cut.path}\n1.5\t2.5\t1\t/x\n"
        (cut.path / left).write_text(listed if left.endswith("launches") else '{"job": "1", "exit": 0, "end_s": 2.5}')
    cut.write("ended.json", JobState("ended", "NODE_FAIL" if "a node failed" in before.reasons else "FAILED"))
    cut.write("verdict.json", before)
    counts = left_run(of, "g0001-full-r1", measured(50.0, steady=True))
    left_run(of, "g0001-full-r2", measured(50.0, steady=True))
    words = f"an earlier run of its launch gave no figure ({outcome}): it may have been slow"
    (point,) = gather.facts(of).points
    assert in_words(point.doubts) == (f"{words} (1 of 2 launches)" if outcome else "")
    (exported,) = exported_of([counts])
    assert exported.figure and exported.figure.has("replaced") == bool(outcome)
    (launch, *_) = side(str(of.path)).points[1, ()].launches
    assert launch.figure.has("replaced") == bool(outcome)
    if left:
        (cut.path / left).unlink()  # that cannot be unmade
    cut.path.joinpath("verdict.json").unlink()
    copy = shutil.copytree(counts.path, tmp_path / counts.run_id)
    for figure in (Run(copy).figure, Run(counts.path).figure):
        assert figure is not None and figure.has("replaced") == bool(outcome)


def test_efficiency_is_against_a_single_gpu_with_the_same_setting() -> None:
    settings = ((("batch", "1"),), (("batch", "2"),))
    asked = study((1, 2), 2, settings=settings)
    rates = {(1, "1"): 10.0, (2, "1"): 18.0, (1, "2"): 100.0, (2, "2"): 120.0}
    launches = [proven(each, rates[each.gpus, each.settings[0][1]]) for each in asked.launches]
    found = {(each.settings, each.gpus): each.efficiency_of_one for each in gather.points(asked, launches)}
    assert [value and pytest.approx(value.value) for value in found.values()] == [None, 0.9, None, 0.6]


@pytest.mark.parametrize(
    ("batches", "strong", "scaling", "why"),
    [
        ((64, 64, 64), False, "weak", ""),
        ((64, 64, 64), True, "weak", ""),  # whatever was asked for: the ranks recorded it
        ((60, 30, 20), False, "strong", ""),  # as by `batch = 60 // world`
        ((100, 50, 33.3), True, "strong", ""),
        ((8130.5, 8202.25, 8077.0), False, "weak", ""),  # text
        ((109, 100, 100), False, "weak", "efficiency: its batches differ by 9.0"),  # a step that takes as long: 8 % off
        ((64, 64, 16), False, None, "neither the batch of a GPU nor the whole batch .* 64 on 1 GPU, 64 on 2 GPUs, 16 "),
        ((64, 64, (32, 96)), False, None, "neither the batch .* same in all launches"),  # whose mean is the others'
        ((64, None, 64), False, None, "the ranks recorded no batch: .*--meter-batch"),
    ],
)  # fmt: skip
def test_an_efficiency_is_called_by_the_batches_that_the_ranks_recorded(
    batches: tuple[Any, ...], strong: bool, scaling: str | None, why: str
) -> None:
    asked = study((1, 2, 3), 2, strong=strong)
    of_launches = [each if isinstance(each, tuple) else (each, each) for each in batches]
    launches = [proven(each, 100.0 * each.gpus, of_launches[each.gpus - 1][each.repeat - 1]) for each in asked.launches]
    one, *larger = gather.points(asked, launches)
    assert (one.scaling, one.why) == (None, "")
    for each in larger:
        assert each.scaling == scaling and re.match(why, each.why or in_words(each.doubts))
        assert (each.efficiency_of_one is not None) == bool(scaling)


def test_an_efficiency_has_the_doubts_of_the_rate_of_one_gpu(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1, 2), 1))
    left_run(of, "g0001-full-r1", measured(100.0, forced=("too-long",), steady=True))
    left_run(of, "g0002-full-r1", measured(180.0, steady=True))
    assert [in_words(each.doubts) for each in gather.facts(of).points] == [
        "forced: too-long", "forced: too-long (1 of 2 launches)",
    ]  # fmt: skip


def test_a_doubt_of_several_figures_counts_those_that_have_it() -> None:
    one = Figure(1.0, "images").doubted([Doubt("unequal", "far apart"), Doubt("unequal", "at once")])
    assert [in_words(shared_doubts([one, Figure(1.0, "images")]))] == ["far apart; at once (1 of 2 launches)"]


@pytest.mark.parametrize(
    ("batches", "scaling", "apart"),
    [
        (((64,), (64, 64), (32, 96, 96, 32)), "weak", "200.0"),
        (((26,), (26, 26), (25, 26, 26, 26)), "weak", "4.0"),
        (((256,), (128, 128), (32, 96, 96, 32)), "strong", "200.0"),
        (((102,), (51, 51), (25, 26, 26, 25)), "strong", ""),  # which does not divide evenly
    ],
)
def test_the_batch_of_a_launch_is_that_of_all_its_ranks_and_a_size_of_unequal_ones_has_a_doubt(
    batches: tuple[tuple[int, ...], ...], scaling: str, apart: str, tmp_path: Path
) -> None:
    of = on_disk(tmp_path, study((1, 2, 4), 1))
    for own in batches:
        run = left_run(of, f"g000{len(own)}-full-r1", measured(50.0))
        for rank, batch in enumerate(own):
            leave(run, f"ranks/{rank}.report.json", msgspec.structs.replace(report(rank), batch_size=batch))
    now = gather.facts(of)
    assert [each.batch for each in sorted(now.launches, key=lambda each: each.launch.gpus)] == [*map(fmean, batches)]
    one, two, four = (in_words(each.doubts) for each in now.points)
    words = f"efficiency: the batches of its ranks differ by {apart}"
    assert "the batches of its ranks" not in one + two and (words in four) == bool(apart)
    assert [each.scaling for each in now.points[1:]] == [scaling] * 2
    exported = {each.gpus: each.batch_per_gpu for each in exported_of([of])}
    assert (exported[2], exported[4]) == (batches[1][0], None)


def test_solo_is_the_base_before_the_full_arm_of_one_gpu() -> None:
    asked = study((1, 2), 1, arms=("full", "solo-hooks", "solo"))
    rates = {"solo": 100.0, "solo-hooks": 98.0, "full": 99.0}
    launches = [proven(each, rates[each.arm] * each.gpus) for each in asked.launches]
    points = gather.points(asked, launches)
    found = {(each.gpus, each.arm): each.efficiency_of_one.value for each in points if each.efficiency_of_one}
    assert (1, "solo") not in found
    assert found == {
        (1, "full"): pytest.approx(0.99),
        (1, "solo-hooks"): pytest.approx(0.98),
        (2, "full"): pytest.approx(0.99),
    }


@pytest.mark.parametrize(
    ("devices", "doubted"),
    [(("GPU-a", "GPU-a"), True), (("GPU-a", "GPU-b"), False), (("index-0", "index-0"), False), (("GPU-a",), False)],
)
def test_one_and_the_same_gpu_is_no_base_of_all(devices: tuple[str, ...], doubted: bool, tmp_path: Path) -> None:
    """As on a machine without a scheduler, whose first one it is in every launch."""
    of = on_disk(tmp_path, study((1, 2), len(devices)))
    for launch in of.study.launches:
        run = left_run(of, launch.key, measured(100.0 * launch.gpus))
        own = replace(report(0, ends_checksum=launch.key), device_uuid=devices[launch.repeat - 1])
        leave(run, "ranks/0.report.json", own)
    words = "efficiency: one GPU alone is the same in each launch, and others may be faster or slower: --same-nodes"
    assert [words in in_words(each.doubts) for each in gather.facts(of).points] == [False, doubted]


@pytest.mark.parametrize("repeats", [1, 2, 3])
@pytest.mark.parametrize(
    ("rate", "words"), [(210.0, []), (230.0, ["efficiency: above 100 %: one GPU alone did more work, or waited"])]
)
def test_an_efficiency_far_above_one_is_a_doubt(rate: float, words: list[str], repeats: int) -> None:
    """As of a script that does less where it has several ranks, in a way that no record shows; scattered, too."""
    asked = study((1, 2), repeats)
    launches = [proven(each, {1: 100.0, 2: rate}[each.gpus] * 1.05 ** (each.repeat % 2)) for each in asked.launches]
    one, two = gather.points(asked, launches)
    assert [each.words for each in one.doubts if each.code == "unequal"] == []
    assert [each.words for each in two.doubts if each.code == "unequal"] == words


@pytest.mark.parametrize(
    ("days", "doubted"), [((22, 22), False), ((22, 23), True), ((23, 22), True), ((22, 22.5), False)]
)
def test_sizes_that_were_measured_on_other_days_are_a_doubt_of_the_efficiency(
    days: tuple[float, float], doubted: bool
) -> None:
    """As by `--resume`, after GPUs or time were lacking for one size; not where the last repeat alone was missing."""
    asked = study((1, 2), 2)

    def day(launch: Launch) -> int:
        of_size = days[launch.gpus - 1]
        return int(of_size) if launch.repeat == 1 else math.ceil(of_size)

    launches = [
        replace(proven(each, 100.0 * each.gpus), run=f"202611{day(each)}-12000{place}-train")
        for place, each in enumerate(asked.launches)
    ]
    words = "efficiency: all of its launches ran before or after those of one GPU alone"
    assert [words in in_words(each.doubts) for each in gather.points(asked, launches)] == [False, doubted]


def test_launches_are_apart_by_when_they_were_submitted_and_not_by_the_zone_of_their_ids(tmp_path: Path) -> None:
    """The id has the hour of the zone that the shell had; a summer ends."""
    of = on_disk(tmp_path, study((1, 2), 2))
    for launch in of.study.launches:
        left_run(of, launch.key, measured(100.0 * launch.gpus), submitted_s=1e9 + 3600.0 * launch.gpus + launch.place)
    words = "efficiency: all of its launches ran before or after those of one GPU alone"
    assert [words in in_words(each.doubts) for each in gather.facts(of).points] == [False, True]


@pytest.mark.parametrize(("gap_s", "at_once"), [(-30, True), (10, False)])
def test_launches_at_once_on_one_node_are_a_doubt_whatever_their_sizes(
    gap_s: int, at_once: bool, tmp_path: Path
) -> None:
    of = on_disk(tmp_path, study((1, 2), 1))
    for number, launch in enumerate(of.study.launches):
        began = 1e9 + number * (60 + gap_s)
        run = left_run(of, launch.key, measured(100.0 * launch.gpus), submitted_s=began)
        leave(run, "exit.json", ExitMarker("1.1.x", 0, end_s=began + 60))
        (run.path / NODES).write_text("n0\n")
    assert ["at the same time" in in_words(each.doubts) for each in gather.facts(of).points] == [at_once] * 2


def test_doubts_of_some_points_name_them_and_those_of_a_queue_are_one(tmp_path: Path) -> None:
    seen = gather.facts(on_disk(tmp_path, study((1, 2), 1)))
    said = (("apart", "x and y ran at the same time"), ("apart", "cold", "x and z ran at the same time"))
    points = (
        msgspec.structs.replace(point, doubts=tuple(Doubt("unequal", words) for words in each))
        for point, each in zip(seen.points, said, strict=True)
    )
    seen = msgspec.structs.replace(seen, points=tuple(points))
    assert [each.words for each in seen.doubts_of_points] == [
        "apart", "2 GPUs: cold", "x and y ran at the same time, and others",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spans", "doubted"),
    [
        (((0, 60), (70, 130)), []),  # one after the other
        (((0, 60), (660, 700)), []),
        (((0, 60), (670, 700)), [2]),  # by `--resume`
        (((670, 700), (0, 60)), [2]),
        (((0, 5000), (5010, 9000), (9010, 9500)), []),  # each as long as it takes
        (((0, 5000), (5010, 9000), (9700, 9800)), [4]),
        (((0, 0), (1, 1), (2, 90000)), []),  # of a queue
    ],
)
def test_sizes_with_a_launch_each_are_apart_where_nothing_ran_between_them(
    spans: tuple[tuple[int, int], ...], doubted: list[int], tmp_path: Path
) -> None:
    of = on_disk(tmp_path, study((1, 2, 4)[: len(spans)], 1))
    for launch, (began, end) in zip(sorted(of.study.launches, key=lambda each: each.gpus), spans, strict=True):
        run = left_run(of, launch.key, measured(100.0 * launch.gpus), submitted_s=1e9 + began)
        if end > began:
            leave(run, "exit.json", ExitMarker("1.1.x", 0, end_s=1e9 + end))
    words = "efficiency: all of its launches ran before or after those of one GPU alone"
    assert [each.gpus for each in gather.facts(of).points if words in in_words(each.doubts)] == doubted


def test_a_size_that_shares_no_session_with_one_gpu_is_apart_also_between_two_of_them(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1, 4), 2))
    for at, launch in enumerate(of.study.launches):
        began = 1e9 + (10_000 + launch.repeat if launch.gpus == 4 else 20_000 * (launch.repeat - 1))
        run = left_run(of, launch.key, measured(100.0 * launch.gpus), submitted_s=1e9 + at)
        leave(run, "ranks/0.start.json", StartRecord("2", 0, 1, 0, 1, 0, "h", True, "cpu", time_s=began))
    words = "efficiency: all of its launches ran before or after those of one GPU alone"
    assert [words in in_words(each.doubts) for each in gather.facts(of).points] == [False, True]


def test_an_efficiency_has_the_doubts_of_the_point_of_one_gpu(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1, 2), 2))
    for launch in of.study.launches:
        slower = launch.gpus == 1 and launch.repeat == 2
        run = left_run(of, launch.key, measured(50.0 if slower else 100.0))
        if slower:
            leave(run, "plan.json", msgspec.structs.replace(run.needed_plan(), tasks_per_node=(1,), cpus_per_task=3))
    one, two = ([each.words for each in point.doubts if each.code == "unequal"] for point in gather.facts(of).points)
    assert one == ["rates of its launches differ by 100.0\u202f%", "its launches differ in plan (cpus_per_task)"]
    same = "efficiency: one GPU alone is the same in each launch, and others may be faster or slower: --same-nodes"
    assert two == [f"{same} --arms solo runs each", *(f"efficiency: of one GPU alone: {each}" for each in one)]


def test_in_one_allocation_repeats_are_compared_with_their_own_base() -> None:
    """Each repeat drifts by 10 %; as pairs the drift cancels, apart it is in the interval."""
    widths = {}
    for way in ("one-allocation", "separate"):
        asked = study((1, 2), 3, way=way)
        launches = [
            proven(each, 100.0 * each.gpus * 0.9 ** (each.gpus - 1) * 1.1**each.repeat) for each in asked.launches
        ]
        efficiency = gather.points(asked, launches)[1].efficiency_of_one
        assert efficiency is not None
        assert efficiency.low is not None
        assert efficiency.high is not None
        assert efficiency.value == pytest.approx(0.9)
        widths[way] = efficiency.high - efficiency.low
    assert widths["one-allocation"] < 1e-6
    assert widths["separate"] > 0.1


def test_a_table_of_launches_says_how_many_a_claim_needs() -> None:
    asked = study((1,), 3)
    launches = [proven(each, rate) for each, rate in zip(asked.launches, (99.0, 100.0, 101.0), strict=True)]
    (point,) = gather.points(asked, launches)
    assert point.spread == pytest.approx(0.01, rel=1e-3)
    assert point.launches_needed == {"0.01": 17, "0.02": 6, "0.05": 3}


@pytest.mark.parametrize(("slow", "says"), [(81.0, ""), (79.0, "rates of its launches differ by 27.8\u202f%")])
def test_launches_that_are_far_apart_are_a_doubt(slow: float, says: str) -> None:
    asked = study((1,), 3)
    launches = [proven(each, rate) for each, rate in zip(asked.launches, (99.0, slow, 101.0), strict=True)]
    assert [in_words(each.doubts) for each in gather.points(asked, launches)] == [says]
