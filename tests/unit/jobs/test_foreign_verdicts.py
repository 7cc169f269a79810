"""A verdict that claims success counts only where this user's gpu-runner wrote it there: else the records decide."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from runner.cli import run as runner
from runner.core.errors import Exit
from runner.jobs.directory import Run
from runner.jobs.life import judge_at_once
from runner.model.figure import Doubt, Figure
from tests.support.measured_runs import measured_run

LIE = "its verdict.json says 99999.0 images/s, which is not what its records give, and does not count"


def anew(figure: Figure) -> Figure:
    """The same, of a run whose files are not as they were left."""
    doubt = Doubt("judged-anew", "judged anew: its files do not fit its seal here")
    return msgspec.structs.replace(figure, doubts=(doubt, *figure.doubts))


def edited(run: Run, **values: object) -> None:
    changed(run.path / "verdict.json", **values)


@pytest.mark.parametrize("seal", [{}, {"seal": ""}, {"seal": "0" * 64}, {"seal": None}])
def test_a_rate_that_was_edited_is_that_of_the_records(
    tmp_path: Path, seal: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    run = measured_run(tmp_path, 0)
    true = run.figure
    edited(run, images_per_s=99999.0, proven=["99 999 ranks proven"], **seal)
    assert true is not None and run.figure == anew(true)
    assert run.verdict is not None and run.verdict.remarks[0] == LIE
    for words in (
        ["export", str(run.path), "--format", "csv"],
        ["report", str(run.path), "-o", str(tmp_path / "report")],
    ):
        assert runner(words) == Exit.GOOD
        shown = "".join(capsys.readouterr())
        assert "99 999" not in shown and "99999" not in shown.replace(LIE, "")
    assert "99999" not in (tmp_path / "report" / "report.json").read_text().replace(LIE, "")


def without_records(run: Run) -> None:
    shutil.rmtree(run.path / "ranks")
    edited(run, images_per_s=99999.0)


def without_plan(run: Run) -> None:
    (run.path / "plan.json").unlink()
    edited(run, images_per_s=99999.0)


def of_absurd_records(run: Run) -> None:
    for path in run.ranks.glob("*.report.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"ends_s": [1e308, -1e308, 0.0]}))
    edited(run, images_per_s=99999.0)


def of_older_records(run: Run) -> None:
    path = run.ranks / "1.exit.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": "1"}))
    edited(run, images_per_s=99999.0)


@pytest.mark.parametrize("change", [without_records, without_plan, of_absurd_records, of_older_records])
def test_a_verdict_that_nothing_supports_proves_nothing(tmp_path: Path, change: Callable[[Run], None]) -> None:
    run = measured_run(tmp_path, 0)
    change(run)
    assert run.figure is None
    assert run.verdict is not None and run.verdict.reasons[0] == LIE


def test_a_verdict_of_another_run_or_another_user_is_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another user, whose seal others cannot check, it is good where the records say the same: without a doubt."""
    run, faster = measured_run(tmp_path, 0), measured_run(tmp_path, 1, speed=2.0)
    true, remarks = run.figure, run.verdict.remarks if run.verdict else ()
    shutil.copy(faster.path / "verdict.json", run.path)
    assert true is not None and run.figure == anew(true)
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "another user's"))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert faster.figure is not None and faster.figure.value > 1.5 * (true.value if true else 0.0)
    assert not (tmp_path / "another user's").exists(), "to read makes no key"
    run = measured_run(tmp_path / "own", 0)
    assert run.figure == true and run.verdict is not None and run.verdict.remarks == remarks
    key = tmp_path / "another user's" / "verdict.key"
    assert key.stat().st_mode & 0o777 == 0o600


def changed(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_verdict_counts_with_the_plan_and_the_records_that_it_was_made_of(tmp_path: Path) -> None:
    run = measured_run(tmp_path, 0)
    (run.ranks / ".nfs0001").touch()
    assert run.figure is not None and not run.figure.has("judged-anew"), "what is no record of a rank"
    changed(run.ranks / "0.start.json", time_s=1.0)
    run = Run(run.path)
    assert run.figure is not None and run.figure.has("judged-anew")
    assert run.listed_verdict is not None and not run.listed_verdict.anew, "a list does not look at ranks' records"
    changed(run.path / "plan.json", job_name="another")
    again = Run(run.path)
    assert again.figure is None and again.listed_verdict is not None
    assert again.listed_verdict.outcome == "not-proven"


def test_a_changed_run_that_is_judged_again_says_so_for_ever(tmp_path: Path) -> None:
    """Whatever became of its verdict: what it was made of when it was first judged is in the user's state."""
    run = measured_run(tmp_path, 0)
    for _ in range(2):
        changed(run.ranks / "0.start.json", time_s=1.0)
        (run.path / "verdict.json").unlink()
        again = judge_at_once(run)
        assert again is not None and again.anew
        assert run.figure is not None and run.figure.has("judged-anew")


@pytest.mark.parametrize(("ran_in", "anew"), [("/home/u/runs/20260921-120000-train-4", True), ("/results", False)])
def test_a_renamed_run_is_no_other_one(tmp_path: Path, ran_in: str, anew: bool) -> None:
    """By the name that its first rank saw: in a container that is another one in all runs."""
    run = measured_run(tmp_path, 0)
    changed(run.ranks / "0.start.json", environment={"RUNNER_RUN_DIR": ran_in})
    (run.path / "verdict.json").unlink()
    renamed = Run(run.path.rename(tmp_path / "20260921-130000-train-4"))
    verdict = judge_at_once(renamed)
    assert verdict is not None and verdict.anew == anew


def test_a_run_that_was_renamed_with_its_verdict_is_judged_anew(tmp_path: Path) -> None:
    run = measured_run(tmp_path, 0)
    assert run.verdict is not None and not run.verdict.anew
    renamed = Run(run.path.rename(tmp_path / "20260921-130000-train-4"))
    assert renamed.verdict is not None and renamed.verdict.anew
    assert renamed.figure is not None and renamed.figure.has("judged-anew")


def test_what_an_editor_leaves_beside_a_recipe_changes_nothing(tmp_path: Path) -> None:
    run = measured_run(tmp_path, 0)
    recipe = run.path / "recipe"
    (recipe / ".ipynb_checkpoints").mkdir(parents=True)
    (recipe / ".ipynb_checkpoints" / "main.py").touch()
    (recipe / ".#main.py").symlink_to("u@h.1")
    assert run.verdict is not None and not run.verdict.anew
    (recipe / "recipe.yaml").write_text("name: other")
    assert run.verdict is not None and run.verdict.anew


def test_a_name_that_is_no_id_may_be_taken_again(tmp_path: Path) -> None:
    """That of a directory of ``submit --write``."""
    for place in range(2):
        run = Run(measured_run(tmp_path, place).path.rename(tmp_path / "job"))
        (run.path / "verdict.json").unlink()
        verdict = judge_at_once(run)
        assert verdict is not None and not verdict.anew
        shutil.rmtree(run.path)
