"""Which run a user means, and lists of runs and of the images that they use, with no more asked for than is wanted."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from runner.core import files
from runner.core.errors import UsageError
from runner.jobs import creation
from runner.jobs.directory import SCRIPT, Run
from runner.jobs.facts import Selection, list_runs
from runner.jobs.image_usage import image_uses
from runner.jobs.lookup import find
from runner.jobs.states import Answers
from runner.model.job import ExitMarker, JobState, Submitted
from runner.model.verdict import Verdict
from tests.support.plans import PLAN
from tests.support.shell_files import stand_in


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def submitted(
    root: Path, name: str, job: str = "", *, at_s: float = 0.0, refused: str = "", site: str = "s", image: str = ""
) -> Run:
    """A run that a Slurm whose clients are in ``root`` took as this job, or refused."""
    run = creation.create(root / "runs", f"{name}-4", at_s)
    of_image = msgspec.structs.replace(PLAN.image, path=image)
    run.write("plan.json", msgspec.structs.replace(PLAN, site=site, image=of_image))
    files.write_private(run.path / SCRIPT, "#!/bin/bash\n")
    run.write("job.json", Submitted("slurm", job, str(root), "0", at_s, refused=refused))
    return run


NO_MATCH, REFUSED = "no run matches", "no such partition"
# What is wanted -> the name of the run in ``runs_by_name`` that is meant, or the error.
WANTED = {
    **dict.fromkeys(("hang.test", "hang", "hang.test-4", "1234", "{hang.run_id}", "{hang.path}", "19700101-000000-ha"),
        "hang"),
    "12": "parts", "{parts.run_id}": "parts",
    # What names a run whole goes before what begins another; and a name, and a job.
    "train": "train", "201": "large", "20": '"20" matches 2 runs',
    # A directory with a script of the same name is no run.
    "./train": NO_MATCH, "./hang": NO_MATCH,
    # The id of a run that is gone means no other: else `cancel` with it would end one of the same second, or of more
    # ranks.
    "{gone.run_id}": NO_MATCH, "19700101-000000-twice-": "second", "twice": "second",
    # A refused submission is found only by its own id, and what has no script was never submitted.
    "once": "once", "on": "once", "{refused.run_id}": "refused", "{refused.path}": "refused",
    "{cut_off.run_id}": NO_MATCH,
    **dict.fromkeys(("", "/", "..", "4", "nowhere/train", "a\x1bb"), NO_MATCH),
}  # fmt: skip


@pytest.fixture
def runs_by_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Run]:
    """Runs with names, ids and jobs that are alike."""
    runs = {
        "hang": submitted(root, "hang.test", "1234"), "parts": submitted(root, "other", "12.pbs-server"),
        "train": submitted(root, "train", "20"), "large": submitted(root, "train-large", "201"),
        "job": submitted(root, "20", "7"), "gone": submitted(root, "twice"), "second": submitted(root, "twice"),
        "once": submitted(root, "once", "2"), "refused": submitted(root, "once", refused=REFUSED),
        "cut_off": creation.create(root, "cut-2", 0.0),
    }  # fmt: skip
    assert runs["second"].run_id == f"{runs['gone'].run_id}.2"
    shutil.rmtree(runs["gone"].path)
    for name in ("train", "hang"):
        (root / name).mkdir()
        (root / name / SCRIPT).touch()
    monkeypatch.chdir(root)
    return runs


@pytest.mark.parametrize("wanted", WANTED)
def test_a_run_is_found_by_each_of_its_names(runs_by_name: dict[str, Run], wanted: str) -> None:
    meant, wanted = WANTED[wanted], wanted.format(**runs_by_name)
    if meant in runs_by_name:
        assert find(wanted).path == runs_by_name[meant].path
        return
    with pytest.raises(UsageError, match=meant) as caught:
        find(wanted)
    assert caught.value.what.isprintable()


def test_0_is_no_job_though_slurm_shows_any_job_for_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = f"JobId=9 JobName=x\n   UserId=me({os.geteuid()})\n   JobState=RUNNING\n   BatchHost=n1.site\n   WorkDir=/w"
    stand_in(root, "scontrol", f"cat <<'E'\n{job}\n   StdOut=/w/x-%N-%n.out\nE")
    stand_in(root, "sbatch", "true")
    monkeypatch.setenv("PATH", f"{root}:{os.environ['PATH']}")
    with pytest.raises(UsageError, match=NO_MATCH):
        find("0")
    other = find("9")
    assert other.of_script is not None and other.of_script.output == "/w/x-n1-0.out"
    with pytest.raises(UsageError, match="submitted by something else"):
        other.needed_command()


def test_the_newest_run_is_found_without_a_name_and_is_no_refused_submission(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = submitted(root, "train", refused=REFUSED)
    with pytest.raises(UsageError, match=f"there are no runs yet; {refused.run_id} was never submitted"):
        find(None)
    runs = [submitted(root / place, "train") for place in ("a", "a", "b", "b")]
    submitted(root, "train", refused=REFUSED)
    monkeypatch.chdir("/")
    assert len({run.run_id for run in runs}) == 4
    assert [find(run.run_id).path for run in runs] == [run.path for run in runs]
    assert [find(wanted).path for wanted in (None, "@1", "@2", "@4")] == [runs[at].path for at in (-1, -1, -2, -4)]
    with pytest.raises(UsageError, match="there is no @5: you have 4 runs"):
        find("@5")
    with pytest.raises(UsageError, match='no run matches "@0"'):
        find("@0")


def test_what_fits_several_runs_or_none_is_answered_with_the_newest(root: Path) -> None:
    runs = [submitted(root, "imp", str(number), at_s=60.0 * number) for number in range(1, 11)]
    runs[-1].write("verdict.json", Verdict("failed"))
    submitted(root, "refused", refused=REFUSED)
    newest = [runs[-1].run_id + " (failed)", *(run.run_id for run in runs[-2::-1])]
    for wanted in ("imp", "i", "1970"):
        with pytest.raises(UsageError) as caught:
            find(wanted)
        assert caught.value.what == f'"{wanted}" matches 10 runs: {", ".join(newest[:8])} and 2 more'
    with pytest.raises(UsageError) as caught:
        find("none")
    assert caught.value.what == (f'no run matches "none". Recent: {", ".join(newest[:3])}. All: gpu-runner status')
    with pytest.raises(UsageError, match='no run matches "77"; and no scheduler here knows a job of this id'):
        find("77")


def test_what_cannot_be_read_in_the_list_of_runs_is_no_obstacle(root: Path) -> None:
    run = submitted(root, "train", "1")
    runs = root / "state" / "runs"
    (runs / "loop").symlink_to("loop")
    (runs / "gone").symlink_to("/no/such/run")
    (runs / "file").touch()
    broken = submitted(root, "train-too", "2")
    (broken.path / "job.json").unlink()
    (broken.path / "job.json").symlink_to("job.json")
    assert find("1").path == find("train").path == run.path
    assert [listed.run for listed in list_runs(Selection()).runs] == [run.run_id]


def slurm(root: Path, **states: tuple[str, Run]) -> None:
    """A Slurm that knows these jobs (``j7=("RUNNING", run)``), and counts how often its queue was asked for."""
    (root / "queue").write_text(
        "".join(f"{job[1:]}|{state}|Priority|{run.path}\n" for job, (state, run) in states.items())
    )
    shown = "\n".join(
        f"{job[1:]}) printf '   JobState={state} Reason=None\\n   ExitCode=0:0\\n   WorkDir={run.path}\\n';;"
        for job, (state, run) in states.items()
    )
    for program, body in (
        ("squeue", f"echo asked >>{root}/asked; cat {root}/queue"),
        ("scontrol", f"case $3 in\n{shown}\n*) echo Invalid job id >&2; exit 1;; esac"),
        ("sacct", "exit 1"),
    ):
        stand_in(root, program, body)


def names(**selection: object) -> list[str]:
    return [run.name for run in list_runs(Selection(**selection)).runs]  # type: ignore[arg-type]


def test_each_run_with_what_is_known_of_it(root: Path) -> None:
    measured = submitted(root, "measured", "1")
    measured.write("verdict.json", Verdict("measured", images_per_s=812.5, demonstration="CPU"))
    waits = submitted(root, "waits", "2", at_s=1e9)
    runs = submitted(root, "runs", "3")
    gone = submitted(root, "gone", "4")
    slurm(root, j2=("PENDING", waits), j3=("RUNNING", runs))
    listed = {run.name: run for run in list_runs(Selection()).runs}
    assert list(listed) == ["gone", "runs", "waits", "measured"]
    assert {name: (run.state, run.outcome) for name, run in listed.items()} == {
        "gone": ("unknown", None), "runs": ("running", None), "waits": ("pending", None),
        "measured": ("ended", "measured"),
    }  # fmt: skip
    assert {name: run.reason for name, run in listed.items() if run.reason} == {"waits": "Priority"}
    first = listed["measured"]
    assert (first.run, first.directory, first.job) == (measured.run_id, str(measured.path), "1")
    assert (first.gpus, first.site, first.images_per_s, first.demonstration) == (4, "s", 812.5, "CPU")
    assert str(listed["waits"].submitted) == "2001-09-09 01:46:40+00:00"
    assert (root / "asked").read_text() == "asked\n", "once for all of them"
    assert gone.read("verdict.json", Verdict) is None


def test_what_is_selected(root: Path) -> None:
    for number, (name, site) in enumerate((("a", "x"), ("ab", "y"), ("b", "x"))):
        run = submitted(root, name, str(number), at_s=1000.0 * number, site=site)
        run.write("verdict.json", Verdict("failed" if name == "ab" else "ran"))
    submitted(root, "bad", "", refused="no such partition", site="x", at_s=9000.0)
    assert names() == ["b", "ab", "a"]
    assert names(name="a") == ["ab", "a"]
    assert names(site="x") == ["b", "a"]
    assert names(since_s=1000.0) == ["b", "ab"]
    assert names(states=frozenset({"failed"})) == ["ab"]
    assert names(states=frozenset({"ended"}), last=2) == ["b", "ab"]
    assert names(states=frozenset({"not-submitted", "failed"})) == ["bad", "ab"]
    assert names(name="a", site="x", states=frozenset({"failed"})) == []


def test_who_watches_the_list_queries_a_scheduler_every_30_s_and_for_a_new_run(root: Path) -> None:
    runs = [submitted(root, name, job) for name, job in (("a", "1"), ("b", "2"))]
    slurm(root, j1=("RUNNING", runs[0]), j2=("PENDING", runs[1]))
    answers: Answers = {}

    def states() -> list[str]:
        return [each.state for each in list_runs(Selection(), answers).runs]

    assert states() == states() == ["pending", "running"]
    assert (root / "asked").read_text() == "asked\n"
    new = submitted(root, "c", "3")
    slurm(root, j1=("RUNNING", runs[0]), j2=("RUNNING", runs[1]), j3=("PENDING", new))
    assert states() == ["pending", "running", "running"]
    (key,) = answers
    answers[key] = (answers[key][0] - 31.0, answers[key][1])
    states()
    assert (root / "asked").read_text() == "asked\n" * 3


def test_what_is_left_out_is_counted_and_the_scheduler_is_not_queried_for_it(root: Path) -> None:
    submitted(root, "old", "9")
    slurm(root)
    for number in range(3):
        submitted(root, "a", str(number)).write("verdict.json", Verdict("ran"))
    submitted(root, "a", "", refused="no such partition")
    assert all(list_runs(Selection(last=last)).more for last in (2, 3))
    assert list_runs(Selection(last=3)).refused == 1
    assert not (root / "asked").exists()
    assert not list_runs(Selection(last=4)).more
    assert list_runs(Selection(states=frozenset({"ran"}), last=2)).more
    assert list_runs(Selection(states=frozenset({"ran"}))).refused == 0


def test_a_run_that_ended_unnoticed_is_judged_if_nothing_is_missing(root: Path) -> None:
    cancelled = submitted(root, "cancelled", "1")  # it never had a node
    killed = submitted(root, "killed", "2")  # records may still become visible
    (killed.ranks / "0.start.json").touch()
    long_ago = submitted(root, "long-ago", "3")
    long_ago.write("exit.json", ExitMarker("3", 3, 1.0))
    forgotten = submitted(root, "forgotten", "4")  # by Slurm, and judged by its marker
    forgotten.write("exit.json", ExitMarker("4", 3, 1.0))
    slurm(root, j1=("CANCELLED", cancelled), j2=("TIMEOUT", killed), j3=("FAILED", long_ago))
    listed = {run.name: (run.state, run.outcome) for run in list_runs(Selection()).runs}
    assert listed == {
        "cancelled": ("ended", "cancelled"), "killed": ("ended", None), "long-ago": ("ended", "failed"),
        "forgotten": ("ended", "failed"),
    }  # fmt: skip
    kept = cancelled.read("verdict.json", Verdict)
    assert kept is not None
    assert kept.outcome == "cancelled"
    assert cancelled.read("ended.json", JobState) is not None
    assert killed.read("verdict.json", Verdict) is None


def test_a_scheduler_that_does_not_answer_is_reported(root: Path) -> None:
    submitted(root, "a", "1")
    submitted(root, "b", "2").write("verdict.json", Verdict("ran"))
    stand_in(root, "squeue", "echo 'Unable to contact slurm controller' >&2\nexit 1")
    listing = list_runs(Selection())
    assert [(run.name, run.state) for run in listing.runs] == [("b", "ended"), ("a", "unknown")]
    (error,) = listing.errors
    assert "Slurm does not answer: Unable to contact" in error.what


def test_damaged_files_hide_no_run(root: Path) -> None:
    run = submitted(root, "a", "1")
    run.write("job.json", Submitted("local", "1", "", "0", 1e30))
    (run.path / "plan.json").write_text("{")
    (run.path / "verdict.json").write_text('{"outcome": "splendid"}')
    (listed,) = list_runs(Selection()).runs
    assert (listed.submitted, listed.site, listed.gpus, listed.state) == (None, "", 0, "unknown")


def test_one_query_tells_of_all_images_of_a_schedulers_runs(root: Path) -> None:
    runs = {name: submitted(root, name, job, image=f"/{name}") for name, job in (("a", "1"), ("b", "2"), ("cut", ""),
        ("old", "3"), ("done", "4"), ("never", ""), ("elsewhere", "1"), ("local", ""))}  # fmt: skip
    submitted(root, "no", refused=REFUSED, image="/no")
    (runs["never"].path / "job.json").unlink()
    runs["done"].write("ended.json", JobState("ended", "FAILED"))
    runs["elsewhere"].write("job.json", Submitted("slurm", "1", str(root / "nowhere"), "", 0.0))
    runs["local"].write("job.json", Submitted("local", "999999.1.00000000", "", "", 0.0))
    runs["local"].write("exit.json", ExitMarker("x", 0, 0.0))
    slurm(root, j1=("RUNNING", runs["a"]), j2=("COMPLETED", runs["b"]), j9=("PENDING", runs["cut"]))
    assert {use.image: use.state for use in image_uses()} == {
        "/a": "running", "/b": "ended", "/cut": "pending", "/old": "unknown", "/no": "refused", "/done": "ended",
        "/never": "unknown", "/elsewhere": "unknown", "/local": "ended",
    }  # fmt: skip
    assert (root / "asked").read_text() == "asked\n"
