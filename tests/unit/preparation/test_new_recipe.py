"""A recipe folder for a program of the user's, and how recipes are shown."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.cli import run
from runner.core.errors import Exit, RefusedError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.strict_yaml import parse
from runner.jobs.creation import create
from runner.model.request import Recipe
from runner.preparation.new_recipe import MOST_BYTES, NewRecipe, draft, new_recipe, write_recipe
from runner.preparation.program_source import ProgramOption, program_options
from runner.recipes.loader import names, read_recipe
from tests.support.commands import Call
from tests.support.documents import result
from tests.support.own_state import own_state

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
    own_state(tmp_path / ".ours", monkeypatch)
    return tmp_path


def test_the_folder_has_the_programs_files_and_reads_back(project: Path) -> None:
    script = str(project / "train.py")
    words = ("python", "-u", script, "--lr", "0.2", "settings.yaml", "data", "weights.bin", "it's $HOME")
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


def test_submit_takes_the_folder_and_refuses_a_wrong_choice(
    project: Path, call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    call("recipe", "new", "mine", "--", "python", "train.py", "--lr", "0.1")
    job = ["submit", "--site", "local", "--runtime", "native", "--gpus", "2", "--recipe", "mine", "--dry-run"]
    run([*job, "--set", "lr=0.5", "--set", "amp=true"])
    assert "python train.py --lr 0.1 --lr 0.5 --amp" in capfd.readouterr().out
    assert "one of: a, b" in call(*job, "--set", "arch=c", code=Exit.USAGE).err


@pytest.mark.parametrize(
    ("line", "framework", "processes"),
    [("python tf.py", "tensorflow", "per-gpu"), ("python train.py", "pytorch", "per-gpu"),
     ("torchrun train.py", "pytorch", "own"), ("accelerate launch train.py", "pytorch", "own"),
     ("bash go.sh train.py", "pytorch", "own")],
)  # fmt: skip
def test_image_and_processes_are_those_of_the_program(project: Path, line: str, framework: str, processes: str) -> None:
    (project / "go.sh").write_text('torchrun "$@"')
    (project / "tf.py").write_text("import os\nimport tensorflow as tf\n")
    recipe = new_recipe("mine", line.split(), project).recipe
    assert (recipe.image, recipe.processes) == (f"gpu-runner/horovod-{framework}", processes)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("horovodrun -np 4 python train.py --lr 1", r"(?s)recipe new DIR -- python train\.py --lr 1"),
        ("srun -n 4 python train.py", r"leave srun out.*recipe new DIR -- python train\.py"),
        ("python ../train.py", "outside of this directory"),
        ("python3 -u trian.py --lr 1", r"no file trian\.py in this directory"),
        ("torchrun --nproc-per-node 2 trian.py --lr 1", r"no file trian\.py in this directory"),
        ("python train.py \udcff", "not Unicode"),
        ("python train.py a\0b", "not Unicode"),
    ],
)
def test_a_program_that_no_recipe_can_hold_is_refused(project: Path, words: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        new_recipe("mine", tuple(words.split(" ")), project / "data" if ".." in words else project)


@pytest.mark.parametrize("words", ["python /opt/in/the/image/train.py", "python -m package.train none.py"])
def test_a_script_that_may_be_elsewhere_is_not_copied(project: Path, words: str) -> None:
    assert new_recipe("mine", words.split(), project).files == ()


@pytest.mark.parametrize("write", [
    lambda new, folder: write_recipe(new, folder, folder.parent),
    lambda _, folder: create(folder.parent, "r-1", 0.0, folder),
])  # fmt: skip
def test_nothing_is_written_where_another_users_folder_stood(
    write: Callable[[NewRecipe, Path], object], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has theirs there while it is made, takes it away while it is looked at, and brings it back."""
    new, folder, made = new_recipe("mine", ("python", "train.py"), project), project / "mine", Path.mkdir

    def taken_away(self: Path, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        if self == folder:
            folder.rmdir()

    monkeypatch.setattr(Path, "mkdir", taken_away)
    with pytest.raises((RefusedError, UsageError), match="not there any more: another user could exchange"):
        write(new, folder)


def test_a_link_that_takes_a_files_place_is_not_copied(project: Path, tmp_path: Path) -> None:
    """In a stranger's directory it could lead to a private file, whose copy others may read."""
    new, private = new_recipe("mine", ("python", "train.py"), project), tmp_path / "private"
    private.write_text("private\n")
    (project / "train.py").unlink()
    (project / "train.py").symlink_to(private)
    with pytest.raises(OSError, match="symbolic link"):
        write_recipe(new, tmp_path / "mine", project)
    assert not (tmp_path / "mine/train.py").exists()


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


def test_a_file_of_the_programs_name_is_not_the_program(project: Path) -> None:
    (project / "python3").touch()  # of another user's, perhaps: PATH has the program
    assert Path("python3") not in new_recipe("mine", ("python3", "train.py"), project).files


def test_beside_the_program_nothing_is_copied(project: Path) -> None:
    assert write_recipe(new_recipe("mine", ("python", "train.py"), project), project, project) == ()
    assert read_recipe(".").recipe.program == ("python", "train.py")


def test_a_recipe_is_shown_with_options_choices_image_and_commands(call: Call) -> None:
    listed = call("recipe", "list").out
    assert all(name in listed for name in names())
    shown = call("recipe", "show", "horovod-pytorch").out
    assert "image: gpu-runner/horovod-pytorch" in shown
    assert "precision       amp-bf16   one of: amp-bf16, amp-fp16, fp32, tf32" in shown
    assert "--gpus 16 --site technion --recipe horovod-pytorch\n" in shown
    assert "--recipe horovod-pytorch   # needs your account\n" in shown
    assert (
        "    with mode=graph goes only arms=full, compile=false\n" in call("recipe", "show", "horovod-tensorflow").out
    )


@pytest.mark.parametrize("recipe", names())
def test_the_command_that_is_shown_for_a_site_is_taken(project: Path, recipe: str, call: Call) -> None:
    lines = call("recipe", "show", recipe).out.splitlines()
    commands = [line.partition("#")[0] for line in lines if f"{PROGRAM} submit" in line]
    assert len(commands) >= 8
    for command in commands:
        words = shlex.split(command.removeprefix(f"    {PROGRAM} "))
        assert run([*words, "--dry-run"]) in (Exit.GOOD, Exit.REFUSED), command


def test_the_facts_are_there_as_json(project: Path, call: Call) -> None:
    assert "horovod-pytorch" in {each["name"] for each in result(call("recipe", "list", "--json").out)}
    assert "technion" in {each["site"] for each in result(call("recipe", "show", "probe", "--json").out)["sites"]}
    new = call("recipe", "new", "mine", "--json", "--", "python", "train.py").out
    assert "nets/small.py" in result(new)["copied"]


# As Linux passes arguments, but for bytes that are no UTF-8.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


def read_back(recipe: Recipe, *options: ProgramOption) -> Recipe:
    return parse(draft(recipe, options).encode(), Recipe, "recipe.yaml")


@settings(max_examples=40, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4), WORDS, st.lists(WORDS, max_size=3, unique=True))
def test_any_program_is_read_back(program: list[str], description: str, choices: list[str]) -> None:
    option = ProgramOption("mode", choices=tuple(choices))
    recipe = Recipe(
        name="mine", description=description, image="img", program=tuple(program), options={"mode": None},
        choices={"mode": option.choices} if choices else {}, env={"PYTHONNOUSERSITE": "1"},
    )  # fmt: skip
    assert read_back(recipe, option) == recipe


@pytest.mark.parametrize(
    "word", ["1e5", "0o17", "yes", "null", ".inf", "-", "---", "#", "a: b", "*a", "!x", "~", "é\u2028"]
)
def test_words_that_yaml_takes_for_something_else_stay_words(word: str) -> None:
    recipe = Recipe(name="mine", description="x", image="img", program=(word,), env={"PYTHONNOUSERSITE": "1"})
    assert read_back(recipe) == recipe


SOURCE = """
import argparse
PRECISIONS = ("fp32", "bf16")
TABLE = {"adam": 1, "sgd": 2}
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("-b", "--batch-size", type=int, default=32)
parser.add_argument("--precision", choices=PRECISIONS)
parser.add_argument("--optimizer", choices=TABLE, default="sgd")
parser.add_argument("--model", choices=sorted(models()))
parser.add_argument("--amp", action="store_true")
parser.add_argument("--amp", action="store_true")
"""


def test_long_names_defaults_flags_and_choices_are_read() -> None:
    assert program_options(SOURCE) == (
        ProgramOption("batch-size", default=32),
        ProgramOption("precision", choices=("fp32", "bf16")),
        ProgramOption("optimizer", default="sgd", choices=("adam", "sgd")),
        ProgramOption("model"),
        ProgramOption("amp", is_flag=True),
    )


def test_what_is_no_python_has_no_options() -> None:
    assert program_options("def f(:\n") == ()
    assert program_options("\0") == ()
    assert program_options("(" * 5000) == ()
