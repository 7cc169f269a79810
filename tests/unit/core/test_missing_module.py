"""A Python that cannot run gpu-runner: one sentence, the fix, exit 2, and no traceback."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from runner.core.invocation import missing_module

CHECKOUT = Path(__file__).parents[3]


def called(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=CHECKOUT, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True,
                          check=False)  # fmt: skip


@pytest.mark.parametrize("words", [("status",), ("--help",), ("submit", "--gpus", "2", "--json")])
def test_without_any_package_the_fix_is_named(words: tuple[str, ...]) -> None:
    done = called(sys.executable, "-S", "-m", "runner", *words)
    assert (done.returncode, done.stdout) == (2, "")
    first, fix = done.stderr.splitlines()
    assert first == f"error: {sys.executable} has no module click, which gpu-runner needs"
    assert fix.endswith(f"{CHECKOUT}/.venv/bin/activate")


def test_without_one_package_it_is_named(tmp_path: Path) -> None:
    """Click alone is here; what the command itself imports is not."""
    (tmp_path / "click").symlink_to(Path(click.__file__).parent)
    done = called(sys.executable, "-S", "-m", "runner", "site", "list", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "has no module " in done.stderr
    assert "Traceback" not in done.stderr


def test_the_fix_is_what_can_be_typed(tmp_path: Path) -> None:
    checkout = tmp_path / "my $code"
    checkout.mkdir()
    assert "install gpu-runner's release file again with pip" in missing_module("yaml", checkout)
    (checkout / "Makefile").touch()
    assert missing_module("yaml", checkout).endswith(f"make -C '{checkout}' venv && . '{checkout}/.venv/bin/activate'")
    (checkout / ".venv").mkdir()
    (checkout / ".venv/.ready").touch()
    assert missing_module("yaml", checkout).endswith(f"fix:   . '{checkout}/.venv/bin/activate'")


def test_what_an_old_python_reads_first_is_in_its_own_language() -> None:
    """Down to Python 2.7, the oldest that a cluster may still call ``python``."""
    vermin = shutil.which("vermin", path=f"{Path(sys.executable).parent}:/usr/bin")
    assert vermin is not None, "it is in the lock"
    words = (vermin, "--no-tips", "--violations", "-t=2.7-", "-t=3.6-", "--eval-annotations")
    done = called(*words, "runner/__init__.py", "runner/__main__.py")
    assert done.returncode == 0, done.stdout
