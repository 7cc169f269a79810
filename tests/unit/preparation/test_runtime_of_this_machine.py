"""What is made of a machine's own facts: the shape of its site, the runtime, and what its Python lacks."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from runner.preparation.choices import without_scheduler
from runner.recipes.loader import recipe_of
from runner.setup.machine import missing_modules
from runner.sites.loader import Machine, fit_to_machine, read_site, this_machine


@pytest.fixture
def machine_root(tmp_path: Path) -> Path:
    """A machine with two GPUs, of which this user may open one."""
    for minor in (0, 1):
        directory = tmp_path / f"proc/driver/nvidia/gpus/0000:0{minor}:00.0"
        directory.mkdir(parents=True)
        (directory / "information").write_text(f"Model: NVIDIA H200\nDevice Minor: \t {minor}\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia1").touch()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       2048000 kB\nMemFree: 1 kB\n")
    return tmp_path


def test_a_machine_is_seen_as_the_launcher_sees_it(machine_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = this_machine(machine_root)
    assert (seen.memory_mb, seen.gpus) == (2000, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert this_machine(machine_root).gpus == 0
    assert this_machine(machine_root / "nothing").gpus == 0


def test_with_gpus_it_measures_and_without_it_demonstrates() -> None:
    site = read_site("local")
    bare = msgspec.structs.replace(site, device="cuda", demonstration="", options={}, env={})
    full = fit_to_machine(bare, Machine(cpus=64, memory_mb=1000, gpus=4))
    assert (full.device, full.demonstration, full.node.gpus, full.node.count) == ("cuda", "", 4, 1)
    assert full.options == {}
    none = fit_to_machine(bare, Machine(cpus=2, memory_mb=1000, gpus=0))
    assert (none.device, none.node.gpus, none.node.cpus) == ("cpu", 8, 2)
    assert "no performance claim" in none.demonstration
    assert none.options["horovod-pytorch"]["demonstration"] is True


@pytest.mark.parametrize(
    ("there", "device", "chosen"),
    [
        ({"ch-run", "python3"}, "cpu", "charliecloud"),
        ({"ch-run", "python3"}, "cuda", "native"),
        ({"python3"}, "cpu", "native"),
        (set(), "cpu", None),
    ],
)
def test_the_first_runtime_that_is_there_and_can_use_the_device(
    there: set[str], device: str, chosen: str | None
) -> None:
    assert without_scheduler(("pyxis", "charliecloud", "native"), device, there.__contains__) == chosen


def test_what_a_python_lacks_is_reported_with_its_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_modules(()) == missing_modules(("json", "os")) == ("", "")
    lacks, fix = missing_modules(("json", "no_such_module", "horovod"))
    assert lacks.endswith("has no no_such_module and no horovod")
    assert "env create NAME --framework pytorch" in fix
    assert missing_modules(("json", "no_such_module"))[1].endswith("pip install no_such_module")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert missing_modules(())[0] == "no python3 is in PATH"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("python", "train.py", "--lr", "1"), "train"),
        (("python3", "-u", "my code/train it.v2.py"), "train-it.v2"),
        (("./run.sh", "x"), "run"),
        (("/opt/app/bin/solver",), "solver"),
        (("...",), "program"),
    ],
)
def test_a_program_gives_the_job_its_name(words: tuple[str, ...], name: str) -> None:
    recipe = recipe_of(words)
    assert (recipe.name, recipe.program, recipe.result) == (name, words, "if-left")
