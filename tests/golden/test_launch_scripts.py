"""What the scripts of a study's launches in one allocation have, whatever else changes in their goldens."""

import re

import pytest

from runner.backends.schedulers import render_launches
from runner.core.errors import RefusedError
from runner.model.request import Request
from runner.sites.loader import read_site
from tests.support.golden_launches import CASES, LAUNCHES, prepared
from tests.support.goldens import script_of

LAUNCHED = [name for name in CASES if name.startswith("launch-") and "local" not in name]


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_launch_names_its_whole_shape(name: str) -> None:
    """What it does not name would come from the allocation, and differ from size to size."""
    text = script_of(name).text.replace("\\\n", " ")
    step = next(line for line in text.splitlines() if line.startswith("srun") and "logs/rank-%t.out" in line)
    options = set(re.findall(r" (--[a-z-]+)(?==| )", step.partition(" /")[0]))
    needed = {"--exact", "--ntasks", "--gpus-per-node", "--cpus-per-task", "--mem", "--time", "--wait", "--cpu-bind"}
    assert needed <= options
    assert "--nodelist" in options or "--distribution" in options
    assert "--wait=0 " in step
    assert not options & {"--gpus-per-task", "--gpu-bind", "--overlap"}, "each rank sees all GPUs of its node"
    assert "\nrunner_unset_shape\n" in text


def test_equal_shares_at_every_size() -> None:
    """Sizes of one study have the same GPUs, memory and processors of a node; only the number of ranks differs."""
    steps = [script_of(f"launch-technion-{name}").text for name in ("pyxis-16", "pyxis-4", "solo")]
    for option in ("--gpus-per-node=8", "--mem=0", "--cpu-bind=none", "--bind gpu-share"):
        assert all(option in step for step in steps), option
    ranks = [re.search(r"runner_cpus=\$\(\( \$\{1:-0\} / (\d+) \)\)", step) for step in steps]
    assert [match and match[1] for match in ranks] == ["8", "4", "1"]
    assert [re.findall(r"--first-gpu (\d+)", step) for step in steps] == [[], [], ["3"]]


def test_pbs_says_that_it_has_no_such_way() -> None:
    planned, step = prepared(read_site("polaris"), "apptainer", Request(gpus=8, account="m1234"))
    with pytest.raises(RefusedError, match="mpiexec has no steps"):
        render_launches(planned, step, LAUNCHES)
