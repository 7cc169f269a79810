"""What differs between two runs is named by its area and key; what does not is left out."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from runner.jobs.comparison import Difference, code_differences, plan_differences, recipe_difference, run_differences
from runner.jobs.directory import Run
from runner.model.job import CodeRecord, CommandLine
from runner.model.plan import PlannedImage
from runner.model.request import Mount
from runner.model.verdict import Verdict
from tests.support.plans import PLAN

changed = msgspec.structs.replace


def test_equal_plans_differ_in_nothing() -> None:
    assert plan_differences(PLAN, PLAN) == ()


def test_decisions_images_and_variables() -> None:
    second = changed(
        PLAN,
        tasks_per_node=(4,),
        mounts=(Mount("/a", "/b", True),),
        program=("p", "--password", "planted"),
        scheduler_settings={"export": "nil"},
        image=PlannedImage("i@sha256:00", "sha256:00", "/other.sqsh"),
        env=(("HF_TOKEN", "planted"), ("LR", "1")),
        unset=("X",),
    )
    first = changed(PLAN, env=(("HF_TOKEN", "also planted"),))
    assert plan_differences(first, second) == (
        Difference("plan", "tasks_per_node", "2, 2", "4"),
        Difference("plan", "mounts", "none", "/a:/b:ro"),
        Difference("plan", "program", "p", "p --password '***'"),
        Difference("plan", "slurm.export", "none", "nil"),
        Difference("image", "file", "/i.sqsh", "/other.sqsh"),
        Difference("image", "digest", "none", "sha256:00"),
        Difference("environment", "HF_TOKEN", "***", "*** (another value)"),
        Difference("environment", "LR", "none", "1"),
        Difference("environment", "X", "none", "taken away"),
    )


def test_secret_parts_of_ordinary_variables_are_not_shown() -> None:
    first = changed(PLAN, env=(("PROXY", "http://me:planted@proxy"), ("KEY", f"hf_{'planted0' * 4}")))
    second = changed(PLAN, env=(("PROXY", "http://me:also-planted@proxy"),))
    assert plan_differences(first, second) == (
        Difference("environment", "PROXY", "http://***@proxy", "http://***@proxy (another value)"),
        Difference("environment", "KEY", "***", "none"),
    )


def run_of(path: Path, commit: str, diff: str, outcome: str = "ran") -> Run:
    path.mkdir()
    run = Run(path)
    run.write("plan.json", PLAN)
    run.write("command.json", CommandLine(("submit", "--gpus", "4"), "/d"))
    run.write("code.json", CodeRecord("/r", commit, "main", True, ("a.py",), diff_kept=True))
    run.write("provenance.json", {"runner": "1", "python": "3"})
    run.write("verdict.json", Verdict(outcome="ran" if outcome == "ran" else "failed", reasons=("why",)))
    for name, content in (("code.diff", diff), ("job.sh", "x")):
        (path / name).write_text(content)
    return run


def test_runs_differ_in_code_and_verdict(tmp_path: Path) -> None:
    one, same = run_of(tmp_path / "1", "c1", "d1\n"), run_of(tmp_path / "2", "c1", "d1\n")
    assert run_differences(one, same) == ()
    assert code_differences(one, CodeRecord("/r", "c1", "main", True, ("a.py",)), "d1\n") == ()
    other = run_of(tmp_path / "3", "c1", "d2\nd3\n", "failed")
    (other.path / "job.sh").write_text("y")
    found = {(each.area, each.key): (each.first, each.second) for each in run_differences(one, other)}
    assert found.pop(("code", "content of the changes"))[0].startswith("1 lines, sha256 ")
    assert found == {
        ("script", "job.sh"): (str(one.path / "job.sh"), str(other.path / "job.sh")),
        ("verdict", "outcome"): ("ran", "failed"),
    }
    (other.path / "code.json").unlink()
    keys = {each.key for each in run_differences(one, other) if each.second == "not recorded"}
    assert keys == {"repository", "commit", "branch", "uncommitted changes"}


def test_a_recipe_that_has_changed_since_is_a_difference(tmp_path: Path) -> None:
    run, recipe = run_of(tmp_path / "1", "c1", ""), tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "main.py").write_text("train()\n")
    assert recipe_difference(run, recipe) == (), "a program without a recipe"
    shutil.copytree(recipe, run.path / "recipe")
    (recipe / "notes.txt").write_text("left by the program itself")
    assert recipe_difference(run, recipe) == recipe_difference(run, None) == ()
    (recipe / "main.py").write_text("train()  # otherwise\n")
    (found,) = recipe_difference(run, recipe)
    assert (found.area, found.key) == ("code", "program")
