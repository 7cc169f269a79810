"""``scale`` before anything is submitted, and studies on disk as ``status``, ``cancel`` and completion show them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.cli.study import facts_lines
from runner.core.errors import Exit
from runner.model.job import CommandLine
from runner.model.study import Estimate, Loss, LossRow, SingleGpus, StudyFacts
from runner.model.verdict import Verdict
from runner.statistics.launches import needed
from runner.study import gather
from runner.study.directory import find
from tests.support.commands import Call
from tests.support.documents import result
from tests.support.studies import left_run, measured, on_disk, study
from tests.support.timed import RECIPE

SCALE = ("scale", "--site", "local", "--recipe", str(RECIPE), "--runtime", "native", "--yes")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)


def test_a_dry_run_plans_every_launch_and_touches_nothing(tmp_path: Path, call: Call) -> None:
    words = (*SCALE, "--gpus", "1,2", "--set", "batch-size=4,8", "--repeats", "2", "--dry-run")
    out, err = call(*words)
    assert out.startswith("8 launches; expected")
    assert out.endswith("\ng0001-full-batch-size=4-r2\n")
    assert "dry run: nothing was submitted" in err
    planned = result(call(*words, "--json").out)
    assert [each["key"] for each in planned["launches"]] == out.splitlines()[-8:]
    cost, together = planned["costs"]
    assert (cost["way"], cost["jobs"]) == ("separate", 8)
    # 30 s of start, 5 s of a demonstration's warm-up and the 2 s that the recipe measures; 12 GPUs in all.
    assert cost["wall_s"] == pytest.approx(8 * 37.0)
    assert cost["gpu_hours"] == pytest.approx(12 * 37.0 / 3600)
    assert (planned["way"], together["way"], together["jobs"]) == ("separate", "one-allocation", 1)
    assert together["gpu_hours"] > cost["gpu_hours"]
    assert sorted(path.name for path in tmp_path.iterdir()) == []


def test_a_program_with_processes_of_its_own_is_on_each_gpu_by_itself(call: Call) -> None:
    """It has one rank a node, and a size of eight GPUs is larger than one of four with as many ranks."""
    words = ("scale", "--site", "technion", "--recipe", "ddp-pytorch", "--arms", "full,solo", "--repeats", "1")
    for gpus, nodes in (("4,8,16", (0, 1)), ("4,8", (0,))):
        more = ("--same-nodes", "--wireup", "own", "--dry-run", "--json", "--gpus", gpus)
        planned = result(call(*words, *more, code=Exit.REFUSED).out)
        places = [(each["node"], each["device"]) for each in planned["launches"] if each["arm"] == "solo"]
        assert sorted(places) == [(node, device) for node in nodes for device in range(8)]


REFUSED: dict[str, tuple[tuple[str, ...], Exit, str]] = {
    "no sizes": ((), Exit.USAGE, "no sizes are given"),
    "bad sizes": (("--gpus", "1-4"), Exit.USAGE, "no list of sizes"),
    "arms as an option": (("--gpus", "1", "--set", "arms=full"), Exit.USAGE, "arms are no option"),
    "a batch that does not divide": (
        ("--gpus", "1,2,3", "--strong", "--set", "batch-size=8"), Exit.USAGE, "cannot be shared by 3 GPUs equally",
    ),
    "more than the budget": (("--gpus", "1,2", "--budget", "0.001"), Exit.REFUSED, "the budget is 0.001"),
    "the same, planned": (("--gpus", "1,2", "--budget", "0.001", "--dry-run"), Exit.REFUSED, "the budget is 0.001"),
    "single GPUs of separate jobs": (
        ("--gpus", "1,2", "--arms", "full,solo", "--solo-gpus", "1", "--dry-run"), Exit.USAGE,
        "of separate jobs one GPU is alone, once a repeat, whichever it is\n  where: --solo-gpus\n"
        "  fix:   add --same-nodes, or leave it out",
    ),
    "a check": (("--gpus", "1", "--mount", "/no/such:/no/such"), Exit.REFUSED, "mount-source-missing"),
    "a recipe that measures nothing": (("--gpus", "1", "--recipe", "probe"), Exit.USAGE, "measures nothing"),
    "an arm that the recipe does not have": (
        ("--gpus", "1,2", "--recipe", "fsdp-pytorch", "--arms", "uncoupled,full"), Exit.USAGE,
        "the recipe fsdp-pytorch has no arm uncoupled\n  where: --arms",
    ),
    "arms of which the recipe has some": (
        ("--gpus", "1,2", "--recipe", "ddp-pytorch", "--arms", "uncoupled,coordination,full"), Exit.USAGE,
        "cannot alternate between uncoupled, coordination, full\n  where: --arms\n  fix:   --arms uncoupled,full\n",
    ),
    "an arm that the way of training does not have": (
        ("--gpus", "1,2", "--recipe", "horovod-tensorflow", "--set", "mode=fit", "--arms", "uncoupled,full"),
        Exit.USAGE, "arms=uncoupled,full does not go with mode=fit",
    ),
    "a study with options": (("--resume", "none"), Exit.USAGE, "the study has its options already"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_begun_is_refused_before_anything_is_made(case: str, tmp_path: Path, call: Call) -> None:
    words, code, says = REFUSED[case]
    assert says in call(*SCALE, *words, code=code).err
    assert list(tmp_path.glob("runs/*")) == []


def test_launches_that_are_under_way_count_against_the_budget(tmp_path: Path, call: Call) -> None:
    """A launch of one GPU is expected to take 0.01 GPU-hours, one of two twice as many."""
    line = CommandLine((*SCALE, "--gpus", "1,2", "--repeats", "1"), str(tmp_path))
    of = on_disk(tmp_path / "runs", study((1, 2), 1, command=line, site="local"))
    words = ("scale", "--resume", of.path.name, "--dry-run", "--budget")
    call(*words, "0.035")
    under_way = left_run(of, "g0001-full-r1")
    under_way.write("provenance.json", {"host": "another"})
    (under_way.path / "plan.json").unlink()
    call(*words, "0.035")
    refused = call(*words, "0.025", code=Exit.REFUSED).err
    assert "0.02 GPU-hours after 0.01 that were used or are under way" in refused


def test_a_study_is_within_the_budget_of_its_user_by_its_time_limits(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_BUDGET", "2.9")
    words = (*SCALE, "--gpus", "1,2", "--repeats", "1", "--time", "1:00:00", "--dry-run")
    assert "it may take 3.00 GPU-hours" in call(*words, code=Exit.REFUSED).err
    call(*words, "--force", "over-budget")


@pytest.fixture
def finished(tmp_path: Path) -> str:
    """A study with a launch that is not proven; its id."""
    of = on_disk(tmp_path / "runs", study((1, 16), 2))
    for key, rate in (("g0001-full-r1", 331.5), ("g0001-full-r2", 333.0), ("g0016-full-r1", 4800.0)):
        left_run(of, key, measured(rate))
    left_run(of, "g0016-full-r2", Verdict("failed", ("rank 3 exited with 1",)))
    return of.path.name


def table_text(facts: StudyFacts, wide: int | None = None) -> str:
    """The table in one line, once every line of it fits; a command to be copied is not broken within its words."""
    lines = facts_lines(facts, wide)
    assert all(len(line) <= (wide or 999) or facts.study in line for line in lines), lines
    return " ".join(" ".join(lines).split())


ROWS = (
    LossRow("waiting for slower ranks", Estimate(0.071, 0.06, 0.08)),
    LossRow("exposed communication", Estimate(0.026, 0.02, 0.03), 1.02, "includes power"),
)
LOSSES = (Loss(16, (), Estimate(0.903), ROWS), Loss(8, (), why="no launch of uncoupled ranks is proven"))


@pytest.mark.parametrize("wide", [None, 120, 80, 60, 40])
def test_the_table_fits(finished: str, wide: int | None) -> None:
    known = gather.facts(find(finished))
    label = "CPU, this machine: demonstration, no performance claim"
    spread = msgspec.structs.replace(known.points[0], spread=0.4, launches_needed=needed(0.4))
    for changes, parts in (
        ({}, ["incomplete, 3 of 4 launches proven", "rank 3 exited with 1", "4800 ", "90.3 %", "no A/B verdict"]),
        ({"losses": LOSSES}, [
            "where the loss goes", "waiting for slower ranks", "7.1 % (6.0 % to 8.0 %)",
            "includes power",  # below the row where there is no room beside it
            "8 GPUs: no attribution of the loss: no launch of uncoupled ranks is proven",
        ]),
        ({"demonstration": label}, ["performance claim]"]),
        ({"points": (spread,), "gaps": ("g1: its run is gone",)}, [
            "standard deviation between launches: up to 40.0 %", "1 %: over 10000, 2 %: 6406, 5 %: 1057",
            "gap: g1: its run is gone; figures without it may be chosen ones",
        ]),
    ):  # fmt: skip
        text = table_text(msgspec.structs.replace(known, **changes), wide)
        assert [part for part in parts if part not in text] == []
    tokens = tuple(msgspec.structs.replace(each, unit="tokens") for each in known.launches)
    counted = table_text(msgspec.structs.replace(known, launches=tokens), wide).lower()
    assert "tokens/s" in counted and "images/s" not in counted


@pytest.mark.parametrize(
    ("gpus", "way", "one", "says"),
    [
        ((1,), "separate", measured(100.0), ""),
        ((1, 2), "separate", measured(100.0), ""),
        ((2,), "separate", None, "no efficiency: one GPU alone is not measured (--gpus 1,... or --arms solo)"),
        ((1, 2), "separate", Verdict("failed"), "no efficiency: no launch of one GPU is proven"),
        ((1, 2), "one-allocation", measured(100.0), "one GPU alone is the first of them, and others may be"),
    ],
)
def test_what_the_efficiency_is_of_is_noted_where_it_may_mislead(
    tmp_path: Path, gpus: tuple[int, ...], way: str, one: Verdict | None, says: str
) -> None:
    of = on_disk(tmp_path, study(gpus, 1, way=way))
    for launch in of.study.launches:
        if verdict := one if launch.gpus == 1 else measured(180.0):
            left_run(of, launch.key, verdict)
    text = table_text(gather.facts(of))
    assert says in text
    assert sum(note in text for note in ("no efficiency: ", "one GPU alone is the first")) == bool(says)


def test_verbs_take_a_study(finished: str, call: Call) -> None:
    def printed(*words: str, code: Exit = Exit.GOOD) -> Any:
        return result(call(*words, "--json", code=code).out)

    assert printed("status", "train")["state"] == "incomplete"
    assert printed("wait", finished[:18], code=Exit.NOT_PROVEN)["points"][1]["proven"] == 1
    assert printed("cancel", finished) == {
        "study": finished, "directory": str(Path("runs", finished).resolve()), "jobs": [],
    }  # fmt: skip
    assert [each["proven"] for each in printed("status")["studies"]] == [3]
    assert printed("status")["runs"] == []
    assert len(printed("status", "--all")["runs"]) == 4
    run_id = printed("status", "--name", "train")["runs"][0]["run"]
    assert printed("status", run_id)["run"] == run_id
    assert "launch g0016-full-r2, run " in call("logs", finished, code=Exit.USAGE).err


@pytest.mark.parametrize("demonstration", ["", "CPU: demonstration"])
def test_single_gpus_are_a_line_and_a_demonstration_names_none_as_slow(finished: str, demonstration: str) -> None:
    missing = tuple(f"GPU {number} of node 1" for number in range(10))
    alone = SingleGpus("solo", (("batch", "8"),), 6, 16, 2, 0.019, "GPU 3 of node 0", 0.041, missing)
    known = msgspec.structs.replace(gather.facts(find(finished)), single_gpus=(alone,), demonstration=demonstration)
    once = msgspec.structs.replace(known, single_gpus=(msgspec.structs.replace(alone, launches=1),))
    twice_text, once_text = (table_text(each, 80) for each in (known, once))
    assert "solo, batch=8: 6 of 16 GPUs, each alone, standard deviation between them 1.9 %" in twice_text
    assert ("slowest GPU 3 of node 0: 4.1 % below the mean" in twice_text) is (not demonstration)
    assert "not proven: GPU 0 of node 1," in twice_text
    assert "slowest GPU" not in once_text and "GPU 7 of node 1 and 2 more" in once_text
    assert ("one launch of each names none as slow" in once_text) is (not demonstration)
