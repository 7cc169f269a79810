"""Recipes by name and by folder, and what the shipped ones say of their options."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from runner.core.errors import UsageError
from runner.preparation.program_source import program_options
from runner.recipes.loader import library, names, read_recipe

MINE = "name: mine\ndescription: x\nimage: img\nprogram: [python, a.py]\n"


def test_a_folder_needs_no_slash_unless_a_shipped_recipe_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config/config.yaml"))
    for name in ("mine", "probe", "config/recipes/theirs", "theirs"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "recipe.yaml").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    assert read_recipe("mine").directory == tmp_path / "mine"
    assert read_recipe("theirs").directory == tmp_path / "config/recipes/theirs"
    assert read_recipe("probe").recipe.name == "probe"
    assert read_recipe("./probe").recipe.name == "mine"


def test_choices_of_an_option_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(MINE + "options: {lr: 1}\nchoices: {lrr: [1, 2]}\n")
    with pytest.raises(UsageError, match="did you mean 'lr'"):
        read_recipe(str(tmp_path))


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ("mod: {x: {lr: [1]}}", "no option 'mod'.*did you mean 'mode'"),
        ("mode: {x: {lrr: [1]}}", "no option 'lrr'.*did you mean 'lr'"),
        ("mode: {z: {lr: [1]}}", "'z' is no choice of the option 'mode'.*one of: x, y"),
        ("lr: {'2': {mode: [z]}}", "'z' is no choice of the option 'mode'.*one of: x, y"),
        ("fast: {'yes': {mode: [x]}}", "'yes' is no choice of the option 'fast'.*one of: false, true"),
        ("mode: {x: {fast: ['on']}}", "'on' is no choice of the option 'fast'.*one of: false, true"),
        ("mode: {x: {lr: []}}", "mode=x leaves 'lr' no value"),
        ("mode: {x: {mode: [y]}}", "mode=x limits itself"),
    ],
)
def test_limits_that_never_or_always_hold_are_refused(tmp_path: Path, limits: str, says: str) -> None:
    options = "options: {lr: 1, mode: x, fast: false}\nchoices: {mode: [x, y]}\n"
    (tmp_path / "recipe.yaml").write_text(f"{MINE}{options}limits:\n  {limits}\n")
    with pytest.raises(UsageError, match=f"(?s){says}"):
        read_recipe(str(tmp_path))


@pytest.mark.parametrize("name", names())
def test_the_choices_of_a_shipped_recipe_are_those_of_its_program(name: str) -> None:
    loaded = read_recipe(name)
    assert loaded.directory is not None
    files = [*sorted(loaded.directory.glob("*.py")), library() / "modules/gpu_runner_inside/benchmark/options.py"]
    if "options_of" not in (loaded.directory / "main.py").read_text():
        files.pop()
    in_program = {
        option.name: option.choices
        for file in files
        for option in program_options(file.read_text())
        if option.choices and option.name in loaded.recipe.options
    }
    of_models = loaded.directory / "models.py"
    if "model" in loaded.recipe.choices:
        in_program["model"] = keys(of_models, "MODELS")
    if "mode" in loaded.recipe.choices:
        in_program["mode"] = keys(loaded.directory / "main.py", "WAYS")
    stated = {key: set(value) for key, value in loaded.recipe.choices.items()}
    assert {key: set(value) for key, value in in_program.items()} == stated, (
        f"`choices` in {name}/recipe.yaml must be those of the program's add_argument calls"
    )


def keys(file: Path, table: str) -> tuple[str | int, ...]:
    """The keys of a dictionary that a file assigns to this name."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id == table:
                return tuple(ast.literal_eval(key) for key in node.value.keys if key is not None)
    raise AssertionError(f"{file} has no {table}")
