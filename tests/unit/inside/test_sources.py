"""Which files of a program are known when it starts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from gpu_runner_inside.launcher import sources

from tests.support.commands import ran
from tests.support.launchers import command

COMMAND = ("python3", "train.py", "--config=base.yaml", "--deepspeed", "ds_config.json", "--out", "result.json")


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("train.py", True),
        ("base.yaml", True),
        ("ds_config.json", True),
        ("result.json", False),  # what the run before has left
        ("plot.py", False),  # of no use to the program, as far as is known
        ("model.py", True),
        ("own/layers.py", True),
        ("own/attention.py", True),
        ("own/other.py", False),
        ("run/recipe/settings.toml", True),
        ("run/recipe/.cache/x.py", False),
        ("run/recipe/log.txt", False),
    ],
)
def test_what_a_command_names_or_imports_and_its_recipe_has_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, counts: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run/recipe/.cache").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    for each in ("base.yaml", "ds_config.json", "own/__init__.py", name):
        Path(each).write_text("1")
    Path("train.py").write_text("import os, model\nfrom own.layers import Block\n")
    Path("own/layers.py").write_text("from . import attention as a\n")
    before = sources.digest(COMMAND, "run")
    assert before == sources.digest(COMMAND, "run")
    Path(name).write_text("2")
    assert (sources.digest(COMMAND, "run") != before) is counts


def test_a_module_is_its_file_and_data_and_directories_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").mkdir()
    (tmp_path / "data.yaml").write_bytes(bytes(2 << 20))
    words = ("python3", "-m", "own.train", "own.py", "data.yaml", "a\0.py")
    assert sources.digest(words, "run") is None
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train.py").write_text("1")
    assert sources.digest(words, "run") is not None


def test_the_start_record_has_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    ran(command(tmp_path / "run", "--", sys.executable, "main.py"), cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    record = json.loads((tmp_path / "run/ranks/0.start.json").read_text())
    assert len(record["program_sha256"]) == 64
