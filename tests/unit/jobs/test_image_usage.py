"""Which runs may still need their image: each scheduler is queried once, and the local one not at all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from runner.jobs import directory
from runner.jobs.image_usage import image_uses
from runner.model.job import ExitMarker, JobState, Submitted
from tests.support.plans import PLAN


def write(root: Path, name: str, record: Submitted | None) -> directory.Run:
    run = directory.create(root / "runs", name, 0.0)
    run.write("plan.json", msgspec.structs.replace(PLAN, image=msgspec.structs.replace(PLAN.image, path=f"/{name}")))
    if record is not None:
        run.write("job.json", record)
    return run


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    return tmp_path


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
    squeue = clients / "squeue"
    squeue.write_text(f"#!/bin/sh\necho called >>{clients}/calls\ncat {clients}/queue\n")
    squeue.chmod(0o755)
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
