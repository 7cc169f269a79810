"""Whether a user's program uses Horovod is read from its files."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from runner.cli import run
from runner.core.errors import Exit
from runner.core.process import Completed
from runner.environments.directory import RECORD
from runner.model.image import Environment, Horovod, ImageFacts, Setup
from runner.model.request import Mount, Recipe
from runner.preparation.observation import horovod_use, srun_plugin_problem
from runner.recipes.loader import read_recipe, recipe_of
from runner.sites.loader import read_site


def use(directory: Path, *program: str, mounts: tuple[Mount, ...] = ()) -> str:
    return horovod_use(recipe_of(program), directory, program, mounts)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import os\nimport horovod.torch as hvd\n", 2),
        ("import os, horovod\n", 1),
        ("def main():\n    from horovod import torch as hvd\n", 2),
        ("try:\n    from horovod.torch import init\nexcept ImportError:\n    pass\n", 2),
        ("print 'Python 2'\nimport horovod.torch as hvd\n", 2),
        ("# import horovod\nname = 'import horovod'\n", 0),
        ("import horovodlike\nfrom . import horovod\n", 0),
        ("import torch.distributed\nname = '\\d'\n", 0),
        ("\0\n", 0),
        ("", 0),
    ],
)
def test_an_import_of_the_program_is_seen(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "train.py").write_text(text)
    wanted = f"train.py, line {line}," if line else ""
    assert use(tmp_path, "python3", "-u", "train.py", "--epochs", "3") == wanted
    assert use(tmp_path, "python3", str(tmp_path / "train.py")) == wanted
    assert use(tmp_path, "python3", "/workspace/train.py") == wanted


def test_modules_of_its_own_are_followed(tmp_path: Path) -> None:
    (tmp_path / "pkg/parts").mkdir(parents=True)
    (tmp_path / "pkg/__init__.py").write_text("")
    (tmp_path / "pkg/__main__.py").write_text("from .loop import run\n")
    (tmp_path / "pkg/loop.py").write_text("from pkg.parts import world\n")
    (tmp_path / "pkg/parts/world.py").write_text("import pkg.loop\nimport horovod.torch\n")
    (tmp_path / "train.py").write_text("import pkg.loop\n")
    (tmp_path / "plain.py").write_text("import pkg\nimport plain\n")
    assert use(tmp_path, "python", "train.py") == "world.py, line 2,"
    assert use(tmp_path, "python", "-m", "pkg") == "world.py, line 2,"
    assert use(tmp_path, "python", "-m", "pkg.loop") == "world.py, line 2,"
    assert use(tmp_path, "python", "plain.py") == ""


def test_a_mounted_program_is_read_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "code/train.py").write_text("import horovod.torch\n")
    mounts = (Mount(str(tmp_path / "code"), "/code"),)
    assert use(tmp_path / "work", "python", "/code/train.py", mounts=mounts) == "train.py, line 1,"
    assert use(tmp_path / "work", "python", "/code/train.py") == ""


def test_a_program_that_a_script_starts_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\nset -e\nexec python3 -u 'train.py' --lr 0.1\n")
    (tmp_path / "again.sh").write_text("./again.sh\npython -m pkg\n")
    (tmp_path / "train.py").write_text("import horovod.torch\n")
    assert use(tmp_path, "bash", "run.sh") == "train.py, line 1,"
    assert use(tmp_path, "horovodrun", "-np", "2", "python", "train.py") == "train.py, line 1,"
    assert use(tmp_path, "bash", "again.sh") == ""
    (tmp_path / "pkg.py").write_text("from horovod import torch\n")
    assert use(tmp_path, "bash", "again.sh") == "pkg.py, line 1,"


def test_what_cannot_be_read_is_not_known_to_use_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "directory.py").mkdir()
    (tmp_path / "deep.py").write_text("(" * 5000)
    for name in ("pipe.py", "directory.py", "deep.py", "missing.py", "x" * 300 + ".py"):
        assert use(tmp_path, "python", name) == ""
    assert use(tmp_path / "gone", "true") == ""


def test_a_recipe_says_it_itself(tmp_path: Path) -> None:
    assert horovod_use(read_recipe("horovod-tensorflow").recipe, None, (), ()) == "the recipe horovod-tensorflow"
    needs = Recipe(name="r", description="", image="i", program=("p",), framework="none", needs=("horovod",))
    assert horovod_use(needs, None, (), ()) == "the recipe r"
    probe = read_recipe("probe")
    assert horovod_use(probe.recipe, probe.directory, probe.recipe.program, ()) == ""
    (tmp_path / "main.py").write_text("import horovod.torch\n")
    silent = Recipe(name="r", description="", image="i", program=("python3", "main.py"), framework="none")
    assert horovod_use(silent, tmp_path, silent.program, ()) == "main.py, line 1,"


def environment(root: Path, horovod: Horovod) -> None:
    about = ImageFacts(framework="pytorch", cuda="13.0", cuda_archs=("sm_80",), horovod=horovod)
    made = Environment(root.name, "virtualenv", "pytorch", str(root / "made"), "1", Setup(), about)
    (root / "made/bin").mkdir(parents=True)
    (root / "made/bin/python3").symlink_to("/usr/bin/env")
    (root / RECORD).write_bytes(msgspec.json.encode(made))


def test_submit_refuses_a_program_that_reduces_without_nccl_and_can_be_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the command itself, at a site with GPUs, in an environment as `env create --nccl none` records it."""
    environment(tmp_path / "gloo", Horovod("0.28.1", controllers=("Gloo",), operations=("Gloo",)))
    site = tmp_path / "ours.yaml"
    site.write_text("name: ours\ndescription: ''\nextends: technion\nruntimes: [native]\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\nimport horovod.torch as hvd\n")
    (tmp_path / "ddp.py").write_text("import torch.distributed\n")
    words = ["submit", "--site", str(site), "--gpus", "2", "--env-name", f"{tmp_path}/gloo", "--dry-run"]
    assert run([*words, "--", "python", "train.py"]) == Exit.REFUSED
    said = capfd.readouterr().err
    assert "refused [horovod-without-nccl]: Horovod in the environment gloo has no NCCL (operations: Gloo)" in said
    assert "train.py, line 2, uses it" in said
    assert run([*words, "--force", "horovod-without-nccl", "--", "python", "train.py"]) == Exit.GOOD
    assert "forced [horovod-without-nccl]" in capfd.readouterr().err
    assert run([*words, "--", "python", "ddp.py"]) == Exit.GOOD
    assert "warning [horovod-without-nccl]" in capfd.readouterr().err


def test_what_a_record_says_reaches_no_terminal_raw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    environment(tmp_path / "odd", Horovod("0.28.1", operations=("Gloo\x1b[2J\nall is well",)))
    site = tmp_path / "ours.yaml"
    site.write_text("name: ours\ndescription: ''\nextends: technion\nruntimes: [native]\n")
    monkeypatch.chdir(tmp_path)
    words = ["submit", "--site", str(site), "--gpus", "2", "--env-name", f"{tmp_path}/odd", "--dry-run"]
    assert run([*words, "--recipe", "horovod-pytorch"]) == Exit.REFUSED
    said = capfd.readouterr().err
    assert "(operations: Gloo\\x1b[2J\\nall is well)" in said


PLAIN = "Usage: srun [OPTIONS(0)...]\n\nParallel run options:\n  -A, --account=name          charge job\n"
PYXIS = PLAIN + "\nOptions provided by plugins:\n      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n"
BROKEN = """\
srun: error: plugin_load_from_file: dlopen(/nowhere/x.so): /nowhere/x.so: cannot open shared object file
srun: error: spank: /nowhere/x.so: Dlopen of plugin file failed
srun: error: spank: /etc/slurm/plugstack.conf:1: Failed to load plugin /nowhere/x.so. Aborting.
srun: error: Plug-in initialization failed
"""


def answered(out: str, err: str = "", code: int = 0) -> Completed:
    return Completed(("srun", "--help"), code, out, err)


def problem(answer: Completed, runtime: str = "pyxis", site: str = "technion", *installed: str) -> tuple[str, str]:
    return srun_plugin_problem(read_site(site), runtime, answer, installed)


def test_a_plugin_that_is_loaded_is_no_problem() -> None:
    assert problem(answered(PYXIS)) == ("", "")
    assert problem(answered(PLAIN + "      --image=type:image\n"), "shifter") == ("", "")


def test_a_plugin_that_is_not_loaded_is_named_with_what_else_there_is_here_then_at_the_site() -> None:
    what, fix = problem(answered(PLAIN))
    assert what == "srun has no --container-image: the plugin of Pyxis is not loaded on this cluster"
    assert fix.startswith("ask the administrator for spank_pyxis.so")
    assert problem(answered(PLAIN), "pyxis", "box", "apptainer")[1].startswith(
        "--runtime with another (found here: apptainer; of the site: charliecloud, native), or ask"
    )


def test_a_broken_configuration_is_reported_with_its_line() -> None:
    what, fix = problem(answered("", BROKEN, 1))
    assert "plugin configuration (plugstack.conf) is broken: spank: /nowhere/x.so: Dlopen of plugin file failed" in what
    assert "administrator" in fix
