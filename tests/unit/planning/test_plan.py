"""What a plan decides, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.backends.schedulers.slurm.client import allocation
from runner.backends.schedulers.slurm.script import SLURM, salloc
from runner.core.errors import RefusedError, UnknownStateError, UsageError
from runner.model.job import AllocatedNode, Allocation
from runner.model.plan import Plan, PlannedImage, StepNodes
from runner.model.request import Mount, Request
from runner.model.site import Site
from runner.planning.environment import merge, refuse_reason
from runner.planning.options import arguments, arms
from runner.planning.plan import plan
from runner.preparation.choices import image_reference
from runner.recipes.loader import read_recipe
from tests.support.plans import RECIPE, SITE

IMAGE = PlannedImage(reference="img:tag", digest="sha256:ab", path="/store/x.sqsh")


def test_whole_nodes_take_all_memory_and_are_exclusive() -> None:
    planned = plan(RECIPE, SITE, Request(gpus=16), IMAGE)
    assert (planned.tasks_per_node, planned.cpus_per_task, planned.memory_mb, planned.whole_nodes) == (
        (8, 8), 32, 0, True,
    )  # fmt: skip


def test_part_of_a_node_takes_its_share() -> None:
    planned = plan(RECIPE, SITE, Request(gpus=2), IMAGE)
    assert (planned.gpus_per_node, planned.cpus_per_task, planned.memory_mb) == (2, 32, 250_000)
    assert not planned.whole_nodes


@pytest.mark.parametrize(
    ("asked", "divided"),
    [
        ({"gpus": 16}, True),
        ({"gpus": 16, "scheduler_options": (("exclusive", ""),)}, True),
        ({"gpus": 16, "scheduler_options": (("exclusive", "user"),)}, False),
        ({"gpus": 16, "cpus_per_gpu": 4}, False),
        ({"gpus": 4}, False),
    ],
)
def test_whole_nodes_may_divide_the_cpus_that_they_turn_out_to_have(asked: dict[str, Any], divided: bool) -> None:
    """And request no number: with hardware threads off, one that counts them would be impossible."""
    site = msgspec.structs.replace(SITE, scheduler_settings=SITE.scheduler_settings | {"cpus": "allocated"})
    planned = plan(RECIPE, site, Request(**asked), IMAGE)
    script = render(planned, runtime(planned.runtime).step(planned)).text
    assert planned.divides_cpus is divided
    assert ("#SBATCH --cpus-per-task" not in script) is divided
    assert ('--cpus-per-task="$runner_cpus"' in script) is divided


@pytest.mark.parametrize(("said", "cpus"), [("256(x2)", 32), ("128(x2)", 16), ("256,128", 16), ("16(x2),256(x3)", 2)])
def test_a_rank_gets_an_equal_part_of_the_smallest_node(said: str, cpus: int) -> None:
    """By the lines of the script, and Slurm's own form of the numbers."""
    site = msgspec.structs.replace(SITE, scheduler_settings=SITE.scheduler_settings | {"cpus": "allocated"})
    planned = plan(RECIPE, site, Request(gpus=16), IMAGE)
    script = render(planned, runtime(planned.runtime).step(planned)).text
    lines = [line for line in script.splitlines() if line.startswith("runner_cpus=")]
    shell = "\n".join(("set -euo pipefail", f". {SLURM}", *lines, 'echo "$runner_cpus"'))
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_CPUS_PER_NODE": said}
    ran = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout == f"{cpus}\n"


def test_a_step_of_an_allocation_divides_what_that_has() -> None:
    site = msgspec.structs.replace(SITE, scheduler_settings=SITE.scheduler_settings | {"cpus": "allocated"})
    held = Allocation("1", (AllocatedNode("a", cpus=128, gpus=8), AllocatedNode("b", cpus=256, gpus=8)))
    planned = plan(RECIPE, site, Request(gpus=16), IMAGE, allocation=held)
    assert (planned.cpus_per_task, planned.divides_cpus) == (16, False)


def test_nccls_log_is_planned_where_jobs_can_have_several_nodes_and_can_be_overridden() -> None:
    def log_of(site: Site, env: tuple[tuple[str, str], ...] = ()) -> dict[str, str]:
        planned = plan(RECIPE, site, Request(gpus=1, env=env), IMAGE)
        return {name: value for name, value in planned.env if name.startswith("NCCL_")}

    default = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": "/results/nccl/%h.%p.log",
    }
    assert log_of(SITE) == default
    assert log_of(SITE, (("NCCL_DEBUG", "WARN"),)) == default | {"NCCL_DEBUG": "WARN"}
    one_node = msgspec.structs.replace(SITE, node=msgspec.structs.replace(SITE.node, count=1))
    assert log_of(one_node) == {}
    assert log_of(msgspec.structs.replace(SITE, device="cpu")) == {}


def test_user_wins_over_recipe_wins_over_site() -> None:
    planned = plan(RECIPE, SITE, Request(gpus=1, env=(("FROM_SITE", "2"),)), IMAGE)
    made = {name: value for name, value in planned.env if not name.startswith("NCCL_")}
    assert made == {"FROM_SITE": "2", "BOTH": "recipe"}


def test_options_become_arguments_in_the_recipes_order() -> None:
    request = Request(gpus=1, options=(("compile", "true"), ("lr", "-1")), arguments=("--extra", "a b"))
    assert plan(RECIPE, SITE, request, IMAGE).program == (
        "python3", "main.py", "--model", "resnet50", "--batch", "2", "--compile", "--lr=-1", "--extra", "a b",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("modle", "x", "did you mean 'model'?"),
        ("compile", "maybe", "neither true nor false"),
        ("batch", "x", "not a number"),
    ],
)
def test_a_wrong_option_is_named_with_the_right_one(key: str, value: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        arguments(RECIPE, {}, ((key, value),))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "user", "says"),
    [
        ("horovod-tensorflow", {"mode": "fit", "arms": "uncoupled"}, "arms=uncoupled does not go with mode=fit"),
        ("horovod-tensorflow", {"arms": "uncoupled", "mode": "graph"}, "arms=uncoupled does not go with mode=graph"),
        ("horovod-tensorflow", {"mode": "graph", "compile": "true"}, "compile=true does not go with mode=graph"),
        ("lightning", {"model": "text", "data": "digits"}, "data=digits does not go with model=text"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused_before_a_job(recipe: str, user: dict[str, str], says: str) -> None:
    found = read_recipe(recipe).recipe
    with pytest.raises(UsageError, match=says) as caught:
        arguments(found, {}, user.items())
    assert caught.value.fix.startswith("leave one of them out; with ")
    for alone in user.items():
        assert arguments(found, {}, (alone,))


def test_what_goes_together_is_not_refused() -> None:
    found = read_recipe("horovod-tensorflow").recipe
    for user in ({"mode": "fit", "arms": "full", "compile": "false"}, {"mode": "tape", "arms": "uncoupled,full"}):
        assert "--arms" in arguments(found, {}, user.items())
    program = arguments(found, {"mode": "fit"}, (("mode", "tape"), ("compile", "true")))
    assert program[program.index("--mode") + 1] == "tape", "the user's value counts, not the site's"


def test_limits_of_a_flag_hold() -> None:
    limited = msgspec.structs.replace(RECIPE, limits={"compile": {"true": {"model": ("vgg16",)}}})
    with pytest.raises(UsageError, match="model=resnet5 does not go with compile=true"):
        arguments(limited, {}, (("compile", "true"), ("model", "resnet5")))
    assert "resnet5" in arguments(limited, {}, (("model", "resnet5"),))


@pytest.mark.parametrize("origin", ["the site's options", "--set"])
def test_a_value_that_is_no_choice_is_refused(origin: str) -> None:
    site, user = ({"model": "resnet5"}, ()) if origin != "--set" else ({}, (("model", "resnet5"),))
    with pytest.raises(UsageError) as caught:
        arguments(msgspec.structs.replace(RECIPE, choices={"model": ("resnet50", "vgg16")}), site, user)
    assert caught.value.where == origin
    assert caught.value.fix == "did you mean 'resnet50'?"


@pytest.mark.parametrize(
    "name",
    ["PATH", "LD_PRELOAD", "HOME", "CUDA_VISIBLE_DEVICES", "IFS", "UID", "SLURM_JOB_ID", "RUNNER_X", "RANK", "A-B", "",
     "1", "runner_run", "HOROVOD_RANK", "BASH_FUNC_x%%", "SECONDS"],
)  # fmt: skip
def test_reserved_names_are_refused(name: str) -> None:
    assert refuse_reason(name)
    with pytest.raises(UsageError, match=re.escape(repr(name))):
        merge({}, {}, ((name, "x"),), nodes=1)
    with pytest.raises(UsageError, match=re.escape(repr(name))):
        merge({}, {}, ((name, None),), nodes=1)


@pytest.mark.parametrize("name", ["http_proxy", "NCCL_DEBUG", "HOROVOD_TIMELINE", "PYTHONPATH", "lower", "_X"])
def test_other_names_may_be_set(name: str) -> None:
    assert refuse_reason(name) is None


@pytest.mark.parametrize("name", ["a b", "", "x" * 65, "a/b", "é", "a\n"])
def test_a_job_name_is_plain(name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(name))):
        plan(RECIPE, SITE, Request(gpus=1, job_name=name), IMAGE)


@pytest.mark.parametrize(
    ("mounts", "says"),
    [
        ((Mount("/a", "relative"),), "'relative' is not absolute"),
        ((Mount("/a", "/results"),), "/results"),
        ((Mount("/a", "/x"), Mount("/b", "/x/")), "/x is already .* /a"),
        ((Mount("/a\nb", "/x"),), "newline"),
        ((Mount("/a", "/x\0"),), "NUL"),
    ],
)
def test_impossible_mounts_are_refused(mounts: tuple[Mount, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan(RECIPE, SITE, Request(gpus=1, mounts=mounts), IMAGE)


def test_the_site_chooses_the_tag_and_the_user_the_image() -> None:
    assert image_reference(RECIPE, SITE, Request(gpus=1)) == "img:tag"
    assert image_reference(RECIPE, SITE, Request(gpus=1, image="other:1")) == "other:1"


def test_directives_come_sorted() -> None:
    site = Site(
        name="s", description="", scheduler="slurm", runtimes=("pyxis",), node=SITE.node,
        scheduler_settings={"directives": {"qos": "b", "comment": "a"}},
    )  # fmt: skip
    assert plan(RECIPE, site, Request(gpus=1), IMAGE).directives == (("comment", "a"), ("qos", "b"))


@pytest.mark.parametrize(
    ("reference", "digest", "pinned"),
    [
        ("nvcr.io/nvidia/pytorch:25.02-py3", "sha256:1", "nvcr.io/nvidia/pytorch:25.02-py3@sha256:1"),
        ("x@sha256:1", "sha256:1", "x@sha256:1"),
        ("sha256:1", "sha256:1", "sha256:1"),
        ("./x.sqsh", "", "/store/x.sqsh"),
    ],
)
def test_an_image_is_named_so_that_it_can_be_found_again(reference: str, digest: str, pinned: str) -> None:
    assert PlannedImage(reference, digest, "/store/x.sqsh").pinned == pinned


OPTIONS = ("model", "arms")


@pytest.mark.parametrize(
    ("program", "planned"),
    [
        ((), ("full",)),
        (("--arms", "uncoupled"), ("uncoupled",)),
        (("--arms", "full", "--arms=uncoupled,coordination,full"), ("uncoupled", "coordination", "full")),
        (("--arms", "left,right"), ("full",)),
    ],
)
def test_the_last_value_of_the_option_counts(program: tuple[str, ...], planned: tuple[str, ...]) -> None:
    assert arms(("python3", "main.py", *program), OPTIONS) == planned


def test_a_program_without_the_option_trains() -> None:
    assert arms(("python3", "robot.py", "--arms", "uncoupled"), ("model",)) == ("full",)


BIG, SMALL = AllocatedNode("big", cpus=128, gpus=4), AllocatedNode("small", cpus=64, gpus=2)


def planned(gpus: int, nodes: int, allocation: Allocation | None = None) -> Plan:
    return plan(RECIPE, SITE, Request(gpus=gpus, nodes=nodes), PlannedImage("i", "", "/i"), allocation=allocation)


@pytest.mark.parametrize(
    ("gpus", "nodes", "chosen"),
    [(4, 1, ("big",)), (2, 1, ("small",)), (4, 2, ("small", "big")), (3, 2, ("small", "big"))],
)
def test_the_first_nodes_that_have_what_is_needed(gpus: int, nodes: int, chosen: tuple[str, ...]) -> None:
    placed = planned(gpus, nodes, Allocation("1", (SMALL, BIG)))
    assert placed.existing_allocation == StepNodes(chosen, job_id="1")
    assert placed.started_by == "local"


@pytest.mark.parametrize(
    ("gpus", "nodes", "says"),
    [
        (8, 1, "1 node with 8 GPUs and 256 CPUs each"),
        (8, 2, "2 nodes with 4 GPUs and 128 CPUs each"),
        (3, 3, "3 nodes with 1 GPU and 32 CPUs each"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_sides(gpus: int, nodes: int, says: str) -> None:
    with pytest.raises(RefusedError) as caught:
        planned(gpus, nodes, Allocation("1", (SMALL, BIG)))
    assert says in caught.value.what
    assert "small with 2 GPUs and 64 CPUs, big with 4 GPUs and 128 CPUs" in caught.value.what


def test_too_few_cpus_are_reported_too() -> None:
    with pytest.raises(RefusedError, match="64 CPUs"):
        planned(2, 1, Allocation("1", (AllocatedNode("n", cpus=2, gpus=2),)))


SHOWN = """\
JobId=7 JobName=x
   JobState={state} Reason=None
   JOB_GRES=gpu:a100:6
     Nodes=n[01-02] CPU_IDs=0-63,128-191 Mem=0 GRES=gpu:a100:2(IDX:0-1)
     Nodes=n07 CPU_IDs=3 Mem=1000 GRES=gpu:a100:1(IDX:0),gpu:v100:1(IDX:5)
     Nodes=n08 CPU_IDs=0-1 Mem=1000 GRES=
   Comment=Nodes=evil CPU_IDs=0-999 Mem=0 GRES=gpu:99(IDX:0)
"""


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol that knows job 7."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    (tmp_path / "scontrol").write_text(
        f'#!/bin/sh\ncase $* in *hostnames*01-02*) echo n01; echo n02;; *hostnames*) echo "$3";;'
        f" *) cat '{tmp_path}/answer';; esac\n"
    )
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "answer").write_text(SHOWN.format(state="RUNNING"))
    return tmp_path


def test_what_slurm_says_of_an_allocation(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tuple(
        AllocatedNode(name, cpus=cpus, gpus=gpus)
        for name, cpus, gpus in (("n01", 128, 2), ("n02", 128, 2), ("n07", 1, 2), ("n08", 2, 0))
    )
    assert allocation(clients) == Allocation("7", nodes)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert allocation(clients) == Allocation("7", nodes, in_step=True)


def test_no_allocation_an_ended_one_and_a_silent_slurm(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clients / "answer").write_text(SHOWN.format(state="COMPLETED"))
    with pytest.raises(RefusedError, match="COMPLETED"):
        allocation(clients)
    (clients / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    with pytest.raises(UnknownStateError, match="does not answer"):
        allocation(clients)
    with pytest.raises(RefusedError, match="scontrol was not found"):
        allocation(clients / "nowhere")
    monkeypatch.delenv("SLURM_JOB_ID")
    assert allocation(clients) is None


def test_the_line_that_holds_an_allocation_has_the_jobs_shape(tmp_path: Path) -> None:
    """Pasted into a shell, where a constraint of two features must not send salloc into the background."""
    shaped = msgspec.structs.replace(planned(8, 2), directives=(("constraint", "gpu&hbm40g"),), account="a")
    stub = tmp_path / "salloc"
    stub.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    stub.chmod(0o755)
    line = salloc(shaped, runtime("pyxis").step(shaped))
    shell = subprocess.run(["bash", "-c", f"PATH={tmp_path}; {line}"], capture_output=True, text=True, check=True)
    assert shell.stdout.split() == [
        "--job-name=r", "--account=a", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--cpus-per-task=32",
        "--mem=500000M", "--constraint=gpu&hbm40g", "--time=00:20:00",
    ]  # fmt: skip
