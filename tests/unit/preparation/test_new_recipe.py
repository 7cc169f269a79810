"""A recipe folder for a program of the user's, and how recipes are shown."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from runner.cli import run
from runner.core.errors import Exit, RefusedError, UsageError
from runner.core.invocation import PROGRAM
from runner.preparation.new_recipe import MOST_BYTES, new_recipe, write_recipe
from runner.recipes.loader import names, read_recipe
from tests.support.documents import result

TRAIN = """
import argparse
import horovod.torch as hvd
from nets import small
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--arch", choices=["a", "b"])
parser.add_argument("--amp", action="store_true")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "nets" / "__init__.py").write_text("")
    (tmp_path / "nets" / "small.py").write_text("x = 1\n")
    (tmp_path / "unused.py").write_text("x = 1\n")
    (tmp_path / "settings.yaml").write_text("a: 1\n")
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    monkeypatch.chdir(tmp_path)
    for name in ("CACHE", "STATE"):
        monkeypatch.setenv(f"RUNNER_{name}", str(tmp_path / ".ours" / name))
    monkeypatch.delenv("RUNNER_SITE", raising=False)
    return tmp_path


def test_the_folder_has_the_programs_files_and_reads_back(project: Path) -> None:
    words = (
        "python",
        "-u",
        str(project / "train.py"),
        "--lr",
        "0.2",
        "settings.yaml",
        "data",
        "weights.bin",
        "it's $HOME",
    )
    new = new_recipe("mine", words, project)
    copied = write_recipe(new, project / "mine", project)
    assert sorted(map(str, copied)) == ["nets/__init__.py", "nets/small.py", "settings.yaml", "train.py"]
    assert {path for path, _ in new.left_out} == {"data", "weights.bin"}
    loaded = read_recipe("./mine")
    assert loaded.recipe == new.recipe
    assert loaded.recipe.program[2] == "train.py"
    assert loaded.recipe.framework == "horovod"
    assert loaded.recipe.options == {"lr": None, "arch": None, "amp": False}
    assert loaded.recipe.choices == {"arch": ("a", "b")}


def test_submit_takes_the_folder_and_refuses_a_wrong_choice(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "new", "mine", "--", "python", "train.py", "--lr", "0.1"]) == Exit.GOOD
    job = ["submit", "--site", "local", "--runtime", "native", "--gpus", "2", "--recipe", "mine", "--dry-run"]
    capfd.readouterr()
    run([*job, "--set", "lr=0.5", "--set", "amp=true"])
    assert "python train.py --lr 0.1 --lr 0.5 --amp" in capfd.readouterr().out
    assert run([*job, "--set", "arch=c"]) == Exit.USAGE
    assert "one of: a, b" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "image"),
    [
        (("python", "tf.py"), "gpu-runner/horovod-tensorflow"),
        (("python", "train.py"), "gpu-runner/horovod-pytorch"),
    ],
)
def test_the_image_is_that_of_the_programs_framework(project: Path, words: tuple[str, ...], image: str) -> None:
    (project / "tf.py").write_text("import os\nimport tensorflow as tf\n")
    assert new_recipe("mine", words, project).recipe.image == image


def test_a_program_that_starts_its_own_processes_is_started_once_a_node(project: Path) -> None:
    assert new_recipe("mine", ("torchrun", "train.py"), project).recipe.processes == "own"
    assert new_recipe("mine", ("python", "train.py"), project).recipe.processes == "per-gpu"


def test_a_starter_of_ranks_is_refused_with_the_command_without_it(project: Path) -> None:
    with pytest.raises(UsageError) as caught:
        new_recipe("mine", ("horovodrun", "-np", "4", "python", "train.py", "--lr", "1"), project)
    assert "recipe new DIR -- python train.py --lr 1" in str(caught.value)
    with pytest.raises(UsageError, match=r"leave accelerate out.*recipe new DIR -- python train\.py"):
        new_recipe("mine", ("accelerate", "launch", "train.py"), project)


def test_a_program_of_another_directory_is_refused(project: Path) -> None:
    with pytest.raises(UsageError, match="outside of this directory"):
        new_recipe("mine", ("python", "../train.py"), project / "data")


@pytest.mark.parametrize("start", [("python3", "-u"), ("torchrun", "--nproc-per-node", "2")])
def test_a_script_that_is_not_there_is_refused(project: Path, start: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"no file trian\.py in this directory"):
        new_recipe("mine", (*start, "trian.py", "--lr", "1"), project)
    assert new_recipe("mine", ("python", "/opt/in/the/image/train.py"), project).files == ()
    assert new_recipe("mine", ("python", "-m", "package.train", "none.py"), project).files == ()


@pytest.mark.parametrize("word", ["\udcff", "a\0b"])
def test_an_argument_that_no_file_can_hold_is_refused(project: Path, word: str) -> None:
    with pytest.raises(UsageError, match="not Unicode"):
        new_recipe("mine", ("python", "train.py", word), project)


def test_nothing_is_overwritten(project: Path) -> None:
    new = new_recipe("mine", ("python", "train.py"), project)
    (project / "mine").mkdir()
    (project / "mine" / "train.py").write_text("mine\n")
    with pytest.raises(RefusedError, match="another file of this name"):
        write_recipe(new, project / "mine", project)
    assert sorted(path.name for path in (project / "mine").iterdir()) == ["train.py"]
    (project / "recipe.yaml").symlink_to("nowhere")
    with pytest.raises(RefusedError, match="there is a recipe already"):
        write_recipe(new, project, project)


def test_beside_the_program_nothing_is_copied(project: Path) -> None:
    assert write_recipe(new_recipe("mine", ("python", "train.py"), project), project, project) == ()
    assert read_recipe(".").recipe.program == ("python", "train.py")


def test_a_recipe_is_shown_with_options_choices_image_and_commands(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "list"]) == Exit.GOOD
    listed = capfd.readouterr().out
    assert all(name in listed for name in names())
    assert run(["recipe", "show", "horovod-pytorch"]) == Exit.GOOD
    shown = capfd.readouterr().out
    assert "image: gpu-runner/horovod-pytorch" in shown
    assert "precision       amp-bf16   one of: amp-bf16, amp-fp16, fp32, tf32" in shown
    assert "--gpus 16 --site technion --recipe horovod-pytorch\n" in shown
    assert "--recipe horovod-pytorch   # needs your account\n" in shown
    assert run(["recipe", "show", "horovod-tensorflow"]) == Exit.GOOD
    assert "    with mode=graph goes only arms=full, compile=false\n" in capfd.readouterr().out


@pytest.mark.parametrize("recipe", names())
def test_the_command_that_is_shown_for_a_site_is_taken(
    project: Path, recipe: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["recipe", "show", recipe]) == Exit.GOOD
    commands = [line.partition("#")[0] for line in capfd.readouterr().out.splitlines() if f"{PROGRAM} submit" in line]
    assert len(commands) >= 8
    for command in commands:
        words = shlex.split(command.removeprefix(f"    {PROGRAM} "))
        assert run([*words, "--dry-run"]) in (Exit.GOOD, Exit.REFUSED), command


def test_the_facts_are_there_as_json(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "list", "--json"]) == Exit.GOOD
    assert "horovod-pytorch" in {each["name"] for each in result(capfd.readouterr().out)}
    assert run(["recipe", "show", "probe", "--json"]) == Exit.GOOD
    assert "technion" in {each["site"] for each in result(capfd.readouterr().out)["sites"]}
    assert run(["recipe", "new", "mine", "--json", "--", "python", "train.py"]) == Exit.GOOD
    assert "nets/small.py" in result(capfd.readouterr().out)["copied"]
