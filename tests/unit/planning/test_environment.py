"""Which variables a job gets: the fabric's only between nodes, and none that was taken away."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from runner.backends.runtimes import runtime as module_of
from runner.core.errors import UsageError
from runner.model.plan import PlannedImage
from runner.model.request import Mount, Recipe, Request
from runner.model.site import Home
from runner.planning import environment
from runner.planning.environment import Variables, is_fabric, merge, meter_variables
from runner.planning.plan import plan
from runner.sites.loader import read_site

SITE: dict[str, str | None] = {"NCCL_NET": "AWS Libfabric", "FI_CXI_DEFAULT_CQ_SIZE": "131072", "OMP_NUM_THREADS": "8"}


def names(variables: Variables) -> set[str]:
    return {name for name, _ in variables.env}


@pytest.mark.parametrize(
    "name",
    ["NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_CROSS_NIC", "FI_MR_CACHE_MONITOR",
     "HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES", "MELLANOX_VISIBLE_DEVICES", "OFI_NCCL_PROTOCOL"],
)  # fmt: skip
def test_the_sites_variables_of_the_fabric_are_set_between_nodes_only(name: str) -> None:
    assert is_fabric(name)
    assert names(merge({name: "x"}, {}, (), nodes=1)) == set()
    assert names(merge({name: "x"}, {}, (), nodes=2)) == {name}


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_P2P_LEVEL", "UCX_TLS", "OMP_NUM_THREADS", "NCCL_NETWORK", "FI"])
def test_others_are_set_on_one_node_too(name: str) -> None:
    assert names(merge({name: "x"}, {}, (), nodes=1)) == {name}


def test_what_the_user_or_the_recipe_names_is_set_on_one_node_too() -> None:
    assert merge(SITE, {"NCCL_NET": "Socket"}, (), nodes=1).env == (("NCCL_NET", "Socket"), ("OMP_NUM_THREADS", "8"))
    assert merge(SITE, {}, (("FI_PROVIDER", "cxi"),), nodes=1).env == (("FI_PROVIDER", "cxi"), ("OMP_NUM_THREADS", "8"))


def test_the_user_takes_a_variable_away_whoever_sets_it() -> None:
    variables = merge(SITE, {"A": "1"}, (("NCCL_NET", None), ("A", None), ("OF_THE_IMAGE", None)), nodes=2)
    assert names(variables) == {"FI_CXI_DEFAULT_CQ_SIZE", "OMP_NUM_THREADS"}
    assert variables.unset == ("A", "NCCL_NET", "OF_THE_IMAGE")


def test_the_last_option_counts() -> None:
    assert merge({}, {}, (("A", None), ("A", "1")), nodes=1) == Variables((("A", "1"),))
    assert merge({}, {}, (("A", "1"), ("A", None)), nodes=1) == Variables((), ("A",))


def test_null_in_a_file_takes_away_what_came_before_and_nothing_of_the_image() -> None:
    """An image or a module that sets the variable itself is left alone."""
    assert merge({"A": None, "B": "1"}, {"B": None}, (), nodes=1) == Variables(())
    assert merge({"A": None}, {"A": "2"}, (), nodes=1) == Variables((("A", "2"),))


HOME = Mount("/home/me", "/home/me")
ABOVE = Mount("/home", "/home/")
OTHER = Mount("/home/me", "/data")
RECIPE = Recipe(name="r", description="", image="i", program=("p",))


@pytest.mark.parametrize(
    ("site", "runtime", "mounts", "where"),
    [
        ("technion", "pyxis", (), "node"),
        ("technion", "pyxis", (HOME,), "home"),
        ("technion", "pyxis", (ABOVE,), "home"),
        ("technion", "pyxis", (OTHER,), "node"),
        ("technion", "pyxis", (Mount("/home/me", "/home/me", read_only=True),), "node"),
        ("neuron", "singularity", (), "node"),
        ("neuron", "native", (), "home"),
        ("perlmutter", "shifter", (), "home"),
        ("perlmutter", "podman-hpc", (), "node"),
        ("local", "native", (), "shell"),
        ("local", "charliecloud", (), "node"),
    ],
)
def test_caches_are_at_home_where_programs_see_it(
    site: str, runtime: str, mounts: tuple[Mount, ...], where: str
) -> None:
    assert environment.choose_caches(read_site(site), runtime, mounts, "/home/me") == where


def test_a_home_that_is_not_for_jobs_holds_no_caches() -> None:
    site = msgspec.structs.replace(read_site("neuron"), home=Home(for_jobs=False))
    assert environment.choose_caches(site, "native", (), "/home/me") == "node"


@pytest.mark.parametrize(
    ("runtime", "mounts", "names"),
    [
        ("native", (), {"HF_HOME", "TORCH_HOME"}),
        ("pyxis", (Mount("/scratch", "/scratch"),), {"HF_HOME"}),
        ("pyxis", (), set()),
    ],
)
def test_the_shells_own_caches_are_kept_where_programs_see_them(
    runtime: str, mounts: tuple[Mount, ...], names: set[str]
) -> None:
    shell = {"HF_HOME": "/scratch/me/hf", "TORCH_HOME": "/home/me/torch", "KERAS_HOME": "relative", "HF_TOKEN": "/x"}
    assert environment.carried_caches(shell, runtime, mounts).keys() == names


def test_a_job_has_the_users_umask_and_caches() -> None:
    request = Request(gpus=8, umask=0o27, mounts=(Mount("/scratch", "/scratch"),), caches=(("HF_HOME", "/scratch/hf"),))
    planned = plan(RECIPE, read_site("technion"), request, PlannedImage("i:1", "", "/store/x.sqsh"))
    assert (planned.umask, planned.caches, dict(planned.env)["HF_HOME"]) == (0o27, "node", "/scratch/hf")
    command = [part for word in module_of("pyxis").step(planned).command for part in word]
    values = [getattr(part, "value", "") for part in command]
    assert values[values.index("--umask") + 1] == "027"
    assert values[values.index("--caches") + 1] == "node"


OWN = msgspec.structs.replace(RECIPE, result="if-left")


def test_nothing_without_it() -> None:
    assert meter_variables(RECIPE, Request(gpus=2)) == meter_variables(OWN, Request(gpus=2)) == {}


def test_the_batch_says_as_much_as_the_flag() -> None:
    assert meter_variables(OWN, Request(gpus=2, meter=True)) == {"RUNNER_METER": "1"}
    both = {"RUNNER_METER": "1", "RUNNER_METER_BATCH": "32"}
    assert meter_variables(OWN, Request(gpus=2, meter_batch=32)) == both


@pytest.mark.parametrize("result", ["throughput", "none"])
def test_a_program_that_leaves_its_own_records_refuses_it(result: Literal["throughput", "none"]) -> None:
    """The meter's would take their place."""
    own = msgspec.structs.replace(RECIPE, result=result)
    with pytest.raises(UsageError, match="the program of the recipe r leaves records of its own"):
        meter_variables(own, Request(gpus=2, meter=True))


@pytest.mark.parametrize("batch", [0, -1])
def test_an_impossible_batch_is_refused(batch: int) -> None:
    with pytest.raises(UsageError, match="samples a step are not possible"):
        meter_variables(OWN, Request(gpus=2, meter_batch=batch))
