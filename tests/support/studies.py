"""A study on disk whose runs have ended, are under way or were cut off, without any job; and the stand-in's options."""

import json
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from runner.core import files
from runner.jobs import creation
from runner.jobs.directory import SCRIPT, Run
from runner.model.job import CommandLine, Submitted
from runner.model.study import Launch, LaunchFacts, Study
from runner.model.verdict import Verdict
from runner.study.directory import StudyDirectory, create
from runner.study.plan import launches
from tests.support.evidence import report
from tests.support.plans import PLAN
from tests.support.timed import RECIPE

# Options of a study of the timed stand-in on this machine; a launch takes three seconds.
TIMED = ("--recipe", str(RECIPE), "--runtime", "native", "--set", "window-seconds=0.5", "--yes")


def study(gpus: Sequence[int] = (1, 2), repeats: int = 2, **changes: Any) -> Study:
    """What was asked; without ``launches`` among the changes, all of the full arm."""
    values: dict[str, Any] = {
        "schema": "1", "study": "", "created": datetime(2026, 11, 22, 12, tzinfo=timezone.utc),
        "command": CommandLine(("scale",), "/"), "site": "s", "recipe": "r", "way": "separate", "gpus": tuple(gpus),
        "arms": ("full",), "settings": ((),), "repeats": repeats, "strong": False,
    }  # fmt: skip
    values |= changes
    values.setdefault("launches", launches(values["gpus"], values["arms"], values["settings"], values["repeats"]))
    return Study(**values)


def on_disk(root: Path, asked: Study, name: str = "train") -> StudyDirectory:
    return create(root, name, asked, time.time())


def left_run(of: StudyDirectory, key: str, verdict: Verdict | None = None, *, noted: bool = True, **job: Any) -> Run:
    """A run of a launch, with its job's record and its verdict, in the study's log."""
    gpus = next(each.gpus for each in of.study.launches if each.key == key)
    run = creation.create(of.launches(key), f"train-{PLAN.tasks}", time.time())
    run.write("plan.json", msgspec.structs.replace(PLAN, scheduler="local", tasks_per_node=(gpus,), gpus_per_node=gpus))
    files.write_private(run.path / SCRIPT, "#!/bin/bash\n")
    fields: dict[str, Any] = {
        "scheduler": "local", "job_id": "1.1.x", "clients": "", "script_sha256": "0", "submitted_s": time.time(),
    }  # fmt: skip
    run.write("job.json", Submitted(**(fields | job)))
    if verdict is not None:
        if verdict.outcome == "measured":
            run.write("ranks/0.report.json", report(0, ends_checksum=files.key_of(str(run.path))))
        run.write("verdict.json", verdict)
    if noted:
        of.note("launched", key, [run])
    return run


def measured(rate: float, **changes: Any) -> Verdict:
    return Verdict("measured", images_per_s=rate, window_s=30.0, **changes)


def runs_with(path: Path, record: str) -> dict[str, int]:
    return {launch.name: len(list(launch.glob(f"*/{record}"))) for launch in sorted((path / "launches").iterdir())}


def proven(launch: Launch, rate: float, batch: float | None = 10.0) -> LaunchFacts:
    return LaunchFacts(launch, "proven", run="r", directory="/r", attempts=1, outcome="measured",
                       images_per_s=rate, batch=batch)  # fmt: skip


def spans(path: Path) -> list[tuple[float, float, str]]:
    """When the ranks of each run began and ended, by their own records: Unix times, in order, and the launch."""
    ranks_of_runs = []
    for run in path.glob("launches/*/*"):
        starts = [json.loads(each.read_text())["time_s"] for each in run.glob("ranks/*.start.json")]
        ends = [json.loads(each.read_text())["ended_s"] for each in run.glob("ranks/*.exit.json")]
        if starts:
            ranks_of_runs.append((min(starts), max(ends, default=min(starts)), run.parent.name))
    return sorted(ranks_of_runs)


def overlapping(path: Path) -> list[tuple[str, str]]:
    """Runs of a study of which one began before the other had ended."""
    ordered = spans(path)
    return [(one[2], other[2]) for one, other in pairwise(ordered) if other[0] < one[1]]
