"""Which attempt of a rung is made, kept or gone on with; its jobs themselves are climbed in tests/integration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.model.verdict import RungRecord
from runner.proving.climb import Listener, Place, climb
from runner.proving.ladder import Earlier, Job, JobOutcome, Judgement, Ladder, Rung


def no_jobs(_ladder: Ladder, _earlier: Earlier) -> tuple[Job, ...]:
    return ()


def passes(_ladder: Ladder, _earlier: Earlier, _outcomes: Sequence[JobOutcome]) -> Judgement:
    return Judgement("passed")


def climbed(root: Path, machine: str, again: Sequence[str] = ()) -> RungRecord:
    """The rung's record; its directory of runs is made as a job would make it."""
    silent = Listener(lambda _: None, lambda *_: None, lambda _: None, lambda _: None)
    rung = Rung("only", "looks", no_jobs, passes)
    record = climb(Ladder(1), [rung], Place(root, {}, (machine,)), silent, again).records[0]
    (root / "jobs" / f"only-{record.inputs[:12]}.{record.attempt}").mkdir(parents=True, exist_ok=True)
    return record


def test_a_rung_that_is_to_be_done_again_is_done_anew_also_after_other_inputs(tmp_path: Path) -> None:
    first = climbed(tmp_path, "GPU-1")
    assert climbed(tmp_path, "GPU-1") == first
    assert climbed(tmp_path, "GPU-2").inputs != first.inputs
    again = climbed(tmp_path, "GPU-1", again=["only"])
    assert (again.inputs, again.attempt) == (first.inputs, 2), "not what the first attempt left"
    climbed(tmp_path, "GPU-2")
    assert climbed(tmp_path, "GPU-1").attempt == 2, "its own newest attempt"
