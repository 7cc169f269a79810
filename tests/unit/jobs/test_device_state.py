"""What the state of GPUs and processors adds to a figure."""

from typing import Any

import msgspec
import pytest

from runner.jobs.collect import Evidence
from runner.jobs.device_state import energy_j_per_sample
from runner.jobs.verdict import judge
from runner.model.figure import figure_of
from runner.model.records import GpuState, GpuSummary, NodeRecord, Processors, WindowEnd
from tests.support.evidence import changed, node, on_all, report
from tests.support.plans import PLAN

replace = msgspec.structs.replace
HEALTHY = GpuState(
    power_limit_w=400.0, energy_j=1000.0, ecc_uncorrected=0, pcie_width=16, nvlinks=(True,) * 12, processes_foreign=0
)
SUMMARY = GpuSummary(
    samples=3, power_limit_default_w=400.0, pcie_width_max=16, mig=False, sm_clock_mhz_min=1305, sm_clock_mhz_max=1410,
    throttled={"power cap": 3}, throttle_known=True,
)  # fmt: skip
BLIND = "the state of the GPUs (clocks, throttling, energy) is not visible on every node"


def watched(
    number: int, end: dict[str, Any] | None = None, summary: dict[str, Any] | None = None, **begin: Any
) -> NodeRecord:
    """A node with two GPUs that used 60 J each; the second one is changed."""
    record = node(number, [])
    assert record.window_begin is not None and record.window_end is not None
    last = replace(HEALTHY, energy_j=1060.0)
    own = replace(SUMMARY, uuid=f"GPU-{number * 2}"), replace(SUMMARY, uuid=f"GPU-{number * 2 + 1}", **(summary or {}))
    return replace(
        record,
        window_begin=WindowEnd(record.window_begin.monotonic_s, (), (HEALTHY, replace(HEALTHY, **begin))),
        window_end=WindowEnd(record.window_end.monotonic_s, (), (last, replace(last, **(end or {})))),
        gpus=own,
    )


def of_nodes(*records: NodeRecord, **changes: Any) -> Evidence:
    return changed(watched={record.node_rank: record for record in records}, **changes)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ({}, ""), ({"throttles": 9}, "its processors throttled"), ({"busy_s": 107.0}, ""), ({"steal_s": 1.0}, ""),
        ({"steal_s": 3.0}, "the hypervisor took processor time"),
        ({"busy_s": 112.2}, "others computed on its processors"),
        ({"quota_throttled_s": 3.0}, "a limit on processor time kept ranks waiting"),
    ],
)  # fmt: skip
def test_what_kept_ranks_waiting_is_a_doubt_of_the_figure(last: dict[str, Any], words: str) -> None:
    assert judge(cpu(**last)).disturbed == words


def changed_gpu(end: dict[str, Any] | None = None, summary: dict[str, Any] | None = None, **begin: Any) -> Evidence:
    return of_nodes(watched(0), watched(1, end, summary, **begin))


def cpu(begin: dict[str, None] | None = None, **last: float) -> Evidence:
    """A run on processors, of which others used none unless ``last`` says so."""
    shown = {"busy_s": 100.0, "own_s": 50.0, "steal_s": 0.0, "throttles": 7, "quota_throttled_s": 1.0}
    ends = (shown | (begin or {}), shown | {"busy_s": 106.0, "own_s": 56.0} | last)
    record = node(0, [])
    assert record.window_begin is not None and record.window_end is not None
    first, second = (
        replace(each, processors=msgspec.convert(fields, Processors))
        for each, fields in zip((record.window_begin, record.window_end), ends, strict=True)
    )
    return of_nodes(
        replace(record, window_begin=first, window_end=second),
        plan=replace(PLAN, device="cpu", transport=None),
        reports=on_all(report, device_kind="cpu", device_uuid=None),
    )


SOME_LINKS = {"nvlinks": (True,) * 8 + (False,) * 4}
SLOW: dict[str, Any] = {"power_limit_w": 250.0}
LOWERED = {"power_limit_w": 300.0}
PARTS = {rank: f"MIG-{rank}" for rank in range(4)}


def on_gpus(uuids: dict[int, str], end: dict[str, Any] | None = None, **summary: Any) -> Evidence:
    """Ranks that say they used these GPUs."""
    reports = changed().reports | {rank: report(rank, device_uuid=uuid) for rank, uuid in uuids.items()}
    return of_nodes(watched(0), watched(1, end, summary), reports=reports)


def with_links(record: NodeRecord) -> NodeRecord:
    """PCIe cards whose bridges connect some of their links."""
    assert record.window_begin is not None and record.window_end is not None
    begin, end = (
        replace(each, gpus=tuple(replace(gpu, **SOME_LINKS) for gpu in each.gpus))
        for each in (record.window_begin, record.window_end)
    )
    return replace(record, window_begin=begin, window_end=end)


@pytest.mark.parametrize(
    ("evidence", "remark"),
    [
        (changed_gpu(), ""),  # a healthy GPU under load
        (changed_gpu(summary={"throttled": {"software thermal slowdown": 2, "power cap": 3}}), "GPU 1 of n1: "
            "throttled: software thermal slowdown in 2 of 3 seconds (SM clock 1305 to 1410 MHz)"),
        (changed_gpu(LOWERED), "GPU 1 of n1: its power limit is lowered to 300 of 400 W"),
        (changed_gpu({"processes_foreign": 2}), "GPU 1 of n1: 2 processes of others compute there"),
        (changed_gpu({"ecc_uncorrected": 1}), "GPU 1 of n1: 1 uncorrected memory errors in the window"),
        (changed_gpu({"pcie_width": 8}), "GPU 1 of n1: its PCIe link has 8 of 16 lanes"),
        (changed_gpu({"nvlinks": (True,) * 11 + (False,)}), "GPU 1 of n1: 1 of its 12 NVLinks are down"),
        (of_nodes(with_links(watched(0)), with_links(watched(1))), ""),
        (changed_gpu({"remapped_rows_pending": True}),
            "GPU 1 of n1: rows of its memory wait to be remapped; fix: the administrator resets it"),
        (changed_gpu({"uuid": "GPU-77", "power_limit_w": 100.0}), ""),  # another GPU's
        (changed_gpu({"ecc_uncorrected": 9}, ecc_uncorrected=None), ""),  # a total that was not visible before
        (of_nodes(watched(0, SLOW), watched(1, SLOW)),
            "GPU 1 of n0, GPU 1 of n1: its power limit is lowered to 250 of 400 W"),
        (on_gpus({3: "GPU-9"}, LOWERED), ""),  # a GPU that no rank uses
        # Parts of GPUs: the driver's library lists whole ones, and which is used is unknown.
        (on_gpus(PARTS, LOWERED), "GPU 1 of n1: its power limit is lowered to 300 of 400 W"),
        (on_gpus({2: "GPU-imagined"}),
            "rank 2 on n1: the driver does not list GPU-imagined, on which it says that it computed"),
        (on_gpus({3: "GPU-imagined"}), ""),  # another rank may see other GPUs than the watcher's
        (on_gpus({2: "GPU-imagined"}, mig=True), ""),
        (of_nodes(watched(0), replace(watched(1), xids=(79, 79, 48))), "n1: the driver reported XID 48, 79 meanwhile"),
        (of_nodes(watched(0), replace(watched(1, LOWERED), token="another step's")), ""),
        (cpu(), ""), (cpu(busy_s=112.2), "n0: others used 2.0 processors on average in the window"),
        (cpu(steal_s=3.0), ""),
        (cpu(throttles=9), "n0: its processors were throttled by heat (2 events)"),
        (cpu(quota_throttled_s=3.0), "n0: a limit on processor time kept ranks waiting for 2.0 s in all"),
        (cpu({"quota_throttled_s": None, "throttles": None}, quota_throttled_s=60.0, throttles=60), ""),
    ],
)  # fmt: skip
def test_what_slows_a_device_down_labels_the_figure(evidence: Evidence, remark: str) -> None:
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.remarks) == ("measured", (remark,) if remark else ())


@pytest.mark.parametrize(
    ("evidence", "doubts"),
    [
        (changed_gpu(), []),
        (changed_gpu(summary={"throttled": {"software thermal slowdown": 2, "power cap": 3}}), ["its GPUs throttled"]),
        (changed_gpu({"processes_foreign": 2}), ["others computed on its GPUs"]),
        (changed_gpu(LOWERED), []),  # all the time, as a site may want it
        (on_gpus({3: "GPU-9"}, {"processes_foreign": 2}), []),  # on a GPU that no rank uses
    ],
)
def test_what_slowed_gpus_for_a_while_is_a_doubt_of_every_figure_made_of_the_run(
    evidence: Evidence, doubts: list[str]
) -> None:
    figure = figure_of(judge(evidence))
    assert figure is not None
    assert [each.words for each in figure.doubts if each.code == "disturbed"] == doubts


def test_energy_is_that_of_the_ranks_gpus_over_their_samples() -> None:
    # 4 GPUs x 60 J over 240 images; the marks lie 0.1 s outside of the windows of 3.0 s and 3.2 s.
    energy_j = 120 * 3.0 / 3.1 + 120 * 3.2 / 3.3
    powered = {"power_w_min": 18.0, "power_w_max": 22.0}  # 60 J in 3.1 s
    smaller = {"reports": on_all(report, group_samples=(20, 20, 5))}
    for evidence, samples in (
        (changed_gpu(), 240), (changed_gpu(summary=powered), 240), (of_nodes(watched(0), watched(1), **smaller), 180)
    ):  # fmt: skip
        assert energy_j_per_sample(evidence) == pytest.approx(energy_j / samples)
    contradicted = [changed_gpu({"energy_j": energy_j}, powered) for energy_j in (1000.5, 1060.0 * 5, 1e9)]
    unknown = changed_gpu({"energy_j": None}), changed_gpu(summary={"mig": True}), of_nodes(watched(0)), *contradicted
    assert [judge(each).gpu_energy_j_per_sample for each in unknown] == [None] * 6


def test_what_is_not_visible_is_reported() -> None:
    gone = dict.fromkeys(("power_limit_w", "energy_j", "ecc_uncorrected", "pcie_width", "nvlinks", "processes_foreign"))
    for evidence, says in (
        (changed(), BLIND),
        (of_nodes(watched(0), replace(watched(1), window_end=None)), BLIND),
        (changed_gpu(summary={"throttle_known": False}), "the driver does not say whether GPUs throttled"),
        (changed_gpu(gone), "the driver stopped answering in the window on n1: what came later is unknown"),
    ):
        verdict = judge(evidence)
        assert says in verdict.proven
        assert (verdict.outcome, verdict.remarks) == ("measured", ())
    assert not any("driver" in sentence or sentence == BLIND for sentence in judge(changed_gpu()).proven)
