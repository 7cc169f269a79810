"""A measured figure against the expected range, and why it may fall short. Pure."""

from __future__ import annotations

from typing import Literal

from runner.core.text import counted, percent
from runner.model.expectation import Cause, Comparison, ExpectedPoint, Signs
from runner.model.study import Estimate

_STATES = ("shown", "possible", "excluded")
_LEAST_COST = 0.01  # of a step: slow ranks that cost less explain nothing


def compare(point: ExpectedPoint, measured: Estimate, signs: Signs | None = None) -> Comparison:
    """The measured throughput against the expected one.

    Args:
        measured: of the whole world, samples per second, with its interval; without one there is no alarm.
        signs: what a run of the point left; None where that is unknown.
    """
    expected = point.images_per_s
    reach = f"expected {expected.low:.4g} to {expected.high:.4g}"
    if measured.low is None or measured.high is None:
        why = f"{measured.value:.4g} samples/s, without an interval: too few launches; {reach}"
        return Comparison(point.gpus, measured, expected, "cannot tell", why)
    interval = f"{measured.low:.4g} to {measured.high:.4g} samples/s measured"
    if measured.high < expected.low:
        missing = 1 - measured.value / expected.low
        why = f"{interval}, {reach}: at least {percent(missing, 0)} is missing"
        return Comparison(point.gpus, measured, expected, "below", why, causes(point, signs))
    if measured.low > expected.high:
        why = f"{interval}, {reach}: an input of the expectation is too low"
        return Comparison(point.gpus, measured, expected, "above", why)
    return Comparison(point.gpus, measured, expected, "within", f"{interval}, {reach}")


def causes(point: ExpectedPoint, signs: Signs | None) -> tuple[Cause, ...]:
    """What may have made it slow: what the run shows first, what it excludes last."""
    seen = signs if signs is not None else Signs(nodes=point.nodes)
    found = [_slow_ranks(point, seen), _input(seen)]
    if point.nodes > 1:
        found = [_sockets(seen), _adapters(seen), _gdr(seen), *found]
    if point.ranks_per_node > 1:
        found.append(_host_memory(seen))
    if point.gpus < 2:
        found = [_input(seen)]
    return tuple(sorted(found, key=lambda cause: _STATES.index(cause.state)))


def _sockets(signs: Signs) -> Cause:
    name, fix = "sockets instead of RDMA", "see that the container has the fabric's library and devices (docs/gpu.md)"
    shown = ", ".join(signs.networks)
    if not signs.networks or not signs.kinds:
        return Cause(name, "possible", ("NCCL left no log of its network",), fix)
    if "sockets" in signs.kinds:
        return Cause(name, "shown", (f"NCCL's network between nodes was {shown}",), fix)
    return Cause(name, "excluded", (f"NCCL's network between nodes was {shown}",), fix)


def _adapters(signs: Signs) -> Cause:
    name = "one network adapter"
    fix = "see NCCL_IB_HCA, and that the container has all of the node's devices (MELLANOX_VISIBLE_DEVICES)"
    used, planned = len({each.partition(":")[0] for each in signs.adapters}), signs.planned_adapters
    if not used:
        return Cause(name, "possible", ("NCCL left no log of its adapters",), fix)
    evidence = f"NCCL used {used} adapters of a node ({', '.join(signs.adapters)})"
    if planned is None:
        return Cause(name, "possible" if used == 1 else "excluded", (evidence,), fix)
    state: Literal["shown", "excluded"] = "shown" if used < planned else "excluded"
    return Cause(name, state, (evidence, f"the site's file says {planned}"), fix)


def _gdr(signs: Signs) -> Cause:
    name, fix = "no GPUDirect RDMA", "load nvidia-peermem on the nodes, and see NCCL_NET_GDR_LEVEL"
    total = signs.with_gdr + signs.without_gdr
    if not total:
        return Cause(name, "possible", ("NCCL left no log of connections between nodes",), fix)
    evidence = (f"{signs.without_gdr} of {total} connections between nodes went through the host's memory",)
    return Cause(name, "shown" if signs.without_gdr else "excluded", evidence, fix)


def _host_memory(signs: Signs) -> Cause:
    name = "host memory instead of NVLink"
    fix = "each rank must see all GPUs of its node, and the container must share the host's /dev/shm and IPC namespace"
    total = signs.peer_to_peer + signs.shared_memory
    if not total:
        return Cause(name, "possible", ("NCCL left no log of connections inside nodes",), fix)
    evidence = (f"{signs.shared_memory} of {total} connections inside nodes went through the host's memory",)
    return Cause(name, "shown" if signs.shared_memory else "excluded", evidence, fix)


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


def is_input_bound(point: ExpectedPoint, measured: float, other: ExpectedPoint, other_measured: float) -> bool:
    """Whether a run on real data is held back by its input, by the same training at a lower rate on the same machine.

    The gradients are the same, and so is the network: where the slower run (other precision) is in its range and the
    faster one is below its own, what is missing grows with the rate, as a ceiling on samples does. Communication alone
    would cost both the same seconds a step; so the seconds that the faster one misses must be more than the slower one
    can have lost.
    """
    slower_holds = other_measured >= other.images_per_s.low
    faster_fails = measured < point.images_per_s.low
    if not (slower_holds and faster_fails and measured > other_measured):
        return False
    return _lost(point, measured) > _lost(other, other_measured)


def _lost(point: ExpectedPoint, measured: float) -> float:
    """Seconds of each sample and GPU more than expected."""
    return point.gpus * (1 / measured - 1 / point.images_per_s.value)
