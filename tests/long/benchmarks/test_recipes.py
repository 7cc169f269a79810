"""The benchmarks beside a plain Horovod script, and their settings: ``make bench-recipes`` prints the tables.

They belong in docs/recipes/README.md. Two ranks with one thread each, in containers on this machine: ratios only.
"""

import re
import shutil
import time
from pathlib import Path

import pytest

from benchmarks.recipes import (
    MOMENTUM,
    PLAIN,
    RANKS,
    RECIPE,
    SAME,
    SCRIPT,
    SETTINGS,
    STEPS,
    THREADS,
    WARMUP_STEPS,
    Framework,
    Round,
    Setting,
    compared,
    not_slower,
    rounds_of,
    tables,
)
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.rank_records import outcome, printed, records
from tests.support.recipes import UNCHANGED

pytestmark = pytest.mark.integration
RECIPES = Path(__file__).parents[3] / "recipes"
SCRIPTS: dict[Framework, str] = {"pytorch": "synthetic_benchmark.py", "tensorflow": "tensorflow_benchmark.py"}
LENGTHS = {"warmup-steps": str(WARMUP_STEPS), "warmup-seconds": "0", "steps": str(STEPS), "window-seconds": "0"}


@pytest.fixture
def local(contained: Runner, tensorflow_squashfs: StoredImage) -> Runner:
    return contained


@pytest.mark.parametrize("framework", list(SETTINGS))
def test_how_fast_a_benchmark_is_beside_a_plain_script(local: Runner, tmp_path: Path, framework: Framework) -> None:
    began, settings = time.monotonic(), {setting.name: setting for setting in SETTINGS[framework]}
    script = with_models(framework, tmp_path / "script")
    rounds: list[Round] = []
    for arms in rounds_of(framework):
        rates = []
        for arm in arms:
            rate = (
                script_rate(local, framework, script)
                if arm == SCRIPT
                else recipe_rate(local, framework, settings.get(arm, Setting(RECIPE)))
            )
            print(f"{time.monotonic() - began:6.0f} s  {framework} {arm}: {1e3 / rate:.1f} ms a step", flush=True)
            rates.append((arm, rate))
        rounds.append(rates)
    same = ", ".join(f"{name}={value}" for name, value in SAME.items())
    print(
        f"\nCPU, {RANKS} ranks of {THREADS} thread, {same}, {STEPS} steps: ratios only\n\n{tables(framework, rounds)}\n"
    )
    assert not not_slower(compared(rounds, SCRIPT, RECIPE)).startswith("no: ")


def with_models(framework: Framework, directory: Path) -> Path:
    directory.mkdir()
    shutil.copy(UNCHANGED / SCRIPTS[framework], directory)
    shutil.copy(RECIPES / f"horovod-{framework}" / "models.py", directory)
    return directory


def script_rate(local: Runner, framework: Framework, directory: Path) -> float:
    """Steps a second of the plain script, by what it prints."""
    options = {**SAME, "momentum": str(MOMENTUM), "num-warmup-batches": str(WARMUP_STEPS), "num-iters": "2"}
    options["num-batches-per-iter"] = str(STEPS // 2)
    if framework == "tensorflow":
        options["threads"] = str(THREADS)
    image = f"gpu-runner/horovod-{framework}:standin"
    program = ("python3", "-u", SCRIPTS[framework], *(part for key in options for part in (f"--{key}", options[key])))
    local("submit", "--gpus", str(RANKS), "--image", image, "--wait", "--", *program, code=0, cwd=directory)
    output = printed(local.newest())
    assert "Same weights everywhere: True" in output
    window = re.search(r"^All: (\d+) batches in ([\d.]+) s$", output, re.MULTILINE)
    assert window, output
    assert int(window[1]) == STEPS
    return STEPS / float(window[2])


def recipe_rate(local: Runner, framework: Framework, setting: Setting) -> float:
    """Steps a second of the recipe, by rank 0's record; the run must be proven."""
    options = {**SAME, **PLAIN[framework], **LENGTHS, **setting.options}
    changes = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    variables = {**setting.env, "TORCHINDUCTOR_CACHE_DIR": str(local.runs.parent / "inductor")}  # one launch compiles
    env = [part for key, value in variables.items() for part in ("--env", f"{key}={value}")]
    program = ("--recipe", f"horovod-{framework}", "--gpus", str(RANKS), "--wait")
    local("submit", *program, *changes, *env, code=0)
    run = local.newest()
    assert outcome(run) == "measured"
    report = records(run, "report")[0]
    assert (report["steps"], report["warmup_steps"]) == (STEPS, WARMUP_STEPS)
    return STEPS / float(report["elapsed_s"])
