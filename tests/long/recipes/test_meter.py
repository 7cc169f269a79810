"""The meter on a training script with peculiarities, in containers: each has an outcome, and a sentence."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.json_schema import check
from tests.support.rank_records import printed, records
from tests.support.recipes import COUNTED, SCRIPT, counted_and_unchanged, measure, states

NOT_REDUCED, NOT_SYNCHRONISED = "the gradients were not reduced over", "the ranks are not synchronised"
pytestmark = pytest.mark.integration
BOTH = pytest.mark.parametrize("source", ["script", "hook"])


@pytest.fixture
def local(contained: Runner) -> Runner:
    return contained


def is_measured(run: Path, verdict: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The reports of a run that is proven."""
    assert verdict["outcome"] == "measured", verdict
    assert verdict["synchronisation"] == ""
    assert any("synchronised" in sentence for sentence in verdict["proven"])
    reports = records(run, "report")
    for report in reports.values():
        check(report)
    assert sorted(reports) == [0, 1]
    return reports


def test_the_hook_changes_nothing_either(local: Runner) -> None:
    """Both trainings of the run that --meter measured, and those of a run without any meter, end alike."""
    measured, verdict = measure(local, "twice", "hook")
    is_measured(measured, verdict)
    plain, verdict = measure(local, "twice", "none")
    assert (verdict["outcome"], verdict["remarks"]) == ("ran", [])
    (zero, again), (one, one_again) = states(measured)
    assert (zero, one) == (again, one_again)
    assert states(plain) == states(measured)


def test_ordinary_scripts_are_counted_and_not_changed(local: Runner) -> None:
    assert counted_and_unchanged(local) >= 20


def test_each_value_of_a_large_parameter_is_in_its_checksum(local: Runner) -> None:
    local("submit", "--gpus", "1", "--wait", "--", "python3", "checksums.py", code=0, cwd=COUNTED)
    assert "missed 0\n" in printed(local.newest())


@BOTH
@pytest.mark.parametrize(
    ("peculiarity", "of_a_group"),
    [
        ("accumulation", 64), ("skipped", 32), ("evaluation", 32), ("checkpoint", 32), ("workers", 32),
        ("spawned-workers", 32), ("exec", 32), ("two-meters", 32), ("by-hand", 32),
        ("sparse", 32), ("saved-whole", 32), ("rollout", 32), ("horovod", None), ("os-exit-after", None),
    ],
)  # fmt: skip
def test_what_a_proven_training_may_do(local: Runner, source: str, peculiarity: str, of_a_group: int | None) -> None:
    """os-exit-after: it leaves at once after the window."""
    run, verdict = measure(local, peculiarity, source)
    for report in is_measured(run, verdict).values():
        if of_a_group is not None:
            assert {each // report["group_steps"] for each in report["group_samples"]} == {of_a_group}
            assert report["meter"] == source
            assert report["trained"]["mean size of a sample"], "also of gradients that no wrapper reduces"
        assert peculiarity != "horovod" or report["framework"] == "horovod"


@BOTH
def test_a_smaller_last_batch_counts_as_it_is(local: Runner, source: str) -> None:
    run, verdict = measure(local, "last-batch", source)
    for report in is_measured(run, verdict).values():
        assert sum(report["group_samples"]) == 18 * 32 + 2 * 5


def test_evaluation_between_epochs_is_in_the_figure_and_shown(local: Runner) -> None:
    _run, verdict = measure(local, "evaluation", "script")
    (said,) = (sentence for sentence in verdict["remarks"] if sentence.startswith("waiting for data: "))
    assert float(said.split()[3]) > 10.0, said


@BOTH
@pytest.mark.parametrize("peculiarity", ["sharded", "sharded-by-module", "divided-optimizer", "closure"])
def test_what_is_divided_or_within_a_step_is_proven(local: Runner, source: str, peculiarity: str) -> None:
    run, verdict = measure(local, peculiarity, source)
    for report in is_measured(run, verdict).values():
        assert report["reduced_gradients_error"] < 1e-3
    assert any("was their mean" in sentence for sentence in verdict["proven"])


def test_a_batch_that_the_script_divides_by_the_world_is_strong_scaling(local: Runner) -> None:
    words = ("--gpus", "1,2", "--repeats", "1", "--meter", "--wait", "--json")
    done = local("scale", *words, "--", "python3", "main.py", "global-batch", "hook", code=0, cwd=SCRIPT)
    assert [each["scaling"] for each in result(done.out)["points"]] == [None, "strong"]


def test_what_is_stated_to_be_divided_is_not_examined(local: Runner) -> None:
    _run, verdict = measure(local, "stated-sharded", "script")
    assert (verdict["outcome"], verdict["synchronisation"]) == ("measured", "not-examined")
    assert not any("synchronised" in sentence for sentence in verdict["proven"])


def both(code: int, outcome: str, says: dict[str, str]) -> list[tuple[str, str, int, str, str]]:
    return [(name, source, code, outcome, each) for name, each in says.items() for source in ("script", "hook")]


@pytest.mark.parametrize(
    ("peculiarity", "source", "code", "outcome", "says"),
    [
        *both(6, "not-proven", {
            "unsynchronised": NOT_SYNCHRONISED,
            "alone": "ranks 0, 1 saw a world of size 1, planned 2",
            # Parameters that are gathered are equal all the same, but for worlds of one.
            "sharded-unreduced": NOT_REDUCED, "sharded-alone": NOT_SYNCHRONISED,
            "sharded-by-module-unreduced": NOT_REDUCED, "sharded-by-module-alone": NOT_SYNCHRONISED,
            "divided-optimizer-unreduced": NOT_REDUCED, "broadcast": NOT_REDUCED,
            "idle": "rank 1 counted 20 steps, and 0 of them had a forward pass",
        }),
        ("counted-twice", "script", 6, "not-proven", "rank 0 counted 20 steps, and 10 of them had a forward pass"),
        *both(0, "ran", {
            "half": "the program ended after 11 steps, in the window (ranks 0, 1)",
            "os-exit": "ended without Python's own end",
            "uneven": "measured nothing: ",
        }),
        ("no-model", "script", 0, "ran", "synchronisation not proven: it was given neither model nor optimizer"),
        *both(5, "failed", {"raises": "ValueError: out of data"}),
        *both(0, "measured", {
            "trained-beside": "does not cover 100 values of parameters",
            "same-data": "all ranks took the same first batch: if they share one batch, the true figure is 2 times",
        }),
        ("own-batches", "hook", 0, "measured", "a step takes 32 to 42 samples of a rank"),
        ("own-batches", "script", 0, "measured", "the script states the 640 samples that rank 0 counted"),
        ("part", "hook", 0, "measured", "the figure counts the steps of every rank"),
        ("tokens", "script", 0, "measured", "model FLOP utilisation: "),
    ],
)  # fmt: skip
def test_the_outcome_and_its_remarks(
    local: Runner, peculiarity: str, source: str, code: int, outcome: str, says: str
) -> None:
    _run, verdict = measure(local, peculiarity, source, code=code)
    assert verdict["outcome"] == outcome
    assert any(
        says in each for each in (*verdict["reasons"], *verdict["remarks"], verdict["log"], verdict["shared_batch"])
    ), verdict
    assert peculiarity != "tokens" or verdict["unit"] == "tokens"


def test_ranks_of_the_programs_own(local: Runner) -> None:
    """Under torchrun the launcher sees one process: what they measure is printed, and not judged."""

    program = ("torchrun", "--nproc-per-node", "2", "main.py", "plain", "none")
    local("submit", "--gpus", "2", "--wireup", "own", "--meter", "--wait", "--", *program, code=0, cwd=SCRIPT)
    run = local.newest()
    assert records(run, "report") == {}
    (meter,) = records(run, "meter").values()
    assert "so this is what it printed, and no verdict: " in meter["why"]
    assert "(2 ranks, 20 steps in " in meter["why"]
