"""Which files of a program are known when it starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from gpu_runner_inside.launcher import sources

from tests.support.commands import ran
from tests.support.launchers import command


@pytest.mark.parametrize(
    ("words", "name", "counts"),
    [
        (("python3", "train.py", "--out", "result.json"), "train.py", True),
        (("python3", "train.py", "--out", "result.json"), "result.json", False),  # what the run before has left
        (("python3", "train.py", "--out", "result.json"), "plot.py", False),
        (("bash", "job.sh"), "train.py", True),
        (("bash", "job.sh"), "part/other.sh", True),
        (("bash", "run"), "run", True),
        (("./run",), "train.py", True),
        (("bash", "-c", "cd . && exec python3 'train.py' --steps=3"), "train.py", True),
        (("python3", "-m", "part.train"), "part/train.py", True),
        (("python3", "-mpart"), "part/__main__.py", True),
        (("x",), "run/recipe/settings.json", True),
        (("x",), "run/recipe/.cache/x.py", False),
        (("x",), "run/recipe/log.txt", False),
        (("x", "--config=large.py"), "large.py", False),
    ],
)
def test_what_a_command_names_and_its_recipe_has_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], name: str, counts: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("part", "work/recipe/.cache"):
        Path(folder).mkdir(parents=True)
    name = name.replace("run/", "work/")
    Path("job.sh").write_text("bash part/other.sh; exec python3 train.py\n")
    Path("run").write_text("#!/usr/bin/env bash\npython3 train.py\n")
    for text in ("1", "2"):
        path = Path(name)
        path.write_text((path.read_text() if path.exists() else "") + text + ("#" * (2 << 20)) * (name == "large.py"))
        if text == "1":
            before = sources.digest(words, "work")
    assert (sources.digest(words, "work") != before) is counts


def test_places_count_and_what_is_none_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").mkdir()
    assert sources.digest(("python3", "-m", "own.train", "own.py", "a\0.py"), "run") is None
    for name, text in (("a/x.py", "1"), ("b/x.py", "2")):
        Path(name).parent.mkdir()
        Path(name).write_text(text)
    before = sources.digest(("a/x.py", "b/x.py"), "run")
    Path("a/x.py").write_text("2")
    Path("b/x.py").write_text("1")
    assert sources.digest(("a/x.py", "b/x.py"), "run") != before


def test_the_records_have_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    ran(command(tmp_path / "run", "--", sys.executable, "main.py"), cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    start, end = (json.loads((tmp_path / f"run/ranks/0.{kind}.json").read_text()) for kind in ("start", "exit"))
    assert len(start["program_sha256"]) == 64
    assert "PATH" in end["program"]["given"]
