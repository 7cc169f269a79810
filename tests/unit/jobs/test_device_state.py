"""What the state of GPUs and processors adds to a figure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.jobs.device_state import energy_j_per_sample
from runner.jobs.verdict import judge
from runner.model.records import GpuState, GpuSummary, NodeRecord, Processors, WindowEnd
from runner.model.verdict import Verdict
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


def of_nodes(*records: NodeRecord, **changes: Any) -> Verdict:
    return judge(changed(watched={record.node_rank: record for record in records}, **changes))


def judged(end: dict[str, Any] | None = None, summary: dict[str, Any] | None = None, **begin: Any) -> Verdict:
    return of_nodes(watched(0), watched(1, end, summary, **begin))


@pytest.mark.parametrize(
    ("end", "summary", "remark"),
    [
        ({}, {}, ""),  # a healthy GPU under load
        ({}, {"throttled": {"software thermal slowdown": 2, "power cap": 3}},
            "throttled: software thermal slowdown in 2 of 3 seconds (SM clock 1305 to 1410 MHz)"),
        ({"power_limit_w": 300.0}, {}, "its power limit is lowered to 300 of 400 W"),
        ({"processes_foreign": 2}, {}, "2 processes of others compute there"),
        ({"ecc_uncorrected": 1}, {}, "1 uncorrected memory errors in the window"),
        ({"pcie_width": 8}, {}, "its PCIe link has 8 of 16 lanes"),
        ({"nvlinks": (True,) * 11 + (False,)}, {}, "1 of its 12 NVLinks are down"),
        ({"remapped_rows_pending": True}, {},
            "rows of its memory wait to be remapped; fix: the administrator resets it"),
        ({"uuid": "GPU-77", "power_limit_w": 100.0}, {}, ""),  # another GPU's
    ],
)  # fmt: skip
def test_what_slows_a_gpu_down_labels_the_figure(end: dict[str, Any], summary: dict[str, Any], remark: str) -> None:
    verdict = judged(end, summary)
    assert (verdict.outcome, verdict.remarks) == ("measured", (f"GPU 1 of n1: {remark}",) if remark else ())


def test_the_same_cause_on_many_gpus_is_one_remark() -> None:
    slow = {"power_limit_w": 250.0}
    verdict = of_nodes(watched(0, slow), watched(1, slow))
    assert verdict.remarks == ("GPU 1 of n0, GPU 1 of n1: its power limit is lowered to 250 of 400 W",)


def test_energy_is_that_of_the_ranks_gpus_over_their_samples() -> None:
    # 4 GPUs x 60 J over 240 images; the marks lie 0.1 s outside of the windows of 3.0 s and 3.2 s.
    assert judged().gpu_energy_j_per_sample == pytest.approx((120 * 3.0 / 3.1 + 120 * 3.2 / 3.3) / 240)
    smaller = changed(watched={0: watched(0), 1: watched(1)}, reports=on_all(report, group_samples=(20, 20, 5)))
    assert energy_j_per_sample(smaller) == pytest.approx((120 * 3.0 / 3.1 + 120 * 3.2 / 3.3) / 180)
    powered = {"power_w_min": 18.0, "power_w_max": 22.0}  # 60 J in 3.1 s
    assert judged(summary=powered).gpu_energy_j_per_sample is not None
    contradicted = [judged({"energy_j": energy_j}, powered) for energy_j in (1000.5, 1060.0 * 5, 1e9)]
    for unknown in (judged({"energy_j": None}), judged(summary={"mig": True}), of_nodes(watched(0)), *contradicted):
        assert unknown.gpu_energy_j_per_sample is None


def test_what_is_not_visible_is_reported() -> None:
    assert BLIND in judge(changed()).proven
    assert BLIND in of_nodes(watched(0), replace(watched(1), window_end=None)).proven
    assert BLIND not in judged().proven
    assert "the driver does not say whether GPUs throttled" in judged(summary={"throttle_known": False}).proven
    gone = dict.fromkeys(("power_limit_w", "energy_j", "ecc_uncorrected", "pcie_width", "nvlinks", "processes_foreign"))
    verdict = judged(gone)
    assert "the driver stopped answering in the window on n1: what came later is unknown" in verdict.proven
    assert (verdict.outcome, verdict.gpu_energy_j_per_sample, verdict.remarks) == ("measured", None, ())


def test_an_xid_is_a_remark_and_another_steps_record_is_none() -> None:
    assert of_nodes(watched(0), replace(watched(1), xids=(79, 79, 48))).remarks == (
        "n1: the driver reported XID 48, 79 meanwhile",
    )
    assert of_nodes(watched(0), replace(watched(1, {"power_limit_w": 100.0}), token="another")).remarks == ()


def cpu(begin: dict[str, None] | None = None, **last: float) -> Verdict:
    """A run on processors, of which others used none unless ``last`` says so."""
    shown = {"busy_s": 100.0, "own_s": 50.0, "throttles": 7, "quota_throttled_s": 1.0}
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


def test_processors_throttled_limited_or_shared() -> None:
    assert cpu().remarks == ()
    assert cpu(busy_s=112.2).remarks == ("n0: others used 2.0 processors on average in the window",)
    assert cpu(throttles=9).remarks == ("n0: its processors were throttled by heat (2 events)",)
    assert cpu(quota_throttled_s=3.0).remarks == ("n0: a limit on processor time kept ranks waiting for 2.0 s in all",)


def test_a_total_that_was_not_visible_before_the_window_is_no_difference() -> None:
    assert judged({"ecc_uncorrected": 9}, ecc_uncorrected=None).remarks == ()
    assert cpu({"quota_throttled_s": None, "throttles": None}, quota_throttled_s=60.0, throttles=60).remarks == ()


def test_links_that_no_gpu_of_the_machine_has_are_not_down() -> None:
    """PCIe cards whose bridges connect some of their links."""
    some = (True,) * 8 + (False,) * 4
    records = []
    for record in (watched(0), watched(1)):
        assert record.window_begin is not None and record.window_end is not None
        begin, end = (
            replace(each, gpus=tuple(replace(gpu, nvlinks=some) for gpu in each.gpus))
            for each in (record.window_begin, record.window_end)
        )
        records.append(replace(record, window_begin=begin, window_end=end))
    assert of_nodes(*records).remarks == ()


LOWERED = "GPU 1 of n1: its power limit is lowered to 300 of 400 W"
IMAGINED = "rank 2 on n1: the driver does not list GPU-imagined, on which it says that it computed"


@pytest.mark.parametrize(
    ("uuids", "second", "remarks"),
    [
        ({3: "GPU-9"}, watched(1, {"power_limit_w": 300.0}), ()),  # a GPU that no rank uses
        # Parts of GPUs: the driver's library lists whole ones, and which is used is unknown.
        ({rank: f"MIG-{rank}" for rank in range(4)}, watched(1, {"power_limit_w": 300.0}), (LOWERED,)),
        ({2: "GPU-imagined"}, watched(1), (IMAGINED,)),
        ({3: "GPU-imagined"}, watched(1), ()),  # another rank may see other GPUs than the watcher's
        ({2: "GPU-imagined"}, watched(1, summary={"mig": True}), ()),
    ],
)
def test_gpus_that_ranks_say_they_used(uuids: dict[int, str], second: NodeRecord, remarks: tuple[str, ...]) -> None:
    reports = changed().reports | {rank: report(rank, device_uuid=uuid) for rank, uuid in uuids.items()}
    assert of_nodes(watched(0), second, reports=reports).remarks == remarks
