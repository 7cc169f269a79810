"""Whole scripts that plain bash runs: jobs of this machine, of hosts that ssh reaches, and steps of a held allocation.
As test_scripts.py.
"""

from __future__ import annotations

import subprocess

import pytest

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.model.request import Request
from runner.planning.plan import plan
from runner.recipes.loader import recipe_of
from tests.support.golden_jobs import FILE as IMAGE
from tests.support.golden_local_jobs import CASES, CPUS, SCRIPTS, local, script


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_the_golden_one(name: str, pytestconfig: pytest.Config) -> None:
    golden = SCRIPTS / f"{name}.sh"
    if pytestconfig.getoption("--update-goldens"):
        golden.write_text(script(name))
    assert script(name) == golden.read_text()


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in SCRIPTS.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_bash_and_shellcheck_take_it(name: str) -> None:
    golden = SCRIPTS / f"{name}.sh"
    assert subprocess.run(["bash", "-n", golden], capture_output=True, check=False).returncode == 0
    # SC2016, SC1091: as in test_scripts.py. SC2317, SC2329: a function that only a trap calls is taken for unreachable.
    words = ["shellcheck", "--shell=bash", "--exclude=SC2016,SC1091,SC2317,SC2329", str(golden)]
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert checked.stdout == ""
    assert checked.returncode == 0


def test_the_script_of_the_users_program_is_a_function_of_its_plan_too() -> None:
    request = Request(gpus=2, runtime="charliecloud", directory="/home/me/my code", program=("python",))
    planned = plan(recipe_of(("python", "train.py", "--lr", "1")), local(CPUS), request, IMAGE)
    text = render(planned, runtime("charliecloud").step(planned))
    assert "--cd /workspace" in text
    assert "'/home/me/my code:/workspace'" in text
    assert text.count("-- python train.py --lr 1") == 1
