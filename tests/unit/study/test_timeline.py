"""Where a chain's time went, from the times of the files that its attempts left."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from runner.cli.report import report_lines
from runner.figures.report.gather import runs_report
from runner.figures.report.page import page
from runner.jobs.collect import collect
from runner.jobs.directory import Run
from runner.jobs.verdict import judge
from runner.study.directory import next_attempt
from runner.study.timeline import timelines
from tests.support.evidence import COMPLETED
from tests.support.plans import PLAN

CHAIN = "20261127-220000-train-chain"


@pytest.fixture
def attempts(tmp_path: Path) -> list[Run]:
    """Three: a limit, a killed script and the end, of which the last began at 1000 s."""
    chain = tmp_path / CHAIN
    at(chain / "checkpoints/state", 1299)
    (chain / "ended").write_text("the program is done\n")
    return [
        attempt(chain, 1, began=0, met=8, first=10, ended=110),
        attempt(chain, 2, began=500, met=510, logged=600, resumes="105.5"),
        attempt(chain, 3, began=1000, met=1005, first=1010, ended=1300, resumes="580"),
    ]


def at(path: Path, time_s: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.read_text() if path.exists() else "")
    os.utime(path, (time_s + 10_000, time_s + 10_000))
    return path


def attempt(chain: Path, number: int, resumes: str = "", **times: int) -> Run:
    run = Run(chain / f"launches/{number}/20261127-22000{number}-train.{number}-2")
    run.path.mkdir(parents=True)
    plan = msgspec.structs.replace(PLAN, tasks_per_node=(2,), job_name=f"train.{number}", attempt=number, attempts=9)
    run.write("plan.json", plan)
    run.write("verdict.json", judge(collect(run, msgspec.structs.replace(COMPLETED, phase="failed"))))
    (run.path / "resumes").write_text(f"{float(resumes) + 10_000}\n" if resumes else "")
    names = {
        "began": "began",
        "met": "ranks/1.start.json",
        "first": "first-step",
        "logged": "logs/rank-0.out",
        "ended": "exit.json",
    }
    at(run.path / "ranks/0.start.json", times["began"] + 1)
    for name, time_s in times.items():
        at(run.path / names[name], time_s)
    return run


def test_what_counts_is_up_to_the_checkpoint_that_the_next_attempt_has(attempts: list[Run]) -> None:
    (chain,) = timelines(attempts)
    rows = [(row.attempt, row.start_up_s, row.kept_s, row.lost_s) for row in chain.attempts]
    # The second left no `first-step`: it starts until its ranks have met. Its end is its last sign.
    assert rows == [(1, 10, 95.5, 4.5), (2, 10, 70, 20), (3, 10, 290, 0)]
    assert (chain.start_up_s, chain.kept_s, chain.lost_s) == (30, 455.5, 24.5)
    assert chain.goodput == 455.5 / 480 and not chain.by_first_step
    assert all(row.end for row in chain.attempts)


def test_a_chain_that_did_not_get_done_repeats_what_no_checkpoint_has(attempts: list[Run]) -> None:
    (attempts[0].path.parents[2] / "ended").write_text("it was cancelled\n")
    (chain,) = timelines(attempts)
    assert (chain.attempts[-1].kept_s, chain.attempts[-1].lost_s) == (289, 1)


def test_an_attempt_without_a_checkpoint_or_a_step_counts_nothing(attempts: list[Run]) -> None:
    (attempts[1].path / "resumes").write_text("\n")
    (attempts[1].path / "ranks/1.start.json").unlink()
    (chain,) = timelines(attempts)
    rows = [(row.start_up_s, row.kept_s, row.lost_s) for row in chain.attempts[:2]]
    assert rows == [(10, 0, 100), (100, 0, 0)]


def test_an_attempt_that_goes_on_is_in_no_sum(attempts: list[Run]) -> None:
    (attempts[2].path / "verdict.json").unlink()
    (chain,) = timelines(attempts)
    assert chain.attempts[-1].end == "" and chain.kept_s == 165.5


def test_of_a_part_of_a_chain_or_one_of_an_earlier_version_there_is_none(attempts: list[Run]) -> None:
    assert list(timelines(attempts[:2])) == []
    (attempts[1].path / "resumes").unlink()
    assert list(timelines(attempts)) == []


def test_an_attempt_that_was_copied_elsewhere_is_of_no_chain(attempts: list[Run], tmp_path: Path) -> None:
    """As one that a user has kept, or been given."""
    for place in ("kept", "launches/first"):
        copy = Run(Path(shutil.copytree(attempts[0].path, tmp_path / place / attempts[0].run_id)))
        assert (list(timelines([copy])), next_attempt(copy), copy.chain_end) == ([], None, "")


def test_what_a_link_leads_to_is_no_attempt_and_has_no_time(attempts: list[Run]) -> None:
    chain = attempts[0].path.parents[2]
    expected = list(timelines(attempts))
    (chain / "launches/4").symlink_to(attempts[2].path.parent)
    later = at(chain.parent / "later", 50)
    (attempts[0].path / "first-step").unlink()
    (attempts[0].path / "first-step").symlink_to(later)
    os.utime(attempts[0].path / "first-step", (10_010, 10_010), follow_symlinks=False)
    assert list(timelines(attempts)) == expected
    (chain / "ended").write_text("it was cancelled\n")
    (chain / "checkpoints").rename(chain.parent / "scratch")
    (chain / "checkpoints").symlink_to("../scratch")
    assert next(timelines(attempts)).attempts[-1].kept_s == 289, "a link of this user's own is followed"


def test_a_report_shows_it(attempts: list[Run]) -> None:
    chains = tuple(timelines(attempts))
    report = msgspec.structs.replace(runs_report([(run, "") for run in attempts]), chains=chains)
    shown = "\n".join(report_lines(report, None))
    assert "train: goodput 94.9 % apart from start-up, which took 30 s of 8 min 30 s (until its ranks had met:" in shown
    assert "2 1970-01-01 02:55:00 10 s 70 s 20 s" in " ".join(shown.split())
    assert "<h2>Time line</h2>" in page(report)
