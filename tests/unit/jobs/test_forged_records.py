"""Records that were changed, by accident or on purpose, never give a figure that the rest does not support.

A forger who writes every record of every rank alike is not kept out, and nothing claims so.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial, reduce
from operator import getitem
from random import Random
from typing import Any

import msgspec
import pytest

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
from runner.model.verdict import Verdict
from tests.support.cases import for_each
from tests.support.evidence import (
    GOOD,
    RESULT,
    changed,
    ended,
    long_run,
    on_all,
    report,
    start,
    watched_run,
    with_plan,
    with_report,
)  # fmt: skip
from tests.support.series import group_times

altered = msgspec.structs.replace
EVIDENCE = long_run(group_times(Random(1), 60, mean_s=1.0), compute_quarters_p50_s=(0.05,) * 4)
# Its start is left out, so that one time more decides where the figure's window begins.
WITH_A_START = long_run(group_times(Random(1), 60, deviation=0.003, start=0.3, decay=0.02, mean_s=1.0))
OTHER = long_run(group_times(Random(9), 60, mean_s=0.5))
# Without NCCL's log, so that the counters of its nodes' ports are what proves.
WATCHED = replace(watched_run(EVIDENCE), nccl=NcclLog())
TRUE = {id(each): judge(each).images_per_s for each in (EVIDENCE, WITH_A_START, WATCHED)}
ENERGY = judge(WATCHED).gpu_energy_j_per_sample
LARGEST_ERROR = 0.001

# What stands in a field instead of its own value, and what that is multiplied with; the next one for the next rank.
NUMBERS = (0, 1, -1, 2, 59, 10**9, -(10**9), 0.5, 1e-9, -1e-9, 5e-324, 1e300, math.nan, math.inf, -math.inf)
VALUES: tuple[Any, ...] = (*NUMBERS, None, False, True, "", "n0", "GPU-0", "\N{SNOWMAN}", [], [0.5], [math.nan],
                           [1.0] * 60, list(NUMBERS))  # fmt: skip
FACTORS = (0.01, 0.5, 0.9, 0.998, 0.9995, 1.0005, 1.002, 1.1, 2.0, 100.0)
Path = tuple[str | int, ...]

PLACES: dict[Any, str] = {
    StartRecord: "starts", ExitRecord: "exits", Report: "reports", Result: "result", NodeRecord: "watched",
}  # fmt: skip
RANKS_FIELDS = [(kind, (), name) for kind in (StartRecord, ExitRecord, Report) for name in kind.__struct_fields__]
# Of a watcher's record those of its parts, too: of the first of that kind.
PARTS: tuple[tuple[Any, Path], ...] = (
    (NodeRecord, ()), (WindowEnd, ("window_end",)), (PortReading, ("quiet", 0)), (Port, ("window_end", "ports", 0)),
    (GpuState, ("window_end", "gpus", 0)), (GpuSummary, ("gpus", 0)), (Processors, ("window_end", "processors")),
)  # fmt: skip
FIELDS = [
    *RANKS_FIELDS,
    *((Result, (), name) for name in Result.__struct_fields__),
    *((NodeRecord, path, name) for part, path in PARTS for name in part.__struct_fields__),
]


def believed(evidence: Evidence, of: Evidence) -> Verdict:
    """Its verdict has no figure, or the true one of the run that was changed."""
    verdict, true = judge(evidence), TRUE[id(of)]
    if verdict.images_per_s is not None:
        assert true is not None
        assert math.isclose(verdict.images_per_s, true, rel_tol=LARGEST_ERROR), verdict
    return verdict


def with_field(record: Any, path: Path, name: str, change: Callable[[Any], Any]) -> Any:
    """The record with one field changed, as it would be read. Raises ValidationError: no such record can be read."""
    document = msgspec.to_builtins(record)
    part = reduce(getitem, path, document)
    part[name] = change(part[name])
    return msgspec.convert(document, type(record))


def forged(of: Evidence, kind: type, ranks: Iterable[int], change: Callable[[Any], Any]) -> Evidence | None:
    """The evidence with the records of these ranks (or nodes) changed; None where no such record can be read."""
    old = getattr(of, PLACES[kind])
    try:
        new = change(old) if kind is Result else old | {rank: change(old[rank]) for rank in ranks}
    except msgspec.ValidationError:
        return None
    return replace(of, **{PLACES[kind]: new})


def of_ranks(kind: type, *ranks: int, of: Evidence = EVIDENCE, **fields: Any) -> Evidence:
    """The evidence with the records of these ranks altered; of no rank: of all."""
    evidence = forged(of, kind, ranks or range(4), lambda record: altered(record, **fields))
    assert evidence is not None
    return evidence


def scaled(value: Any, factor: float) -> Any:
    """The same value times a factor; of anything but numbers itself."""
    if isinstance(value, list | tuple):
        return [scaled(each, factor) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(value * factor) if isinstance(value, int) else value * factor


def forgeries(
    of: Evidence, kind: type, path: Path, name: str, places: Callable[[int], Iterable[int]]
) -> list[Evidence]:
    """With each other value in that field of the n-th places' records, and with its own one times each factor; only
    what can be read.
    """
    changes: list[Callable[[Any], Any]] = [lambda _old, value=value: value for value in VALUES]  # type: ignore[misc]
    changes += [partial(scaled, factor=factor) for factor in FACTORS]
    made = [forged(of, kind, places(number), partial(with_field, path=path, name=name, change=change))
            for number, change in enumerate(changes)]  # fmt: skip
    return [each for each in made if each not in (None, of)]


@for_each(FIELDS)
def test_one_changed_field_gives_no_other_figure(kind: type, path: Path, name: str) -> None:
    of, places = (WATCHED, 2) if kind is NodeRecord else (EVIDENCE, 4)
    assert ENERGY is not None
    for evidence in forgeries(of, kind, path, name, lambda number: [number % places]):
        energy = believed(evidence, of).gpu_energy_j_per_sample
        assert energy is None or ENERGY / 2 < energy < ENERGY * 2


@for_each((*field, of) for of in (EVIDENCE, WATCHED) for field in RANKS_FIELDS)
def test_one_field_changed_alike_on_all_ranks_gives_no_other_figure(
    kind: type, path: Path, name: str, of: Evidence
) -> None:
    for evidence in forgeries(of, kind, path, name, lambda _number: range(4)):
        believed(evidence, of)


@pytest.mark.parametrize("of", [EVIDENCE, WITH_A_START])
def test_one_changed_time_gives_no_other_figure(of: Evidence) -> None:
    draw = Random(3)
    for rank, group in ((draw.randrange(4), draw.randrange(59)) for _ in range(300)):
        ends = [0.0, *of.reports[rank].ends_s]
        share = draw.choice((-0.1, 0.0, 1.0, 1.1, draw.random()))
        ends[group + 1] = max(ends[group] + share * (ends[group + 2] - ends[group]), 0.0)
        believed(of_ranks(Report, rank, of=of, ends_s=tuple(ends[1:])), of)


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.9, 1.1, 2.0, 10.0])
@pytest.mark.parametrize("of", [EVIDENCE, WATCHED])
def test_times_that_are_scaled_everywhere_are_contradicted_from_outside(of: Evidence, factor: float) -> None:
    """The result, too: only the launchers' clocks and, where there are any, the watchers' marks are left."""
    ends_s = tuple(scaled(of.reports[0].ends_s, factor))
    evidence = of_ranks(Report, of=of, ends_s=ends_s, elapsed_s=ends_s[-1], ends_checksum=None)
    assert of.result is not None and of.result.preliminary_images_per_s is not None
    images_per_s = of.result.preliminary_images_per_s / factor
    verdict = judge(with_result(evidence, window_s=of.result.window_s * factor, preliminary_images_per_s=images_per_s))
    # Shorter ones are beyond what can be seen without a watcher; the program lived on for a minute.
    assert (verdict.outcome == "not-proven") is (of is WATCHED or factor > 1.1)


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
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert(msgspec.to_builtins(EVIDENCE.reports[0]) | {name: number}, Report)


def without(kind: type, *ranks: int, of: Evidence = GOOD) -> Evidence:
    left = {rank: each for rank, each in getattr(of, PLACES[kind]).items() if rank not in ranks}
    fields: dict[str, Any] = {PLACES[kind]: left}
    return replace(of, **fields)


def beyond(kind: type, rank: int, of: Evidence = GOOD, **fields: Any) -> Evidence:
    """Rank 0's record once more, as that of this rank."""
    records = getattr(of, PLACES[kind])
    copied: dict[str, Any] = {PLACES[kind]: records | {rank: altered(records[0], rank=rank, **fields)}}
    return replace(of, **copied)


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


def with_result(of: Evidence = EVIDENCE, **fields: Any) -> Evidence:
    return of_ranks(Result, of=of, **fields)


def with_start(rank: int, **fields: Any) -> Evidence:
    return changed(starts=GOOD.starts | {rank: start(rank, **fields)})


def reduced(*errors: float | None) -> Evidence:
    """A good run whose ranks compared the gradients that they reduced with their mean."""
    return changed(reports={rank: report(rank, reduced_gradients_error=error) for rank, error in enumerate(errors)})


ENDS_S = EVIDENCE.reports[0].ends_s
AHEAD_S = tuple(before + 0.1 for before in (0.0, *ENDS_S[:-1]))
TWO_GUESSES = {rank: start(rank, device_uuid=f"GPU-{rank // 2 * 2}") for rank in range(4)}
# Evidence -> a reason that it is not proven; empty where nothing is wrong. Where it says all, its sentence is whole.
FORGED: dict[str, tuple[Evidence, str]] = {
    # What is missing, or too much.
    "no start record": (without(StartRecord, 2), "no start record of rank 2"),
    "no start record where compute times were recorded": (without(StartRecord, 2, of=EVIDENCE),
        "no start record of rank 2"),
    "no exit record": (without(ExitRecord, 3), "no exit record of rank 3"),
    "no report": (without(Report, 2, 3), "ranks 2, 3 left no report"),
    **{f"no {PLACES[kind]} at all": (without(kind, 0, 1, 2, 3), "rank") for kind in (StartRecord, ExitRecord, Report)},
    "no result": (changed(result=None), "left no result"),
    "torn record": (changed(damaged=("2.exit.json: bad",)), "a record cannot be read: 2.exit.json: bad"),
    "too many ranks": (beyond(StartRecord, 4), "beyond the plan: rank 4"),
    "too many reports": (beyond(Report, 4, of=EVIDENCE), "beyond the plan: rank 4"),
    "too many reports, without times": (beyond(Report, 4, ends_s=()), "beyond the plan: rank 4"),
    "records of the first version": (changed(reports=on_all(report, schema="1")), "older version (1)"),
    # The world.
    "worlds of one": (changed(reports=on_all(report, world_size=1, world_rank=0)), "size 1, planned"),
    "one rank in a world of one": (with_report(2, world_size=1), "rank 2 saw a world of size 1, planned 4"),
    "same rank twice": (with_report(2, world_rank=1), "several processes had the same rank"),
    "a rank that the framework's world cannot have": (of_ranks(Report, 1, world_rank=7),
        "the framework's world has rank 7, which the plan has not"),
    "started alone": (with_start(1, size=1), "started in a world of 1"),
    "never met": (with_start(1, met=False), "never met"),
    "wrong placement": (with_start(2, host="n0", device_uuid="x"), "n0: 3, n1: 1"),
    # Devices, and the ways between them.
    "wrong device": (with_report(1, device_kind="cpu"), "did not compute on cuda"),
    "no GPU seen": (replace(with_report(1, device_uuid=None), starts=with_start(1, device_kind="cpu").starts),
        "rank 1 saw no GPU"),
    "shared device": (with_report(1, device_uuid="GPU-0"), "ranks 0, 1 shared one device"),
    "shared device, and a rank that reports none": (changed(reports=with_report(1,
        device_uuid="GPU-0").reports | {3: report(3, device_uuid=None)}), "ranks 0, 1 shared one device (GPU-0)"),
    "shared device by the launchers' guess": (changed(starts=TWO_GUESSES, reports=on_all(report, device_uuid=None)),
        "ranks 2, 3 shared one device (GPU-2 on n1)"),
    **{f"rank {twin} is rank 0 once more": (beyond(Report, twin, of=EVIDENCE), "shared one device")
        for twin in (1, 2, 3)},
    "sockets": (changed(nccl=NcclLog(networks=frozenset({"Socket"}))), "NCCL used sockets"),
    "no NCCL": (with_report(1, nccl_built=False), "rank 1 ran a Horovod without NCCL"),
    "gradients on the host": (with_report(1, gradients_device="cpu"), "gradients of rank 1 were not on the GPU"),
    "gradients elsewhere": (with_report(1, gradients_device="xla"),
        "the gradients of rank 1 were not on the GPU when they were reduced"),
    # The training.
    "same gradients": (with_report(1, gradient_checksum="g0"), "trained on the same data"),
    "silent on gradients": (with_report(3, gradient_checksum=None), "not every rank says what its gradients"),
    "other parameters": (with_report(1, parameter_checksum="q"), "not synchronised"),
    "one-hot": (with_report(1, onehot_ok=False), "one-hot"),
    "not-a-number loss": (with_report(3, loss_finite=False), "not finite on rank 3"),
    "nothing learnt": (with_report(3, parameters_moved=False), "did not change"),
    "not reduced": (reduced(0.0, 0.0, 0.98, 0.0), "the gradients were not reduced over all ranks"),
    "not the mean": (reduced(*[0.06] * 4), "they are not the mean of the ranks' own (relative difference 0.06)"),
    "not compared": (reduced(0.0, 0.0, None, 0.0), "not every rank compared the reduced gradients"),
    # Without a comparison on any rank, equal gathered parameters are all that there is.
    "divided and not compared": (changed(reports=on_all(report, sharded="FSDP2")),
        "not every rank compared the reduced gradients with the ranks' own"),
    # The figure.
    "another figure": (with_result(GOOD, preliminary_images_per_s=99.0), "records give 72.727"),
    "no figure": (with_result(GOOD, preliminary_images_per_s=None), "gives no figure"),
    "result of another world": (with_result(GOOD, size=1), "world of 1, planned 4"),
    "program's doubt": (with_result(GOOD, proof_reasons=("x",)), "the program says: x"),
    "another window in the result": (with_result(GOOD, window_s=3.0), "window took 3.000"),
    "the result of another run": (replace(EVIDENCE, result=RESULT), "the result says"),
    "reports and ends of another training": (replace(EVIDENCE, reports=OTHER.reports, exits=OTHER.exits),
        "the result says 399.625 images/s, the ranks' own records give 800.430"),
    "a flattering result": (with_result(preliminary_images_per_s=1e6), "the result says 1000000.000 images/s"),
    "a flattering result of another window": (with_result(window_s=59.0, preliminary_images_per_s=1e6),
        "the result says that the window took 59.000 s"),
    "no times": (changed(reports=on_all(report, ends_s=())), "lack what a throughput"),
    "negative counts": (changed(reports=on_all(report, batch_size=-10, group_steps=-2)), "lack what a throughput"),
    "fewer groups on one rank": (with_report(2, ends_s=(1.0, 2.0)), "did not do the same steps"),
    "another batch on one rank": (with_report(2, batch_size=1000), "did not do the same steps"),
    "another batch than planned": (with_plan(samples_per_step=256), "took batches of 10, planned 256"),
    **{f"times of rank 2 that {how}": (with_report(2, ends_s=ends_s), "times of rank 2 do not rise")
        for how, ends_s in {"fall": (2.0, 1.0, 3.2), "have no end": (1.0, 2.0, math.inf),
            "no clock resolves": (5e-324, 1e-323, 2e-323), "are centuries": (1.0, 2.0, 1e300)}.items()},
    "time of the window by itself": (with_report(2, elapsed_s=2.9), "says that its window took 2.900 s"),
    "times of another checksum": (of_ranks(Report, 1, ends_checksum="0" * 16),
        "the times of rank 1 are not those that its program wrote"),
    "number of steps by itself": (with_report(2, steps=60), "says that it did 60 steps"),
    # Even if nothing else is wrong with them: no rank runs ahead of an allreduce.
    **{f"reports of {ranks} of another training, {number}": (replace(of, reports=of.reports | {rank: OTHER.reports[rank]
        for rank in ranks}), f"the ranks' times are not of one training: rank {ranks[0]} ended group ")
        for number, of in enumerate((EVIDENCE, WITH_A_START)) for ranks in ((0,), (1, 2), (3,))},
    # As far as the group before it a rank may be ahead: then it has waited for the others at the end of an allreduce.
    **{f"rank {rank} ends its groups before others": (of_ranks(Report, rank, ends_s=AHEAD_S, elapsed_s=AHEAD_S[-1],
        ends_checksum=None), "") for rank in (0, 1)},
    # Clocks.
    **{f"window that began at {began_s} s": (with_report(2, window_began_monotonic_s=began_s), says)
        for began_s, says in ((990.0, "outside its program's life of 10.0"), (None, "does not say when its window"),
            (1008.0, "outside its program's life of 10.0"))},
    "no clock of the launcher": (changed(exits=GOOD.exits | {2: ended(2, ended_monotonic_s=None)}),
        "launcher of rank 2 does not say when"),
    **{f"a warm-up of rank {rank} that its program's life does not hold": (of_ranks(Report, rank, warmup_s=3600.0),
        "says that it warmed up for 3600.0 s, its program began 35.0 s before") for rank in range(4)},
    "ranks of a node that began apart": (of_ranks(Report, 1, window_began_monotonic_s=1006.0),
        "the ranks on n0 began the window 1.0 s apart: they did not leave its barrier together"),
    "another node has another clock": (of_ranks(Report, 2, 3, window_began_monotonic_s=1020.0), ""),
    "processors may wait for a turn": (on_processors(1.0), ""),
    "and not for ever": (on_processors(4.0), "the ranks on n0 began the window 4.0 s apart"),
    "a watcher saw the window end later": (ended_elsewhere(6.0), "ended 6.0 s after the last step"),
    "a watcher saw the window end before": (ended_elsewhere(-0.2), "ended 0.2 s before the last step"),
    "another step's watcher": (ended_elsewhere(6.0, token="u"), ""),
    # Of which job they are.
    "another plan": (changed(plan_sha256="f" * 64), "did not see the plan that lies in the run directory"),
    "two job steps": (changed(starts={r: start(r, token="ab"[r // 2]) for r in range(4)}), "2 different tokens of job"),
    "two jobs": (changed(starts={r: start(r, job_id=f"4{r // 2}") for r in range(4)}), "2 different job ids"),
    # Of the same plan: all that differs is the job, which the batch script's marker of this run names, too.
    "all records of another job": (of_ranks(Report, of=of_ranks(StartRecord, token="u", job_id="42"), token="u"),
        "the ranks' records are of another job than the batch script's end marker, which is of job 41"),
    "no job": (of_ranks(StartRecord, job_id=None), ""),
    "a step of an allocation has an id of its own": (of_ranks(StartRecord, job_id="9.8.b"), ""),
    "reports of this job step": (EVIDENCE, ""),
    "reports of another job step": (of_ranks(Report, 2, 3, token="u"),
        "the reports of ranks 2, 3 are of another job step than their start records"),
    **{f"the token {token!r}": (of_ranks(StartRecord, of=of_ranks(Report, token=None), token=token),
        "not every rank's start record has the token of its job step") for token in (None, "")},
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_record_that_the_others_contradict_proves_nothing_and_has_no_figure(name: str) -> None:
    evidence, says = FORGED[name]
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.exit_code) == (("not-proven", 6) if says else ("measured", 0))
    assert (verdict.images_per_s is None) is bool(says)
    assert not says or any(says in reason for reason in verdict.reasons), verdict.reasons


def test_a_watched_run_is_proven_by_its_counters_and_has_an_energy() -> None:
    verdict = judge(WATCHED)
    assert (verdict.outcome, verdict.transport) == ("measured", "proven")
    assert pytest.approx(250.0 * 60.0 * 4 / (4 * 600 * 10), rel=0.01) == ENERGY
