"""Whether a user's program uses Horovod is read from its files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from runner.core.errors import Exit
from runner.core.process import Completed
from runner.environments.directory import RECORD
from runner.model.image import Environment, Horovod, ImageFacts, Setup
from runner.model.request import Mount, Recipe
from runner.preparation.observation import horovod_use, srun_plugin_problem
from runner.recipes.loader import read_recipe, recipe_of
from runner.sites.loader import read_site
from tests.support.commands import Call
from tests.support.shell_files import stand_in


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


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> Callable[..., str]:
    """What submit says of an environment with this operation, at a site with GPUs, as `env create` records it."""
    monkeypatch.chdir(tmp_path)
    site = tmp_path / "ours.yaml"
    site.write_text("name: ours\ndescription: ''\nextends: technion\nruntimes: [native]\n")

    def submitted(operation: str, *words: str, code: int = Exit.REFUSED) -> str:
        root = tmp_path / "made"
        horovod = Horovod("0.28.1", controllers=("Gloo",), operations=(operation,))
        about = ImageFacts(framework="pytorch", cuda="13.0", cuda_archs=("sm_80",), horovod=horovod)
        (root / "bin").mkdir(parents=True, exist_ok=True)
        stand_in(root / "bin", "python3", "echo 3.11")  # as one that lacks nothing
        made = Environment("made", "virtualenv", "pytorch", str(root), "1", Setup(), about)
        (root / RECORD).write_bytes(msgspec.json.encode(made))
        job = ("submit", "--site", str(site), "--gpus", "2", "--env-name", str(root), "--dry-run")
        return call(*job, *words, code=code).err

    return submitted


def test_submit_refuses_a_program_that_reduces_without_nccl_and_can_be_forced(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "train.py").write_text("import torch\nimport horovod.torch as hvd\n")
    (tmp_path / "ddp.py").write_text("import torch.distributed\n")
    code, program = "horovod-without-nccl", ("--", "python", "train.py")
    said = refused("Gloo", *program)
    assert f"refused [{code}]: Horovod in the environment made has no NCCL (operations: Gloo)" in said
    assert "train.py, line 2, uses it" in said
    assert f"forced [{code}]" in refused("Gloo", "--force", code, *program, code=Exit.GOOD)
    assert f"warning [{code}]" in refused("Gloo", "--", "python", "ddp.py", code=Exit.GOOD)
    odd = refused("Gloo\x1b[2J\nall is well", "--recipe", "horovod-pytorch")
    assert "(operations: Gloo\\x1b[2J\\nall is well)" in odd, "no record reaches a terminal raw"


PLAIN = "Usage: srun [OPTIONS(0)...]\n\nParallel run options:\n  -A, --account=name          charge job\n"
PYXIS = PLAIN + "\nOptions provided by plugins:\n      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n"
BROKEN = """\
srun: error: plugin_load_from_file: dlopen(/nowhere/x.so): /nowhere/x.so: cannot open shared object file
srun: error: spank: /nowhere/x.so: Dlopen of plugin file failed
srun: error: spank: /etc/slurm/plugstack.conf:1: Failed to load plugin /nowhere/x.so. Aborting.
srun: error: Plug-in initialization failed
"""


LACKS = "srun has no --container-image: the plugin of Pyxis is not loaded on this cluster"
HERE = "--runtime with another (found here: apptainer; of the site: charliecloud, native), or ask"
CONFIGURATION = "plugin configuration (plugstack.conf) is broken: spank: /nowhere/x.so: Dlopen of plugin file failed"


@pytest.mark.parametrize(
    ("out", "err", "runtime", "site", "installed", "says", "instead"),
    [
        (PYXIS, "", "pyxis", "technion", (), "", ""),
        (PLAIN + "      --image=type:image\n", "", "shifter", "technion", (), "", ""),
        (PLAIN, "", "pyxis", "technion", (), LACKS, "ask the administrator for spank_pyxis.so"),
        (PLAIN, "", "pyxis", "box", ("apptainer",), LACKS, HERE),
        ("", BROKEN, "pyxis", "technion", (), CONFIGURATION, "administrator"),
        ("", "srun: fatal: Could not establish a configuration source", "pyxis", "technion", (), "", ""),
    ],
)
def test_a_plugin_that_is_not_loaded_is_named_with_what_else_there_is(
    out: str, err: str, runtime: str, site: str, installed: tuple[str, ...], says: str, instead: str
) -> None:
    answer = Completed(("srun", "--help"), 1 if err else 0, out, err)
    what, fix = srun_plugin_problem(read_site(site), runtime, answer, installed)
    assert bool(what) == bool(says)
    assert says in what
    assert instead in fix
