"""Which further options of sbatch and qsub a user may give: those that leave the run what it is."""

from __future__ import annotations

from typing import Any

import pytest

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.core.errors import UsageError
from runner.model.plan import PlannedImage
from runner.model.request import Recipe, Request
from runner.planning.plan import plan
from runner.sites.loader import read_site

RECIPE = Recipe(name="r", description="", image="i", program=("p",))
IMAGE = PlannedImage("registry.example/i:1", "", "/store/x")


def script(site: str, *options: tuple[str, str], **asked: Any) -> list[str]:
    facts = read_site(site)
    planned = plan(RECIPE, facts, Request(**({"gpus": 16} | asked), scheduler_options=options), IMAGE)
    return render(planned, runtime(planned.runtime).step(planned)).text.splitlines()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dependency", "afterok:7:8"),
        ("reservation", "maintenance"),
        ("nodelist", "dgx[01-02]"),
        ("exclude", "dgx03"),
        ("constraint", "hbm80g"),
        ("mail-type", "END"),
        ("mail-user", "e@example.org"),
        ("begin", "now+1hour"),
        ("deadline", "2027-01-01"),
        ("nice", "100"),
        ("qos", "high"),
        ("licenses", "scratch:1"),
        ("gres-flags", "enforce-binding"),
    ],
)
def test_what_leaves_the_run_as_it_is_goes_through(option: str, value: str) -> None:
    assert f"#SBATCH --{option}={value}" in script("technion", (option, value))


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("array", "one run directory"),
        ("requeue", "submit again"),
        ("test-only", "--dry-run"),
        ("clusters", "of the other one"),
        ("export", "--env"),
        ("tres-bind", "its own GPU only"),
        ("gpus-per-task", "its own GPU only"),
        ("ntasks-per-gpu", "--gpus and --nodes"),
        ("gres", "--gpu-type"),
        ("container-image", "no srun"),
        ("no-container-mount-home", "no srun"),
        ("image", "--image"),
        ("partition", "--queue"),
        ("arr", "one run directory"),
        ("node", "--gpus and --nodes"),
    ],
)
def test_what_would_break_the_run_is_refused_with_the_reason(option: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        script("technion", (option, "1"))
    assert says in str(caught.value)
    assert caught.value.where == f"--scheduler-option {option}"


def test_a_qos_is_the_queue_where_the_site_says_so() -> None:
    with pytest.raises(UsageError, match="decided by the plan"):
        script("perlmutter", ("qos", "debug"))


@pytest.mark.parametrize(
    ("option", "value"), [("mem", "100G"), ("mem", "0"), ("mem-per-cpu", "3g"), ("mem-per-gpu", "60G")]
)
def test_memory_of_the_job_replaces_what_the_site_would_ask_for(option: str, value: str) -> None:
    for gpus in (2, 16):
        lines = script("technion", (option, value), gpus=gpus)
        assert [line for line in lines if line.startswith("#SBATCH --mem")] == [f"#SBATCH --{option}={value}"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((("mem", "1G"), ("mem-per-gpu", "2G")), "exclude each other"),
        ((("mem", ""),), "-S mem=100G"),
        ((("mem", "lots"),), "no size of memory"),
        ((("mem", "1G "),), "no size of memory"),
        ((("mem", "-1"),), "no size of memory"),
        ((("mem-per", "1G"),), "one of mem, mem-per-cpu, mem-per-gpu"),
    ],
)
def test_memory_that_sbatch_would_not_take_is_refused(options: tuple[tuple[str, str], ...], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        script("technion", *options)
    assert says in str(caught.value)


def test_how_long_ranks_may_go_on_can_be_set_for_a_job() -> None:
    assert any("--wait=0 " in line for line in script("technion"))
    assert any("--wait=600 " in line for line in script("technion", ("wait", "600")))
    assert not any("#SBATCH --wait" in line for line in script("technion", ("wait", "600")))
    with pytest.raises(UsageError, match="-S wait=SECONDS"):
        script("technion", ("wait", ""))
    for value in ("soon", "-1", "1e9", "9" * 20):
        with pytest.raises(UsageError, match=f"--wait='{value}' of srun is no number of seconds"):
            script("technion", ("wait", value))


def test_a_part_of_a_node_can_be_requested() -> None:
    assert script("technion", ("exclusive", ""), gpus=2).count("#SBATCH --exclusive") == 1
    assert script("technion", ("exclusive", ""), gpus=16).count("#SBATCH --exclusive") == 1
    assert "#SBATCH --exclusive" not in script("technion", gpus=2)


@pytest.mark.parametrize(
    ("option", "says"), [("J", "one run directory"), ("I", "terminal"), ("f", "--wait"), ("z", "number")]
)
def test_qsub_gets_no_array_and_no_option_that_waits(option: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        script("polaris", (option, "1"))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("site", "kind", "directive"),
    [
        ("slurm", "a100", "--gres=gpu:a100:2"),
        ("technion", "a100", "--gpus-per-node=a100:2"),
        ("slurm", "a100_1g.5gb", "--gres=gpu:a100_1g.5gb:2"),
        ("alpha", "", "--gres=gpu:2"),
    ],
)
def test_gpus_are_requested_by_type_slices_included(site: str, kind: str, directive: str) -> None:
    assert f"#SBATCH {directive}" in script(site, gpus=2, gpu_type=kind)
