"""What can be read, and what is refused: with a reason, soon, and without a traceback."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from runner.cli import run
from runner.core.errors import Exit, UsageError
from runner.linting import names
from runner.linting.check import check
from runner.linting.source import MOST_BYTES, MOST_TEXT

HEAD = "import torch\nimport horovod.torch as hvd\nhvd.init()\n"
REFUSED: dict[str, tuple[str, bytes, str, str]] = {
    "a shell script": ("run.sh", b"python train.py\n", "shell script", ""),
    "a shell script by its first line": ("run", b"#!/usr/bin/env bash\necho\n", "shell script", ""),
    "a binary": ("train.py", b"\x7fELF\x00\x01", "binary", ""),
    "another encoding": ("train.py", b"x = 1\n# \xe9\n", "not UTF-8: byte 0xe9", ":2"),
    "an error of syntax": ("train.py", b"x = 1\ndef f(:\n", "not valid Python", ":2"),
    "Python 2": ("train.py", b"print 'x'\n", "not valid Python", ":1"),
    "too large": ("train.py", b"x=1\n" * (MOST_BYTES // 4 + 1), "larger than 2 MB", ""),
    "too much Python": ("train.py", b"x=1\n" * (MOST_TEXT // 4 + 1), "more than 200 kB", ""),
    "deep parentheses": ("train.py", b"(" * 5000 + b")" * 5000, "nested", ""),
    "a deep chain": ("train.py", b"x = a" + b".b" * 50_000, "nested too deeply", ""),
    "a long sum": ("train.py", b"x = " + b"+".join([b"1"] * 30_000), "nested too deeply", ""),
    "no notebook": ("train.ipynb", b"{", "not a notebook", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file, content, reason, line = REFUSED[name]
    path = tmp_path / file
    path.write_bytes(content)
    assert run(["recipe", "check", str(path)]) == Exit.USAGE
    reported = capfd.readouterr().err
    assert reason in reported
    assert f"{path}{line}" in reported
    assert "Traceback" not in reported


@pytest.mark.parametrize(
    ("place", "reason"), [("none.py", "no such file"), (".", "a directory"), ("/dev/zero", "no file")]
)
def test_what_is_no_file_is_refused(place: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        check(Path(place))


HOSTILE = {
    "calls": "\n".join(f"def f{i}():\n    f{i + 1}(); f{i + 1}(); f{i + 1}()" for i in range(30)) + "\nf0()\n",
    "chain": "\n".join(f"def f{i}(x): return f{i + 1}(x)" for i in range(1000)) + "\nf0(1)\n",
    "conditions": "if " + " and ".join("(a or (b and hvd.rank() == 0))" for _ in range(1000)) + ":\n    pass\n",
    "recursion": "def f(x):\n    return f(f(f(x)))\nf(1)\n",
    "tuples": "a = []\n" + "a = (a, a, a, a)\n" * 2000,
    "classes": "class A(A): pass\nclass B(A):\n    def __init__(self): B()\nB()()\n",
    "a long line": f"x = [{'1, ' * 30_000}]\n",
    "many statements": "x = 1\n" * 15_000,
    "a decorator of the standard library": (
        "from abc import abstractmethod\nclass A:\n    @abstractmethod\n    def f(self): pass\n"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_script_is_read_in_bounded_time(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(HEAD + HOSTILE[name] + "loss.backward()\n")
    began_s = time.process_time()
    assert len(check(tmp_path / "train.py").steps) == 8
    assert time.process_time() - began_s < 15, "seconds of a processor; up to 2 on one that is not shared"


def test_nothing_is_claimed_of_a_script_that_is_too_large_to_be_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_MOST_STEPS", 2_000)  # reached sooner, and by a tenth of it
    (tmp_path / "train.py").write_text(
        HEAD + "a = []\n" + "a = (a, a, a, a)\n" * 200 + "torch.save(a, 'x')\nloss.backward()\n"
    )
    assert {row.state for row in check(tmp_path / "train.py").steps} == {"cannot tell"}


def test_names_that_come_from_each_other_in_loops_are_followed_to_the_end() -> None:
    rows = check(Path(__file__).parents[2] / "recipes/mesh/main.py").steps
    assert {row.reason for row in rows} == {"no training that can be seen in this file"}


def test_a_module_that_imports_itself_or_its_importer_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + "import train\nfrom other import *\nloss.backward()\n")
    (tmp_path / "other.py").write_text("from train import *\nimport other\n")
    assert len(check(tmp_path / "train.py").steps) == 8


def test_a_notebook_is_read_by_its_cells(tmp_path: Path) -> None:
    codes = [
        ["%matplotlib inline\n", "import torch\n", "import horovod.torch as hvd\n", "!ls\n"],
        ["hvd.init()\n", "torch.cuda.set_device(0)\n", "loss.backward()"],
    ]
    cells = [{"cell_type": "markdown", "source": ["# text"]}, *({"cell_type": "code", "source": x} for x in codes)]
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": cells}))
    rows = {row.step: row for row in check(tmp_path / "train.ipynb").steps}
    assert rows[1].place == "cell 3:1"
    assert (rows[2].state, rows[2].place) == ("wrong", "cell 3:2")


def test_the_table_names_line_reason_and_fix(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(HEAD + "torch.cuda.set_device(0)\nloss.backward()\n")
    assert run(["recipe", "check", str(tmp_path / "train.py")]) == Exit.REFUSED
    table = capfd.readouterr().out
    assert "2 GPU of the local rank  wrong        4     every rank of a node takes the same GPU" in table
    assert "fix, step 2: torch.cuda.set_device(hvd.local_rank())" in table
    assert run(["recipe", "check", str(tmp_path / "train.py"), "--json"]) == Exit.REFUSED
    document = json.loads(capfd.readouterr().out)
    assert document["error"]["code"] == "step-wrong"
    assert [step["state"] for step in document["result"]["steps"]].count("ok") >= 1


def test_nothing_of_the_script_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for name in ("train.py", "helper.py"):
        (tmp_path / name).write_text(f"import helper\nopen({str(trap)!r}, 'w')\nraise SystemExit(9)\n")
    check(tmp_path / "train.py")
    assert not trap.exists()


def test_a_package_inside_a_package_imports_from_the_one_above(tmp_path: Path) -> None:
    inner = tmp_path / "project" / "engine"
    inner.mkdir(parents=True)
    (tmp_path / "train.py").write_text(HEAD + "from project.engine import go\ngo()\n")
    (tmp_path / "project" / "__init__.py").write_text("")
    (tmp_path / "project" / "gpu.py").write_text(
        "import torch\nimport horovod.torch as hvd\ndef choose():\n    torch.cuda.set_device(hvd.local_rank())\n"
    )
    (inner / "__init__.py").write_text("from ..gpu import choose\ndef go():\n    choose()\n    loss.backward()\n")
    states = {row.step: row.state for row in check(tmp_path / "train.py").steps}
    assert states[2] == "ok"
