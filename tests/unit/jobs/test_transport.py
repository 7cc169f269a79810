"""Which way data took between nodes: proven by NCCL's log or by the ports' counters, or UNPROVEN; seldom a fault."""

from __future__ import annotations

import msgspec
import pytest

from runner.diagnosis.nccl_log import NcclLog
from runner.jobs.collect import Evidence
from runner.jobs.verdict import judge
from runner.model.transport import Transport
from tests.support.evidence import changed
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
