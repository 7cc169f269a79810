"""Which files of a program are known when it starts."""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from gpu_runner_inside.launcher import sources

from tests.support.commands import ran
from tests.support.launchers import command

OWN = re.compile("17")


@pytest.mark.parametrize(
    ("words", "name", "counts"),
    [
        (("python3", "train.py", "--out", "result.json"), "train.py", True),
        (("python3", "train.py", "--out", "result.json"), "result.json", False),  # what the run before has left
        (("python3", "train.py", "--out", "result.json"), "plot.py", False),
        (("bash", "job.sh"), "train.py", True),
        (("bash", "job.sh"), "part/other.sh", True),
        (("bash", "run"), "run", True),
        (("bash", "-e", "run"), "run", True),
        (("./run",), "train.py", True),
        (("nice", "./run"), "train.py", True),
        (("nice", "./data"), "data", False),
        (("./run",), "part/params", True),
        (("./run",), "part/notes", False),
        (("bash", "job.sh"), "part/args", True),
        (("bash", "part/other.sh"), "part/env", True),
        (("make", "-s", "train"), "Makefile", True),
        (("nice", "make"), "part/settings", True),
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
    Path("job.sh").write_text("bash part/other.sh; exec python3 train.py $(cat part/args)\n")
    Path("part/other.sh").write_text('source "$(dirname "$0")/env"\n')
    Path("run").write_text('#!/usr/bin/env bash\n. "$PWD/part/params"; cat part/notes\npython3 train.py\n')
    Path("Makefile").write_text("include part/settings\ntrain:\n\t./run\n")
    Path("run").chmod(0o755)
    for text in ("1", "2"):
        path = Path(name)
        path.write_text((path.read_text() if path.exists() else "") + text + ("#" * (2 << 20)) * (name == "large.py"))
        if text == "1":
            before = sources.files(words, "work", OWN)
    changes = sources.changes(before, sources.files(words, "work", OWN))
    assert [changed for changed, (_, written) in changes.items() if written] == [name.replace("work/", "")] * counts


def test_places_count_and_what_is_none_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").mkdir()
    assert sources.files(("python3", "-m", "own.train", "own.py", "a\0.py"), "run", OWN) == {}
    Path("of-17").mkdir()
    Path("of-17/x.py").write_text("1")
    before = sources.files(("of-17/x.py", "y.py"), "run", OWN)
    Path("y.py").write_text("2")
    ended = sources.files(("of-17/x.py", "y.py"), "run", OWN)
    assert sources.changes(before, ended) == {"of-#/x.py": [before["of-#/x.py"][0], False], "y.py": ["", True]}


def test_a_pipe_that_comes_in_a_files_place_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "x.py").write_text("1")
    stat = os.stat

    def stat_and_exchange(path: str) -> os.stat_result:
        state = stat(path)
        if path == str(file):
            file.unlink()
            os.mkfifo(file)
        return state

    monkeypatch.setattr(os, "stat", stat_and_exchange)
    assert sources.files(("python3", str(file)), "run", OWN) == {}


def test_the_records_have_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("open('made.py', 'w')")
    ran(
        command(tmp_path / "run", "--", sys.executable, "main.py", "made.py"),
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
    )
    program = json.loads((tmp_path / "run/ranks/0.exit.json").read_text())["program"]
    ((digest, is_written),) = (each for name, each in program["sources"].items() if name == "main.py")
    assert (len(digest), is_written, program["sources"]["made.py"]) == (16, False, ["", True])
    assert "PATH" in program["given"]
