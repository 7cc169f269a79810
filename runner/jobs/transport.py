"""Which way data took between nodes: NCCL's own log first, then the counters of the fabric's ports. Pure.

A good log is never overruled by counters. Where neither can tell, the figure stands and its transport is UNPROVEN.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from runner.core.text import counted
from runner.diagnosis.catalogue import find
from runner.jobs.collect import Evidence
from runner.jobs.port_counters import carried, trouble
from runner.model.request import transport_of


@dataclass(frozen=True)
class Ways:
    """What is known of the ways that data took.

    Attributes:
        state: whether the transport between nodes is proven; empty where none is asked for.
        proven, remarks: for the verdict, one sentence each.
    """

    state: Literal["proven", "unproven", ""] = ""
    proven: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def faults(evidence: Evidence) -> Iterable[str]:
    """GPUs of several nodes that talk through sockets where a fabric is planned are slow, and end with 0."""
    if not _matters(evidence):
        return
    if evidence.plan.transport in ("verbs", "libfabric"):
        log = evidence.nccl
        names = [*sorted(log.networks), *(f"libfabric {provider}" for provider in sorted(log.providers))]
        causes = [failure.cause for name in names if (failure := find("NCCL log", name))]
        if causes:
            yield from dict.fromkeys(causes)
            return
    if not _by_log(evidence)[0]:
        counted = carried(evidence)
        if counted.verdict == "absent":
            yield counted.sentence


def proof(evidence: Evidence) -> Ways:
    """What is proven of the transport; only where ``faults`` has none."""
    if not _matters(evidence):
        return Ways(proven=tuple(_inside(evidence)), remarks=tuple(_remarks(evidence)))
    (by_log, unknown), counted = _by_log(evidence), carried(evidence)
    by_counters = counted.sentence if counted.verdict == "proven" else ""
    proven = tuple(filter(None, (by_log, by_counters, *_inside(evidence))))
    if by_log or by_counters:
        return Ways("proven", proven, tuple(_remarks(evidence)))
    why = f"the transport between nodes is UNPROVEN: {unknown}; {counted.sentence}"
    return Ways("unproven", proven, (why, *_remarks(evidence)))


def _matters(evidence: Evidence) -> bool:
    plan = evidence.plan
    return plan.nodes > 1 and (plan.device == "cuda" or plan.transport is not None)


def _by_log(evidence: Evidence) -> tuple[str, str]:
    """(what NCCL's log proves, why it proves nothing): one of them is empty."""
    planned, tasks, log = evidence.plan.transport, evidence.plan.tasks, evidence.nccl
    names = sorted(log.networks)
    if evidence.plan.device == "cpu":
        return "", "the ranks used no NCCL"
    if not names:
        return (
            "",
            "NCCL left no log of it (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,NET and NCCL_DEBUG_FILE are planned)",
        )
    used, shown = {transport_of(name) for name in names}, ", ".join(names)
    if any(find("NCCL log", f"libfabric {provider}") for provider in log.providers):
        used = (used - {"libfabric"}) | {"sockets"}
    if None in used:
        return "", f"the name of NCCL's network, {shown}, does not tell what it runs over"
    if planned is None and used == {"sockets"}:
        return "", "NCCL used sockets, and the site does not say whether it has more; fix: `transport:` in its file"
    kinds = ", ".join(sorted(kind for kind in used if kind))
    if planned in ("verbs", "libfabric") and used != {planned}:
        return "", f"NCCL used {shown} ({kinds}), the site plans {planned}"
    wanted = "the site plans none" if planned is None else f"planned {planned}"
    some = f", in the logs of {log.processes} of {counted(tasks, 'rank')}" if 0 < log.processes < tasks else ""
    return f"NCCL's network between nodes, by its log: {shown} ({kinds}; {wanted}{some})", ""


def _inside(evidence: Evidence) -> list[str]:
    return [f"NCCL's ways, by its log: {evidence.nccl.sentence}"] if evidence.nccl.sentence else []


def _remarks(evidence: Evidence) -> list[str]:
    """Ways that work and cost time."""
    log, found = evidence.nccl, []
    if log.without_gdr and evidence.plan.transport in ("verbs", "libfabric"):
        found.append(
            f"{log.without_gdr} of {log.with_gdr + log.without_gdr} connections between nodes went through the host's "
            "memory (no GPUDirect RDMA); fix: load nvidia-peermem on the nodes, and see NCCL_NET_GDR_LEVEL"
        )
    if log.shm and _may_have_nvlink(evidence):
        found.append(
            f"{log.shm} connections inside nodes went through the host's memory, not over NVLink or PCIe; fix: each "
            "rank must see all GPUs of its node (no --gpu-bind, no CUDA_VISIBLE_DEVICES of one GPU), and the container "
            "must share the host's /dev/shm and IPC namespace"
        )
    return [*found, *_ports(evidence)] if evidence.plan.nodes > 1 else found


def _ports(evidence: Evidence) -> Iterable[str]:
    """What the ports counted besides bytes: it explains a figure, and refutes none."""
    counted = trouble(evidence)
    if counted.errors:
        shown = ", ".join(f"{name} {count} (most on {where})" for name, count, where in counted.errors)
        yield f"the ports between nodes counted errors in the window: {shown}"
    if counted.waited is not None:
        ticks, where = counted.waited
        yield (
            f"data waited for the fabric: port_xmit_wait rose by {ticks} ticks on {where}, the most of all ports; some "
            "is normal under load, much is congestion"
        )


def _may_have_nvlink(evidence: Evidence) -> bool:
    """False where the nodes' GPUs are known to have no NVLink, and for parts of GPUs (MIG), which have none: there the
    host's memory may be the best way.
    """
    if any((report.device_uuid or "").startswith("MIG-") for report in evidence.reports.values()):
        return False
    states = [
        gpu
        for record in evidence.watched.values()
        if record.window_begin is not None
        for gpu in record.window_begin.gpus
    ]
    return not states or any(gpu.nvlinks and any(gpu.nvlinks) for gpu in states)
