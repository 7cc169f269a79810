"""What a plan decides, and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import msgspec
import pytest

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.backends.schedulers.slurm.script import SLURM
from runner.core.errors import UsageError
from runner.model.job import AllocatedNode, Allocation
from runner.model.plan import PlannedImage
from runner.model.request import Mount, Request
from runner.model.site import Site
from runner.planning.environment import merge, refuse_reason
from runner.planning.options import arguments
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
