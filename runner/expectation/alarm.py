"""A measured figure against the expected range, and why it may fall short. Pure."""

from __future__ import annotations

from runner.core.text import counted, percent
from runner.model.expectation import Cause, Comparison, ExpectedPoint, Signs
from runner.model.study import Estimate

_STATES = ("shown", "possible", "excluded")
_LEAST_COST = 0.01  # of a step: slow ranks that cost less explain nothing


def compare(point: ExpectedPoint, measured: Estimate, signs: Signs | None = None) -> Comparison:
    """The measured throughput against the expected one.

    Args:
        measured: of the whole world, samples per second; without an interval there is no alarm.
        signs: what a run of the point left; None where that is unknown.
    """
    expected = point.images_per_s
    reach = f"expected {expected.low:.4g} to {expected.high:.4g}"
    if measured.low is None or measured.high is None:
        why = f"{measured.value:.4g} samples/s, without an interval: too few launches; {reach}"
        return Comparison(point.gpus, measured, expected, "cannot tell", why)
    why = f"{measured.low:.4g} to {measured.high:.4g} samples/s measured, {reach}"
    if measured.high < expected.low and point.no_alarm:
        return Comparison(point.gpus, measured, expected, "cannot tell", f"{why}; {point.no_alarm}")
    if measured.high < expected.low:
        why += f": at least {percent(1 - measured.value / expected.low, 0)} is missing"
        return Comparison(point.gpus, measured, expected, "below", why, _causes(point, signs))
    if measured.low > expected.high:
        why += ": an input of the expectation is too low"
        return Comparison(point.gpus, measured, expected, "above", why)
    return Comparison(point.gpus, measured, expected, "within", why)


def _causes(point: ExpectedPoint, signs: Signs | None) -> tuple[Cause, ...]:
    """What may have made it slow: what the run shows first, what it excludes last."""
    seen = signs if signs is not None else Signs(nodes=point.nodes)
    if point.gpus < 2:
        return (_input(seen),)
    made = [_slow_ranks(point, seen), _input(seen)]
    if point.nodes > 1:
        fix = "load nvidia-peermem on the nodes, and see NCCL_NET_GDR_LEVEL"
        gdr = _host_memory("no GPUDirect RDMA", "between", seen.without_gdr, seen.with_gdr, fix)
        made = [_sockets(seen), _adapters(seen), gdr, *made]
    if point.ranks_per_node > 1:
        fix = "each rank must see all GPUs of its node, and the container must share the host's /dev/shm and IPC "
        inside = seen.shared_memory, seen.peer_to_peer
        made.append(_host_memory("host memory instead of NVLink", "inside", *inside, f"{fix}namespace"))
    return tuple(sorted(made, key=lambda cause: _STATES.index(cause.state)))


def _sockets(signs: Signs) -> Cause:
    name, fix = "sockets instead of RDMA", "see that the container has the fabric's library and devices"
    if not signs.networks or not signs.kinds:
        return Cause(name, "possible", ("NCCL left no log of its network",), fix)
    evidence = f"NCCL's network between nodes was {', '.join(signs.networks)}"
    return Cause(name, "shown" if "sockets" in signs.kinds else "excluded", (evidence,), fix)


def _adapters(signs: Signs) -> Cause:
    name = "one network adapter"
    fix = "see NCCL_IB_HCA, and that the container has all of the node's devices (MELLANOX_VISIBLE_DEVICES)"
    used, planned = len({each.partition(":")[0] for each in signs.adapters}), signs.planned_adapters
    if not used:
        return Cause(name, "possible", ("NCCL left no log of its adapters",), fix)
    evidence = f"NCCL used {used} adapters of a node ({', '.join(signs.adapters)})"
    if planned is None:
        return Cause(name, "possible" if used == 1 else "excluded", (evidence,), fix)
    return Cause(name, "shown" if used < planned else "excluded", (evidence, f"the site's file says {planned}"), fix)


def _host_memory(name: str, where: str, through_host: int, direct: int, fix: str) -> Cause:
    if not through_host + direct:
        return Cause(name, "possible", (f"NCCL left no log of connections {where} nodes",), fix)
    connections = f"{through_host + direct} connections {where} nodes"
    evidence = f"{through_host} of {connections} went through the host's memory"
    return Cause(name, "shown" if through_host else "excluded", (evidence,), fix)


def _slow_ranks(point: ExpectedPoint, signs: Signs) -> Cause:
    name, fix = "slow ranks", "exclude the slow node or GPU, and report it to the site"
    if not signs.judged_ranks:
        return Cause(name, "possible", ("not every rank recorded its own compute time",), fix)
    slow = [f"node {node} was {percent(excess)} slower" for node, excess in signs.slow_nodes]
    slow += [f"rank {rank} was {percent(excess)} slower" for rank, excess in signs.slow_ranks]
    if slow and signs.removable >= _LEAST_COST:
        return Cause(name, "shown", (*slow, f"they cost at most {percent(signs.removable)} of a step"), fix)
    if slow:
        return Cause(name, "excluded", (*slow, f"which costs {percent(signs.removable)} of a step"), fix)
    return Cause(name, "excluded", (f"none of {counted(point.gpus, 'rank')} was slow for most of the run",), fix)


def _input(signs: Signs) -> Cause:
    name, fix = "input pipeline", "measure with synthetic data; give the loader more processes, or decode on the GPU"
    if signs.real_data is None:
        return Cause(name, "possible", ("it is unknown whether the run read data",), fix)
    if not signs.real_data:
        return Cause(name, "excluded", ("the run trained on synthetic data, made on the device",), fix)
    return Cause(name, "possible", ("the run read data",), fix)
