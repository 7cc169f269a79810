"""A user's program is measured without being asked; one that has nothing to measure is not launched again and again."""

from pathlib import Path
from typing import Any

import pytest

from runner.core.errors import Exit, RefusedError
from runner.model.study import WayCost
from runner.model.verdict import Verdict
from runner.preparation.job import prepare
from runner.preparation.request import make_request
from runner.study.question import Preparations, ask, check_measures
from tests.support.commands import Call
from tests.support.documents import result

STUDY = ("scale", "--gpus", "1,2", "--repeats", "2", "--site", "local", "--runtime", "native", "--yes")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (
        ("nothing.py", "print('hello')\n"),
        ("fails.py", "raise SystemExit('boom: no data in $HOME/é')\n"),
        ("train.py", "import helper\n"),
        ("helper.py", "def f():\n    import torch\n"),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("program", "outcome", "says"),
    [("nothing.py", "ran", "the meter measured nothing"), ("fails.py", "failed", "boom: no data in $HOME/é")],
)
def test_a_study_ends_with_its_first_launch_where_the_others_would_end_as_that(
    call: Call, directory: Path, program: str, outcome: str, says: str
) -> None:
    document = call(*STUDY, "--json", "--", "python3", program, code=Exit.NOT_PROVEN).out
    launches = result(document)["launches"]
    assert [each["outcome"] for each in launches] == [outcome, None, None, None]
    assert says in launches[0]["why"]
    study = result(document)["study"]
    told = call("status", study).out
    assert says in told and "--resume" not in told and "new study" in told
    report = call("report", study)
    assert says in report.out + report.err


def question(*words: str, **values: Any) -> Any:
    return ask(make_request({"gpus": 1, "arguments": words} | values), "1,2")


def test_a_study_of_a_users_program_has_the_meter() -> None:
    asked = [
        question("python3", "train.py").request,
        question(recipe="horovod-pytorch").request,
        question("python3", "train.py", meter_batch=4).request,
    ]
    assert [(each.meter, each.meter_batch) for each in asked] == [(True, None), (False, None), (False, 4)]


@pytest.mark.parametrize(
    ("program", "way", "waits", "refused"),
    [
        ("nothing.py", "separate", False, True),
        ("nothing.py", "one-allocation", True, True),
        ("nothing.py", "separate", True, False),
        ("train.py", "separate", False, False),
        ("train.py", "one-allocation", False, False),
    ],
)
def test_a_program_that_is_not_seen_to_train_is_refused_where_no_launch_is_looked_at_first(
    program: str, way: Any, *, waits: bool, refused: bool
) -> None:
    jobs = Preparations(question("python3", program, site="box", runtime="native"), prepare)
    job = jobs.of(jobs.question.launches()[0])
    cost = WayCost(way, 1, 0.0, 0.0, 0.0)
    if refused:
        with pytest.raises(RefusedError, match="the meter measures"):
            check_measures(job, cost, waits=waits)
    else:
        check_measures(job, cost, waits=waits)


def test_a_verdict_says_in_one_sentence_why_it_has_no_figure() -> None:
    told = [
        Verdict("measured", images_per_s=1.0).why_unmeasured,
        Verdict("ran", remarks=("alone", "the meter: x")).why_unmeasured,
        Verdict("failed", ("rank 0 failed",), log="logs/rank-0.err: x").why_unmeasured,
        Verdict("cancelled").why_unmeasured,
    ]
    assert told == ["", "the meter: x", "rank 0 failed; logs/rank-0.err: x", "the run is cancelled"]
