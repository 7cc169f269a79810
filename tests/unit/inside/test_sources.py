"""Which files of a program are known when it starts."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
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
        ("models/net.py", True),
        ("models/vit.py", True),
        ("src/package/loss.py", True),
        ("common.py", True),
        ("fixed.yaml", True),
        ("usage.py", False),
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
    for each in ("own", "models", "src/package"):
        (tmp_path / each).mkdir(parents=True)
    for each in ("base.yaml", "ds_config.json", "own/__init__.py", name):
        Path(each).write_text("1")
    Path("train.py").write_text(TRAIN)
    Path("own/layers.py").write_text("from . import attention as a\nfrom ..common import seed\n")
    before = of(COMMAND)
    assert before == of(COMMAND)
    Path(name).write_text("2")
    assert (of(COMMAND) != before) is counts


TRAIN = """import os, model
from own.layers import Block
from models import (
    net,  # (the usual one)
)
from models import \\
    vit
from package.loss import total
settings = load(open("fixed.yaml"))
usage = "as in usage.py"
"""


def of(argv: Sequence[str]) -> tuple[object, ...]:
    files = sources.files_of(argv, "run")
    return sources.digest(files), sources.configuration(files, "run")


@pytest.mark.parametrize("words", [("bash", "job.sh"), ("bash", "-c", "cd . && exec python3 'train.py' --steps=3")])
def test_what_a_shell_runs_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text('exec python3 train.py "$@"\n')
    Path("train.py").write_text("1")
    before = of(words)
    Path("train.py").write_text("2")
    assert of(words) != before


def test_what_a_program_wrote_itself_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml", "c.toml", "train.py"):
        Path(name).write_text("1")
    files = sources.files_of(("python3", "train.py", "a.yaml", "--to=b.yaml", "c.toml", "d.yaml"), "run")
    Path("a.yaml").write_text("2")
    os.utime("b.yaml", ns=(1, 1))
    Path("d.yaml").write_text("it was not there")
    one = hashlib.sha256(b"1").hexdigest()[:16]
    kept = {"a.yaml": f"{one} written", "b.yaml": f"{one} written", "c.toml": one}
    assert sources.configuration(files, "run") == kept


def test_a_module_is_its_file_and_data_and_directories_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").mkdir()
    (tmp_path / "data.yaml").write_bytes(bytes(2 << 20))
    words = ("python3", "-m", "own.train", "own.py", "data.yaml", "a\0.py")
    assert of(words) == (None, {})
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train.py").write_text("1")
    assert of(words)[0] is not None


def test_the_records_have_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    ran(command(tmp_path / "run", "--", sys.executable, "main.py"), cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    start, end = (json.loads((tmp_path / f"run/ranks/0.{kind}.json").read_text()) for kind in ("start", "exit"))
    assert len(start["program_sha256"]) == 64
    assert end["configuration"] == {}
