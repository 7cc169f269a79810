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
from runner.planning.environment import merge, refuse_reason
from runner.planning.options import arguments, arms
from runner.planning.plan import plan
from runner.preparation.choices import image_reference
from runner.recipes import loader as recipes
from runner.recipes.loader import read_recipe
from runner.sites import loader as sites
from tests.support.plans import RECIPE, SITE
from tests.support.shell_files import stand_in

IMAGE = PlannedImage(reference="img:tag", digest="sha256:ab", path="/store/x.sqsh")
# Slurm's own count of a node's CPUs is divided; none is requested.
DIVIDING = msgspec.structs.replace(SITE, scheduler_settings=SITE.scheduler_settings | {"cpus": "allocated"})


def script_of(planned: Plan) -> str:
    return render(planned, runtime(planned.runtime).step(planned)).text


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
    made = plan(RECIPE, DIVIDING, Request(**asked), IMAGE)
    assert made.divides_cpus is divided
    assert ("#SBATCH --cpus-per-task" not in script_of(made)) is divided
    assert ('--cpus-per-task="$runner_cpus"' in script_of(made)) is divided


@pytest.mark.parametrize(("said", "cpus"), [("256(x2)", 32), ("128(x2)", 16), ("256,128", 16), ("16(x2),256(x3)", 2)])
def test_a_rank_gets_an_equal_part_of_the_smallest_node(said: str, cpus: int) -> None:
    """By the lines of the script, and Slurm's own form of the numbers."""
    script = script_of(plan(RECIPE, DIVIDING, Request(gpus=16), IMAGE))
    lines = [line for line in script.splitlines() if line.startswith("runner_cpus=")]
    shell = "\n".join(("set -euo pipefail", f". {SLURM}", *lines, 'echo "$runner_cpus"'))
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_CPUS_PER_NODE": said}
    ran = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout == f"{cpus}\n"


def test_a_step_of_an_allocation_divides_what_that_has() -> None:
    held = Allocation("1", (AllocatedNode("a", cpus=128, gpus=8), AllocatedNode("b", cpus=256, gpus=8)))
    made = plan(RECIPE, DIVIDING, Request(gpus=16), IMAGE, allocation=held)
    assert (made.cpus_per_task, made.divides_cpus) == (16, False)


ONE_NODE = msgspec.structs.replace(SITE, node=msgspec.structs.replace(SITE.node, count=1))
LOGGED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": "/results/nccl/%h.%p.log"}
OWN = {"FROM_SITE": "1", "BOTH": "recipe"}


@pytest.mark.parametrize(
    ("site", "user", "env"),
    [
        (SITE, {}, LOGGED | OWN),
        (SITE, {"NCCL_DEBUG": "WARN", "FROM_SITE": "2"}, LOGGED | OWN | {"NCCL_DEBUG": "WARN", "FROM_SITE": "2"}),
        (ONE_NODE, {}, OWN),
        (msgspec.structs.replace(SITE, device="cpu"), {}, OWN),
    ],
)
def test_user_wins_over_recipe_over_site_and_nccls_log_is_for_jobs_of_several_nodes(
    site: Any, user: dict[str, str], env: dict[str, str]
) -> None:
    assert dict(plan(RECIPE, site, Request(gpus=1, env=tuple(user.items())), IMAGE).env) == env


TENSORFLOW, LIGHTNING = read_recipe("horovod-tensorflow").recipe, read_recipe("lightning").recipe
CHOICES = msgspec.structs.replace(RECIPE, choices={"model": ("resnet50", "vgg16")})
LIMITED = msgspec.structs.replace(RECIPE, limits={"compile": {"true": {"model": ("vgg16", "resnet50")}}})
APART = "leave one of them out; with "


@pytest.mark.parametrize(
    ("recipe", "site", "user", "says", "fix"),
    [
        (RECIPE, {}, {"modle": "x"}, "no option", "did you mean 'model'?"),
        (RECIPE, {}, {"compile": "maybe"}, "neither true nor false", ""),
        (RECIPE, {}, {"batch": "x"}, "not a number", ""),
        (CHOICES, {"model": "resnet5"}, {}, "the site's options", "did you mean 'resnet50'?"),
        (CHOICES, {}, {"model": "resnet5"}, "--set", "did you mean 'resnet50'?"),
        (LIMITED, {}, {"compile": "true", "model": "resnet5"}, "model=resnet5 does not go with compile=true", APART),
        (TENSORFLOW, {}, {"mode": "fit", "arms": "uncoupled"}, "arms=uncoupled does not go with mode=fit", APART),
        (TENSORFLOW, {}, {"arms": "uncoupled", "mode": "graph"}, "arms=uncoupled does not go with mode=graph", APART),
        (TENSORFLOW, {}, {"mode": "graph", "compile": "true"}, "compile=true does not go with mode=graph", APART),
        (LIGHTNING, {}, {"model": "text", "data": "digits"}, "data=digits does not go with model=text", APART),
    ],
)
def test_a_wrong_option_and_those_that_do_not_go_together_are_refused(
    recipe: Any, site: dict[str, str], user: dict[str, str], says: str, fix: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        arguments(recipe, site, user.items())
    assert fix in caught.value.fix
    for alone in user.items() if fix == APART else ():
        assert arguments(recipe, {}, (alone,))


def test_what_goes_together_is_not_refused() -> None:
    for user in ({"mode": "fit", "arms": "full", "compile": "false"}, {"mode": "tape", "arms": "uncoupled,full"}):
        assert "--arms" in arguments(TENSORFLOW, {}, user.items())
    program = arguments(TENSORFLOW, {"mode": "fit"}, (("mode", "tape"), ("compile", "true")))
    assert program[program.index("--mode") + 1] == "tape", "the user's value counts, not the site's"
    assert "--model=-x" in arguments(RECIPE, {}, (("model", "-x"),)), "no parser takes it for an option"


RESERVED = ("PATH", "LD_PRELOAD", "HOME", "CUDA_VISIBLE_DEVICES", "IFS", "UID", "SLURM_JOB_ID", "RUNNER_X", "RANK",
            "A-B", "", "1", "runner_run", "HOROVOD_RANK", "BASH_FUNC_x%%", "SECONDS")  # fmt: skip
FREE = ("http_proxy", "NCCL_DEBUG", "HOROVOD_TIMELINE", "PYTHONPATH", "lower", "_X")


@pytest.mark.parametrize("name", RESERVED + FREE)
def test_reserved_names_are_refused_and_others_may_be_set(name: str) -> None:
    assert bool(refuse_reason(name)) is (name in RESERVED)
    for value in ("x", None) if name in RESERVED else ():
        with pytest.raises(UsageError, match=re.escape(repr(name))):
            merge({}, {}, ((name, value),), nodes=1)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        *(({"job_name": name}, re.escape(repr(name))) for name in ("a b", "", "x" * 65, "a/b", "é", "a\n")),
        ({"mounts": (Mount("/a", "relative"),)}, "'relative' is not absolute"),
        ({"mounts": (Mount("/a", "/results"),)}, "/results"),
        ({"mounts": (Mount("/a", "/x"), Mount("/b", "/x/"))}, "/x is already .* /a"),
        ({"mounts": (Mount("/a\nb", "/x"),)}, "newline"),
        ({"mounts": (Mount("/a", "/x\0"),)}, "NUL"),
        ({"directory": "/a\nb", "program": ("x",)}, r"program's directory '/a\\nb'(.|\n)*--runtime native"),
    ],
)
def test_impossible_names_and_mounts_are_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan(RECIPE, SITE, Request(gpus=1, **asked), IMAGE)


def test_each_recipe_has_an_image_with_a_tag_at_each_site_unless_the_user_names_one() -> None:
    """The one that a plain ``build`` makes, unless the site says another."""
    assert image_reference(RECIPE, SITE, Request(gpus=1, image="other:1")) == "other:1"
    for recipe in (read_recipe(name).recipe for name in recipes.names()):
        usual = "25.02-tf2-py3" if recipe.image.endswith("tensorflow") else "25.02-py3"
        for site in map(sites.read_site, sites.names()):
            tag = site.image_tags.get(recipe.image, usual)
            assert image_reference(recipe, site, Request(gpus=1)) == f"{recipe.image}:{tag}"


def test_directives_come_sorted_and_a_jobs_memory_replaces_the_sites() -> None:
    directives = {"qos": "b", "comment": "a", "mem-per-cpu": "4G"}
    site = msgspec.structs.replace(SITE, scheduler_settings={"directives": directives})
    made = plan(RECIPE, site, Request(gpus=1, scheduler_options=(("mem", "100G"),)), IMAGE)
    assert made.directives == (("comment", "a"), ("mem", "100G"), ("qos", "b"))


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


@pytest.mark.parametrize(
    ("program", "options", "planned"),
    [
        ("", ("arms",), ("full",)),
        ("--arms uncoupled", ("model", "arms"), ("uncoupled",)),
        ("--arms uncoupled", ("model",), ("full",)),  # a program without the option trains
        ("--arms full --arms=uncoupled,coordination,full", ("arms",), ("uncoupled", "coordination", "full")),
        ("--arms left,right", ("arms",), ("full",)),
    ],
)
def test_the_last_value_of_the_option_counts(program: str, options: Any, planned: tuple[str, ...]) -> None:
    assert arms(("python3", "main.py", *program.split()), options) == planned


BIG, SMALL = AllocatedNode("big", cpus=128, gpus=4), AllocatedNode("small", cpus=64, gpus=2)
BOTH, NARROW = Allocation("1", (SMALL, BIG)), Allocation("1", (AllocatedNode("n", cpus=2, gpus=2),))


def planned(gpus: int, nodes: int, held: Allocation | None = None) -> Plan:
    return plan(RECIPE, SITE, Request(gpus=gpus, nodes=nodes), PlannedImage("i", "", "/i"), allocation=held)


@pytest.mark.parametrize(
    ("gpus", "nodes", "chosen"),
    [(4, 1, ("big",)), (2, 1, ("small",)), (4, 2, ("small", "big")), (3, 2, ("small", "big"))],
)
def test_the_first_nodes_that_have_what_is_needed(gpus: int, nodes: int, chosen: tuple[str, ...]) -> None:
    placed = planned(gpus, nodes, BOTH)
    assert (placed.existing_allocation, placed.started_by) == (StepNodes(chosen, job_id="1"), "local")


@pytest.mark.parametrize(
    ("gpus", "nodes", "held", "needs", "has"),
    [
        (8, 1, BOTH, "1 node with 8 GPUs and 256 CPUs each", "small with 2 GPUs and 64 CPUs, big with 4 GPUs and 128"),
        (8, 2, BOTH, "2 nodes with 4 GPUs and 128 CPUs each", "big with 4 GPUs and 128 CPUs"),
        (3, 3, BOTH, "3 nodes with 1 GPU and 32 CPUs each", "small with 2 GPUs and 64 CPUs"),
        (2, 1, NARROW, "64 CPUs", "n with 2 GPUs and 2 CPUs"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_sides(gpus: int, nodes: int, held: Any, needs: str, has: str) -> None:
    with pytest.raises(RefusedError, match=f"{needs}.*{has}"):
        planned(gpus, nodes, held)


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
    names = 'case $* in *hostnames*01-02*) echo n01; echo n02;; *hostnames*) echo "$3";;'
    stand_in(tmp_path, "scontrol", f"{names} *) cat '{tmp_path}/answer';; esac")
    (tmp_path / "answer").write_text(SHOWN.format(state="RUNNING"))
    return tmp_path


def test_what_slurm_says_of_an_allocation(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tuple(
        AllocatedNode(name, cpus=cpus, gpus=gpus)
        for name, cpus, gpus in (("n01", 128, 2), ("n02", 128, 2), ("n07", 1, 2), ("n08", 2, 0))
    )
    assert allocation(clients, SITE) == Allocation("7", nodes)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert allocation(clients, SITE) == Allocation("7", nodes, in_step=True)


def test_no_allocation_an_ended_one_and_a_silent_slurm(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clients / "answer").write_text(SHOWN.format(state="COMPLETED"))
    with pytest.raises(RefusedError, match="COMPLETED"):
        allocation(clients, SITE)
    stand_in(clients, "scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(UnknownStateError, match="does not answer"):
        allocation(clients, SITE)
    with pytest.raises(RefusedError, match="scontrol was not found"):
        allocation(clients / "nowhere", SITE)
    monkeypatch.delenv("SLURM_JOB_ID")
    assert allocation(clients, SITE) is None


def test_the_line_that_holds_an_allocation_has_the_jobs_shape(tmp_path: Path) -> None:
    """Pasted into a shell, where a constraint of two features must not send salloc into the background."""
    shaped = msgspec.structs.replace(planned(8, 2), directives=(("constraint", "gpu&hbm40g"),), account="a")
    stand_in(tmp_path, "salloc", "printf '%s\\n' \"$@\"")
    line = salloc(shaped, runtime("pyxis").step(shaped))
    shell = subprocess.run(["bash", "-c", f"PATH={tmp_path}; {line}"], capture_output=True, text=True, check=True)
    assert shell.stdout.split() == [
        "--job-name=r", "--account=a", "--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--cpus-per-task=32",
        "--mem=500000M", "--constraint=gpu&hbm40g", "--time=00:20:00",
    ]  # fmt: skip
