"""Whole scripts of a study in one allocation: the allocation's own, and those of its launches. As test_scripts.py."""

from __future__ import annotations

import re
import subprocess

import pytest

from runner.backends.schedulers import render_launches
from runner.core.errors import RefusedError
from runner.model.request import Request
from runner.sites.loader import read_site
from tests.support.golden_launches import CASES, LAUNCHES, SCRIPTS, prepared

LAUNCHED = [name for name in CASES if name.startswith("launch-") and "local" not in name]


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_the_golden_one(name: str, pytestconfig: pytest.Config) -> None:
    golden = SCRIPTS / f"{name}.sh"
    if pytestconfig.getoption("--update-goldens"):
        golden.write_text(CASES[name]())
    assert CASES[name]() == golden.read_text()


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in SCRIPTS.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_bash_and_shellcheck_take_it(name: str) -> None:
    golden = SCRIPTS / f"{name}.sh"
    assert subprocess.run(["bash", "-n", golden], capture_output=True, check=False).returncode == 0
    # As in test_local_scripts.py.
    words = ["shellcheck", "--shell=bash", "--exclude=SC2016,SC1091,SC2317,SC2329", str(golden)]
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert checked.stdout == ""
    assert checked.returncode == 0


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_launch_names_its_whole_shape(name: str) -> None:
    """What it does not name would come from the allocation, and differ from size to size."""
    text = (SCRIPTS / f"{name}.sh").read_text().replace("\\\n", " ")
    step = next(line for line in text.splitlines() if line.startswith("srun") and "logs/rank-%t.out" in line)
    options = set(re.findall(r" (--[a-z-]+)(?==| )", step.partition(" /")[0]))
    needed = {"--exact", "--ntasks", "--gpus-per-node", "--cpus-per-task", "--mem", "--time", "--wait", "--cpu-bind"}
    assert needed <= options
    assert "--nodelist" in options or "--distribution" in options
    assert "--wait=0 " in step
    assert not options & {"--gpus-per-task", "--gpu-bind", "--overlap"}, "each rank sees all GPUs of its node"
    assert 'for runner_i in "${!SLURM_@}" "${!SRUN_@}"' in text


def test_equal_shares_at_every_size() -> None:
    """Sizes of one study have the same GPUs, memory and processors of a node; only the number of ranks differs."""
    steps = [(SCRIPTS / f"launch-technion-{name}.sh").read_text() for name in ("pyxis-16", "pyxis-4", "solo")]
    for option in ("--gpus-per-node=8", "--mem=0", "--cpu-bind=none", "--bind gpu-share"):
        assert all(option in step for step in steps), option
    ranks = [re.search(r"runner_cpus=\$\(\( \$\{1:-0\} / (\d+) \)\)", step) for step in steps]
    assert [match and match[1] for match in ranks] == ["8", "4", "1"]
    assert [re.findall(r"--first-gpu (\d+)", step) for step in steps] == [[], [], ["3"]]


def test_pbs_says_that_it_has_no_such_way() -> None:
    planned, step = prepared(read_site("polaris"), "apptainer", Request(gpus=8, account="m1234"))
    with pytest.raises(RefusedError, match="mpiexec has no steps"):
        render_launches(planned, step, LAUNCHES)
