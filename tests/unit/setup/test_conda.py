"""The conda recipe has the version and the requirements of pyproject.toml."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
NAMES = {"docker-py": "docker"}  # conda-forge's name -> PyPI's


def test_the_recipe_requires_what_the_package_does() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    recipe: Any = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
    _, *requires = (each.split() for each in recipe["requirements"]["run"])  # the first is Python
    listed = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert listed
    assert [NAMES.get(name, name) + span for name, span in requires] == [
        each.lower() for each in re.findall(r'"([^"]+)"', listed[1])
    ]
    assert f'version = "{recipe["context"]["version"]}"\n' in project
    assert f'requires-python = ">={recipe["context"]["python_min"]}"\n' in project
    assert f'requires = ["{recipe["requirements"]["host"][-1].replace(" ", "")}"]\n' in project
