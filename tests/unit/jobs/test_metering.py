"""The verdict on a run that the meter measured: proven as any figure, and labelled where it is not."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from runner.jobs import mixture
from runner.jobs.collect import Evidence
from runner.jobs.verdict import judge
from runner.model.figure import figure_of
from runner.model.records import MeterRecord, NodeRecord, Result, WindowEnd
from runner.model.verdict import Verdict
from tests.support.evidence import GOOD, on_all, report, with_plan
from tests.support.plans import PLAN

OWN = msgspec.structs.replace(PLAN, result="if-left", framework="none")
METERED: dict[str, Any] = {
    "meter": "script", "unit": "samples", "synchronisation": "parameters", "loss_finite": None,
    "parameters_finite": True, "group_samples": (20, 20, 20), "instrumentation_s": 0.003, "framework": "torch",
}  # fmt: skip
DIVIDED: dict[str, Any] = {"sharded": "FullyShardedDataParallel", "reduced_gradients_error": 1e-7}


def per_rank(text: str) -> Any:
    return lambda rank: f"{text}{rank}"


def run(result: Result | None = GOOD.result, **changes: Any) -> Evidence:
    """Four ranks' meters, with these changes to every report; a callable gives a rank's value."""
    reports = {
        rank: report(rank, **{name: value(rank) if callable(value) else value for name, value in fields.items()})
        for fields in [METERED | changes]
        for rank in range(4)
    }
    return replace(GOOD, plan=OWN, reports=reports, result=result)


def verdict(result: Result | None = GOOD.result, **changes: Any) -> Verdict:
    return judge(run(result, **changes))


def rate(samples: float) -> Result:
    return Result("2", size=4, window_s=3.3, preliminary_images_per_s=samples / 3.3)


def test_a_proven_script_is_measured_in_its_own_unit() -> None:
    made = verdict(unit="tokens")
    assert (made.outcome, made.unit, made.synchronisation) == ("measured", "tokens", "")
    assert made.images_per_s == pytest.approx(240 / 3.3)
    assert "the meter itself took 0.1 % of the window" in made.remarks
    assert judge(GOOD).unit == "images"
    smaller = verdict(rate(220), group_samples=(20, 20, 15))  # a last batch of 5 and not 10
    assert smaller.outcome == "measured"
    assert smaller.images_per_s == pytest.approx(220 / 3.3)


NOT_PROVEN: list[tuple[dict[str, Any], str]] = [
    ({"parameter_checksum": per_rank("p")}, "the ranks are not synchronised"),
    ({"gradient_checksum": "g"}, "they trained on the same data"),
    *(({"parameters_finite": finite}, "a parameter is not finite on ranks 0, 1, 2, 3") for finite in (False, None)),
    ({"unit": lambda rank: "tokens" if rank else "samples"}, "count in different units"),
    ({"group_samples": (20, 20)}, "reports samples of 2 groups, and did 3"),
    ({"result": rate(0), "group_samples": (0, 0, 0)}, "no rank's meter counted a sample"),
    *(({"waiting_s": waits_s}, "waited longer than its groups took") for waits_s in ((0.5, 1.2, 0.1), (0.5,))),
    ({"reduced_gradients_error": 1.0}, "the gradients were not reduced over all ranks"),
    *(({field: lambda rank, value=value: value if rank else "another"}, "the ranks did not run the same software")
        for field, value in (("framework", "torch"), ("framework_version", "2.13.0"), ("horovod_version", "0.28"),
                             ("cuda_version", "12.8"), ("image_checksum", "i"))),
    ({"forwards_seen": 3}, "counted 6 steps, and 3 of them had a forward pass of its model in training mode; "
        "fix: call step() once"),
    ({"forwards_seen": 0, "meter": "hook"}, "and 0 of them had a forward pass of its model in training mode; "
        "fix: call the model in each step, in model.train()"),
    # The batch was that of all four ranks; a meter counts what its model was given.
    ({"samples_seen": 15}, "rank 0 counted 60 samples, and its model was given 15"),
    ({"meter": lambda rank: "script" if rank else None, "loss_finite": True}, "only some of the ranks' reports"),
    ({"synchronisation": lambda rank: "parameters" if rank else "not-examined"},
        "do not agree on how their parameters are synchronised"),
    ({"result": rate(999.0 * 3.3), "unit": "tokens"}, "999.000 tokens/s"),
    # Equal gathered parameters prove nothing by themselves.
    (DIVIDED | {"reduced_gradients_error": None}, "not every rank compared the reduced gradients with the ranks'"),
    (DIVIDED | {"reduced_gradients_error": 1.0}, "the gradients were not reduced over all ranks"),
    (DIVIDED | {"parameter_checksum": per_rank("p")}, "the ranks are not synchronised: 4 different sets"),
]  # fmt: skip


def marked(*at_s: float | None) -> Evidence:
    """The watcher of rank 0's node read the ends then; the program's clock before and after: 1004.9, 1008.4."""
    ends = [None if moment is None else WindowEnd(monotonic_s=moment, ports=()) for moment in at_s]
    record = NodeRecord("2", 0, 0, "n0", "t", window_begin=ends[0], window_end=ends[1])
    return replace(run(marked_monotonic_s=(1004.9, 1008.4)), watched={0: record})


def of_tokens(samples: int, unit: str = "tokens") -> Evidence:
    """Of reports with batches of 10: 5 samples of 2 tokens, or 10 of 1; the plan knows the samples alone."""
    return with_plan(run(unit=unit), samples_per_step=samples)


def benchmark(**fields: Any) -> Evidence:
    """The sum agrees with the reports, and the batch with the plan: only the counts of the groups are other ones."""
    reports = on_all(report, **fields)
    return replace(GOOD, reports=reports, result=rate(sum(sum(each.group_samples) for each in reports.values())))


ANOTHER_CLOCK = "the clock of rank 0's program is not that of n0: "
# Evidence -> why it is not proven; empty: it is measured.
HOLDS = [
    (of_tokens(5), ""), (of_tokens(10), ""),
    (of_tokens(4), "batches of 10 tokens, which are not the same number for 4 samples each"),
    (of_tokens(5, "samples"), "took batches of 10, planned 5"),
    *((marked(*at_s), "") for at_s in ((1004.95, 1008.05), (1004.9, 1008.4), (1005.0, 1008.0), (None, None))),
    *((marked(*at_s), ANOTHER_CLOCK)
        for at_s in ((1004.95, 1008.6), (1004.95, 1007.95), (1005.1, 1008.1), (1004.8, 1008.1))),
    *((benchmark(**fields), "a benchmark takes the planned batch")
        for fields in ({"group_samples": (20000,) * 3}, METERED)),
    *((run(changes.pop("result", GOOD.result), **changes), says) for changes, says in NOT_PROVEN),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "says"), HOLDS)
def test_what_does_not_hold_is_not_proven(evidence: Evidence, says: str) -> None:
    made = judge(evidence)
    assert made.outcome == ("not-proven" if says else "measured")
    assert not says or any(says in reason for reason in made.reasons), made.reasons


def test_divided_parameters_are_proven_by_what_was_reduced_or_not_examined() -> None:
    made = verdict(**DIVIDED)
    assert (made.outcome, made.synchronisation) == ("measured", "")
    assert any("what they reduced was their mean" in sentence for sentence in made.proven)
    of_parts = {"gradient_checksum": None, "parameter_checksum": per_rank("shard ")}  # they differ by right
    made = verdict(synchronisation="not-examined", sharded="FullyShardedDataParallel", **of_parts)
    assert (made.outcome, made.synchronisation) == ("measured", "not-examined")
    assert not any("synchronised" in sentence for sentence in made.proven)
    assert any("not examined" in each and "FullyShardedDataParallel" in each for each in made.remarks)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gradient_checksum": None, "parameter_checksum": None},
            "the meter: 72.7 samples/s over 3.30 s, synchronisation not proven: "),
        ({"elapsed_s": 2.0}, "the meter: its records hold no rate: rank 0 says"),
    ],
)  # fmt: skip
def test_without_a_model_it_only_ran_and_its_rate_is_held_to_the_clocks(changes: dict[str, Any], says: str) -> None:
    made = verdict(None, synchronisation="not-given", **changes)
    assert (made.outcome, made.images_per_s) == ("ran", None)
    assert next(each for each in made.remarks if each.startswith("the meter: ")).startswith(says)


def of_its_own(rank: int) -> tuple[int, ...]:
    """Sixty samples in each rank's window, as of all."""
    return ((16, 18, 26), (20, 20, 20), (24, 16, 20), (20, 20, 20))[rank]


# What a report holds, and what is said of it; without "!" in front.
REMARKS: list[tuple[dict[str, Any], str]] = [
    ({"waiting_s": lambda rank: (0.1, 0.1, 0.1 + rank / 10), "longest_waiting_s": 1.5},
        "waiting for data: 18.2 % of the window between a step's end and the next forward pass, by the clock of rank "
        "3's host, once for 1.5 s"),
    ({"flops_per_sample": 1e9, "peak_flops": 1e11},
        "model FLOP utilisation: 18.2 %, by the script's own 1e+09 FLOP for each of the samples"),
    ({"flops_per_sample": 1e9}, "!utilisation"),
    ({"batch_seen": True, "batch_size": lambda rank: 7 + rank, "group_samples": of_its_own, "meter": "hook"},
        "a step takes 8 to 13 samples of a rank"),
    ({"batch_size": lambda rank: 7 + rank, "group_samples": of_its_own}, "a step takes 8 to 13 samples of a rank"),
    ({"forwards_seen": 3, "unit": "steps", "meter": "hook"}, "--meter-batch N"),
    ({"reduction_unseen": True}, "in no step of the warm-up could the reduced gradients be compared"),
    ({}, "!in no step of the warm-up"),
    ({"batch_seen": True, "meter": "hook"}, "takes 10 samples of a rank by the first dimension of what the model was "
        "given; --meter-batch N"),
    ({"batch_seen": True, "batch_stated": 640}, "was given, not 640"),
    ({"batch_seen": True, "batch_stated": 10}, "was given, which may be the time: the second is as long in some steps"),
    ({"unit": "steps", "meter": "hook"}, "--meter-batch N"),
    ({"samples_seen": 60}, "!script states"),
    ({"samples_seen": 120}, "the script states the 60 samples that rank 0 counted, and its model was given 120"),
    ({"forwards_seen": 6, "unit": "tokens"}, "the script states the 60 tokens that rank 0 counted, and its model's "
        "forward passes are more than"),
    ({}, "and no forward pass of its model was seen"),
    # A script may give the meter a small model that is synchronised, and train another one.
    ({"trained_beside": 4000}, "the proof does not cover 4000 values of parameters that another optimizer trained"),
    ({"trained_beside": 0}, "!does not cover"),
    ({"instrumentation_s": 0.033}, "above 0.5 % it changes the figure"),
]  # fmt: skip


def test_mixed_drivers_are_a_doubt_too_and_the_report_has_what_all_ranks_ran_on() -> None:
    nodes = {rank: NodeRecord("2", rank // 2, rank, f"n{rank // 2}", "t", driver=f"5{rank}") for rank in (0, 2)}
    evidence = replace(run(framework_version="2.13.0", cuda_version="12.8"), watched=nodes)
    made = judge(evidence)
    assert (made.outcome, made.mixed) == ("measured", "driver: 50 on rank 0, 52 on rank 2")
    assert figure_of(made).has("mixed-hardware")  # type: ignore[union-attr]
    shown = {"framework": "torch 2.13.0", "CUDA": "12.8", "driver": "50, 52"}
    assert mixture.reported(evidence) == shown


def test_mixed_devices_are_a_doubt_beside_the_figure_and_batches_of_ones_own_are_none_of_compare() -> None:
    made = verdict(device_name=lambda rank: "K80" if rank == 1 else "A100", batch_seen=True, group_samples=of_its_own)
    assert (made.mixed, made.varying_batch) == ("device: A100 on ranks 0, 2, 3, K80 on rank 1", True)
    assert not verdict(batch_seen=True).varying_batch


@pytest.mark.parametrize(("changes", "says"), REMARKS)
def test_what_a_reader_should_know_beside_the_figure(changes: dict[str, Any], says: str) -> None:
    made = verdict(**changes)
    assert made.outcome == "measured"
    assert any(says.lstrip("!") in remark for remark in made.remarks) is not says.startswith("!"), made.remarks


DOUBTED = [
    ({"samples_seen": 60}, ""), ({"unit": "steps"}, ""), ({"samples_seen": 60, "batch_seen": True}, "not-stated"),
    ({"samples_seen": 60, "steps_beside": 20}, "others-trained"),
    ({"unit": "steps", "steps_beside": 20}, "others-trained"),
    ({}, "not-checked"), ({"samples_seen": lambda rank: 60 + rank // 3}, "not-checked"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "doubt"), DOUBTED)
def test_samples_that_only_the_script_or_only_the_input_shows_are_a_doubt(changes: dict[str, Any], doubt: str) -> None:
    made = verdict(**changes)
    of_figure = {each.code: each.words for each in figure_of(made).doubts}.get("batch", "")  # type: ignore[union-attr]
    in_steps = "steps of every rank, added up: " in of_figure
    assert (made.batch, bool(of_figure), in_steps) == (doubt, bool(doubt) or in_steps, made.unit == "steps")
    assert judge(GOOD).batch == ""


UNEXAMINED: dict[str, Any] = {
    "synchronisation": "not-examined", "sharded": "stated by the script", "gradient_checksum": None,
    "parameter_checksum": per_rank("shard "),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"inputs_checksum": "i"}, "all ranks took the same first batch: if they share one batch, the true figure is 4 "
            "times smaller; else give each a sampler, or a seed"),
        ({"inputs_checksum": lambda rank: str(rank // 3)}, "ranks 0, 1, 2 took the same first batch: if they share one "
            "batch, the true figure is 2 times smaller; else give each a sampler, or a seed"),
        (UNEXAMINED | {"data_parallel": False}, "neither DDP nor FSDP of all ranks was seen: if ranks share batches, "
            "the true figure is 4 times smaller at most"),
        *((changes, "") for changes in (
            UNEXAMINED | {"data_parallel": True}, UNEXAMINED, {"data_parallel": False},
            {"inputs_checksum": per_rank("i")},
        )),
    ],
)  # fmt: skip
def test_ranks_that_may_share_a_batch_are_a_doubt(changes: dict[str, Any], says: str) -> None:
    made = verdict(**changes)
    assert (made.outcome, made.shared_batch) == ("measured", says)
    assert figure_of(made).has("shared-batch") is bool(says)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("ranks", "fields", "says"),
    [
        ((0, 1), {"state": "given-up", "why": "the program ended after 5 steps, in the warm-up"},
            "the meter: measured nothing: the program ended after 5 steps, in the warm-up (ranks 0, 1)"),
        ((2,), {"state": "window", "why": ""},
            "in its window the program's process was replaced, or ended without Python's own end"),
        ((0,), {"state": "measured", "why": "it printed 5 samples/s"}, "the meter: it printed 5 samples/s (rank 0)"),
        ((), {}, "no step of an optimizer of PyTorch ended"),
        ((0,), {"state": "given-up", "why": "of another job step", "token": "u"}, "no step of an optimizer"),
    ],
)  # fmt: skip
def test_why_a_meter_saw_nothing(ranks: tuple[int, ...], fields: dict[str, Any], says: str) -> None:
    left: dict[str, Any] = {"schema": "2", "source": "hook", "steps": 5, "token": "t"} | fields
    meters = {rank: MeterRecord(rank=rank, **left) for rank in ranks}
    own = with_plan(replace(run(None), reports={}, meters=meters), env=(("RUNNER_METER", "1"),))
    (remark,) = judge(own).remarks
    assert says in remark
