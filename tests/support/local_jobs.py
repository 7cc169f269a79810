"""Jobs of this machine and their processes."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from runner.jobs.directory import Run
from runner.model.job import Submitted

PROBE = ("submit", "--recipe", "probe", "--gpus", "2")


SLEEPS = (*PROBE, "--", "--sleep", "300")


def leader(run: Path) -> int:
    """The process number of a run's job."""
    found = Run(run).read("job.json", Submitted)
    assert found is not None
    return int(found.job_id.split(".")[0])


def session(pid: int) -> list[str]:
    """What is alive of the session that this process led."""
    alive = []
    for entry in Path("/proc").glob("[1-9]*"):
        with suppress(OSError):
            fields = (entry / "stat").read_text(errors="replace").rpartition(") ")[2].split()
            if fields[3] == str(pid) and fields[0] not in "ZX":  # proc(5): session and state
                alive.append((entry / "cmdline").read_text(errors="replace").replace("\0", " "))
    return alive


def modes(run: Path) -> set[int]:
    """The permissions that others than the owner have on what the job itself wrote."""
    return {path.stat().st_mode & 0o077 for folder in ("logs", "ranks") for path in (run / folder).iterdir()}


def outcome(run: Path) -> str:
    return str(json.loads((run / "verdict.json").read_text())["outcome"])
