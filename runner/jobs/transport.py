"""Which way data took between nodes and inside them: by NCCL's log, and by the counters of the planned ports. Pure.

An allreduce of S bytes over several nodes makes each node send and receive at least S: what the other nodes must learn
of its gradients, and what it must learn of theirs. That bound proves. What an algorithm sends beyond it, or others on
the same ports, is shown and never judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Literal, NamedTuple

from runner.core.text import counted
from runner.diagnosis.catalogue import find
from runner.jobs.collect import Evidence
from runner.model.plan import Plan
from runner.model.records import NodeRecord, Port, PortReading
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


class Carried(NamedTuple):
    """What the planned ports carried in the window: ``proven``, ``absent`` (the data went another way) or ``cannot
    tell``, and a sentence that says why.
    """

    verdict: str
    sentence: str


class _Share(NamedTuple):
    """One node: what its planned ports sent and received, less what others send, as parts of what an allreduce must.

    ``least_of_all``: the lesser of both over every port of the planned kind, with what others sent; None if unknown.
    """

    host: str
    sent: float
    received: float
    least_of_all: float | None


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
        sizes = {report.allreduce_bytes_per_step for report in reports.values()}
        steps = min((len(report.ends_s) * (report.group_steps or 0) for report in reports.values()), default=0)
        size = next(iter(sizes), 0) if len(sizes) == 1 else 0
        if not size or not steps:
            raise _CannotTell("the program does not say what it gives to allreduces")
        if size * steps < _LEAST_BYTES:
            raise _CannotTell(f"{size * steps / 1e6:.3g} MB in all are too few to stand out")
        shares = [_share(evidence, node, size * steps) for node in range(plan.nodes)]
    except _CannotTell as reason:
        return Carried("cannot tell", f"counters cannot tell: {reason}")
    worst = min(shares, key=lambda share: min(share.sent, share.received))
    ring = 2 * (plan.tasks - 1) / plan.tasks
    gave = f"{steps} steps gave S = {size * steps / 1e9:.3g} GB to allreduces"
    numbers = (
        f"node {worst.host} sent {worst.sent:.2f} S and received {worst.received:.2f} S over its planned ports; {gave}"
    )
    if min(worst.sent, worst.received) >= _ENOUGH:
        expected = f"a ring sends {ring:.2f} S, double trees 1 to 2 S, SHARP 1 S; LL128 1.07 times that, LL twice"
        return Carried("proven", f"counters of the planned ports: {numbers} ({expected}); the other nodes no less")
    known = [(share.least_of_all, share.host) for share in shares if share.least_of_all is not None]
    least, host = min(known, default=(1.0, ""))
    if least < _ABSENT:
        share = f"those of node {host} carried at most {least:.2f} S one way, others' data included"
        return Carried("absent", f"data between nodes did not go over the planned ports: {share}; {gave}")
    return Carried("cannot tell", f"counters cannot tell: {numbers}; {_ENOUGH} S would prove it")


def _share(evidence: Evidence, node: int, needed: int) -> _Share:
    record = evidence.watched.get(node)
    if record is None or record.window_begin is None or record.window_end is None:
        raise _CannotTell(f"node {node} left no counters of the window")
    begin, end = record.window_begin, record.window_end
    _check_marks(evidence, record, begin, end)
    planned = _planned(evidence, record, begin.ports)
    span_s = end.monotonic_s - begin.monotonic_s
    # What others send, bytes a second: the least from before the window, as the program may have begun in its end.
    others = [
        [moved / (last.monotonic_s - first.monotonic_s) for moved in _moved(planned, first, last)]
        for first, last in pairwise(record.quiet)
        if last.monotonic_s > first.monotonic_s
    ] or [[0.0, 0.0]]
    own = zip(_moved(planned, begin, end), map(min, zip(*others, strict=True)), strict=True)
    sent, received = (max(0.0, moved - rate * span_s) / needed for moved, rate in own)
    # Without a variable that chooses among them, RDMA may go over any port that could have carried it.
    plan = evidence.plan
    able = [port for port in begin.ports if port.name in planned]
    if plan.transport is not None and not selector(plan, plan.transport, evidence.starts[record.rank].environment):
        able = [port for port in begin.ports if port.kind in _KINDS[plan.transport] and port.active]
    least = None
    with suppress(_CannotTell):
        if not any(port.virtual for port in able):
            least = min(_moved([port.name for port in able], begin, end)) / needed
    return _Share(record.host, sent, received, least)


def _check_marks(evidence: Evidence, record: NodeRecord, begin: PortReading, end: PortReading) -> None:
    start, report = evidence.starts.get(record.rank), evidence.reports.get(record.rank)
    if report is None or not record.is_by(start) or not report.ends_s:
        raise _CannotTell(f"the counters of node {record.host} are of no rank of this run")
    first_s, window_s = report.window_began_monotonic_s or 0.0, report.ends_s[-1]
    encloses = begin.monotonic_s <= first_s + _CLOCK_S and end.monotonic_s >= first_s + window_s - _CLOCK_S
    if not encloses or end.monotonic_s - begin.monotonic_s > 1.05 * window_s + 2.0:
        raise _CannotTell(f"the counters of node {record.host} were not read at the ends of the window")


def _planned(evidence: Evidence, record: NodeRecord, ports: Iterable[Port]) -> tuple[str, ...]:
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
    if not chosen and plan.transport == "sockets":
        raise _CannotTell("no interface is planned (NCCL_SOCKET_IFNAME, HOROVOD_GLOO_IFACE)")
    planned = [port for port in ports if port.kind in _KINDS[plan.transport] and port.active]
    if chosen:
        planned = [port for port in planned if selects(chosen, port.name)]
    if not chosen or chosen.startswith("^"):
        planned = [port for port in planned if port.for_ranks]
    if not planned:
        raise _CannotTell(f"node {record.host} shows no counters of planned ports")
    if virtual := [port.name for port in planned if port.virtual]:
        raise _CannotTell(f"{', '.join(virtual)} of node {record.host} are virtual functions")
    return tuple(port.name for port in planned)


def selector(plan: Plan, transport: Transport, environment: Mapping[str, str]) -> str:
    """The variable that chooses among ports, as planned, else as the rank had it; empty for none."""
    name = {"verbs": "NCCL_IB_HCA", "libfabric": "", "sockets": "NCCL_SOCKET_IFNAME"}[transport]
    if transport == "sockets" and plan.device == "cpu":
        # Gloo takes it for one whole name (Horovod's gloo_context.cc).
        value = dict(plan.env).get("HOROVOD_GLOO_IFACE") or environment.get("HOROVOD_GLOO_IFACE", "")
        return f"={value}" if value else ""
    return (dict(plan.env).get(name) or environment.get(name, "")) if name else ""


def selects(chosen: str, name: str) -> bool:
    """NCCL's grammar (its user guide): prefixes, divided by commas; ``=`` before them: whole names; ``^``: none of."""
    excluded, text = chosen.startswith("^"), chosen.lstrip("^")
    whole, entries = text.startswith("="), [entry.strip() for entry in text.lstrip("=").split(",") if entry.strip()]
    adapter = name.rpartition(":")[0] or name
    hit = any(entry in (name, adapter) if whole else name.startswith(entry) for entry in entries)
    return hit != excluded


def _moved(names: Iterable[str], first: PortReading, last: PortReading) -> tuple[int, int]:
    """Bytes that the ports sent, and received, between two readings, less IP over the fabric."""
    before, after = ({port.name: port for port in each.ports} for each in (first, last))
    totals = [0, 0]
    for name in names:
        for way in (0, 1):
            start, end = (_bytes(ports.get(name), way) for ports in (before, after))
            if start is None or end is None:
                raise _CannotTell(f"the counters of {name} cannot be read, or are full")
            if end < start - (1 << 20):  # IP's bytes are read a moment apart from the port's
                raise _CannotTell(f"the counters of {name} were reset, or ran over")
            totals[way] += max(0, end - start)
    return totals[0], totals[1]


def _bytes(port: Port | None, way: int) -> int | None:
    if port is None:
        return None
    total = (port.sent_bytes, port.received_bytes)[way]
    if total is None or total == _FULL_BYTES:
        return None
    return total - (port.ip_sent_bytes, port.ip_received_bytes)[way]


class Ways(NamedTuple):
    """What is known of the ways that data took: whether the transport between nodes is proven (empty where none is
    asked for), and what the verdict says of it, one sentence each.
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
    if not _by_log(evidence)[0] and (counters := carried(evidence)).verdict == "absent":
        yield counters.sentence


def proof(evidence: Evidence) -> Ways:
    """What is proven of the transport; only where ``faults`` has none."""
    log = evidence.nccl.sentence
    inside, remarks = [f"NCCL's ways, by its log: {log}"] if log else [], _remarks(evidence)
    if not _matters(evidence):
        return Ways(proven=tuple(inside), remarks=tuple(remarks))
    (by_log, unknown), counters = _by_log(evidence), carried(evidence)
    by_counters = counters.sentence if counters.verdict == "proven" else ""
    proven = tuple(filter(None, (by_log, by_counters, *inside)))
    if by_log or by_counters:
        return Ways("proven", proven, tuple(remarks))
    why = f"the transport between nodes is UNPROVEN: {unknown}; {counters.sentence}"
    return Ways("unproven", proven, (why, *remarks))


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
        planned_log = "NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,NET and NCCL_DEBUG_FILE are planned"
        return "", f"NCCL left no log of it ({planned_log})"
    used, shown = {transport_of(name) for name in names if name != "MNNVL"}, ", ".join(names)
    if any(find("NCCL log", f"libfabric {provider}") for provider in log.providers):
        used = (used - {"libfabric"}) | {"sockets"}
    if None in used:
        return "", f"the name of NCCL's network, {shown}, does not tell what it runs over"
    if planned is None and used == {"sockets"}:
        return "", "NCCL used sockets, and the site does not say whether it has more; fix: `transport:` in its file"
    kinds = ", ".join(sorted(kind for kind in used if kind)) or "NVLink"
    if used and planned in ("verbs", "libfabric") and used != {planned}:
        return "", f"NCCL used {shown} ({kinds}), the site plans {planned}"
    wanted = "the site plans none" if planned is None else f"planned {planned}"
    some = f", in the logs of {log.processes} of {counted(tasks, 'rank')}" if 0 < log.processes < tasks else ""
    return f"NCCL's network between nodes, by its log: {shown} ({kinds}; {wanted}{some})", ""


def _remarks(evidence: Evidence) -> list[str]:
    """Ways that work and cost time, and what the ports counted besides bytes, which refutes no figure."""
    log, remarks = evidence.nccl, []
    if log.without_gdr and evidence.plan.transport in ("verbs", "libfabric"):
        remarks.append(
            f"{log.without_gdr} of {log.with_gdr + log.without_gdr} connections between nodes went through the host's "
            "memory (no GPUDirect RDMA); fix: load nvidia-peermem on the nodes, and see NCCL_NET_GDR_LEVEL"
        )
    if log.shm and _may_have_nvlink(evidence):
        remarks.append(
            f"{log.shm} connections inside nodes went through the host's memory, not over NVLink or PCIe; fix: each "
            "rank must see all GPUs of its node (no --gpu-bind, no CUDA_VISIBLE_DEVICES of one GPU), and the container "
            "must share the host's /dev/shm and IPC namespace"
        )
    if evidence.plan.nodes < 2:
        return remarks
    errors, waits = _port_trouble(evidence)
    if errors:
        shown = ", ".join(
            f"{name} {sum(counts.values())} (most on {max(counts, key=counts.__getitem__)})"
            for name, counts in sorted(errors.items())
        )
        remarks.append(f"the ports between nodes counted errors in the window: {shown}")
    if waits:
        place = max(waits, key=waits.__getitem__)
        remarks.append(
            f"data waited for the fabric: port_xmit_wait rose by {waits[place]} ticks on {place}, the most of all "
            "ports; some is normal under load, much is congestion"
        )
    return remarks


def _port_trouble(evidence: Evidence) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """What the planned ports of all nodes counted in the window besides bytes: errors by the kernel's name and port,
    and ticks in which data waited to be sent, by port. O(nodes x ports).
    """
    errors: dict[str, dict[str, int]] = {}
    waits: dict[str, int] = {}
    for node, record in sorted(evidence.watched.items()):
        begin, end = record.window_begin, record.window_end
        if begin is None or end is None or node >= evidence.plan.nodes:
            continue
        try:
            _check_marks(evidence, record, begin, end)
            planned = _planned(evidence, record, begin.ports)
        except _CannotTell:
            continue
        first = {port.name: port for port in begin.ports if port.name in planned}
        for port in end.ports:
            if (before := first.get(port.name)) is None:
                continue
            place = f"{port.name} of {record.host}"
            for name, count in port.errors.items():
                if (more := count - before.errors.get(name, count)) > 0:
                    errors.setdefault(name, {})[place] = more
            if before.wait_ticks is not None and (ticks := (port.wait_ticks or 0) - before.wait_ticks) > 0:
                waits[place] = ticks
    return errors, waits


def _may_have_nvlink(evidence: Evidence) -> bool:
    """False where the nodes' GPUs are known to have no NVLink, and for parts of GPUs (MIG), which have none: there the
    host's memory may be the best way.
    """
    if any((report.device_uuid or "").startswith("MIG-") for report in evidence.reports.values()):
        return False
    begins = (record.window_begin for record in evidence.watched.values())
    states = [gpu for begin in begins if begin is not None for gpu in begin.gpus]
    return not states or any(gpu.nvlinks and any(gpu.nvlinks) for gpu in states)
