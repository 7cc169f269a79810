"""How this program was called, and a Python that cannot run it: one sentence, the fix, and no traceback."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from runner.core import paths
from runner.core.invocation import called, missing_module

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
        (["python3", "-m", "pytest"], "gpu-runner"),
        (["python3", "-"], "gpu-runner"),
        ([], "gpu-runner"),
    ],
)
def test_the_words_of_the_call(words: list[str], name: str) -> None:
    assert called(words, IN_PATH.get) == name


def run_bare(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=CHECKOUT, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True,
                          check=False)  # fmt: skip


def test_the_command_of_a_checkouts_environment_is_this_package() -> None:
    """An editable installation that copies the facade away from its package leaves a command that cannot start."""
    done = run_bare(str(Path(sys.executable).with_name("gpu-runner")), "--version")
    assert (done.returncode, done.stderr) == (0, "")


def test_packages_of_another_python_are_not_imported_instead_of_ours(tmp_path: Path) -> None:
    """As a site's modules name them in PYTHONPATH; packages that ours do not have come from there still."""
    for name in ("click", "msgspec", "yaml", "shlex"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of another Python')\n")
    command = str(Path(sys.executable).with_name("gpu-runner"))
    done = run_bare(command, "recipe", "show", "probe", PYTHONPATH=f"/nowhere:{tmp_path}", HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_imported_from_the_working_directory(tmp_path: Path) -> None:
    """Another user's, maybe: neither instead of a package, nor in the place of one that is not installed."""
    for name in ("click", "msgspec", "shlex"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('from the working directory')\n")
    command, module = (str(Path(sys.executable).with_name("gpu-runner")),), (sys.executable, "-m", "runner")
    for words in (command, module):
        for path in ("", ":", ".", "/nowhere:../" + tmp_path.name):
            env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "HOME": str(tmp_path / "home")}
            done = subprocess.run((*words, "recipe", "show", "probe"), cwd=tmp_path, env=env, capture_output=True,
                                  text=True, check=False)  # fmt: skip
            assert (done.returncode, done.stderr) == (0, ""), (words, path)
    (tmp_path / "click.py").unlink()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/click").symlink_to(Path(click.__file__).parent)
    env = {"PYTHONPATH": f"{tmp_path}/lib:{CHECKOUT}"}
    bare = (sys.executable, "-S", "-m", "runner", "site", "list")
    done = subprocess.run(bare, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "has no module " in done.stderr


def test_help_and_hints_have_them() -> None:
    """A real call, by a path that PATH does not find."""
    done = run_bare(sys.executable, "-m", "runner", "wait", RUNNER_STATE="/nowhere")
    assert f"`{sys.executable} -m runner submit`" in done.stderr


def test_no_message_has_the_words_of_another_call() -> None:
    """``PROGRAM`` is to be used in messages."""
    named = [
        f"{path.relative_to(CHECKOUT)}:{node.lineno}"
        for path in sorted((CHECKOUT / "runner").rglob("*.py"))
        if path.name != "__main__.py" and "python -m runner" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "python -m runner" in node.value
    ]
    assert named == []


def test_pages_call_it_by_its_name_and_readme_explains_the_other() -> None:
    pages = (CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md"))
    assert [page.name for page in pages for _ in range(page.read_text().count("python -m runner"))] == ["README.md"]


def test_without_any_package_the_fix_is_named() -> None:
    done = run_bare(sys.executable, "-S", "-m", "runner", "submit", "--gpus", "2", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    first, fix = done.stderr.splitlines()
    assert first == f"error: {sys.executable} has no module click, which gpu-runner needs"
    assert fix.endswith(f"{CHECKOUT}/.venv/bin/activate")


def test_without_one_package_it_is_named(tmp_path: Path) -> None:
    """Click alone is here; what the command itself imports is not."""
    (tmp_path / "click").symlink_to(Path(click.__file__).parent)
    done = run_bare(sys.executable, "-S", "-m", "runner", "site", "list", PYTHONPATH=str(tmp_path))
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
    done = run_bare(*words, "runner/__init__.py", "runner/__main__.py")
    assert done.returncode == 0, done.stdout


def test_a_repository_above_the_checkout_is_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours/containers").mkdir(parents=True)
    (tmp_path / "ours/pyproject.toml").touch()
    (tmp_path / ".git").mkdir()  # another user's, perhaps, whose settings name programs
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "ours/runner")
    assert paths.source_root() and paths.repository_root() is None
    (tmp_path / "ours/.git").mkdir()
    assert paths.repository_root() == tmp_path / "ours"
