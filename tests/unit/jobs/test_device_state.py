"""What the state of GPUs and processors adds to a figure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.jobs.device_state import energy_j_per_sample
from runner.jobs.verdict import judge
from runner.model.records import GpuState, GpuSummary, NodeRecord, Processors, WindowEnd
from runner.model.verdict import Verdict
from tests.support.evidence import changed, node, report
from tests.support.plans import PLAN

HEALTHY = GpuState(
    power_limit_w=400.0, energy_j=1000.0, ecc_uncorrected=0, pcie_width=16, nvlinks=(True,) * 12, processes_foreign=0
)
SUMMARY = GpuSummary(
    samples=3, power_limit_default_w=400.0, pcie_width_max=16, mig=False, sm_clock_mhz_min=1305, sm_clock_mhz_max=1410,
    throttled={"power cap": 3}, throttle_known=True,
)  # fmt: skip


def watched(number: int, end: dict[str, Any] | None = None, summary: dict[str, Any] | None = None) -> NodeRecord:
    """A node with two GPUs that used 60 J each; the second one is changed."""
    record = node(number, [])
    assert record.window_begin is not None and record.window_end is not None
    uuids = [f"GPU-{number * 2 + index}" for index in range(2)]
    last = msgspec.structs.replace(HEALTHY, energy_j=1060.0)
    changed_last = msgspec.structs.replace(last, **(end or {}))
    return msgspec.structs.replace(
        record,
        window_begin=WindowEnd(record.window_begin.monotonic_s, (), (HEALTHY, HEALTHY)),
        window_end=WindowEnd(record.window_end.monotonic_s, (), (last, changed_last)),
        gpus=(
            msgspec.structs.replace(SUMMARY, uuid=uuids[0]),
            msgspec.structs.replace(SUMMARY, uuid=uuids[1], **(summary or {})),
        ),
    )


def judged(end: dict[str, Any] | None = None, summary: dict[str, Any] | None = None) -> Verdict:
    return judge(changed(watched={0: watched(0), 1: watched(1, end, summary)}))


def test_a_healthy_gpu_under_load_is_no_remark() -> None:
    assert judged().remarks == ()


@pytest.mark.parametrize(
    ("end", "summary", "remark"),
    [
        ({}, {"throttled": {"software thermal slowdown": 2, "power cap": 3}},
            "GPU 1 of n1: throttled: software thermal slowdown in 2 of 3 seconds (SM clock 1305 to 1410 MHz)"),
        ({"power_limit_w": 300.0}, {}, "GPU 1 of n1: its power limit is lowered to 300 of 400 W"),
        ({"processes_foreign": 2}, {}, "GPU 1 of n1: 2 processes of others compute there"),
        ({"ecc_uncorrected": 1}, {}, "GPU 1 of n1: 1 uncorrected memory errors in the window"),
        ({"pcie_width": 8}, {}, "GPU 1 of n1: its PCIe link has 8 of 16 lanes"),
        ({"nvlinks": (True,) * 11 + (False,)}, {}, "GPU 1 of n1: 1 of its 12 NVLinks are down"),
        ({"remapped_rows_pending": True}, {},
            "GPU 1 of n1: rows of its memory wait to be remapped; fix: the administrator resets it"),
    ],
)  # fmt: skip
def test_what_slows_a_gpu_down_labels_the_figure(end: dict[str, Any], summary: dict[str, Any], remark: str) -> None:
    verdict = judged(end, summary)
    assert (verdict.outcome, verdict.remarks) == ("measured", (remark,))


def test_the_same_cause_on_many_gpus_is_one_remark() -> None:
    slow = {"power_limit_w": 250.0}
    verdict = judge(changed(watched={0: watched(0, slow), 1: watched(1, slow)}))
    assert verdict.remarks == ("GPU 1 of n0, GPU 1 of n1: its power limit is lowered to 250 of 400 W",)


def test_energy_is_that_of_the_ranks_gpus_over_their_samples() -> None:
    # 4 GPUs x 60 J over 240 images; the marks lie 0.1 s outside of the windows of 3.0 s and 3.2 s.
    assert judged().gpu_energy_j_per_sample == pytest.approx((120 * 3.0 / 3.1 + 120 * 3.2 / 3.3) / 240)
    smaller = {rank: report(rank, group_samples=(20, 20, 5)) for rank in range(4)}
    of_groups = changed(watched={0: watched(0), 1: watched(1)}, reports=smaller)
    assert energy_j_per_sample(of_groups) == pytest.approx((120 * 3.0 / 3.1 + 120 * 3.2 / 3.3) / 180)
    assert judged(end={"energy_j": None}).gpu_energy_j_per_sample is None
    assert judged(summary={"mig": True}).gpu_energy_j_per_sample is None
    assert judge(changed(watched={0: watched(0)})).gpu_energy_j_per_sample is None


def test_what_is_not_visible_is_reported() -> None:
    blind = "the state of the GPUs (clocks, throttling, energy) is not visible on every node"
    assert blind in judge(changed()).proven
    assert blind not in judged().proven
    assert "the driver does not say whether GPUs throttled" in judged(summary={"throttle_known": False}).proven


def test_an_xid_is_a_remark() -> None:
    record = msgspec.structs.replace(watched(1), xids=(79, 79, 48))
    verdict = judge(changed(watched={0: watched(0), 1: record}))
    assert verdict.remarks == ("n1: the driver reported XID 48, 79 meanwhile",)


def test_another_steps_record_is_no_evidence() -> None:
    record = msgspec.structs.replace(watched(1, {"power_limit_w": 100.0}), token="another")
    assert judge(changed(watched={0: watched(0), 1: record})).remarks == ()


def cpu(begin: dict[str, None] | None = None, **last: float) -> Verdict:
    """A run on processors, of which others used none unless ``last`` says so."""
    plan = msgspec.structs.replace(PLAN, device="cpu", transport=None)
    shown = {"busy_s": 100.0, "own_s": 50.0, "throttles": 7, "quota_throttled_s": 1.0} | (begin or {})
    first = msgspec.convert(shown, Processors)
    fields = {"busy_s": 106.0, "own_s": 56.0, "throttles": 7, "quota_throttled_s": 1.0} | last
    record = node(0, [])
    assert record.window_begin is not None and record.window_end is not None
    record = msgspec.structs.replace(
        record,
        window_begin=msgspec.structs.replace(record.window_begin, processors=first),
        window_end=msgspec.structs.replace(record.window_end, processors=msgspec.convert(fields, Processors)),
    )
    reports = {rank: report(rank, device_kind="cpu", device_uuid=None) for rank in range(4)}
    return judge(changed(plan=plan, reports=reports, watched={0: record}))


def test_processors_throttled_limited_or_shared() -> None:
    assert cpu().remarks == ()
    assert cpu(busy_s=112.2).remarks == ("n0: others used 2.0 processors on average in the window",)
    assert cpu(throttles=9).remarks == ("n0: its processors were throttled by heat (2 events)",)
    assert cpu(quota_throttled_s=3.0).remarks == ("n0: a limit on processor time kept ranks waiting for 2.0 s in all",)


def test_links_that_no_gpu_of_the_machine_has_are_not_down() -> None:
    """PCIe cards whose bridges connect some of their links."""
    some = (True,) * 8 + (False,) * 4
    first = msgspec.structs.replace(HEALTHY, nvlinks=some)
    records = {}
    for number in range(2):
        record = watched(number, {"nvlinks": some})
        assert record.window_begin is not None and record.window_end is not None
        last = msgspec.structs.replace(record.window_end.gpus[0], nvlinks=some)
        records[number] = msgspec.structs.replace(
            record,
            window_begin=msgspec.structs.replace(record.window_begin, gpus=(first, first)),
            window_end=msgspec.structs.replace(record.window_end, gpus=(last, last)),
        )
    assert judge(changed(watched=records)).remarks == ()


def test_gpus_that_no_rank_uses_are_no_remark_unless_that_is_unknown() -> None:
    slow = {"power_limit_w": 300.0}
    records = {0: watched(0), 1: watched(1, slow)}
    elsewhere = changed().reports | {3: report(3, device_uuid="GPU-9")}
    assert judge(changed(watched=records, reports=elsewhere)).remarks == ()
    # Parts of GPUs: the driver's library lists whole ones.
    parts = {rank: report(rank, device_uuid=f"MIG-{rank}") for rank in range(4)}
    lowered = ("GPU 1 of n1: its power limit is lowered to 300 of 400 W",)
    assert judge(changed(watched=records, reports=parts)).remarks == lowered


def test_a_gpu_that_the_driver_does_not_list_is_a_remark() -> None:
    reports = changed().reports | {2: report(2, device_uuid="GPU-imagined")}
    records = {0: watched(0), 1: watched(1)}
    verdict = judge(changed(watched=records, reports=reports))
    assert verdict.remarks == (
        "rank 2 on n1: the driver does not list GPU-imagined, on which it says that it computed",
    )
    # Another rank may see other GPUs than the watcher's; parts of GPUs are listed as whole ones.
    elsewhere = changed().reports | {3: report(3, device_uuid="GPU-imagined")}
    parts = {0: watched(0), 1: watched(1, summary={"mig": True})}
    for evidence in (changed(watched=records, reports=elsewhere), changed(watched=parts, reports=reports)):
        assert judge(evidence).remarks == ()


def test_a_driver_that_stops_answering_in_the_window_is_reported() -> None:
    gone = dict.fromkeys(("power_limit_w", "energy_j", "ecc_uncorrected", "pcie_width", "nvlinks", "processes_foreign"))
    verdict = judged(end=gone)
    assert "the driver stopped answering in the window on n1: what came later is unknown" in verdict.proven
    assert (verdict.outcome, verdict.gpu_energy_j_per_sample, verdict.remarks) == ("measured", None, ())


def test_a_watcher_that_saw_no_window_saw_no_gpu() -> None:
    record = msgspec.structs.replace(watched(1), window_end=None)
    blind = "the state of the GPUs (clocks, throttling, energy) is not visible on every node"
    assert blind in judge(changed(watched={0: watched(0), 1: record})).proven


@pytest.mark.parametrize("energy_j", [1000.5, 1060.0 * 5, 1e9])
def test_an_energy_that_the_power_contradicts_is_none(energy_j: float) -> None:
    powered = {"power_w_min": 18.0, "power_w_max": 22.0}  # 60 J in 3.1 s
    assert judged({"energy_j": energy_j}, powered).gpu_energy_j_per_sample is None
    assert judged(summary=powered).gpu_energy_j_per_sample is not None


def test_a_state_in_another_gpus_place_is_not_its_own() -> None:
    assert judged({"uuid": "GPU-77", "power_limit_w": 100.0}).remarks == ()


def test_a_total_that_was_not_visible_before_the_window_is_no_difference() -> None:
    record = watched(1, {"ecc_uncorrected": 9})
    assert record.window_begin is not None
    blind = msgspec.structs.replace(HEALTHY, ecc_uncorrected=None)
    begin = msgspec.structs.replace(record.window_begin, gpus=(HEALTHY, blind))
    records = {0: watched(0), 1: msgspec.structs.replace(record, window_begin=begin)}
    assert judge(changed(watched=records)).remarks == ()
    assert cpu({"quota_throttled_s": None, "throttles": None}, quota_throttled_s=60.0, throttles=60).remarks == ()
