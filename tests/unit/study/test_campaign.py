"""What was launched cannot be unmade: a run that is gone, or a log that was changed, stays to be seen."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.backends.schedulers.local.client import Local
from runner.cli.study import problem
from runner.core.errors import RefusedError, UnknownStateError
from runner.core.files import sha256
from runner.figures.bundle.proof import InBundle
from runner.jobs.campaign import Campaign, Log, is_leased
from runner.jobs.directory import LOG, Run, index
from runner.jobs.facts import Selection, list_runs
from runner.jobs.seals import judgements
from runner.jobs.states import Answers
from runner.jobs.watch import Clock
from runner.model.figure import OfStudy
from runner.model.job import Cancelled, Submitted
from runner.model.records import StartRecord
from runner.model.request import Request, RequestRecord
from runner.study.attempts import settle, to_start
from runner.study.directory import StudyDirectory
from runner.study.gather import facts, figures, list_studies, look, wait
from tests.support.evidence import leave
from tests.support.shell_files import stand_in
from tests.support.studies import left_run, measured, on_disk, study

SLOW, OTHER = "g0001-full-r1", "g0001-full-r2"


@pytest.fixture
def of(tmp_path: Path) -> StudyDirectory:
    """A study whose runs were launched by a process that was killed before it could note the last of them."""
    made = on_disk(tmp_path, study((1,), 2))
    left_run(made, SLOW, measured(50.0))
    left_run(made, OTHER, measured(100.0), noted=False)
    settle(made, made.study.launches)
    return made


def gone(of: StudyDirectory) -> Run:
    (run,) = of.runs(SLOW)
    shutil.rmtree(run.path)
    return run


def test_a_deleted_run_is_a_gap_that_no_later_run_closes_and_counts_as_an_attempt(of: StudyDirectory) -> None:
    assert facts(of).gaps == ()
    run = gone(of)
    (gap,) = facts(of).gaps
    assert SLOW in gap and run.run_id in gap
    assert [each.state for each in facts(of).launches] == ["not-proven", "proven"]
    assert [each.key for each in to_start(of.study.launches, look(of).attempts, 2)] == [SLOW]
    assert to_start(of.study.launches, look(of).attempts, 1) == ()
    left_run(of, SLOW, measured(101.0))
    now = facts(of)
    assert (now.state, now.launches[0].attempts, now.gaps) == ("incomplete", 2, (gap,))
    assert problem(now) is not None, "exit code 6"


def emptied(run: Path) -> None:
    shutil.rmtree(run)
    run.mkdir()


def as_a_link(run: Path) -> None:
    shutil.rmtree(run)
    run.symlink_to(run.parent.parent / OTHER)


def as_a_file(run: Path) -> None:
    shutil.rmtree(run)
    run.touch()


def left_with_an_exit(run: Path) -> None:
    emptied(run)
    (run / "exit.json").touch()


def refused(run: Path) -> None:
    (run / "verdict.json").unlink()
    Run(run).write("job.json", Submitted("local", "", "", "0", time.time(), refused="no"))


@pytest.mark.parametrize("unmake", [emptied, as_a_link, as_a_file, left_with_an_exit, refused])
def test_a_launched_run_that_is_none_any_more_is_a_gap_also_later(
    of: StudyDirectory, unmake: Callable[[Path], None]
) -> None:
    (run,) = of.runs(SLOW)
    unmake(run.path)
    for _ in range(2):
        (gap,) = facts(of).gaps
        assert gap.startswith(f"{SLOW}: its run {run.run_id} was launched, and ")
        assert to_start(of.study.launches, look(of).attempts, 1) == ()
        settle(of, of.study.launches)


def test_another_launch_s_run_proves_nothing_whatever_it_is_called(of: StudyDirectory) -> None:
    (run,) = of.runs(OTHER)
    gone(of)
    shutil.copytree(run.path, of.launches(SLOW) / run.run_id)
    for _ in range(2):
        assert [each.state for each in facts(of).launches] == ["not-proven", "proven"]
        assert any("does not have the run" in gap for gap in facts(of).gaps)
        settle(of, of.study.launches)
    (of.launches(SLOW) / run.run_id).rename(of.launches(SLOW) / "20990101-000000-train-4")
    for _ in range(2):
        assert [each.state for each in facts(of).launches] == ["not-proven", "proven"], "a copy unmakes nothing"
        assert any("does not have the run 20990101" in gap for gap in facts(of).gaps)
        settle(of, of.study.launches)


@pytest.mark.parametrize("changes", [{"tasks_per_node": (2,)}, {"arms": ("uncoupled", "full")}])
def test_a_run_of_another_plan_proves_nothing(of: StudyDirectory, changes: dict[str, Any]) -> None:
    (run,) = of.runs(OTHER)
    leave(run, "plan.json", msgspec.structs.replace(run.needed_plan(), **changes))
    assert [each.state for each in facts(of).launches] == ["proven", "not-proven"]


def of_the_study(of: StudyDirectory) -> Run:
    """Its process was killed before it could note it."""
    run = left_run(of, SLOW, measured(100.0), noted=False)
    run.write("request.json", of.study.request)  # type: ignore[arg-type]
    return run


def submitted_there(of: StudyDirectory) -> Run:
    run = left_run(of, SLOW, measured(100.0), noted=False)
    run.write("request.json", RequestRecord(Request(1, runs=str(run.path.parent))))
    return run


def copied_without_its_records(of: StudyDirectory) -> Run:
    (run,) = of.runs(SLOW)
    double = Run(shutil.copytree(run.path, of.launches(OTHER) / f"{run.run_id}.7"))
    shutil.rmtree(double.ranks)
    (double.path / "verdict.json").unlink()
    return double


def from_a_copy_of_the_study(of: StudyDirectory) -> Run:
    copy = StudyDirectory(shutil.copytree(of.path, of.path.parent / "copies" / of.path.name), of.study)
    run = of_the_study(copy)
    return Run(run.path.rename(of.launches(SLOW) / run.run_id))


@pytest.mark.parametrize("left", [of_the_study, submitted_there, copied_without_its_records, from_a_copy_of_the_study])
def test_what_the_study_has_not_launched_here_is_a_gap_until_it_is_taken_away(
    tmp_path: Path, left: Callable[[StudyDirectory], Run]
) -> None:
    of = on_disk(tmp_path, study((1,), 2, request=RequestRecord(Request(1, runs=str(tmp_path)))))
    for key, rate in ((SLOW, 50.0), (OTHER, 60.0)):
        left_run(of, key, measured(rate))
    settle(of, of.study.launches)
    run = left(of)
    for _ in range(2):
        settle(of, of.study.launches)
        now = facts(of)
        assert [each.images_per_s for each in now.launches] == [50.0, 60.0]
        assert any(f"does not have the run {run.run_id}" in gap for gap in now.gaps) == (left is not of_the_study)
    shutil.rmtree(run.path)
    assert bool(facts(of).gaps) == (left is of_the_study)


def test_the_first_run_of_a_launch_is_the_first_in_the_log_whatever_its_id(of: StudyDirectory) -> None:
    """An id has the time of its terminal's zone, and of a clock that may have been set back."""
    later = left_run(of, SLOW, noted=False)
    later = Run(later.path.rename(later.path.with_name("20200101-000000-train-4")))
    later.write("verdict.json", measured(100.0))
    of.note("launched", SLOW, [later])
    assert facts(of).launches[0].images_per_s == 50.0


def test_a_measured_run_that_a_double_beside_another_launch_unmakes_is_a_gap(of: StudyDirectory) -> None:
    """As of logs that have both."""
    (run,) = of.runs(SLOW)
    of.note("launched", OTHER, [copied_without_its_records(of)])
    says = f"{SLOW}: its run {run.run_id} is not as it was measured, and is left out"
    assert [facts(of).launches[0].state, says in facts(of).gaps] == ["not-proven", True]


def as_a_pipe(log: Path) -> None:
    log.unlink()
    os.mkfifo(log)


def as_a_directory(log: Path) -> None:
    log.unlink()
    log.mkdir()


@pytest.mark.parametrize("change", [as_a_pipe, as_a_directory])
def test_a_log_that_is_no_file_is_refused_and_never_waited_for(
    of: StudyDirectory, change: Callable[[Path], None]
) -> None:
    change(of.path / LOG)
    assert facts(of).gaps == ("its log of launches was altered",)
    with pytest.raises(RefusedError, match="no regular file"):
        settle(of, of.study.launches)


@pytest.mark.parametrize("change", [Path.unlink, lambda log: log.write_text("")], ids=["gone", "emptied"])
def test_a_lost_log_stays_to_be_seen(of: StudyDirectory, change: Callable[[Path], object]) -> None:
    change(of.path / LOG)
    gone(of)
    settle(of, of.study.launches)
    assert facts(of).gaps == ("its log of launches was lost, and begun anew",)


def test_a_run_that_the_log_does_not_have_is_a_gap_while_nothing_launches(of: StudyDirectory) -> None:
    left_run(of, SLOW, measured(50.0), noted=False)
    with of.exclusive(say):
        assert facts(of).gaps == ()
    (gap,) = facts(of).gaps
    assert "does not have the run" in gap


@pytest.mark.parametrize("way", ["log", "link"])
def test_what_is_lost_is_looked_up_nowhere_else(way: str, of: StudyDirectory, tmp_path: Path) -> None:
    """As another user's study may lead a reader to runs of his own."""
    private = tmp_path / "private"
    private.mkdir()
    if way == "log":
        of._add("launched", SLOW, [os.path.relpath(private, of.launches(SLOW))])
        assert facts(of).gaps[-1] == "its log of launches was altered"
    else:
        (run,) = of.runs(SLOW)
        run.path.rename(tmp_path / "away")
        run.path.symlink_to(private)
        assert run.run_id in " ".join(facts(of).gaps)
    lost = [each for each in facts(of).launches if each.state != "proven"]
    assert [each.directory for each in lost] == [""] * (way == "link")


def test_what_lies_where_runs_do_and_is_none_is_left_out(of: StudyDirectory) -> None:
    (of.launches(SLOW) / "20990101-000000-train-4").touch()
    shutil.rmtree(of.launches(OTHER))
    of.launches(OTHER).touch()
    of.note("launched", "x" * 5000, [Run(of.path / "x")])
    first, second = facts(of).gaps
    assert (OTHER in first, second) == (True, "its log of launches was altered")


@pytest.mark.parametrize("is_head_lost", [False, True])
def test_a_last_line_that_was_cut_off_together_with_its_run_is_a_gap_that_no_later_run_closes(
    of: StudyDirectory, is_head_lost: bool
) -> None:
    log = of.path / LOG
    if is_head_lost:
        (of.path / "launches.head").unlink()
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    (run,) = of.runs(OTHER)
    shutil.rmtree(run.path)
    assert facts(of).gaps == ("its log of launches lacks its end",)
    settle(of, of.study.launches)
    left_run(of, OTHER, measured(100.0))
    assert facts(of).gaps == ("its log of launches was lost, and begun anew",)


def test_a_run_that_was_copied_within_an_allocation_proves_nothing(tmp_path: Path) -> None:
    made = on_disk(tmp_path, study((1,), 2, way="one-allocation"))
    for key in (SLOW, OTHER):
        run = left_run(made, key, measured(50.0), allocation=str(made.path / "allocations/1"))
        leave(run, "ranks/0.start.json", StartRecord("2", 0, 1, 0, 1, 0, "h", True, "cpu", time_s=1000.0, token="t"))
        (run.path / "begun").touch()
    assert {each.why for each in facts(made).launches} == {"its run is another launch's, too: it proves nothing"}


@pytest.mark.parametrize(
    ("ran_in", "state"),
    [("x-study/launches/g0001-full-r1/ID", "not-proven"), ("STUDY/launches/g0001-full-r2/ID", "not-proven"),
     ("STUDY/launches/g0001-full-r1/ID", "proven"), ("results", "proven")],
)  # fmt: skip
def test_a_run_that_was_moved_here_from_another_launch_proves_nothing(tmp_path: Path, ran_in: str, state: str) -> None:
    """Also where a resumed study has noted it, as one of a process that ended before."""
    made = on_disk(tmp_path, study((1,), 1))
    run = left_run(made, SLOW, measured(50.0))
    place = {"RUNNER_RUN_DIR": f"/jobs/{ran_in.replace('STUDY', made.path.name).replace('ID', run.run_id)}"}
    leave(run, "ranks/0.start.json", StartRecord("2", 0, 1, 0, 1, 0, "h", True, "cpu", environment=place))
    assert [each.state for each in facts(made).launches] == [state]


def test_a_run_knows_the_gaps_of_its_study_also_where_that_cannot_be_read(of: StudyDirectory, tmp_path: Path) -> None:
    (run,) = of.runs(OTHER)
    assert run.of_study().gaps == ()
    gone(of)
    assert run.of_study().gaps == facts(of).gaps != ()
    (of.path / "study.json").write_text("{}")
    assert run.of_study().gaps == ("its study cannot be read",)
    assert Run(tmp_path / run.run_id).of_study().gaps == run.of_study().gaps, "a copy of it elsewhere"
    assert Run(tmp_path / "20990101-000000-train-4").of_study().gaps == ()


def test_what_a_study_asks_is_this_users_own_unless_it_was_changed_or_begun_elsewhere(of: StudyDirectory) -> None:
    assert of.is_begun_here
    (of.path / "study.json").write_text((of.path / "study.json").read_text().replace("full", "slow"))
    assert not of.is_begun_here


def test_a_gap_is_a_doubt_of_every_figure_of_the_study(of: StudyDirectory) -> None:
    gone(of)
    now = facts(of)
    (figure,) = (each.figure for each in now.launches if each.figure)
    said = [each.words for doubts in (figure.doubts, now.points[0].doubts) for each in doubts if each.code == "gap"]
    assert said == ["its study has 1 gap: it may be a chosen one"] * 2
    (listed,) = list_studies()
    assert listed.gaps == now.gaps


def test_a_run_that_never_began_is_no_gap(of: StudyDirectory) -> None:
    run = left_run(of, SLOW)
    shutil.rmtree(run.path)
    of.note("never-began", SLOW, [run])
    assert facts(of).gaps == ()
    of.note("launched", SLOW, [run])
    assert len(facts(of).gaps) == 1, "its id was taken again"
    of.note("never-began", SLOW, [measured_one := gone(of)])
    assert any(measured_one.run_id in gap for gap in facts(of).gaps), "it was measured"


ALTERED: dict[str, Callable[[Path], object]] = {
    "without the line of the deleted run": lambda log: log.write_bytes(b"".join(log.read_bytes().splitlines(True)[1:])),
    "with another run's id": lambda log: log.write_text(log.read_text().replace("train-4", "train-5", 1)),
    "not readable": lambda log: log.write_text("{\n"),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("change", ALTERED.values(), ids=ALTERED)
def test_a_log_that_was_altered_is_seen(of: StudyDirectory, change: Callable[[Path], object]) -> None:
    change(of.path / LOG)
    gone(of)
    assert any("log of launches" in gap for gap in facts(of).gaps)


def test_one_look_at_a_study_reads_its_log_once(of: StudyDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    logs: list[Log] = []
    read = Campaign.log

    def counted(study: Campaign) -> Log:
        logs.append(read(study))
        return logs[-1]

    monkeypatch.setattr(Campaign, "log", counted)
    facts(of)
    assert len(logs) == 1
    assert len(list_runs(Selection()).runs) == 2
    assert len(logs) == 2, "the list reads it for both runs together"


def test_a_directory_as_stop_json_counts_as_cancelled_and_is_refused_where_it_would_go_on(one: StudyDirectory) -> None:
    (one.path / "stop.json").mkdir(parents=True)
    one.stop()
    assert one.is_stopped
    with pytest.raises(RefusedError, match="is a directory"):
        one.go_on()


@pytest.fixture
def one(tmp_path: Path) -> StudyDirectory:
    """A study of one launch, which has no run."""
    return on_disk(tmp_path, study((1,), 1))


def say(line: str) -> None:
    raise AssertionError(line)


def test_one_process_at_a_time_works_on_a_study_also_after_one_that_was_killed(one: StudyDirectory) -> None:
    """Also while it took it, before it could write who it is: the kernel knows that it is dead, a file would not."""
    for name in ("lock", "lease"):
        (one.path / name).touch()
    held = [one.is_held]
    began = time.monotonic()
    with one.exclusive(say):
        assert time.monotonic() - began < 5.0
        held.append(one.is_held)
        with pytest.raises(RefusedError, match="another `scale` is at work"), one.exclusive(say):
            pass
    with one.exclusive(say):
        pass
    assert [*held, one.is_held] == [False, True, False]


def test_machines_that_share_a_study_hold_it_by_turns_too(one: StudyDirectory) -> None:
    with one.held_among_machines(say):
        assert is_leased(one.path)
        with pytest.raises(RefusedError, match="another `scale` is at work"), one.held_among_machines(say):
            pass
    assert not is_leased(one.path)


def job(run: Run, script: str) -> str:
    (run.path / "job.sh").write_text(f"#!/bin/bash\n{script}\n")
    started = Local().submit(run.path, "job.sh")
    run.write("job.json", {**run.read("job.json", dict[str, object]), "job_id": started})  # type: ignore[dict-item]
    return started


def test_a_job_that_was_killed_before_it_left_anything_is_judged_after_a_while(one: StudyDirectory) -> None:
    run = left_run(one, SLOW)
    job(run, "kill -KILL $$")
    run.write("cancelled.json", Cancelled("someone", "here", 1.0))
    found = wait(one, say, timeout_s=60)
    assert (found.state, found.launches[0].state, bool(found.launches[0].why)) == ("incomplete", "not-proven", True)


def test_while_it_waits_one_query_serves_all_runs_until_one_of_them_ends(of: StudyDirectory, tmp_path: Path) -> None:
    runs = [left_run(of, SLOW, scheduler="slurm", job_id=id, clients=str(tmp_path)) for id in ("7", "8")]
    rows = "\n".join(f"{id}|RUNNING|None|{run.path}" for id, run in zip(("7", "8"), runs, strict=True))
    for name, says in (("squeue", f"cat <<'E'\n{rows}\nE"), ("scontrol", "echo 'JobState=RUNNING'")):
        stand_in(tmp_path, name, f"echo {name} >>{tmp_path}/asked; {says}")
    answers: Answers = {}
    assert [each.state for _ in range(3) for each in look(of, answers).attempts[SLOW][1:]] == ["running"] * 6
    assert (tmp_path / "asked").read_text().split() == ["squeue"]
    (runs[0].path / "exit.json").touch()
    look(of, answers)
    assert (tmp_path / "asked").read_text().split().count("squeue") == 2


def test_a_study_that_is_over_is_not_waited_for_and_the_time_to_wait_has_an_end(one: StudyDirectory) -> None:
    started = job(left_run(one, SLOW), "exec sleep 60")
    try:
        with pytest.raises(UnknownStateError, match="has not ended within 1 s"):
            wait(one, say, timeout_s=1)
    finally:
        Local().cancel(started)
    shutil.rmtree(one.launches(SLOW))
    left_run(one, SLOW, measured(5.0))
    assert wait(one, say, clock=Clock(sleep=lambda _seconds: pytest.fail("it waits"))).state == "incomplete"


def without_its_report(run: Run) -> None:
    (run.path / "ranks/0.report.json").unlink()


def as_failed(run: Run) -> None:
    path = run.path / "verdict.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"outcome": "infrastructure", "images_per_s": None}))


@pytest.mark.parametrize("spoil", [without_its_report, as_failed])
def test_a_measured_run_whose_records_were_spoilt_is_a_gap_that_no_later_run_closes(
    of: StudyDirectory, spoil: Callable[[Run], None]
) -> None:
    (run,) = of.runs(SLOW)
    spoil(run)
    left_run(of, SLOW, measured(101.0))
    for _ in range(2):
        (gap,) = facts(of).gaps
        assert gap == f"{SLOW}: its run {run.run_id} was measured, and its records do not show it any more"
        settle(of, of.study.launches)


@pytest.mark.parametrize("seal", ["", " 00", " é"])
def test_a_log_that_was_written_anew_is_a_gap_that_no_later_run_closes(of: StudyDirectory, seal: str) -> None:
    """Its chain of hashes fits; only this user's gpu-runner writes its seal."""
    log, head = of.path / LOG, of.path / "launches.head"
    kept = log.read_bytes().splitlines(keepends=True)[:2]
    log.write_bytes(b"".join(kept))
    head.write_text(sha256(kept[-1].rstrip()) + seal)
    shutil.rmtree(of.runs(OTHER)[0].path)
    assert facts(of).gaps == ("its log of launches is not as gpu-runner left it here",)
    settle(of, of.study.launches)
    left_run(of, OTHER, measured(100.0))
    assert facts(of).gaps == ("its log of launches was lost, and begun anew",)


@pytest.mark.parametrize("says", ["lacks its end", "is not as gpu-runner left it here"], ids=["known", "forgotten"])
def test_a_study_that_was_put_back_as_it_was_before_a_run_has_a_gap(
    of: StudyDirectory, tmp_path: Path, says: str
) -> None:
    """From a backup: its log and its seal fit each other. Whoever may write there could leave files of his own, too."""
    shutil.copytree(of.path, tmp_path / "backup")
    left_run(of, SLOW, measured(40.0))
    shutil.rmtree(of.path)
    shutil.copytree(tmp_path / "backup", of.path)
    if says != "lacks its end":
        (judgements() / sha256((of.path / "study.json").read_bytes())).unlink()
    assert facts(of).gaps == (f"its log of launches {says}",)
    settle(of, of.study.launches)
    assert facts(of).gaps == ("its log of launches was lost, and begun anew",)


def test_a_run_of_another_study_that_was_copied_in_proves_nothing(of: StudyDirectory, tmp_path: Path) -> None:
    """Where its ranks saw it under another name, in a container, the user's list of runs knows where it was made."""
    other = on_disk(tmp_path / "other", study((1,), 1))
    run = left_run(other, SLOW, measured(200.0))
    leave(run, "ranks/0.start.json", StartRecord("2", 0, 1, 0, 1, 0, "h", True, "cpu", environment=IN_CONTAINER))
    assert [each.why for each in facts(other).launches] == [""]
    gone(of)
    shutil.copytree(run.path, of.launches(SLOW) / run.run_id)
    settle(of, of.study.launches)
    assert any("does not have the run" in gap for gap in facts(of).gaps)
    of.note("launched", SLOW, [run])
    says = f"its run is of another launch (it ran as {other.path.name}/launches/{SLOW}/{run.run_id}): it proves nothing"
    assert facts(of).launches[0].why == says


IN_CONTAINER = {"RUNNER_RUN_DIR": "/results"}


def test_a_bundle_of_a_study_whose_directory_was_renamed_has_its_points(tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    run = left_run(of, SLOW, measured(200.0))
    ran_as = {"RUNNER_RUN_DIR": f"/home/u/runs/20261122-120000-renamed-study/launches/{SLOW}/{run.run_id}"}
    leave(run, "ranks/0.start.json", StartRecord("2", 0, 1, 0, 1, 0, "h", True, "cpu", environment=ran_as))
    log = Run(of.path).content(LOG)
    bundled = InBundle(run.path.rename(tmp_path / run.run_id))  # which has no directory of the study
    assert Run(bundled.path).of_study().gaps and bundled.of_study() == OfStudy()
    index().mkdir(parents=True, exist_ok=True)
    (index() / run.run_id).unlink()
    (index() / run.run_id).symlink_to(bundled.path)
    assert Run(bundled.path).of_study().gaps, "also where it is listed as one by itself"
    by_log, without = (figures(of.study, {SLOW: bundled}, each)[0][0] for each in (log, None))
    assert (by_log.proven, without.proven) == (1, 0), "without a log it may be of another study"
    assert not any(doubt.code == "gap" for doubt in by_log.doubts), "these are in the bundle"


@pytest.mark.parametrize("name", ["", "paper"])
def test_a_copy_is_of_the_study_whose_log_has_it(name: str, tmp_path: Path) -> None:
    of = on_disk(tmp_path, study((1,), 1))
    run = left_run(of, SLOW, measured(200.0))
    ran_as = {"RUNNER_RUN_DIR": str(run.path)}
    leave(run, "ranks/0.start.json", StartRecord("2", 0, 1, 0, 1, 0, "h", True, "cpu", environment=ran_as))
    copy = Run(shutil.copytree(run.path, tmp_path / "copies" / (name or run.run_id)))
    assert copy.launched_as == run.path and not copy.of_study().gaps
    of.path.rename(tmp_path / "moved")
    on_disk(tmp_path, study((1,), 1)).path.rename(of.path)
    assert copy.of_study().gaps, "another one lies there"


def test_a_run_that_was_no_launch_proves_nothing_in_a_study(of: StudyDirectory) -> None:
    (run,) = of.runs(OTHER)
    alone = {"RUNNER_RUN_DIR": f"/home/u/runs/{run.run_id}"}
    leave(run, "ranks/0.start.json", StartRecord("2", 0, 1, 0, 1, 0, "h", True, "cpu", environment=alone))
    assert [each.state for each in facts(of).launches] == ["proven", "not-proven"]
