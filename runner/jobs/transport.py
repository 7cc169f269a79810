"""What the counters of the planned ports say of an allreduce's bytes: the second proof of transport. Pure.

An allreduce of S bytes over several nodes makes each node send and receive at least S: what the other nodes must learn
of its gradients, and what it must learn of theirs. That bound proves. What an algorithm sends beyond it, or others on
the same ports, is shown and never judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from runner.core.text import counted
from runner.diagnosis.catalogue import find
from runner.jobs.collect import Evidence
from runner.model.plan import Plan
from runner.model.records import NodeRecord, Port, PortReading, Report
from runner.model.request import Transport, transport_of
from runner.planning.wireup import BY_MPI

_ENOUGH = 0.9  # of S: counters are read a moment apart, and what others sent meanwhile is estimated
_ABSENT = 0.5  # of S: with less than this, data cannot have gone over these ports
_LEAST_BYTES = 10_000_000  # S of the whole window: less does not stand out from what else uses a fabric
_FULL_BYTES = 4 * 0xFFFFFFFF  # old adapters count up to here and stop (IBTA: 32-bit counters of 4-byte words)
_CLOCK_S = 0.1
_KINDS: dict[Transport, tuple[str, ...]] = {
    "verbs": ("infiniband", "roce"),
    "libfabric": ("cxi", "efa"),
    "sockets": ("interface",),
}


@dataclass(frozen=True)
class Carried:
    """What the planned ports carried in the window.

    Attributes:
        verdict: ``proven``, ``absent`` (the data went another way) or ``cannot tell``.
        sentence: why.
    """

    verdict: str
    sentence: str


@dataclass(frozen=True)
class _Share:
    """One node: what its planned ports sent and received, as parts of what an allreduce must send.

    Attributes:
        sent, received: less what others send, as estimated.
        least_of_all: the lesser of both over every port of the planned kind, with what others sent; None where that is
            unknown.
    """

    host: str
    sent: float
    received: float
    least_of_all: float | None

    @property
    def least(self) -> float:
        return min(self.sent, self.received)


@dataclass(frozen=True)
class Trouble:
    """What the planned ports of all nodes counted in the window besides bytes.

    Attributes:
        errors: (the kernel's name, count, the port with most of them), by name.
        waited: (ticks in which data waited to be sent, port) of the port that waited longest; None for none.
    """

    errors: tuple[tuple[str, int, str], ...] = ()
    waited: tuple[int, str] | None = None


class _CannotTell(Exception):
    """Why counters say nothing."""


def carried(evidence: Evidence) -> Carried:
    """The counters of all nodes. O(nodes x ports)."""
    try:
        plan, reports = evidence.plan, evidence.reports
        if not plan.whole_nodes:
            raise _CannotTell("the nodes are shared with other jobs")
        if evidence.nccl.mnnvl:
            raise _CannotTell("NVLink connects the nodes, too")
        size, steps = _allreduced(reports)
        if size * steps < _LEAST_BYTES:
            raise _CannotTell(f"{size * steps / 1e6:.3g} MB in all are too few to stand out")
        shares = [_share(evidence, node, size * steps) for node in range(plan.nodes)]
    except _CannotTell as reason:
        return Carried("cannot tell", f"counters cannot tell: {reason}")
    worst = min(shares, key=lambda share: share.least)
    ring = 2 * (plan.tasks - 1) / plan.tasks
    gave = f"{steps} steps gave S = {size * steps / 1e9:.3g} GB to allreduces"
    numbers = (
        f"node {worst.host} sent {worst.sent:.2f} S and received {worst.received:.2f} S over its planned ports; {gave}"
    )
    if worst.least >= _ENOUGH:
        expected = f"a ring sends {ring:.2f} S, double trees 1 to 2 S, SHARP 1 S; LL128 1.07 times that, LL twice"
        return Carried("proven", f"counters of the planned ports: {numbers} ({expected}); the other nodes no less")
    known = [(share.least_of_all, share.host) for share in shares if share.least_of_all is not None]
    least, host = min(known, default=(1.0, ""))
    if least < _ABSENT:
        share = f"those of node {host} carried at most {least:.2f} S one way, others' data included"
        return Carried("absent", f"data between nodes did not go over the planned ports: {share}; {gave}")
    return Carried("cannot tell", f"counters cannot tell: {numbers}; {_ENOUGH} S would prove it")


def trouble(evidence: Evidence) -> Trouble:
    """Errors and congestion of the ports that ranks use, on every node that shows them. O(nodes x ports)."""
    errors: dict[str, tuple[int, int, str]] = {}
    waited: tuple[int, str] | None = None
    for node, record in sorted(evidence.watched.items()):
        begin, end = record.window_begin, record.window_end
        if begin is None or end is None or node >= evidence.plan.nodes:
            continue
        try:
            _fits(evidence, record, begin, end)
            planned = _planned(evidence, record, begin.ports)
        except _CannotTell:
            continue
        first = {port.name: port for port in begin.ports}
        for port in end.ports:
            if port.name not in planned or port.name not in first:
                continue
            place = f"{port.name} of {record.host}"
            for name, count in port.errors.items():
                more = count - first[port.name].errors.get(name, count)
                if more > 0:
                    total, most, where = errors.get(name, (0, 0, ""))
                    errors[name] = (total + more, max(most, more), place if more > most else where)
            ticks = (port.wait_ticks or 0) - (first[port.name].wait_ticks or 0)
            if first[port.name].wait_ticks is not None and ticks > (waited[0] if waited else 0):
                waited = (ticks, place)
    return Trouble(tuple((name, total, where) for name, (total, _, where) in sorted(errors.items())), waited)


def _allreduced(reports: Mapping[int, Report]) -> tuple[int, int]:
    """(bytes given to allreduces in a step, timed steps)."""
    sizes = {report.allreduce_bytes_per_step for report in reports.values()}
    if len(sizes) != 1 or None in sizes or 0 in sizes:
        raise _CannotTell("the program does not say what it gives to allreduces")
    (size,) = sizes
    steps = min((len(report.ends_s) * (report.group_steps or 0) for report in reports.values()), default=0)
    if not size or not steps:
        raise _CannotTell("the program does not say what it gives to allreduces")
    return size, steps


def _share(evidence: Evidence, node: int, needed: int) -> _Share:
    record = evidence.watched.get(node)
    if record is None or record.window_begin is None or record.window_end is None:
        raise _CannotTell(f"node {node} left no counters of the window")
    begin, end = record.window_begin, record.window_end
    _fits(evidence, record, begin, end)
    planned = _planned(evidence, record, begin.ports)
    sent, received = (_moved(planned, begin, end, which) for which in (0, 1))
    span_s = end.monotonic_s - begin.monotonic_s
    others = [_others(planned, record.quiet, which) * span_s for which in (0, 1)]
    own = (max(0.0, sent - others[0]) / needed, max(0.0, received - others[1]) / needed)
    return _Share(record.host, *own, least_of_all=_least_of_all(evidence, record, planned, begin, end, needed))


def _least_of_all(
    evidence: Evidence, record: NodeRecord, planned: tuple[str, ...], begin: PortReading, end: PortReading, needed: int
) -> float | None:
    """What all ports carried that could have: without a variable that chooses among them, RDMA may go over any."""
    plan, environment = evidence.plan, evidence.starts[record.rank].environment
    if plan.transport is not None and not selector(plan, plan.transport, environment):
        able = [port for port in begin.ports if port.kind in _KINDS[plan.transport] and port.active]
        if any(port.virtual for port in able):
            return None
        planned = tuple(port.name for port in able)
    try:
        return min(_moved(planned, begin, end, which) for which in (0, 1)) / needed
    except _CannotTell:
        return None


def _fits(evidence: Evidence, record: NodeRecord, begin: PortReading, end: PortReading) -> None:
    """The marks enclose the reported window, and little else."""
    start, report = evidence.starts.get(record.rank), evidence.reports.get(record.rank)
    if start is None or report is None or start.token != record.token or start.node_rank != record.node_rank:
        raise _CannotTell(f"the counters of node {record.host} are of no rank of this run")
    if start.host != record.host or not report.ends_s:
        raise _CannotTell(f"the counters of node {record.host} are of no rank of this run")
    first_s = report.window_began_monotonic_s or 0.0
    window_s = report.ends_s[-1]
    encloses = begin.monotonic_s <= first_s + _CLOCK_S and end.monotonic_s >= first_s + window_s - _CLOCK_S
    if not encloses or end.monotonic_s - begin.monotonic_s > 1.05 * window_s + 2.0:
        raise _CannotTell(f"the counters of node {record.host} were not read at the ends of the window")


def _planned(evidence: Evidence, record: NodeRecord, ports: Iterable[Port]) -> tuple[str, ...]:
    """Names of the ports that carry what ranks exchange."""
    plan = evidence.plan
    if plan.transport is None:
        raise _CannotTell("the site plans no transport")
    if plan.device == "cpu":  # NCCL carries nothing there
        if plan.wireup in BY_MPI and plan.transport == "sockets":
            raise _CannotTell("MPI chooses its own interfaces")
        if plan.wireup not in BY_MPI and plan.transport != "sockets":
            raise _CannotTell(f"processors exchange data by Gloo, through sockets and not {plan.transport}")
    start = evidence.starts[record.rank]
    chosen = selector(plan, plan.transport, start.environment)
    kinds = [port for port in ports if port.kind in _KINDS[plan.transport] and port.active]
    if chosen:
        kinds = [port for port in kinds if selects(chosen, port.name)]
        if chosen.startswith("^"):
            kinds = [port for port in kinds if port.for_ranks]
    elif plan.transport == "sockets":
        raise _CannotTell("no interface is planned (NCCL_SOCKET_IFNAME, HOROVOD_GLOO_IFACE)")
    else:
        kinds = [port for port in kinds if port.for_ranks]
    if not kinds:
        raise _CannotTell(f"node {record.host} shows no counters of planned ports")
    virtual = [port.name for port in kinds if port.virtual]
    if virtual:
        raise _CannotTell(f"{', '.join(virtual)} of node {record.host} are virtual functions")
    return tuple(port.name for port in kinds)


def selector(plan: Plan, transport: Transport, environment: Mapping[str, str]) -> str:
    """The variable that chooses among ports, as planned, else as the rank had it; empty for none."""
    name = {"verbs": "NCCL_IB_HCA", "libfabric": "", "sockets": "NCCL_SOCKET_IFNAME"}[transport]
    if transport == "sockets" and plan.device == "cpu":
        # Gloo takes it for one whole name (Horovod's gloo_context.cc).
        value = dict(plan.env).get("HOROVOD_GLOO_IFACE") or environment.get("HOROVOD_GLOO_IFACE", "")
        return f"={value}" if value else ""
    if not name:
        return ""
    return dict(plan.env).get(name) or environment.get(name, "")


def selects(chosen: str, name: str) -> bool:
    """NCCL's grammar (its user guide): prefixes, divided by commas; ``=`` before them: whole names; ``^``: none of."""
    excluded, text = chosen.startswith("^"), chosen.lstrip("^")
    whole, entries = text.startswith("="), [entry.strip() for entry in text.lstrip("=").split(",") if entry.strip()]
    adapter = name.rpartition(":")[0] or name
    hit = any(entry in (name, adapter) if whole else name.startswith(entry) for entry in entries)
    return hit != excluded


def _moved(names: tuple[str, ...], first: PortReading, last: PortReading, which: int) -> int:
    """Bytes that the ports sent (0) or received (1) between two readings, less IP over the fabric."""
    before, after = ({port.name: _bytes(port, which) for port in each.ports} for each in (first, last))
    total = 0
    for name in names:
        start, end = before.get(name), after.get(name)
        if start is None or end is None:
            raise _CannotTell(f"the counters of {name} cannot be read, or are full")
        if end < start - (1 << 20):  # IP's bytes are read a moment apart from the port's
            raise _CannotTell(f"the counters of {name} were reset, or ran over")
        total += max(0, end - start)
    return total


def _bytes(port: Port, which: int) -> int | None:
    total = port.received_bytes if which else port.sent_bytes
    if total is None or total == _FULL_BYTES:
        return None
    return total - (port.ip_received_bytes if which else port.ip_sent_bytes)


def _others(names: tuple[str, ...], quiet: tuple[PortReading, ...], which: int) -> float:
    """Bytes a second that others send, from before the window: the least of its readings, as the program may have
    begun in the later ones.
    """
    rates = [
        _moved(names, first, last, which) / (last.monotonic_s - first.monotonic_s)
        for first, last in pairwise(quiet)
        if last.monotonic_s > first.monotonic_s
    ]
    return min(rates, default=0.0)


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
