"""Studies compared and exported: point by point, by settings, and only what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.cli import run as runner
from runner.errors import Exit
from runner.model.study import Launch
from runner.model.verdict import Verdict
from runner.study.directory import StudyDirectory
from tests.support.documents import result
from tests.support.measured_runs import measured_run
from tests.support.studies import on_disk, study

SETTINGS = ((("fp16", "false"),), (("fp16", "true"),))


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))


def launched(tmp_path: Path, name: str, speeds: dict[str, float], first: int = 0, **changes: Any) -> StudyDirectory:
    """A study on four GPUs whose launches ran in the order of their settings ABBABA, at these speeds."""
    settings = changes.pop("settings", SETTINGS)
    turns = ((1, 0), (1, 1), (2, 1), (2, 0), (3, 1), (3, 0)) if len(settings) == 2 else ((1, 0), (2, 0), (3, 0))
    wanted = [(settings[index], repeat) for repeat, index in turns]
    launches = tuple(
        Launch(f"g0004-full-{'-'.join(value for _, value in setting)}-r{repeat}", 4, "full", repeat, place, (), setting)
        for place, (setting, repeat) in enumerate(wanted)
    )
    of = on_disk(tmp_path, study((4,), 3, settings=settings, launches=launches, **changes), name)
    for launch in launches:
        speed = speeds[dict(launch.settings).get("fp16", "")] * (1.0 + 0.002 * (-1) ** launch.repeat)
        measured_run(of.launches(launch.key), first + 2 * launch.place, speed=speed)
    return of


def compared(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert runner(["compare", *words, "--json"]) == code
    return result(capsys.readouterr().out)


def test_two_settings_of_a_study_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = launched(tmp_path, "train", {"false": 1.0, "true": 1.2})
    (point,) = compared(capsys, "train:fp16=false", f"{of.path.name}:fp16=true")["points"]
    assert (point["order"], point["verdict"]) == ("ABBABA", "faster")
    assert point["change"] == pytest.approx(0.2, abs=0.01)


def test_studies_are_compared_point_by_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, they get no verdict; a launch that is not measured is counted."""
    launched(tmp_path, "before", {"false": 1.0, "true": 1.2})
    second = launched(tmp_path, "after", {"false": 0.5, "true": 0.6}, first=20)
    run = second.runs("g0004-full-true-r2")[0]
    run.write("verdict.json", Verdict("not-proven", ("why",)))
    found = compared(capsys, "before", "after")
    assert [point["settings"] for point in found["points"]] == [["fp16=false"], ["fp16=true"]]
    assert [point["second"]["not_proven"] for point in found["points"]] == [0, 1]
    assert {point["verdict"] for point in found["points"]} == {"no verdict"}
    assert [round(point["change"], 1) for point in found["points"]] == [-0.5, -0.5]


def test_studies_that_ran_in_turns_get_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launched(tmp_path, "old", {"": 1.0}, settings=((),))
    launched(tmp_path, "new", {"": 0.8}, first=1, settings=((),))
    (point,) = compared(capsys, "old", "new", "--fail-below", "0.95", code=Exit.BELOW_REFERENCE)["points"]
    assert (point["order"], point["verdict"]) == ("ABABAB", "slower")


WRONG = {
    "a setting that it has not": ("train:fp61=true", Exit.USAGE, "did you mean 'fp16=true'?"),
    "no setting": ("train:fp16", Exit.USAGE, "is no setting of a study"),
    "a run's": ("RUN:fp16=true", Exit.USAGE, "only a study has settings"),
    "none measured": ("empty", Exit.NOT_PROVEN, "no launch of"),
    "no size in common": ("small", Exit.USAGE, "no measured point in common: A has 4, 4, B has 2, 2 GPUs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_side_is_explained(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = launched(tmp_path, "train", {"false": 1.0, "true": 1.2})
    on_disk(tmp_path, study(), "empty")
    launches = tuple(
        Launch(f"g2-{value}", 2, "full", 1, 0, (), setting) for value, setting in zip("ab", SETTINGS, strict=True)
    )
    small = on_disk(tmp_path, study((2,), 1, settings=SETTINGS, launches=launches), "small")
    for launch in launches:
        measured_run(small.launches(launch.key), 0)
    other, code, says = WRONG[case]
    other = other.replace("RUN", str(of.runs("g0004-full-true-r1")[0].path))
    assert runner(["compare", "train", other]) == code
    assert says in capsys.readouterr().err


def test_a_study_is_exported_as_its_measured_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = launched(tmp_path, "train", {"false": 1.0, "true": 1.2})
    of.runs("g0004-full-true-r2")[0].write("verdict.json", Verdict("failed", ("why",)))
    assert runner(["export", "train", "--format", "reframe"]) == Exit.GOOD
    lines = capsys.readouterr().out.splitlines()
    assert [" outcome=measured " in line for line in lines] == [True] * 5
    assert runner(["export", "train", "--bundle", str(tmp_path / "b.tar"), "--json"]) == Exit.GOOD
    assert len(result(capsys.readouterr().out)["runs"]) == 5
    assert runner(["verify", str(tmp_path / "b.tar")]) == Exit.GOOD
