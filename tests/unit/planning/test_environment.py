"""Which variables a job gets: the fabric's only between nodes, and none that was taken away."""

from __future__ import annotations

import pytest

from runner.planning.environment import Variables, is_fabric, merge

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
