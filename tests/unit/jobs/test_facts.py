"""Lists of runs and of the images that they use: what each file and each scheduler says, and no more than is wanted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runner.core import files
from runner.jobs import directory
from runner.jobs.directory import SCRIPT, Run
from runner.jobs.facts import Selection, list_runs
from runner.jobs.image_usage import image_uses
from runner.model.job import ExitMarker, JobState, Submitted
from runner.model.verdict import Verdict
from tests.support.plans import PLAN
from tests.support.shell_files import stand_in


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def submitted(root: Path, name: str, job: str, *, at_s: float = 0.0, refused: str = "", site: str = "s") -> Run:
    """A run on a Slurm whose clients are in ``root``."""
    run = directory.create(root / "runs", f"{name}-4", at_s)
    run.write("plan.json", msgspec.structs.replace(PLAN, site=site))
    files.write_private(run.path / SCRIPT, "#!/bin/bash\n")
    run.write("job.json", Submitted("slurm", job, str(root), "0", at_s, refused=refused))
    return run


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


def test_what_is_left_out_is_counted(root: Path) -> None:
    for number in range(3):
        submitted(root, "a", str(number)).write("verdict.json", Verdict("ran"))
    submitted(root, "a", "", refused="no such partition")
    assert (list_runs(Selection(last=2)).more, list_runs(Selection(last=3)).more) == (True, False)
    assert list_runs(Selection(states=frozenset({"ran"}), last=2)).more
    assert list_runs(Selection(last=3)).refused == 1
    assert list_runs(Selection(states=frozenset({"ran"}))).refused == 0


def test_the_scheduler_is_queried_for_no_run_that_is_not_shown(root: Path) -> None:
    submitted(root, "old", "1")
    submitted(root, "new", "2").write("verdict.json", Verdict("ran"))
    slurm(root)
    assert names(last=1) == ["new"]
    assert not (root / "asked").exists()


def test_a_run_that_ended_unnoticed_is_judged_if_nothing_is_missing(root: Path) -> None:
    cancelled = submitted(root, "cancelled", "1")  # it never had a node
    killed = submitted(root, "killed", "2")  # records may still become visible
    (killed.ranks / "0.start.json").touch()
    long_ago = submitted(root, "long-ago", "3")
    long_ago.write("exit.json", ExitMarker("3", 3, 1.0))
    slurm(root, j1=("CANCELLED", cancelled), j2=("TIMEOUT", killed), j3=("FAILED", long_ago))
    listed = {run.name: (run.state, run.outcome) for run in list_runs(Selection()).runs}
    assert listed == {
        "cancelled": ("ended", "cancelled"), "killed": ("ended", None), "long-ago": ("ended", "failed")
    }  # fmt: skip
    kept = cancelled.read("verdict.json", Verdict)
    assert kept is not None
    assert kept.outcome == "cancelled"
    assert cancelled.read("ended.json", JobState) is not None
    assert killed.read("verdict.json", Verdict) is None


def test_a_job_that_slurm_has_forgotten_is_judged_by_its_marker(root: Path) -> None:
    run = submitted(root, "forgotten", "1")
    run.write("exit.json", ExitMarker("1", 3, 1.0))
    slurm(root)
    (listed,) = list_runs(Selection()).runs
    assert (listed.state, listed.outcome) == ("ended", "failed")


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


def write(root: Path, name: str, record: Submitted | None) -> directory.Run:
    run = directory.create(root / "runs", name, 0.0)
    run.write("plan.json", msgspec.structs.replace(PLAN, image=msgspec.structs.replace(PLAN.image, path=f"/{name}")))
    if record is not None:
        run.write("job.json", record)
    return run


def states() -> dict[str, str]:
    return {use.image: use.state for use in image_uses()}


def test_one_query_tells_of_all_runs_of_a_scheduler(root: Path) -> None:
    clients = root / "clients"
    clients.mkdir()
    runs = {
        name: write(root, name, Submitted("slurm", job_id, str(clients), "", 0.0, refused))
        for name, job_id, refused in (
            ("a", "1", ""), ("b", "2", ""), ("cut", "", ""), ("old", "3", ""), ("no", "", "refused"), ("done", "4", "")
        )
    }  # fmt: skip
    write(root, "never", None)
    runs["done"].write("ended.json", JobState("ended", "FAILED"))
    lines = [
        f"{1}|RUNNING|None|{runs['a'].path}",
        f"{2}|COMPLETED|None|{runs['b'].path}",
        f"{9}|PENDING|Priority|{runs['cut'].path}",
    ]
    (clients / "queue").write_text("\n".join(lines) + "\n")
    stand_in(clients, "squeue", f"echo called >>{clients}/calls\ncat {clients}/queue")
    assert states() == {
        "/a": "running", "/b": "ended", "/cut": "pending", "/old": "unknown", "/no": "refused", "/done": "ended",
        "/never": "unknown",
    }  # fmt: skip
    assert (clients / "calls").read_text() == "called\n"


def test_a_scheduler_that_does_not_answer_leaves_its_own_runs_unknown(root: Path) -> None:
    write(root, "a", Submitted("slurm", "1", str(root / "nowhere"), "", 0.0))
    write(root, "b", Submitted("local", "999999.1.00000000", "", "", 0.0)).write("exit.json", ExitMarker("x", 0, 0.0))
    write(root, "c", Submitted("local", "", "", "", 0.0))
    assert states() == {"/a": "unknown", "/b": "ended", "/c": "unknown"}
