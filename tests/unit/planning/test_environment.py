"""Which variables a job gets: the fabric's only between nodes, and none that was taken away."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.backends.runtimes import runtime as module_of
from runner.core.errors import UsageError
from runner.model.plan import PlannedImage
from runner.model.request import Mount, Request
from runner.model.site import Home
from runner.planning import environment
from runner.planning.environment import Variables, is_fabric, merge, meter_variables
from runner.planning.plan import plan
from runner.sites.loader import read_site
from tests.support.plans import PROGRAM

FABRIC = ("NCCL_NET", "NCCL_NET_GDR_LEVEL", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_CROSS_NIC", "OFI_NCCL_PROTOCOL",
          "FI_MR_CACHE_MONITOR", "HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES",
          "MELLANOX_VISIBLE_DEVICES")  # fmt: skip
OTHERS = ("NCCL_DEBUG", "NCCL_P2P_LEVEL", "UCX_TLS", "OMP_NUM_THREADS", "NCCL_NETWORK", "FI")
SITE = {"NCCL_NET": "AWS Libfabric", "FI_CXI_DEFAULT_CQ_SIZE": "131072", "OMP_NUM_THREADS": "8"}
THREADS = ("OMP_NUM_THREADS", "8")


@pytest.mark.parametrize("name", FABRIC + OTHERS)
def test_the_sites_variables_of_the_fabric_are_set_between_nodes_only(name: str) -> None:
    assert is_fabric(name) is (name in FABRIC)
    assert merge({name: "x"}, {}, (), nodes=1).env == (() if name in FABRIC else ((name, "x"),))
    assert merge({name: "x"}, {}, (), nodes=2).env == ((name, "x"),)


@pytest.mark.parametrize(
    ("site", "recipe", "user", "nodes", "env", "unset"),
    [
        (SITE, {"NCCL_NET": "Socket"}, (), 1, (("NCCL_NET", "Socket"), THREADS), ()),
        (SITE, {}, (("FI_PROVIDER", "cxi"),), 1, (("FI_PROVIDER", "cxi"), THREADS), ()),
        (SITE, {"A": "1"}, (("NCCL_NET", None), ("A", None), ("OF_IMAGE", None)), 2,
         (("FI_CXI_DEFAULT_CQ_SIZE", "131072"), THREADS), ("A", "NCCL_NET", "OF_IMAGE")),
        ({}, {}, (("A", None), ("A", "1")), 1, (("A", "1"),), ()),
        ({}, {}, (("A", "1"), ("A", None)), 1, (), ("A",)),
        # null in a file takes away what came before; an image or a module that sets the variable itself is left alone.
        ({"A": None, "B": "1"}, {"B": None}, (), 1, (), ()),
        ({"A": None}, {"A": "2"}, (), 1, (("A", "2"),), ()),
    ],
)  # fmt: skip
def test_user_wins_over_recipe_and_that_over_site(
    site: Any, recipe: Any, user: Any, nodes: int, env: Any, unset: tuple[str, ...]
) -> None:
    assert merge(site, recipe, user, nodes=nodes) == Variables(env, unset)


HOME = Mount("/home/me", "/home/me")


@pytest.mark.parametrize(
    ("site", "runtime", "mounts", "where"),
    [
        ("technion", "pyxis", (), "node"),
        ("technion", "pyxis", (HOME,), "home"),
        ("technion", "pyxis", (Mount("/home", "/home/"),), "home"),
        ("technion", "pyxis", (Mount("/home/me", "/data"),), "node"),
        ("technion", "pyxis", (msgspec.structs.replace(HOME, read_only=True),), "node"),
        ("neuron", "singularity", (), "node"),
        ("neuron", "native", (), "home"),
        ("a home that is not for jobs", "native", (), "node"),
        ("perlmutter", "shifter", (), "home"),
        ("perlmutter", "podman-hpc", (), "node"),
        ("local", "native", (), "home"),
        ("local", "charliecloud", (), "node"),
    ],
)
def test_caches_are_at_home_where_programs_see_it(site: str, runtime: str, mounts: Any, where: str) -> None:
    no_home = msgspec.structs.replace(read_site("neuron"), home=Home(for_jobs=False))
    facts = no_home if " " in site else read_site(site)
    assert environment.choose_caches(facts, runtime, mounts, "/home/me") == where


@pytest.mark.parametrize(
    ("runtime", "mounts", "names"),
    [
        ("native", (), {"HF_HOME", "TORCH_HOME"}),
        ("pyxis", (Mount("/scratch", "/scratch"),), {"HF_HOME"}),
        ("pyxis", (), set()),
    ],
)
def test_the_shells_own_caches_are_kept_where_programs_see_them(runtime: str, mounts: Any, names: set[str]) -> None:
    shell = {"HF_HOME": "/scratch/me/hf", "TORCH_HOME": "/home/me/torch", "KERAS_HOME": "relative", "HF_TOKEN": "/x"}
    assert environment.carried_caches(shell, runtime, mounts).keys() == names


def test_a_job_has_the_users_umask_and_caches() -> None:
    request = Request(gpus=8, umask=0o27, mounts=(Mount("/scratch", "/scratch"),), caches=(("HF_HOME", "/scratch/hf"),))
    planned = plan(PROGRAM, read_site("technion"), request, PlannedImage("i:1", "", "/store/x.sqsh"))
    assert (planned.umask, planned.caches, dict(planned.env)["HF_HOME"]) == (0o27, "node", "/scratch/hf")
    command = [part for word in module_of("pyxis").step(planned).command for part in word]
    values = [getattr(part, "value", "") for part in command]
    assert values[values.index("--umask") + 1] == "027"
    assert values[values.index("--caches") + 1] == "node"


@pytest.mark.parametrize(
    ("site", "user", "wins"),
    [({}, (), "/shell"), ({"HF_HOME": "/site"}, (), "/shell"), ({"HF_HOME": "/site"}, (("HF_HOME", "/u"),), "/u")],
)
def test_a_cache_of_the_shell_comes_before_the_sites_and_an_option_before_both(site: Any, user: Any, wins: str) -> None:
    named = msgspec.structs.replace(read_site("neuron"), env=site)
    request = Request(gpus=8, runtime="native", env=user, caches=(("HF_HOME", "/shell"),))
    assert dict(plan(PROGRAM, named, request, PlannedImage("i:1", "", "/x")).env)["HF_HOME"] == wins


@pytest.mark.parametrize(
    ("result", "given", "variables"),
    [
        ("throughput", {}, {}),
        ("if-left", {}, {}),
        ("if-left", {"meter": True}, {"RUNNER_METER": "1"}),
        ("if-left", {"meter_batch": 32}, {"RUNNER_METER": "1", "RUNNER_METER_BATCH": "32"}),
        ("if-left", {"meter_batch": 1}, {"RUNNER_METER": "1", "RUNNER_METER_BATCH": "1"}),
        ("if-left", {"meter_batch": 0}, "samples a step are not possible"),
        ("if-left", {"meter_batch": -1}, "samples a step are not possible"),
        ("throughput", {"meter": True}, "the program of the recipe r leaves records of its own"),
        ("none", {"meter": True}, "the program of the recipe r leaves records of its own"),
    ],
)
def test_the_meter_is_for_programs_without_records_of_their_own(result: Any, given: Any, variables: Any) -> None:
    recipe, request = msgspec.structs.replace(PROGRAM, result=result), Request(gpus=2, **given)
    if isinstance(variables, dict):
        assert meter_variables(recipe, request) == variables
        return
    with pytest.raises(UsageError, match=variables):
        meter_variables(recipe, request)
