"""The verdict on a run that the meter measured: proven as any figure, and labelled where it is not."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from runner.jobs.collect import Evidence
from runner.jobs.verdict import judge
from runner.model.records import MeterRecord, NodeRecord, Report, Result, WindowEnd
from runner.model.verdict import Verdict
from tests.support.evidence import GOOD, report
from tests.support.plans import PLAN

OWN = msgspec.structs.replace(PLAN, result="if-left", framework="none")
METERED: dict[str, Any] = {
    "meter": "script", "unit": "samples", "synchronisation": "parameters", "loss_finite": None,
    "parameters_finite": True, "group_samples": (20, 20, 20), "instrumentation_s": 0.003, "framework": "torch",
}  # fmt: skip


def run(result: Result | None = GOOD.result, **changes: Any) -> Evidence:
    """Four ranks' meters, with these changes to every report; a callable gives a rank's value."""
    reports: dict[int, Report] = {}
    for rank in range(4):
        fields = {name: value(rank) if callable(value) else value for name, value in (METERED | changes).items()}
        reports[rank] = report(rank, **fields)
    return dataclasses.replace(GOOD, plan=OWN, reports=reports, result=result)


def verdict(result: Result | None = GOOD.result, **changes: Any) -> Verdict:
    return judge(run(result, **changes))


def test_a_proven_script_is_measured_in_its_own_unit() -> None:
    made = verdict(unit="tokens")
    assert (made.outcome, made.unit, made.synchronisation) == ("measured", "tokens", "")
    assert made.images_per_s == pytest.approx(240 / 3.3)
    assert "the meter itself took 0.1 % of the window" in made.remarks
    assert judge(GOOD).unit == "images"


def test_a_batch_of_tokens_is_one_of_whole_samples() -> None:
    """Of reports with batches of 10: 5 samples of 2 tokens, or 10 of 1; the plan knows the samples alone."""
    for samples, outcome in ((5, "measured"), (10, "measured"), (4, "not-proven")):
        planned = dataclasses.replace(run(unit="tokens"), plan=msgspec.structs.replace(OWN, samples_per_step=samples))
        made = judge(planned)
        assert made.outcome == outcome, (samples, made.reasons)
    assert "batches of 10 tokens, which are not the same number for 4 samples each" in made.reasons[0]
    counted = dataclasses.replace(run(), plan=msgspec.structs.replace(OWN, samples_per_step=5))
    assert "took batches of 10, planned 5" in judge(counted).reasons[0]


def test_its_own_sum_is_held_against_the_raw_times() -> None:
    lies = Result("2", size=4, window_s=3.3, preliminary_images_per_s=999.0)
    made = verdict(lies, unit="tokens")
    assert made.outcome == "not-proven"
    assert "999.000 tokens/s" in made.reasons[0]


def test_smaller_batches_count_as_they_are() -> None:
    """A last batch of 5 and not 10 in the last group of every rank."""
    kept = Result("2", size=4, window_s=3.3, preliminary_images_per_s=220 / 3.3)
    made = verdict(kept, group_samples=(20, 20, 15))
    assert made.outcome == "measured"
    assert made.images_per_s == pytest.approx(220 / 3.3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parameter_checksum": lambda rank: f"p{rank}"}, "the ranks are not synchronised"),
        ({"gradient_checksum": "g"}, "they trained on the same data"),
        ({"gradient_checksum": None}, "not every rank says what its gradients were"),
        ({"parameters_finite": False}, "a parameter is not finite on ranks 0, 1, 2, 3"),
        ({"parameters_finite": None}, "a parameter is not finite on ranks 0, 1, 2, 3"),
        ({"onehot_ok": False}, "one-hot"),
        ({"parameters_moved": False}, "did not change in training"),
        ({"unit": lambda rank: "tokens" if rank else "samples"}, "count in different units"),
        ({"group_samples": (20, 20)}, "reports samples of 2 groups, and did 3"),
        ({"waiting_s": (0.5, 1.2, 0.1)}, "waited longer than its groups took"),
        ({"waiting_s": (0.5,)}, "waited longer than its groups took"),
        ({"forwards_seen": 3}, "counted 6 steps, and 3 of them had a forward pass"),
        ({"meter": lambda rank: "script" if rank else None, "loss_finite": True}, "only some of the ranks' reports"),
        ({"synchronisation": lambda rank: "parameters" if rank else "not-examined"},
            "do not agree on how their parameters are synchronised"),
        ({"world_size": 1}, "saw a world of size 1, planned 4"),
    ],
)  # fmt: skip
def test_what_does_not_hold_is_not_proven(changes: dict[str, Any], says: str) -> None:
    made = verdict(**changes)
    assert made.outcome == "not-proven"
    assert any(says in reason for reason in made.reasons), made.reasons


def watched(began_s: float, ended_s: float) -> Verdict:
    """The watcher of rank 0's node read the ends then; the program's clock before and after: 1004.9, 1008.4."""
    ends = [WindowEnd(monotonic_s=moment, ports=()) for moment in (began_s, ended_s)]
    record = NodeRecord("2", 0, 0, "n0", "t", window_begin=ends[0], window_end=ends[1])
    own = run(marked_monotonic_s=(1004.9, 1008.4))
    return judge(dataclasses.replace(own, watched={0: record}))


@pytest.mark.parametrize(("began_s", "ended_s"), [(1004.95, 1008.05), (1004.9, 1008.4), (1005.0, 1008.0)])
def test_a_clock_that_is_the_nodes_is_believed(began_s: float, ended_s: float) -> None:
    assert watched(began_s, ended_s).outcome == "measured"


@pytest.mark.parametrize(
    ("began_s", "ended_s"), [(1004.95, 1008.6), (1004.95, 1007.95), (1005.1, 1008.1), (1004.8, 1008.1)]
)
def test_a_clock_that_the_program_changed_proves_nothing(began_s: float, ended_s: float) -> None:
    made = watched(began_s, ended_s)
    assert made.outcome == "not-proven"
    assert made.reasons[0].startswith("the clock of rank 0's program is not that of n0: ")


def test_a_mark_that_is_missing_says_nothing_of_the_clock() -> None:
    own = run(marked_monotonic_s=(1.0, 2.0))
    missing = NodeRecord("2", 0, 0, "n0", "t")
    assert judge(dataclasses.replace(own, watched={0: missing})).outcome == "measured"


def test_divided_parameters_are_measured_and_not_examined() -> None:
    """They differ by right, so that nothing is claimed of them."""
    made = verdict(
        synchronisation="not-examined", sharded="FullyShardedDataParallel", gradient_checksum=None,
        parameter_checksum=lambda rank: f"shard {rank}",
    )  # fmt: skip
    assert (made.outcome, made.synchronisation) == ("measured", "not-examined")
    assert not any("synchronised" in sentence for sentence in made.proven)
    (said,) = (sentence for sentence in made.remarks if "not examined" in sentence)
    assert "FullyShardedDataParallel" in said


def divided(error: float | None, **changes: Any) -> Verdict:
    """Parameters that are divided, and gathered in the end."""
    return verdict(sharded="FullyShardedDataParallel", reduced_gradients_error=error, **changes)


def test_divided_parameters_are_proven_by_what_was_reduced() -> None:
    made = divided(1e-7)
    assert (made.outcome, made.synchronisation) == ("measured", "")
    assert any("what they reduced was their mean" in sentence for sentence in made.proven)


@pytest.mark.parametrize(
    ("error", "changes", "says"),
    [
        (None, {}, "not every rank compared the reduced gradients with the ranks' own"),
        (1.0, {}, "the gradients were not reduced over all ranks"),
        (1e-7, {"parameter_checksum": lambda rank: f"p{rank}"}, "the ranks are not synchronised: 4 different sets"),
        (1e-7, {"gradient_checksum": "g"}, "they trained on the same data"),
    ],
)
def test_equal_gathered_parameters_prove_nothing_by_themselves(
    error: float | None, changes: dict[str, Any], says: str
) -> None:
    made = divided(error, **changes)
    assert made.outcome == "not-proven"
    assert any(says in reason for reason in made.reasons), made.reasons


def test_without_a_model_it_only_ran() -> None:
    made = verdict(None, synchronisation="not-given", gradient_checksum=None, parameter_checksum=None)
    assert (made.outcome, made.images_per_s) == ("ran", None)
    (said,) = (sentence for sentence in made.remarks if sentence.startswith("the meter: "))
    assert said.startswith("the meter: 72.7 samples/s over 3.30 s, synchronisation not proven: ")


def test_a_rate_without_a_proof_is_held_to_the_clocks_all_the_same() -> None:
    made = verdict(None, synchronisation="not-given", elapsed_s=2.0)
    assert made.outcome == "ran"
    assert any(sentence.startswith("the meter: its records hold no rate: rank 0 says") for sentence in made.remarks)


def test_waiting_for_data_is_a_row_of_the_rank_that_waited_longest() -> None:
    made = verdict(waiting_s=lambda rank: (0.1, 0.1, 0.1 + rank / 10), longest_waiting_s=1.5)
    (said,) = (sentence for sentence in made.remarks if sentence.startswith("waiting for data: "))
    assert said.startswith("waiting for data: 18.2 % of the window")
    assert "clock of rank 3's host, once for 1.5 s" in said


def test_utilisation_needs_both_stated_numbers() -> None:
    made = verdict(flops_per_sample=1e9, peak_flops=1e11)
    (said,) = (sentence for sentence in made.remarks if "utilisation" in sentence)
    assert said.startswith("model FLOP utilisation: 18.2 %, by the script's own 1e+09 FLOP")
    assert not any("utilisation" in sentence for sentence in verdict(flops_per_sample=1e9).remarks)


def test_a_batch_from_the_models_input_is_labelled() -> None:
    assert any("first dimension" in sentence for sentence in verdict(batch_seen=True, meter="hook").remarks)
    assert any("--meter-batch N" in sentence for sentence in verdict(unit="steps", meter="hook").remarks)


@pytest.mark.parametrize("fields", [{"group_samples": (20000, 20000, 20000)}, METERED])
def test_a_benchmark_takes_the_planned_batch_and_counts_none_of_its_own(fields: dict[str, Any]) -> None:
    """The sum agrees with the reports, and the batch with the plan: only the counts of the groups are other ones."""
    reports = {rank: report(rank, **fields) for rank in range(4)}
    samples = sum(sum(each.group_samples) for each in reports.values())
    result = Result("2", size=4, window_s=3.3, preliminary_images_per_s=samples / 3.3)
    made = judge(dataclasses.replace(GOOD, reports=reports, result=result))
    assert made.outcome == "not-proven"
    assert "a benchmark takes the planned batch" in made.reasons[0]


def test_a_meter_that_counted_nothing_gives_no_figure() -> None:
    made = verdict(Result("2", size=4, window_s=3.3, preliminary_images_per_s=0.0), group_samples=(0, 0, 0))
    assert (made.outcome, made.reasons[0]) == ("not-proven", "no rank's meter counted a sample")


def test_a_stated_batch_that_the_models_input_contradicts_is_named() -> None:
    """60 samples of a rank by the script; the model was given a quarter of it: the batch was that of all four ranks."""
    (said,) = (sentence for sentence in verdict(samples_seen=15).remarks if "may be wrong" in sentence)
    assert "rank 0 counted 60 samples as the script states them, and its model was given 15" in said
    assert "(4 times)" in said
    for fine in ({"samples_seen": 60}, {"samples_seen": None}, {"samples_seen": 15, "unit": "tokens"}):
        assert not any("may be wrong" in sentence for sentence in verdict(**fine).remarks), fine


def test_what_was_trained_beside_the_proof_is_named() -> None:
    """A script may give the meter a small model that is synchronised, and train another one."""
    (said,) = (sentence for sentence in verdict(trained_beside=4000).remarks if "the proof does not cover" in sentence)
    assert said.startswith("the proof does not cover 4000 values of parameters that another optimizer trained")
    assert not any("does not cover" in sentence for sentence in verdict(trained_beside=0).remarks)


def test_a_meter_that_costs_much_says_so() -> None:
    assert "above 0.5 % it changes the figure" in "".join(verdict(instrumentation_s=0.033).remarks)


def meters(state: str, why: str = "", *ranks: int, token: str = "t") -> Verdict:
    own = msgspec.structs.replace(OWN, env=(("RUNNER_METER", "1"),))
    left: dict[str, Any] = {"schema": "2", "source": "hook", "state": state, "steps": 5, "why": why, "token": token}
    made = {rank: MeterRecord(rank=rank, **left) for rank in ranks}
    return judge(dataclasses.replace(GOOD, plan=own, reports={}, result=None, meters=made))


def test_why_a_meter_saw_nothing() -> None:
    (said,) = meters("given-up", "the program ended after 5 steps, in the warm-up", 0, 1).remarks
    assert said == "the meter: measured nothing: the program ended after 5 steps, in the warm-up (ranks 0, 1)"
    (said,) = meters("window", "", 2).remarks
    assert "in its window the program's process was replaced, or ended without Python's own end" in said
    (said,) = meters("measured", "it printed 5 samples/s", 0).remarks
    assert said == "the meter: it printed 5 samples/s (rank 0)"
    (said,) = meters("given-up", "x").remarks
    assert "no step of an optimizer of PyTorch ended" in said
    (said,) = meters("given-up", "of another job step", 0, token="u").remarks
    assert "no step of an optimizer" in said
