"""Which way data took between nodes: proven by NCCL's log or by the ports' counters, or UNPROVEN; seldom a fault."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from runner.diagnosis.logs import NcclLog
from runner.jobs.collect import Evidence
from runner.jobs.transport import carried, selects
from runner.jobs.verdict import judge
from runner.model.records import NodeRecord, PortReading, WindowEnd
from runner.model.request import Transport
from runner.model.verdict import Verdict
from tests.support.evidence import GOOD, changed, node, port, report, start
from tests.support.plans import PLAN


def used(*names: str, planned: Transport | None = "verbs") -> Evidence:
    """A good run whose NCCL named these networks."""
    plan = msgspec.structs.replace(PLAN, transport=planned)
    return changed(plan=plan, nccl=NcclLog(networks=frozenset(names)))


@pytest.mark.parametrize(
    ("evidence", "sentence"),
    [
        (used("IB"), "by its log: IB (verbs; planned verbs)"),
        (used("IBext_v8"), "IBext_v8 (verbs; planned verbs)"),
        (used("AWS Libfabric", planned="libfabric"), "AWS Libfabric (libfabric; planned libfabric)"),
        (used("Socket", planned="sockets"), "Socket (sockets; planned sockets)"),
        (used("IB", planned="sockets"), "IB (verbs; planned sockets)"),
        (used("IB", planned=None), "IB (verbs; the site plans none)"),
    ],
)
def test_a_good_log_proves(evidence: Evidence, sentence: str) -> None:
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.transport, verdict.remarks) == ("measured", "proven", ())
    assert any(sentence in each for each in verdict.proven)


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (used(), "NCCL left no log of it"),
        (used("UCX"), "UCX, does not tell"),
        (used("IB", "FasTrak"), "FasTrak, IB, does not tell"),
        (used("Libfabric"), "Libfabric (libfabric), the site plans verbs"),
        (used("Socket", planned=None), "fix: `transport:` in its file"),
    ],
)
def test_where_the_log_cannot_tell_the_figure_stands_and_says_unproven(evidence: Evidence, reason: str) -> None:
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.transport) == ("measured", "unproven")
    assert reason in verdict.remarks[0] and "UNPROVEN" in verdict.remarks[0]


@pytest.mark.parametrize("planned", ["verbs", "libfabric"])
def test_sockets_where_a_fabric_is_planned_are_a_fault(planned: Transport) -> None:
    verdict = judge(used("Socket", planned=planned))
    assert verdict.outcome == "not-proven"
    assert verdict.reasons[0].startswith("NCCL used sockets between nodes, not the planned fabric")


def test_logs_of_some_ranks_prove_and_it_says_of_how_many() -> None:
    def proven(processes: int) -> str:
        log = NcclLog(networks=frozenset({"IB"}), processes=processes)
        return next(each for each in judge(changed(nccl=log)).proven if "by its log: IB" in each)

    assert proven(1).endswith("IB (verbs; planned verbs, in the logs of 1 of 4 ranks)")
    assert proven(4).endswith("IB (verbs; planned verbs)")


@pytest.mark.parametrize("provider", ["tcp", "tcp;ofi_rxm", "ofi_rxm;tcp", "sockets"])
def test_libfabric_over_sockets_is_a_fault_where_a_fabric_is_planned(provider: str) -> None:
    def over(planned: Transport | None) -> Verdict:
        evidence = used("AWS Libfabric", planned=planned)
        log = dataclasses.replace(evidence.nccl, providers=frozenset({provider}))
        return judge(dataclasses.replace(evidence, nccl=log))

    verdict = over("libfabric")
    assert verdict.outcome == "not-proven"
    assert verdict.reasons == ("NCCL used libfabric over sockets between nodes, not the planned fabric (see nccl/)",)
    assert (over("sockets").transport, over(None).transport) == ("proven", "unproven")


@pytest.mark.parametrize("provider", ["cxi", "efa", "verbs;ofi_rxm", "psm3"])
def test_libfabric_over_a_fabric_proves(provider: str) -> None:
    evidence = used("Libfabric", planned="libfabric")
    log = dataclasses.replace(evidence.nccl, providers=frozenset({provider}))
    assert judge(dataclasses.replace(evidence, nccl=log)).transport == "proven"


def test_parts_of_gpus_have_no_nvlink_to_miss() -> None:
    parts = {rank: report(rank, device_uuid=f"MIG-{rank}") for rank in range(4)}
    log = NcclLog(networks=frozenset({"IB"}), shm=2)
    assert judge(changed(nccl=log, reports=parts)).remarks == ()


def test_one_node_needs_no_proof_of_what_lies_between_nodes() -> None:
    plan = msgspec.structs.replace(PLAN, tasks_per_node=(4,))
    starts = {rank: msgspec.structs.replace(each, host="n0") for rank, each in changed().starts.items()}
    verdict = judge(changed(plan=plan, starts=starts, nccl=NcclLog()))
    assert (verdict.outcome, verdict.transport, verdict.remarks) == ("measured", "", ())


def test_ways_that_cost_time_are_remarks_with_their_fix() -> None:
    verdict = judge(changed(nccl=NcclLog(networks=frozenset({"IB"}), with_gdr=1, without_gdr=3, shm=2)))
    assert verdict.transport == "proven"
    assert [remark.split(";")[0] for remark in verdict.remarks] == [
        "3 of 4 connections between nodes went through the host's memory (no GPUDirect RDMA)",
        "2 connections inside nodes went through the host's memory, not over NVLink or PCIe",
    ]
    assert all("fix: " in remark for remark in verdict.remarks)


RAILS = "=mlx5_0:1,mlx5_1:1"  # as a launcher sets it where a node has other ports, too
STEP_BYTES = 10_000_000  # of 6 steps: S is 60 MB


def counted(*shares: float, **changes: object) -> Evidence:
    """Four ranks on two nodes whose NCCL left no log; their ports carried these parts of S each way."""
    reports = {rank: report(rank, allreduce_bytes_per_step=STEP_BYTES) for rank in range(4)}
    starts = {rank: start(rank, environment={"NCCL_IB_HCA": RAILS}) for rank in range(4)}
    nodes = {number: carrying(number, share) for number, share in enumerate(shares)}
    fields: dict[str, object] = {"nccl": NcclLog(), "starts": starts, "reports": reports, "watched": nodes}
    return changed(**(fields | changes))


def carrying(number: int, share: float) -> NodeRecord:
    """Two rails, an idle storage port, and IP over the first rail, which does not count."""
    moved = int(share * 6 * STEP_BYTES / 2)
    rail = port("mlx5_0:1", 500, 500), port("mlx5_0:1", 500 + moved + 77, 500 + moved + 99)
    rail = rail[0], msgspec.structs.replace(rail[1], ip_sent_bytes=77, ip_received_bytes=99)
    other = port("mlx5_1:1", 9, 9), port("mlx5_1:1", 9 + moved, 9 + moved)
    storage = port("mlx5_4:1", 0, 0, for_ranks=False), port("mlx5_4:1", 10**12, 10**12, for_ranks=False)
    return node(number, [rail, other, storage])


def test_counters_prove_where_the_log_cannot_tell() -> None:
    verdict = judge(counted(1.5, 1.02))
    assert (verdict.outcome, verdict.transport, verdict.remarks) == ("measured", "proven", ())
    (sentence,) = [each for each in verdict.proven if "counters" in each]
    assert "node n1 sent 1.02 S and received 1.02 S over its planned ports; 6 steps gave S = 0.06 GB" in sentence
    assert "a ring sends 1.50 S, double trees 1 to 2 S, SHARP 1 S" in sentence


def test_surplus_is_no_fault() -> None:
    assert judge(counted(40.0, 3.0)).transport == "proven"


def test_data_that_did_not_go_over_the_planned_ports_are_a_fault() -> None:
    verdict = judge(counted(1.5, 0.01))
    assert verdict.outcome == "not-proven"
    assert verdict.reasons[0].startswith("data between nodes did not go over the planned ports: those of node n1")


def test_counters_never_overrule_a_good_log() -> None:
    verdict = judge(counted(0.0, 0.0, nccl=GOOD.nccl))
    assert (verdict.outcome, verdict.transport) == ("measured", "proven")


def without(number: int, **changes: object) -> dict[int, NodeRecord]:
    """Both nodes' records, one of them changed."""
    nodes = {0: carrying(0, 1.5), 1: carrying(1, 1.5)}
    return nodes | {number: msgspec.structs.replace(nodes[number], **changes)}


def silent(number: int, **changes: object) -> dict[int, NodeRecord]:
    """Both nodes' records; of one node the first rail is changed at both ends."""
    record = carrying(number, 1.5)
    ends = []
    for end in (record.window_begin, record.window_end):
        assert end is not None
        ports = (msgspec.structs.replace(end.ports[0], **changes), *end.ports[1:])
        ends.append(msgspec.structs.replace(end, ports=ports))
    return without(number, window_begin=ends[0], window_end=ends[1])


CANNOT_TELL: dict[str, tuple[Evidence, str]] = {
    "between both bounds": (counted(1.0, 0.7), "0.9 S would prove it"),
    "no record": (counted(1.5), "node 1 left no counters of the window"),
    "no window": (counted(watched=without(1, window_end=None)), "node 1 left no counters of the window"),
    "another step's record": (counted(watched=without(1, token="u")), "counters of node n1 are of no rank of this run"),
    "marks after the begin": (counted(watched=without(0, window_begin=WindowEnd(1006.0, (port(),)))),
        "were not read at the ends of the window"),
    "marks far before the begin": (counted(watched=without(0, window_begin=WindowEnd(990.0, (port(),)))),
        "were not read at the ends of the window"),
    "unreadable": (counted(watched=silent(1, sent_bytes=None)), "counters of mlx5_0:1 cannot be read"),
    "virtual functions": (counted(watched=silent(1, virtual=True)), "mlx5_0:1 of node n1 are virtual functions"),
    "other ports than planned": (counted(watched=silent(1, kind="cxi") | {0: carrying(0, 2.0)}),
        "0.9 S would prove it"),
    "shared nodes": (counted(1.5, 1.5, plan=msgspec.structs.replace(PLAN, whole_nodes=False)),
        "the nodes are shared with other jobs"),
    "other collectives": (counted(1.5, 1.5, reports=GOOD.reports),
        "the program does not say what it gives to allreduces"),
    "NVLink between nodes": (counted(0.0, 0.0, nccl=NcclLog(mnnvl=True)), "NVLink connects the nodes"),
    "no plan": (counted(1.5, 1.5, plan=msgspec.structs.replace(PLAN, transport=None)), "the site plans no transport"),
}  # fmt: skip


@pytest.mark.parametrize("name", CANNOT_TELL)
def test_counters_that_cannot_tell_are_never_a_fault(name: str) -> None:
    evidence, reason = CANNOT_TELL[name]
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.transport) == ("measured", "unproven")
    assert reason in verdict.remarks[0]
    assert "counters cannot tell" in verdict.remarks[0]


def test_a_counter_that_was_reset_cannot_tell() -> None:
    record = carrying(1, 1.5)
    assert record.window_begin is not None
    ports = (msgspec.structs.replace(record.window_begin.ports[0], sent_bytes=10**10), *record.window_begin.ports[1:])
    begin = msgspec.structs.replace(record.window_begin, ports=ports)
    assert "were reset" in judge(counted(watched=without(1, window_begin=begin))).remarks[0]


def noisy(share: float) -> Evidence:
    """Others sent a third of S each second before the window, over the first rail of node 1."""
    record = carrying(1, share)
    rate = 2 * STEP_BYTES
    readings = tuple(
        PortReading(1000.0 + second, (port("mlx5_0:1", second * rate, second * rate), port("mlx5_1:1", 9, 9)))
        for second in range(3)
    )
    nodes = {0: carrying(0, 3.0), 1: msgspec.structs.replace(record, quiet=readings)}
    return counted(watched=nodes)


def test_what_others_sent_before_is_taken_off_and_refutes_nothing() -> None:
    # 20 MB/s over 3.3 s are 1.1 S.
    assert carried(noisy(2.2)).verdict == "proven"
    assert carried(noisy(1.5)).verdict == "cannot tell"
    assert carried(noisy(0.6)).verdict == "cannot tell"
    assert carried(noisy(0.4)).verdict == "absent"


def test_sockets_are_counted_on_the_planned_interface() -> None:
    def with_interface(chosen: str) -> Evidence:
        plan = msgspec.structs.replace(PLAN, transport="sockets", env=(("NCCL_SOCKET_IFNAME", chosen),))
        full = 6 * STEP_BYTES
        pairs = [
            (port("eth0", kind="interface"), port("eth0", full, full, kind="interface")),
            (port("eth1", kind="interface"), port("eth1", 5, 5, kind="interface")),
        ]
        return counted(plan=plan, watched={0: node(0, pairs), 1: node(1, pairs)})

    assert carried(with_interface("eth0")).verdict == "proven"
    assert carried(with_interface("eth1")).verdict == "absent"
    assert "no interface is planned" in carried(with_interface("")).sentence


def test_the_variable_that_the_rank_had_chooses_where_the_plan_says_nothing() -> None:
    evidence = counted(1.5, 1.5)
    starts = {rank: start(rank, environment={"NCCL_IB_HCA": "=mlx5_4:1"}) for rank in range(4)}
    assert carried(dataclasses.replace(evidence, starts=starts)).sentence.startswith("counters of the planned ports")
    starts = {rank: start(rank, environment={"NCCL_IB_HCA": "mlx5_9"}) for rank in range(4)}
    assert "no counters of planned ports" in carried(dataclasses.replace(evidence, starts=starts)).sentence


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


def test_rdma_that_went_over_a_port_that_nothing_excludes_went_over_the_fabric() -> None:
    """Without NCCL_IB_HCA, NCCL may take the slower port as well, which the launcher does not count as the ranks'."""
    starts = {rank: start(rank) for rank in range(4)}
    assert carried(counted(0.1, 0.1, starts=starts)).verdict == "cannot tell"
    idle = {number: node(number, [(port("mlx5_0:1"), port("mlx5_0:1", 5, 5))]) for number in range(2)}
    assert carried(counted(starts=starts, watched=idle)).verdict == "absent"


def test_too_few_bytes_do_not_stand_out() -> None:
    small = {rank: report(rank, allreduce_bytes_per_step=1000) for rank in range(4)}
    assert "0.006 MB in all are too few to stand out" in carried(counted(1.5, 1.5, reports=small)).sentence


def test_a_counter_that_is_full_cannot_tell() -> None:
    full = 4 * 0xFFFFFFFF
    assert "are full" in carried(counted(watched=silent(1, sent_bytes=full, received_bytes=full))).sentence


@pytest.mark.parametrize("change", [{"host": "n7"}, {"node_rank": 0}, {"rank": 0}])
def test_counters_of_another_node_are_not_this_ones(change: dict[str, object]) -> None:
    assert "are of no rank of this run" in carried(counted(watched=without(1, **change))).sentence


def test_efa_is_libfabric() -> None:
    plan = msgspec.structs.replace(PLAN, transport="libfabric")
    pairs = [(port("rdmap0:1", kind="efa"), port("rdmap0:1", 10**8, 10**8, kind="efa"))]
    assert carried(counted(plan=plan, watched={0: node(0, pairs), 1: node(1, pairs)})).verdict == "proven"


def on_processors(**plan: object) -> Evidence:
    """Processors whose planned ports carried nothing."""
    fields = {"device": "cpu", "env": (("HOROVOD_GLOO_IFACE", "eth1"),)} | plan
    pairs = [
        (port("eth1", kind="interface"), port("eth1", 5, 5, kind="interface")),
        (port("eth10", kind="interface"), port("eth10", 10**9, 10**9, kind="interface")),
        (port(), port()),
    ]
    return counted(plan=msgspec.structs.replace(PLAN, **fields), watched={0: node(0, pairs), 1: node(1, pairs)})


def test_gloo_takes_one_interface_by_its_whole_name() -> None:
    assert carried(on_processors(transport="sockets")).verdict == "absent"


def test_processors_that_could_not_have_used_the_planned_ports_are_no_fault() -> None:
    assert "by Gloo, through sockets and not verbs" in carried(on_processors()).sentence
    assert "MPI chooses its own" in carried(on_processors(transport="sockets", wireup="pmix")).sentence
    assert carried(on_processors(wireup="pmix")).verdict == "absent", "MPI can use verbs"


def troubled(share: float = 1.5) -> dict[int, NodeRecord]:
    """Both nodes; on the first rail of n1 errors and waiting, before the window and in it."""
    record = carrying(1, share)
    assert record.window_begin is not None and record.window_end is not None
    ends = []
    for end, errors, ticks in (
        (record.window_begin, {"symbol_error": 7, "link_downed": 1}, 100),
        (record.window_end, {"symbol_error": 9, "link_downed": 1}, 350),
    ):
        rail = msgspec.structs.replace(end.ports[0], errors=errors, wait_ticks=ticks)
        storage = msgspec.structs.replace(end.ports[2], errors={"symbol_error": errors["symbol_error"] * 1000})
        ends.append(msgspec.structs.replace(end, ports=(rail, end.ports[1], storage)))
    return {0: carrying(0, share), 1: msgspec.structs.replace(record, window_begin=ends[0], window_end=ends[1])}


def test_errors_and_waiting_of_the_ports_are_notes_and_overrule_nothing() -> None:
    for evidence in (counted(watched=troubled()), counted(watched=troubled(0.0), nccl=GOOD.nccl)):
        verdict = judge(evidence)
        assert (verdict.outcome, verdict.transport) == ("measured", "proven")
        assert verdict.remarks == (
            "the ports between nodes counted errors in the window: symbol_error 2 (most on mlx5_0:1 of n1)",
            "data waited for the fabric: port_xmit_wait rose by 250 ticks on mlx5_0:1 of n1, the most of all ports; "
            "some is normal under load, much is congestion",
        )


def test_counters_of_errors_that_were_reset_or_are_new_are_none() -> None:
    record = troubled()[1]
    assert record.window_begin is not None and record.window_end is not None
    swapped = msgspec.structs.replace(
        record,
        window_begin=msgspec.structs.replace(record.window_end, monotonic_s=record.window_begin.monotonic_s),
        window_end=msgspec.structs.replace(record.window_begin, monotonic_s=record.window_end.monotonic_s),
    )
    assert judge(counted(watched={0: carrying(0, 1.5), 1: swapped}, nccl=GOOD.nccl)).remarks == ()
