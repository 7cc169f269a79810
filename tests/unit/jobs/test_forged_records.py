"""Records that were changed, by accident or on purpose, never give a figure that the rest does not support.

A forger who writes every record of every rank alike is not kept out, and nothing claims so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.diagnosis.logs import NcclLog
from runner.jobs.collect import Evidence
from runner.jobs.verdict import judge
from runner.model.records import (
    ExitRecord,
    GpuState,
    GpuSummary,
    NodeRecord,
    Port,
    PortReading,
    Processors,
    Report,
    Result,
    StartRecord,
    WindowEnd,
)
from tests.support.evidence import RESULT, long_run, watched_run
from tests.support.series import group_times

altered = msgspec.structs.replace
EVIDENCE = long_run(group_times(Random(1), 60, mean_s=1.0), compute_quarters_p50_s=(0.05,) * 4)
# Its start is left out, so that one time more decides where the figure's window begins.
WITH_A_START = long_run(group_times(Random(1), 60, deviation=0.003, start=0.3, decay=0.02, mean_s=1.0))
# Without NCCL's log, so that the counters of its nodes' ports are what proves.
WATCHED = replace(watched_run(EVIDENCE), nccl=NcclLog())
TRUE = {id(each): judge(each).images_per_s for each in (EVIDENCE, WITH_A_START, WATCHED)}
LARGEST_ERROR = 0.001

NUMBERS = st.one_of(
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0, 1, -1, 0.5, 2.0, 1e-9, 1e300]),
)
VALUES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.lists(NUMBERS, max_size=70))
FACTORS = st.one_of(st.floats(0.01, 100.0), st.floats(0.998, 1.002))


def believed(evidence: Evidence, of: Evidence = EVIDENCE) -> None:
    """It is no figure, or the true one of the run that was changed."""
    verdict, true = judge(evidence), TRUE[id(of)]
    if verdict.images_per_s is not None:
        assert true is not None
        assert math.isclose(verdict.images_per_s, true, rel_tol=LARGEST_ERROR), verdict


def with_field(record: Any, name: str, value: Any) -> Any:
    """The record with one field changed, as it would be read; None where no such record can be read."""
    try:
        return msgspec.convert(msgspec.to_builtins(record) | {name: value}, type(record))
    except msgspec.ValidationError:
        return None


def scaled(value: Any, factor: float) -> Any:
    """The same value times a factor; of anything but numbers itself."""
    if isinstance(value, tuple):
        return [scaled(each, factor) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(value * factor) if isinstance(value, int) else value * factor


PLACES: dict[type, str] = {StartRecord: "starts", ExitRecord: "exits", Report: "reports", NodeRecord: "watched"}


def replaced(evidence: Evidence, kind: type, rank: int, record: Any) -> Evidence:
    if kind is Result:
        return replace(evidence, result=record)
    place = PLACES[kind]
    return replace(evidence, **{place: getattr(evidence, place) | {rank: record}})


def record_of(evidence: Evidence, kind: type, rank: int) -> Any:
    return evidence.result if kind is Result else getattr(evidence, PLACES[kind])[rank]


FIELDS = [(kind, name) for kind in (StartRecord, ExitRecord, Report, Result) for name in kind.__struct_fields__]


@pytest.mark.parametrize(("kind", "name"), FIELDS)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(rank=st.integers(0, 3), value=VALUES, factor=FACTORS)
def test_one_changed_field_gives_no_other_figure(kind: type, name: str, rank: int, value: Any, factor: float) -> None:
    record = record_of(EVIDENCE, kind, rank)
    for changed in (value, scaled(getattr(record, name), factor)):
        made = with_field(record, name, changed)
        if made is not None:
            believed(replaced(EVIDENCE, kind, rank, made))


ENERGY = judge(WATCHED).gpu_energy_j_per_sample
PARTS = (NodeRecord, WindowEnd, PortReading, Port, GpuState, GpuSummary, Processors)
NODE_FIELDS = [(kind, name) for kind in PARTS for name in kind.__struct_fields__]


def with_part(record: NodeRecord, kind: type, name: str, change: Callable[[Any], Any]) -> NodeRecord | None:
    """The watcher's record with one field of one of its parts changed: of the first of that kind."""

    def changed(value: Any) -> tuple[Any, bool]:
        if isinstance(value, tuple):
            for index, each in enumerate(value):
                made, done = changed(each)
                if done:
                    return [*value[:index], made, *value[index + 1 :]], True
            return value, False
        if not isinstance(value, msgspec.Struct):
            return value, False
        fields = {each: getattr(value, each) for each in value.__struct_fields__}
        if type(value) is kind:
            return fields | {name: change(fields[name])}, True
        for each in reversed(fields):
            made, done = changed(fields[each])
            if done:
                return fields | {each: made}, True
        return value, False

    made, done = changed(record)
    assert done, kind
    try:
        return msgspec.convert(msgspec.to_builtins(made), NodeRecord)
    except msgspec.ValidationError:
        return None


@pytest.mark.parametrize(("kind", "name"), NODE_FIELDS)
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(node=st.integers(0, 1), value=VALUES, factor=FACTORS)
def test_one_changed_field_of_a_watchers_record_gives_no_other_figure(
    kind: type, name: str, node: int, value: Any, factor: float
) -> None:
    changes: tuple[Callable[[Any], Any], ...] = (lambda _old: value, lambda old: scaled(old, factor))
    for change in changes:
        made = with_part(WATCHED.watched[node], kind, name, change)
        if made is None:
            continue
        evidence = replaced(WATCHED, NodeRecord, node, made)
        believed(evidence, WATCHED)
        energy = judge(evidence).gpu_energy_j_per_sample
        assert ENERGY is not None
        assert energy is None or ENERGY / 2 < energy < ENERGY * 2


def test_a_watched_run_is_proven_by_its_counters_and_has_an_energy() -> None:
    verdict = judge(WATCHED)
    assert (verdict.outcome, verdict.transport) == ("measured", "proven")
    assert pytest.approx(250.0 * 60.0 * 4 / (4 * 600 * 10), rel=0.01) == ENERGY


@pytest.mark.parametrize(("kind", "name"), [each for each in FIELDS if each[0] is not Result])
@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(value=VALUES, factor=FACTORS)
def test_one_field_changed_alike_on_all_ranks_gives_no_other_figure(
    kind: type, name: str, value: Any, factor: float
) -> None:
    changes: tuple[Callable[[Any], Any], ...] = (lambda _old: value, lambda old: scaled(old, factor))
    for change in changes:
        evidence = WATCHED
        for rank in range(4):
            made = with_field(
                record_of(WATCHED, kind, rank), name, change(getattr(record_of(WATCHED, kind, rank), name))
            )
            if made is None:
                break
            evidence = replaced(evidence, kind, rank, made)
        else:
            believed(evidence, WATCHED)


@pytest.mark.parametrize("evidence", [EVIDENCE, WITH_A_START])
@settings(max_examples=300, deadline=None, derandomize=True)
@given(rank=st.integers(0, 3), group=st.integers(0, 58), share=st.floats(-0.1, 1.1))
def test_one_changed_time_gives_no_other_figure(evidence: Evidence, rank: int, group: int, share: float) -> None:
    ends = [0.0, *evidence.reports[rank].ends_s]
    ends[group + 1] = max(ends[group] + share * (ends[group + 2] - ends[group]), 0.0)
    believed(replaced(evidence, Report, rank, with_field(evidence.reports[rank], "ends_s", ends[1:])), evidence)


@pytest.mark.parametrize("name", ["ends_s", "batch_size", "group_steps", "steps", "elapsed_s"])
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(factor=FACTORS)
def test_a_field_that_is_scaled_on_all_ranks_gives_no_other_figure(name: str, factor: float) -> None:
    evidence = EVIDENCE
    for rank, report in EVIDENCE.reports.items():
        made = with_field(report, name, scaled(getattr(report, name), factor))
        if made is None:
            return
        evidence = replaced(evidence, Report, rank, made)
    believed(evidence)


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.9, 1.1, 2.0, 10.0])
@pytest.mark.parametrize("of", [EVIDENCE, WATCHED])
def test_times_that_are_scaled_everywhere_are_contradicted_from_outside(of: Evidence, factor: float) -> None:
    """The result, too: only the launchers' clocks and, where there are any, the watchers' marks are left."""
    evidence = of
    for rank, report in of.reports.items():
        ends_s = tuple(scaled(report.ends_s, factor))
        made = altered(report, ends_s=ends_s, elapsed_s=ends_s[-1], ends_checksum=None)
        evidence = replaced(evidence, Report, rank, made)
    assert EVIDENCE.result is not None and EVIDENCE.result.preliminary_images_per_s is not None
    result = altered(
        EVIDENCE.result,
        window_s=EVIDENCE.result.window_s * factor,
        preliminary_images_per_s=EVIDENCE.result.preliminary_images_per_s / factor,
    )
    verdict = judge(replace(evidence, result=result))
    # Shorter ones are beyond what can be seen without a watcher; the program lived on for a minute.
    assert (verdict.outcome == "not-proven") is (of is WATCHED or factor > 1.1)


def test_records_of_another_run_are_not_taken() -> None:
    other = long_run(group_times(Random(2), 60, mean_s=0.5))
    starts = {rank: altered(start, token="other", job_id="42") for rank, start in other.starts.items()}
    other = replace(other, starts=starts)
    for part in ("starts", "exits", "reports"):
        for ranks in ({0}, {1, 2}, {0, 1, 2, 3}):
            mixed = getattr(EVIDENCE, part) | {rank: getattr(other, part)[rank] for rank in ranks}
            believed(replace(EVIDENCE, **{part: mixed}))
    believed(replace(EVIDENCE, result=other.result))
    believed(replace(EVIDENCE, reports=other.reports, exits=other.exits))


@pytest.mark.parametrize("ranks", [{0}, {1, 2}, {3}])
@pytest.mark.parametrize("of", [EVIDENCE, WITH_A_START])
def test_reports_of_another_training_are_not_of_this_one(of: Evidence, ranks: set[int]) -> None:
    """Even if nothing else is wrong with them: no rank runs ahead of an allreduce."""
    other = long_run(group_times(Random(9), 60, mean_s=0.5))
    mixed = of.reports | {rank: other.reports[rank] for rank in ranks}
    (reason,) = judge(replace(of, reports=mixed)).reasons
    assert reason.startswith(f"the ranks' times are not of one training: rank {min(ranks)} ended group ")


@pytest.mark.parametrize("extreme", [1e308, 5e-324, 1e-7, 1e11, math.nan, math.inf])
def test_extreme_computing_times_name_no_rank(extreme: float) -> None:
    for quarters in ((extreme,) * 4, (0.05, extreme, 0.05, 0.05), (0.05, 0.05, 0.05, extreme)):
        verdict = judge(of_ranks(Report, 1, compute_quarters_p50_s=quarters))
        assert verdict.images_per_s == TRUE[id(EVIDENCE)]
        assert not any("slow ranks" in remark for remark in verdict.remarks)


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        ("batch_size group_steps rank steps warmup_steps world_rank", (-1, 10**400, 2**54)),
        ("elapsed_s warmup_s window_began_monotonic_s", (math.nan, math.inf, -1.0, 1e300)),
        ("ends_s", ((1.0, math.nan), (1.0, math.inf), (1.0, -1.0), (1.0, 1e300))),
    ],
)
def test_numbers_that_nothing_has_are_no_record(names: str, numbers: tuple[Any, ...]) -> None:
    for name in names.split():
        for number in numbers:
            assert with_field(EVIDENCE.reports[0], name, number) is None, (name, number)


def of_ranks(kind: type, *ranks: int, of: Evidence = EVIDENCE, **fields: Any) -> Evidence:
    """The evidence with the records of these ranks altered; of no rank: of all."""
    for rank in ranks or range(4):
        of = replaced(of, kind, rank, altered(record_of(of, kind, rank), **fields))
    return of


def without(kind: type, *ranks: int) -> Evidence:
    left = {rank: each for rank, each in getattr(EVIDENCE, PLACES[kind]).items() if rank not in ranks}
    fields: dict[str, Any] = {PLACES[kind]: left}
    return replace(EVIDENCE, **fields)


def ended_elsewhere(late_s: float, **fields: Any) -> Evidence:
    """The watcher of n1 saw the window end so much after the last step."""
    end = WATCHED.watched[1].window_end
    assert end is not None
    moved = altered(end, monotonic_s=1005.0 + WATCHED.reports[2].ends_s[-1] + late_s)
    return of_ranks(NodeRecord, 1, of=WATCHED, window_end=moved, **fields)


def on_processors(late_s: float) -> Evidence:
    of_cpu = of_ranks(Report, device_kind="cpu", device_uuid=None)
    plan = altered(EVIDENCE.plan, device="cpu", transport=None)
    return replace(of_ranks(Report, 1, of=of_cpu, window_began_monotonic_s=1005.0 + late_s), plan=plan)


def with_result(**fields: Any) -> Evidence:
    assert EVIDENCE.result is not None
    return replace(EVIDENCE, result=altered(EVIDENCE.result, **fields))


ENDS_S = EVIDENCE.reports[0].ends_s
AHEAD_S = tuple(before + 0.1 for before in (0.0, *ENDS_S[:-1]))
# Evidence -> a reason that it is not proven; empty where nothing is wrong.
FORGED: dict[str, tuple[Evidence, str]] = {
    **{f"{PLACES[kind]} of {ranks} are absent": (without(kind, *ranks), "rank") for kind in (StartRecord, ExitRecord,
        Report) for ranks in ((2,), (0, 1, 2, 3))},
    "a rank beyond the plan": (replaced(EVIDENCE, Report, 9, altered(EVIDENCE.reports[0], rank=9)), "rank 9"),
    "without times": (replaced(EVIDENCE, Report, 9, altered(EVIDENCE.reports[0], rank=9, ends_s=())), "rank 9"),
    **{f"a warm-up of rank {rank} that its program's life does not hold": (of_ranks(Report, rank, warmup_s=3600.0),
        "says that it warmed up for 3600.0 s, its program began 35.0 s before") for rank in range(4)},
    "a rank that the framework's world cannot have": (of_ranks(Report, 1, world_rank=7),
        "the framework's world has rank 7, which the plan has not"),
    **{f"rank {twin} is rank 0 once more": (replaced(EVIDENCE, Report, twin, altered(EVIDENCE.reports[0], rank=twin)),
        "shared one device") for twin in (1, 2, 3)},
    # Of the same plan: all that differs is the job, which the batch script's marker of this run names, too.
    "all records of another job": (of_ranks(Report, of=of_ranks(StartRecord, token="u", job_id="42"), token="u"),
        "the ranks' records are of another job than the batch script's end marker, which is of job 41"),
    "no job": (of_ranks(StartRecord, job_id=None), ""),
    "a step of an allocation has an id of its own": (of_ranks(StartRecord, job_id="9.8.b"), ""),
    "reports of this job step": (of_ranks(Report, token="t"), ""),
    "reports of another job step": (of_ranks(Report, 2, 3, of=of_ranks(Report, token="t"), token="u"),
        "the reports of ranks 2, 3 are of another job step than their start records"),
    **{f"the token {token!r}": (of_ranks(StartRecord, of=of_ranks(Report, token=None), token=token),
        "not every rank's start record has the token of its job step") for token in (None, "")},
    # As far as the group before it a rank may be ahead: then it has waited for the others at the end of an allreduce.
    **{f"rank {rank} ends its groups before others": (of_ranks(Report, rank, ends_s=AHEAD_S, elapsed_s=AHEAD_S[-1],
        ends_checksum=None), "") for rank in (0, 1)},
    "ranks of a node that began apart": (of_ranks(Report, 1, window_began_monotonic_s=1006.0),
        "the ranks on n0 began the window 1.0 s apart: they did not leave its barrier together"),
    "another node has another clock": (of_ranks(Report, 2, 3, window_began_monotonic_s=1020.0), ""),
    "processors may wait for a turn": (on_processors(1.0), ""),
    "and not for ever": (on_processors(4.0), "the ranks on n0 began the window 4.0 s apart"),
    "a watcher saw the window end later": (ended_elsewhere(6.0), "ended 6.0 s after the last step"),
    "a watcher saw the window end before": (ended_elsewhere(-0.2), "ended 0.2 s before the last step"),
    "another step's watcher": (ended_elsewhere(6.0, token="u"), ""),
    "the result of another run": (replace(EVIDENCE, result=RESULT), "the result says"),
    "a flattering result": (with_result(preliminary_images_per_s=1e6), "the result says 1000000.000 images/s"),
    "a flattering result of another window": (with_result(window_s=59.0, preliminary_images_per_s=1e6),
        "the result says that the window took 59.000 s"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_record_that_the_others_contradict_proves_nothing(name: str) -> None:
    evidence, says = FORGED[name]
    verdict = judge(evidence)
    assert verdict.outcome == ("not-proven" if says else "measured")
    assert not says or any(says in reason for reason in verdict.reasons), verdict.reasons
