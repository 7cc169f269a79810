"""What the state of GPUs and processors says of a figure: labels, and the energy of the GPUs. Pure.

A GPU that runs at its power cap under load is healthy, and so are links that slow down while idle: neither is a remark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from runner.core.text import counted, first_of
from runner.jobs.collect import Evidence
from runner.model.records import GpuState, GpuSummary, NodeRecord, WindowEnd

# Reasons (recipes/lib, node/nvml.py) that a healthy GPU under load does not show.
_THROTTLING = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
    "sync boost",
    "clocks set by an application",
)
_LOWERED = 0.99  # of the product's own limit
_OTHERS = 0.05  # of a processor, on average over the window
_MANY = 0.25  # of what the run itself used
_POWER_ROOM = 1.5
_MOST = 4  # names in one remark


def remarks(evidence: Evidence) -> Iterable[str]:
    """What slowed GPUs or processors down in the window, as far as the nodes' watchers saw it."""
    causes: dict[str, list[str]] = {}
    for record in _of_this_run(evidence):
        begin, end = record.window_begin, record.window_end
        if begin is None or end is None:
            continue
        unlisted = _unlisted(evidence, record)
        if unlisted:
            causes.setdefault(f"the driver does not list {unlisted}, on which it says that it computed", []).append(
                f"rank {record.rank} on {record.host}"
            )
        used = _used(evidence, record)
        links = max((sum(_state(end, index, summary).nvlinks or ()) for index, summary in used), default=0)
        for index, summary in used:
            for cause in _of_gpu(summary, _state(begin, index, summary), _state(end, index, summary), links):
                causes.setdefault(cause, []).append(f"GPU {index} of {record.host}")
        for cause in filter(None, (cause for cause, _ in _of_processors(evidence, begin, end))):
            causes.setdefault(cause, []).append(record.host)
        if record.xids:
            numbers = ", ".join(str(xid) for xid in sorted(set(record.xids)))
            causes.setdefault(f"the driver reported XID {numbers} meanwhile", []).append(record.host)
    for cause, places in causes.items():
        yield f"{first_of(places, _MOST)}: {cause}"


def disturbance(evidence: Evidence) -> str:
    """What made it slower for a while, so that the figure is not that of a quiet machine; empty for nothing."""
    ended = [(record, record.window_begin, end) for record in _of_this_run(evidence) if (end := record.window_end)]
    used = [(each, _state(end, at, each)) for record, _, end in ended for at, each in _used(evidence, record)]
    causes = {
        "its GPUs throttled": any(summary.throttled.get(reason) for summary, _ in used for reason in _THROTTLING),
        "others computed on its GPUs": any(state.processes_foreign for _, state in used),
    }
    of_nodes = (words for _, begin, end in ended if begin for _, words in _of_processors(evidence, begin, end))
    return "; ".join(dict.fromkeys((*(cause for cause, holds in causes.items() if holds), *filter(None, of_nodes))))


def unseen(evidence: Evidence) -> Iterable[str]:
    """What of the GPUs' state is not visible, so that its absence proves nothing."""
    if evidence.plan.device != "cuda":
        return
    records = _of_this_run(evidence)
    seen = [record for record in records if record.gpus and record.window_begin and record.window_end]
    if len(seen) < evidence.plan.nodes:
        yield "the state of the GPUs (clocks, throttling, energy) is not visible on every node"
    elif not all(summary.throttle_known for record in records for _, summary in _used(evidence, record)):
        yield "the driver does not say whether GPUs throttled"
    lost = [record.host for record in seen if _stopped_answering(evidence, record)]
    if lost:
        yield f"the driver stopped answering in the window on {first_of(lost, _MOST)}: what came later is unknown"


def energy_j_per_sample(evidence: Evidence) -> float | None:
    """Energy of the ranks' GPUs in the window over its samples, joules; None unless every rank's GPU counted it.

    GPU only: neither processors nor memory, fans, network or losses of power supplies.
    """
    used = {report.device_uuid for report in evidence.reports.values()}
    meters: dict[str | None, float] = {}
    for record in _of_this_run(evidence):
        begin, end, report = record.window_begin, record.window_end, evidence.reports.get(record.rank)
        if begin is None or end is None or report is None or not report.ends_s:
            continue
        span_s = end.monotonic_s - begin.monotonic_s
        for index, summary in enumerate(record.gpus):
            first, last = _state(begin, index, summary).energy_j, _state(end, index, summary).energy_j
            if not summary.uuid or summary.mig or first is None or last is None or last <= first:
                continue
            if _is_power(summary, end, index, last - first, span_s):
                # The marks lie just outside of the window.
                meters[summary.uuid] = (last - first) * min(1.0, report.ends_s[-1] / span_s)
    if not used or not used.issubset(meters):
        return None
    samples = sum(
        sum(report.group_samples) or len(report.ends_s) * (report.group_steps or 0) * (report.batch_size or 0)
        for report in evidence.reports.values()
    )
    return sum(meters[uuid] for uuid in used) / samples if samples else None


def sm_clock_mhz(evidence: Evidence, place: int | None = None) -> float | None:
    """The mean SM clock of the ranks' GPUs in the window, MHz; None unless it was read on every node.

    Args:
        place: of a further window of the run; None for the timed one.
    """
    records = _of_this_run(evidence)
    nodes: list[list[float | None]] = []
    for record in records:
        means = [summary.sm_clock_mhz_mean for summary in record.gpus]
        clocks = means if place is None else record.arms.get(str(place), ())
        nodes.append([clocks[index] if index < len(clocks) else None for index, _ in _used(evidence, record)])
    known = [clock for node in nodes for clock in node if clock is not None]
    complete = len(nodes) == evidence.plan.nodes and all(nodes) and len(known) == sum(map(len, nodes))
    return sum(known) / len(known) if complete else None


def _of_this_run(evidence: Evidence) -> list[NodeRecord]:
    records = (record for node, record in sorted(evidence.watched.items()) if node < evidence.plan.nodes)
    return [record for record in records if record.is_by(evidence.starts.get(record.rank))]


def _used(evidence: Evidence, record: NodeRecord) -> list[tuple[int, GpuSummary]]:
    """The GPUs of a node on which a rank computes. All of them count where that is unknown: the framework reported no
    UUIDs, or those of parts of GPUs (MIG), which the driver's library lists as whole ones.
    """
    if evidence.plan.device != "cuda":
        return []
    every = list(enumerate(record.gpus))
    reported = {
        report.device_uuid
        for rank, report in evidence.reports.items()
        if rank in evidence.starts and evidence.starts[rank].node_rank == record.node_rank
    }
    return [(index, summary) for index, summary in every if summary.uuid in reported] or every


def _unlisted(evidence: Evidence, record: NodeRecord) -> str:
    """The GPU of the watcher's own rank, if the driver's library, which sees what that rank does, has none of that
    UUID; empty where it has, or lists parts of GPUs as whole ones.
    """
    report, start = evidence.reports.get(record.rank), evidence.starts.get(record.rank)
    uuid = None if report is None else report.device_uuid
    if evidence.plan.device != "cuda" or uuid is None or not uuid.startswith("GPU-") or start is None:
        return ""
    listed = {summary.uuid for summary in record.gpus}
    if not listed or None in listed or any(summary.mig is not False for summary in record.gpus):
        return ""
    return "" if uuid in listed else uuid


def _state(end: WindowEnd, index: int, summary: GpuSummary) -> GpuState:
    """A GPU's state; nothing is known where another one stands in its place."""
    state = end.gpus[index] if index < len(end.gpus) else GpuState()
    return state if None in (state.uuid, summary.uuid) or state.uuid == summary.uuid else GpuState()


def _stopped_answering(evidence: Evidence, record: NodeRecord) -> bool:
    begin, end = record.window_begin, record.window_end
    if begin is None or end is None:
        return False
    return any(
        _is_visible(_state(begin, index, summary)) and not _is_visible(_state(end, index, summary))
        for index, summary in _used(evidence, record)
    )


def _is_visible(state: GpuState) -> bool:
    values = (state.power_limit_w, state.energy_j, state.pcie_width, state.memory_celsius, state.ecc_uncorrected)
    return any(value is not None for value in values)


def _is_power(summary: GpuSummary, end: WindowEnd, index: int, energy_j: float, span_s: float) -> bool:
    """Whether the energy fits the power that was read once a second, with room for what lay between the readings."""
    if span_s <= 0.0:
        return False
    watts, limit = energy_j / span_s, _state(end, index, summary).power_limit_w
    least, most = summary.power_w_min, summary.power_w_max
    return (
        (least is None or watts >= least / _POWER_ROOM)
        and (most is None or watts <= most * _POWER_ROOM)
        and (limit is None or watts <= limit * _POWER_ROOM)
    )


def _of_gpu(summary: GpuSummary, begin: GpuState, end: GpuState, links: int) -> Iterable[str]:
    """One GPU's causes, each the same words for every GPU where it is the same cause.

    Args:
        links: the most NVLinks that are up on a GPU of the node: not every machine connects all that a GPU has.
    """
    shown = Counter({reason: summary.throttled.get(reason, 0) for reason in _THROTTLING})
    reasons = [f"{reason} in {count} of {summary.samples} seconds" for reason, count in shown.items() if count]
    if reasons:
        clocks = ""
        if summary.sm_clock_mhz_min is not None and summary.sm_clock_mhz_max is not None:
            clocks = f" (SM clock {summary.sm_clock_mhz_min:.0f} to {summary.sm_clock_mhz_max:.0f} MHz)"
        yield f"throttled: {', '.join(reasons)}{clocks}"
    limit, full = end.power_limit_w, summary.power_limit_default_w
    if limit is not None and full is not None and limit < _LOWERED * full:
        yield f"its power limit is lowered to {limit:.0f} of {full:.0f} W"
    if end.processes_foreign:
        yield f"{counted(end.processes_foreign, 'process')} of others compute there"
    if end.remapped_rows_pending:
        yield "rows of its memory wait to be remapped; fix: the administrator resets it"
    if begin.ecc_uncorrected is not None and end.ecc_uncorrected is not None:
        errors = end.ecc_uncorrected - begin.ecc_uncorrected
        if errors > 0:
            yield f"{errors} uncorrected memory errors in the window"
    if end.pcie_width and summary.pcie_width_max and end.pcie_width < summary.pcie_width_max:
        yield f"its PCIe link has {end.pcie_width} of {summary.pcie_width_max} lanes"
    if end.nvlinks is not None:
        most = max(links, sum(begin.nvlinks or ()))
        if sum(end.nvlinks) < most:
            yield f"{most - sum(end.nvlinks)} of its {most} NVLinks are down"


def _of_processors(evidence: Evidence, begin: WindowEnd, end: WindowEnd) -> Iterable[tuple[str, str]]:
    """Causes, and in words without a node's figures what of them disturbed the run; empty where it is a note alone.
    Bundles compare notes word by word, and those that were made before one was known have it not: a doubt is then all.
    """
    span_s = end.monotonic_s - begin.monotonic_s
    first, last = begin.processors, end.processors
    if first.throttles is not None and last.throttles is not None and last.throttles > first.throttles:
        disturbs = "its processors throttled" if evidence.plan.device == "cpu" else ""
        yield f"its processors were throttled by heat ({last.throttles - first.throttles} events)", disturbs
    if first.quota_throttled_s is not None and last.quota_throttled_s is not None:
        quota_s = last.quota_throttled_s - first.quota_throttled_s
        if quota_s > 0.01 * span_s:
            cause = "a limit on processor time kept ranks waiting"
            yield f"{cause} for {quota_s:.1f} s in all", cause
    if evidence.plan.device != "cpu" or span_s <= 0.0:
        return
    if None in (first.busy_s, last.busy_s, first.own_s, last.own_s):
        return
    busy, own = (last.busy_s or 0.0) - (first.busy_s or 0.0), (last.own_s or 0.0) - (first.own_s or 0.0)
    others_s = busy - own
    if others_s > _OTHERS * span_s:
        disturbs = "others computed on its processors" if others_s > _MANY * own else ""
        yield f"others used {others_s / span_s:.1f} processors on average in the window", disturbs
    if None not in (first.steal_s, last.steal_s) and (last.steal_s or 0.0) - (first.steal_s or 0.0) > _MANY * own:
        yield "", "the hypervisor took processor time"
