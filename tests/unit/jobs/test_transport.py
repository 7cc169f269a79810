"""Which way data took between nodes: proven by NCCL's log or by the ports' counters, or UNPROVEN; seldom a fault."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from runner.diagnosis.logs import NcclLog
from runner.jobs.collect import Evidence
from runner.jobs.transport import carried, selects
from runner.jobs.verdict import judge
from runner.model.records import NodeRecord, PortReading, WindowEnd
from runner.model.request import Transport
from tests.support.evidence import GOOD, changed, node, on_all, port, report, start, with_plan

altered = msgspec.structs.replace
SOCKETS = "sockets between nodes, not the planned fabric (see nccl/)"


def used(*names: str, planned: Transport | None = "verbs", **log: Any) -> Evidence:
    """A good run whose NCCL named these networks."""
    return with_plan(changed(nccl=NcclLog(networks=frozenset(names), **log)), transport=planned)


def over(provider: str, planned: Transport | None = "libfabric") -> Evidence:
    return used("AWS Libfabric", planned=planned, providers=frozenset({provider}))


ALONE = with_plan(changed(starts=on_all(start, host="n0"), nccl=NcclLog()), tasks_per_node=(4,))
# What the logs prove, why they do not, or the fault; "" where neither is asked for.
LOGGED = [
    (used("IB"), "proven", "by its log: IB (verbs; planned verbs)"),
    (used("IBext_v8"), "proven", "IBext_v8 (verbs; planned verbs)"),
    (used("AWS Libfabric", planned="libfabric"), "proven", "AWS Libfabric (libfabric; planned libfabric)"),
    (used("Socket", planned="sockets"), "proven", "Socket (sockets; planned sockets)"),
    (used("IB", planned="sockets"), "proven", "IB (verbs; planned sockets)"),
    (used("IB", planned=None), "proven", "IB (verbs; the site plans none)"),
    (used("gIB"), "proven", "gIB (verbs; planned verbs)"),
    (used("MNNVL", mnnvl=True), "proven", "MNNVL (NVLink; planned verbs)"),
    (used("IB", "MNNVL", mnnvl=True), "proven", "IB, MNNVL (verbs; planned verbs)"),
    (used("IB", processes=1), "proven", "IB (verbs; planned verbs, in the logs of 1 of 4 ranks)"),
    (used("IB", processes=4), "proven", "IB (verbs; planned verbs)"),
    *((over(each), "proven", "planned libfabric") for each in ("cxi", "efa", "verbs;ofi_rxm", "psm3")),
    (over("tcp", "sockets"), "proven", "planned sockets"),
    # Parts of GPUs have no NVLink to miss.
    (replace(used("IB", shm=2), reports={rank: report(rank, device_uuid=f"MIG-{rank}") for rank in range(4)}),
        "proven", "by its log: IB"),
    (ALONE, "", ""),  # one node needs no proof of what lies between nodes
    (used(), "unproven", "NCCL left no log of it"),
    (used("UCX"), "unproven", "UCX, does not tell"),
    (used("IB", "FasTrak"), "unproven", "FasTrak, IB, does not tell"),
    (used("Libfabric"), "unproven", "Libfabric (libfabric), the site plans verbs"),
    (used("Socket", planned=None), "unproven", "fix: `transport:` in its file"),
    (over("tcp", None), "unproven", "fix: `transport:` in its file"),
    *((used("Socket", planned=planned), "fault", SOCKETS) for planned in ("verbs", "libfabric")),
    *((over(each), "fault", SOCKETS) for each in ("tcp", "tcp;ofi_rxm", "ofi_rxm;tcp", "sockets")),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "state", "says"), LOGGED)
def test_what_nccls_log_proves_and_where_it_cannot_tell_the_figure_stands(
    evidence: Evidence, state: str, says: str
) -> None:
    verdict = judge(evidence)
    assert verdict.outcome == ("not-proven" if state == "fault" else "measured")
    assert verdict.transport == ("" if state == "fault" else state)
    sentences = {"fault": verdict.reasons, "unproven": verdict.remarks}.get(state, verdict.proven)
    assert any(says in each for each in sentences), sentences
    assert [each for each in verdict.remarks if "UNPROVEN" not in each] == []


def test_ways_that_cost_time_are_remarks_with_their_fix() -> None:
    verdict = judge(used("IB", with_gdr=1, without_gdr=3, shm=2))
    assert verdict.transport == "proven"
    assert [remark.split(";")[0] for remark in verdict.remarks] == [
        "3 of 4 connections between nodes went through the host's memory (no GPUDirect RDMA)",
        "2 connections inside nodes went through the host's memory, not over NVLink or PCIe",
    ]
    assert all("fix: " in remark for remark in verdict.remarks)


RAILS = "=mlx5_0:1,mlx5_1:1"  # as a launcher sets it where a node has other ports, too
STEP_BYTES = 10_000_000  # of 6 steps: S is 60 MB


def counted(*shares: float, chosen: str = RAILS, **changes: Any) -> Evidence:
    """Four ranks on two nodes whose NCCL left no log; their ports carried these parts of S each way."""
    fields: dict[str, Any] = {
        "nccl": NcclLog(),
        "starts": on_all(start, environment={"NCCL_IB_HCA": chosen}),
        "reports": on_all(report, allreduce_bytes_per_step=STEP_BYTES),
        "watched": {number: carrying(number, share) for number, share in enumerate(shares)},
    }
    plan = changes.pop("plan", {})
    return with_plan(changed(**(fields | changes)), **plan)


def carrying(number: int, share: float) -> NodeRecord:
    """Two rails, an idle storage port, and IP over the first rail, which does not count."""
    moved = int(share * 6 * STEP_BYTES / 2)
    rail = (
        port("mlx5_0:1", 500, 500),
        port("mlx5_0:1", 500 + moved + 77, 500 + moved + 99, ip_sent_bytes=77, ip_received_bytes=99),
    )
    other = port("mlx5_1:1", 9, 9), port("mlx5_1:1", 9 + moved, 9 + moved)
    storage = (
        port("mlx5_4:1", 0, 0, for_ranks=False, errors={"symbol_error": 7000}),
        port("mlx5_4:1", 10**12, 10**12, for_ranks=False, errors={"symbol_error": 9000}),
    )
    return node(number, [rail, other, storage])


def on_interfaces(*pairs: tuple[Any, Any], **plan: Any) -> Evidence:
    return counted(plan=plan, watched={number: node(number, list(pairs)) for number in range(2)})


def without(number: int, **changes: Any) -> dict[int, NodeRecord]:
    """Both nodes' records, one of them changed."""
    nodes = {0: carrying(0, 1.5), 1: carrying(1, 1.5)}
    return nodes | {number: altered(nodes[number], **changes)}


def rail_changed(number: int, begin: dict[str, Any], end: dict[str, Any], share: float = 1.5) -> dict[int, NodeRecord]:
    """Both nodes' records; of one node the first rail is changed."""
    record = carrying(number, share)
    assert record.window_begin is not None and record.window_end is not None
    first, last = (
        altered(each, ports=(altered(each.ports[0], **changes), *each.ports[1:]))
        for each, changes in ((record.window_begin, begin), (record.window_end, end))
    )
    return without(number, window_begin=first, window_end=last) | {1 - number: carrying(1 - number, share)}


def always(**changes: Any) -> dict[int, NodeRecord]:
    return rail_changed(1, changes, changes)


def test_counters_prove_where_the_log_cannot_tell() -> None:
    verdict = judge(counted(1.5, 1.02))
    assert (verdict.outcome, verdict.transport, verdict.remarks) == ("measured", "proven", ())
    (sentence,) = [each for each in verdict.proven if "counters" in each]
    assert "node n1 sent 1.02 S and received 1.02 S over its planned ports; 6 steps gave S = 0.06 GB" in sentence
    assert "a ring sends 1.50 S, double trees 1 to 2 S, SHARP 1 S" in sentence


def test_data_that_did_not_go_over_the_planned_ports_are_a_fault_but_against_a_good_log() -> None:
    verdict = judge(counted(1.5, 0.01))
    assert verdict.outcome == "not-proven"
    assert verdict.reasons[0].startswith("data between nodes did not go over the planned ports: those of node n1")
    verdict = judge(counted(0.0, 0.0, nccl=GOOD.nccl))
    assert (verdict.outcome, verdict.transport) == ("measured", "proven")


FULL = 4 * 0xFFFFFFFF
SMALL = on_all(report, allreduce_bytes_per_step=1000)
CANNOT_TELL: dict[str, tuple[Evidence, str]] = {
    "between both bounds": (counted(1.0, 0.7), "0.9 S would prove it"),
    "no record": (counted(1.5), "node 1 left no counters of the window"),
    "no window": (counted(watched=without(1, window_end=None)), "node 1 left no counters of the window"),
    "another step's record": (counted(watched=without(1, token="u")), "counters of node n1 are of no rank of this run"),
    "another host's": (counted(watched=without(1, host="n7")), "are of no rank of this run"),
    "another node's": (counted(watched=without(1, node_rank=0)), "are of no rank of this run"),
    "another rank's": (counted(watched=without(1, rank=0)), "are of no rank of this run"),
    "marks after the begin": (counted(watched=without(0, window_begin=WindowEnd(1006.0, (port(),)))),
        "were not read at the ends of the window"),
    "marks far before the begin": (counted(watched=without(0, window_begin=WindowEnd(990.0, (port(),)))),
        "were not read at the ends of the window"),
    "unreadable": (counted(watched=always(sent_bytes=None)), "counters of mlx5_0:1 cannot be read"),
    "full": (counted(watched=always(sent_bytes=FULL, received_bytes=FULL)), "are full"),
    "reset": (counted(watched=rail_changed(1, {"sent_bytes": 10**10}, {})), "were reset"),
    "virtual functions": (counted(watched=always(virtual=True)), "mlx5_0:1 of node n1 are virtual functions"),
    "other ports than planned": (counted(watched=always(kind="cxi") | {0: carrying(0, 2.0)}), "0.9 S would prove it"),
    "shared nodes": (counted(1.5, 1.5, plan={"whole_nodes": False}), "the nodes are shared with other jobs"),
    "other collectives": (counted(1.5, 1.5, reports=GOOD.reports), "does not say what it gives to allreduces"),
    "too few bytes": (counted(1.5, 1.5, reports=SMALL), "0.006 MB in all are too few to stand out"),
    "NVLink between nodes": (counted(0.0, 0.0, nccl=NcclLog(mnnvl=True)), "NVLink connects the nodes"),
    "no plan": (counted(1.5, 1.5, plan={"transport": None}), "the site plans no transport"),
    "no such port": (counted(1.5, 1.5, chosen="mlx5_9"), "no counters of planned ports"),
}  # fmt: skip


@pytest.mark.parametrize("name", CANNOT_TELL)
def test_counters_that_cannot_tell_are_never_a_fault(name: str) -> None:
    evidence, reason = CANNOT_TELL[name]
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.transport) == ("measured", "unproven")
    assert reason in verdict.remarks[0]
    assert "counters cannot tell" in verdict.remarks[0]


def interface(name: str, moved: int) -> tuple[Any, Any]:
    return port(name, kind="interface"), port(name, moved, moved, kind="interface")


@pytest.mark.parametrize(
    ("chosen", "name", "hit"),
    [
        ("eth", "eth0", True), ("=eth", "eth0", False), ("=eth0,eth1", "eth1", True), ("^lo,docker", "eth0", True),
        ("^lo,docker", "docker0", False), ("^=eth0", "eth00", True), ("mlx5_1", "mlx5_10:1", True),
        ("=mlx5_1", "mlx5_1:1", True), ("=mlx5_1:1", "mlx5_1:1", True), ("=mlx5_1:2", "mlx5_1:1", False),
    ],
)  # fmt: skip
def test_ports_are_chosen_by_nccls_grammar(chosen: str, name: str, hit: bool) -> None:
    assert selects(chosen, name) is hit


def noisy(share: float) -> Evidence:
    """A third of S each second before the window, over the first rail of node 1: in 3.3 s these are 1.1 S."""
    rate = 2 * STEP_BYTES
    readings = tuple(
        PortReading(1000.0 + second, (port("mlx5_0:1", second * rate, second * rate), port("mlx5_1:1", 9, 9)))
        for second in range(3)
    )
    return counted(watched={0: carrying(0, 3.0), 1: altered(carrying(1, share), quiet=readings)})


def by_gloo(**plan: Any) -> Evidence:
    """Processors whose planned interface carried nothing; another one and a port of the fabric did."""
    pairs = (interface("eth1", 5), interface("eth10", 10**9), (port(), port()))
    return on_interfaces(*pairs, **({"device": "cpu", "env": (("HOROVOD_GLOO_IFACE", "eth1"),)} | plan))


def by_sockets(chosen: str) -> Evidence:
    pairs = (interface("eth0", 6 * STEP_BYTES), interface("eth1", 5))
    return on_interfaces(*pairs, transport="sockets", env=(("NCCL_SOCKET_IFNAME", chosen),))


EFA = port("rdmap0:1", kind="efa"), port("rdmap0:1", 10**8, 10**8, kind="efa")
IDLE = port("mlx5_0:1"), port("mlx5_0:1", 5, 5)


@pytest.mark.parametrize(
    ("evidence", "verdict", "says"),
    [
        # What others sent before is taken off, and refutes nothing.
        (noisy(2.2), "proven", ""), (noisy(1.5), "cannot tell", ""), (noisy(0.6), "cannot tell", ""),
        (noisy(0.4), "absent", ""),
        (by_sockets("eth0"), "proven", "counters of the planned ports"), (by_sockets("eth1"), "absent", "data between"),
        (by_sockets(""), "cannot tell", "counters cannot tell: no interface is"),
        # The variable that the rank had chooses where the plan says nothing.
        (counted(1.5, 1.5, chosen="=mlx5_4:1"), "proven", ""),
        # Without NCCL_IB_HCA, NCCL may take the slower port as well, which the launcher does not count as the ranks'.
        (counted(0.1, 0.1, chosen=""), "cannot tell", ""),
        (counted(chosen="", watched={number: node(number, [IDLE]) for number in range(2)}), "absent", ""),
        (on_interfaces(EFA, transport="libfabric"), "proven", ""),
        (by_gloo(transport="sockets"), "absent", ""),  # Gloo takes one interface by its whole name
        (by_gloo(), "cannot tell", "by Gloo, through sockets and not verbs"),
        (by_gloo(transport="sockets", wireup="pmix"), "cannot tell", "MPI chooses its own"),
        (by_gloo(wireup="pmix"), "absent", ""),  # MPI can use verbs
        (counted(40.0, 3.0), "proven", ""),  # surplus is no fault
    ],
)  # fmt: skip
def test_what_the_planned_ports_carried(evidence: Evidence, verdict: str, says: str) -> None:
    result = carried(evidence)
    assert result.verdict == verdict
    assert says in result.sentence


BEFORE: dict[str, Any] = {"errors": {"symbol_error": 7, "link_downed": 1}, "wait_ticks": 100}
AFTER: dict[str, Any] = {"errors": {"symbol_error": 9, "link_downed": 1}, "wait_ticks": 350}


@pytest.mark.parametrize("share", [1.5, 0.0])
def test_errors_and_waiting_of_the_planned_ports_are_notes_and_overrule_nothing(share: float) -> None:
    troubled = counted(watched=rail_changed(1, BEFORE, AFTER, share), nccl=GOOD.nccl)
    verdict = judge(troubled)
    assert (verdict.outcome, verdict.transport) == ("measured", "proven")
    assert verdict.remarks == (
        "the ports between nodes counted errors in the window: symbol_error 2 (most on mlx5_0:1 of n1)",
        "data waited for the fabric: port_xmit_wait rose by 250 ticks on mlx5_0:1 of n1, the most of all ports; "
        "some is normal under load, much is congestion",
    )
    reset = replace(troubled, watched=rail_changed(1, AFTER, BEFORE, share))
    assert judge(reset).remarks == ()
