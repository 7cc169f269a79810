"""A ladder climbed with real jobs of this machine: kept, gone on with after a kill, and one climb at a time."""

import json
import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.core.errors import RefusedError
from runner.model.verdict import RungRecord
from runner.proving.climb import Climb, Listener, Place, climb, exclusive
from runner.proving.ladder import Earlier, Job, JobOutcome, Judgement, Ladder, Rung
from tests.support.rank_records import has_started
from tests.support.waiting import until

pytestmark = pytest.mark.integration
LADDER = Ladder(2, quick=True, pretend=True)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))


def probes(_ladder: Ladder, _earlier: Earlier) -> tuple[Job, ...]:
    return (Job("probe", 2, limit_s=120),)


def ran(_ladder: Ladder, _earlier: Earlier, outcomes: Sequence[JobOutcome]) -> Judgement:
    verdict = outcomes[0].verdict
    return Judgement("passed") if verdict.outcome == "ran" else Judgement("failed", "; ".join(verdict.reasons))


FIRST = Rung("first", "two ranks meet", probes, ran)
SECOND = Rung("second", "the same", probes, ran, needs=("first",))


def never(_ladder: Ladder, _earlier: Earlier, _outcomes: Sequence[JobOutcome]) -> Judgement:
    return Judgement("failed", "as planned")


def place(tmp_path: Path, *arguments: str) -> Place:
    return Place(tmp_path / "my $runs", {"site": "local", "runtime": "native", "arguments": arguments})


def climbed(rungs: Sequence[Rung], where: Place, again: Sequence[str] = ()) -> tuple[Climb, list[str]]:
    begun: list[str] = []
    listener = Listener(lambda rung, _most_s: begun.append(rung.name), lambda *_: None, lambda _: None, lambda _: None)
    return climb(LADDER, rungs, where, listener, again), begun


def test_what_has_passed_is_kept_until_its_inputs_change_or_it_is_named(tmp_path: Path) -> None:
    first, begun = climbed((FIRST, SECOND), place(tmp_path))
    assert [each.state for each in first.records] == ["passed", "passed"]
    assert begun == ["first", "second"]
    second, begun = climbed((FIRST, SECOND), place(tmp_path))
    assert (second.records, begun) == (first.records, [])
    third, begun = climbed((FIRST, SECOND), place(tmp_path), again=["second"])
    assert (third.records[0], begun) == (first.records[0], ["second"])
    assert third.records[1].attempt == 2
    assert third.records[1].runs != first.records[1].runs
    _, begun = climbed((FIRST,), place(tmp_path, "--timeout", "50"))
    assert begun == ["first"]
    fourth, _ = climbed((FIRST,), place(tmp_path), again=["first"])
    assert fourth.records[0].runs != first.records[0].runs, "not what an earlier climb left with these inputs"


def test_a_rung_that_failed_is_tried_again_and_hinders_those_that_need_it(tmp_path: Path) -> None:
    broken = Rung("first", "fails", probes, never)
    first, begun = climbed((broken, SECOND), place(tmp_path))
    assert [(each.state, each.reason) for each in first.records] == [("failed", "as planned")]
    assert first.blocked == {"second": "first did not pass"}
    assert begun == ["first"]
    second, begun = climbed((FIRST, SECOND), place(tmp_path))
    assert [each.state for each in second.records] == ["passed", "passed"]
    assert begun == ["first", "second"]


def test_a_climb_that_was_killed_goes_on_with_the_job_that_still_runs(tmp_path: Path) -> None:
    where = place(tmp_path, "--sleep", "6")
    child = multiprocessing.get_context("fork").Process(target=climbed, args=((FIRST,), where))
    child.start()
    runs = where.root / "jobs"

    def started() -> list[Path]:
        return [run for run in runs.glob("first-*/0/*-*") if has_started(2)(run)]

    [run] = until(started, "two ranks have started")
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert not (where.root / "first.json").exists()
    done, begun = climbed((FIRST,), where)
    assert begun == ["first"]
    assert [each.state for each in done.records] == ["passed"]
    assert done.records[0].runs == (str(run),)
    assert list(runs.glob("*/0/*-*")) == [run]


def test_a_result_that_is_damaged_is_made_anew(tmp_path: Path) -> None:
    climbed((FIRST,), place(tmp_path))
    file = place(tmp_path).root / "first.json"
    file.write_text(file.read_text()[:50])
    done, begun = climbed((FIRST,), place(tmp_path))
    assert begun == ["first"]
    assert [each.state for each in done.records] == ["passed"]
    assert RungRecord(**json.loads(file.read_text())).state == "passed"


def test_a_second_climb_beside_the_first_is_refused(tmp_path: Path) -> None:
    ladder = tmp_path / "ladder"
    with exclusive(ladder), pytest.raises(RefusedError, match="another `prove` is at work"), exclusive(ladder):
        pass
    with exclusive(ladder):
        pass
