"""Which further options of sbatch and qsub a user may give: those that leave the run what it is."""

from __future__ import annotations

from typing import Any

import pytest

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.core.errors import UsageError
from runner.model.plan import PlannedImage
from runner.model.request import Request
from runner.planning.plan import plan
from runner.sites.loader import read_site
from tests.support.plans import PROGRAM

IMAGE = PlannedImage("registry.example/i:1", "", "/store/x")


def script(site: str, *options: tuple[str, str], **asked: Any) -> list[str]:
    facts = read_site(site)
    planned = plan(PROGRAM, facts, Request(**({"gpus": 16} | asked), scheduler_options=options), IMAGE)
    return render(planned, runtime(planned.runtime).step(planned)).text.splitlines()


@pytest.mark.parametrize(
    "option",
    [
        "dependency=afterok:7:8", "reservation=maintenance", "nodelist=dgx[01-02]", "exclude=dgx03",
        "constraint=hbm80g", "mail-type=END", "mail-user=e@example.org", "begin=now+1hour", "deadline=2027-01-01",
        "nice=100", "qos=high", "licenses=scratch:1", "gres-flags=enforce-binding",
    ],
)  # fmt: skip
def test_what_leaves_the_run_as_it_is_goes_through(option: str) -> None:
    name, _, value = option.partition("=")
    assert f"#SBATCH --{option}" in script("technion", (name, value))


@pytest.mark.parametrize(
    ("site", "option", "says"),
    [
        ("technion", "array=1", "one run directory"),
        ("technion", "arr=1", "one run directory"),
        ("technion", "requeue=1", "rerun RUN"),
        ("technion", "test-only=1", "--dry-run"),
        ("technion", "clusters=1", "of the other one"),
        ("technion", "export=1", "--env"),
        ("technion", "tres-bind=1", "its own GPU only"),
        ("technion", "gpus-per-task=1", "its own GPU only"),
        ("technion", "ntasks-per-gpu=1", "--gpus and --nodes"),
        ("technion", "node=1", "--gpus and --nodes"),
        ("technion", "gres=1", "--gpu-type"),
        ("technion", "container-image=1", "no srun"),
        ("technion", "no-container-mount-home=1", "no srun"),
        ("technion", "image=1", "--image"),
        ("technion", "partition=1", "--queue"),
        ("technion", "mem=", "-S mem=100G"),
        ("technion", "mem=lots", "no size of memory"),
        ("technion", "mem=1G ", "no size of memory"),
        ("technion", "mem=-1", "no size of memory"),
        ("technion", "mem-per=1G", "one of mem, mem-per-cpu, mem-per-gpu"),
        ("technion", "wait=", "-S wait=SECONDS"),
        *(("technion", f"wait={value}", f"--wait='{value}' of srun is no number of seconds")
          for value in ("soon", "-1", "1e9", "9" * 20)),
        ("perlmutter", "qos=debug", "decided by the plan"),  # the site's queue
        ("polaris", "r=yes", "rerun RUN"),
        ("polaris", "J=1", "one run directory"),
        ("polaris", "I=1", "terminal"),
        ("polaris", "f=1", "--wait"),
        ("polaris", "z=1", "number"),
    ],
)  # fmt: skip
def test_what_would_break_the_run_is_refused_with_the_reason(site: str, option: str, says: str) -> None:
    name, _, value = option.partition("=")
    with pytest.raises(UsageError) as caught:
        script(site, (name, value))
    assert says in str(caught.value)
    assert name.startswith("mem") or caught.value.where == f"--scheduler-option {name}"


@pytest.mark.parametrize(
    ("option", "value"), [("mem", "100G"), ("mem", "0"), ("mem-per-cpu", "3g"), ("mem-per-gpu", "60G")]
)
def test_memory_of_the_job_replaces_what_the_site_would_ask_for(option: str, value: str) -> None:
    for gpus in (2, 16):
        lines = script("technion", (option, value), gpus=gpus)
        assert [line for line in lines if line.startswith("#SBATCH --mem")] == [f"#SBATCH --{option}={value}"]
    with pytest.raises(UsageError, match="exclude each other"):
        script("technion", ("mem", "1G"), ("mem-per-gpu", "2G"))


def test_how_long_ranks_may_go_on_can_be_set_for_a_job() -> None:
    assert any("--wait=0 " in line for line in script("technion"))
    lines = script("technion", ("wait", "600"))
    assert any("--wait=600 " in line for line in lines)
    assert not any("#SBATCH --wait" in line for line in lines)


def test_a_part_of_a_node_can_be_requested() -> None:
    assert script("technion", ("exclusive", ""), gpus=2).count("#SBATCH --exclusive") == 1
    assert script("technion", ("exclusive", ""), gpus=16).count("#SBATCH --exclusive") == 1
    assert "#SBATCH --exclusive" not in script("technion", gpus=2)


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
