"""Hints name the program as the user called it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from runner.core.invocation import called

CHECKOUT = Path(__file__).parents[3]
IN_PATH = {"python3": "/usr/bin/python3", "gpu-runner": "/home/me/.venv/bin/gpu-runner"}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python3", "-m", "runner", "status"], "python3 -m runner"),
        (["/usr/bin/python3", "-X", "dev", "-m", "runner"], "python3 -m runner"),
        ([".venv/bin/python", "-m", "runner"], ".venv/bin/python -m runner"),
        (["/opt/my $tools/python3", "-m", "runner"], "'/opt/my $tools/python3' -m runner"),
        (["/usr/bin/python3", "/home/me/.venv/bin/gpu-runner", "submit", "--", "python", "-m", "runner"], "gpu-runner"),
        (["/usr/bin/python3", "/home/mé/it's/gpu-runner"], """'/home/mé/it'"'"'s/gpu-runner'"""),
        (["gpu-runner"], "gpu-runner"),
        (["python3", "-m", "pytest"], "python -m runner"),
        (["python3", "-"], "python -m runner"),
        ([], "python -m runner"),
    ],
)
def test_the_words_of_the_call(words: list[str], name: str) -> None:
    assert called(words, IN_PATH.get) == name


def test_help_and_hints_have_them() -> None:
    """A real call, by a path that PATH does not find."""
    words = [sys.executable, "-m", "runner", "wait"]
    done = subprocess.run(words, cwd=CHECKOUT, env={"PATH": "/usr/bin", "RUNNER_STATE": "/nowhere"},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert f"`{sys.executable} -m runner submit`" in done.stderr


def test_no_message_has_the_words_of_another_call() -> None:
    """``PROGRAM`` is to be used in messages; pages and files that others read may have a name."""
    files_and_pages = {"invocation.py", "reference.py", "quickstart.py", "without_engine.py", "__main__.py"}
    named = [
        f"{path.relative_to(CHECKOUT)}:{node.lineno}"
        for path in sorted((CHECKOUT / "runner").rglob("*.py"))
        if path.name not in files_and_pages
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "python -m runner" in node.value
    ]
    assert named == []
