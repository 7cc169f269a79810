"""Submitting processes that are killed outright at any moment, and what must still hold of their runs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.support.commands import Runner
from tests.support.daemons import Daemons
from tests.support.planted_faults import Planted

GOOD = Planted("nap:1", "measured", 0)
_SBATCH_ENDS_S = 15.0


def killed_while_submitting(runner: Runner, moments: Iterable[float]) -> list[Path | None]:
    """Kill a submission at each moment, as a part of the time that a whole one takes here and now.

    Returns the run directory that each has left, None where it left none.
    """
    left: list[Path | None] = []
    for moment in moments:
        began = time.monotonic()
        runner("submit", "--recipe", "probe", "--gpus", "1", code=0)
        whole_s = time.monotonic() - began
        before = set(runner.runs.glob("*"))
        child = runner.start(*GOOD.submission())
        time.sleep(moment * whole_s)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate(timeout=60)
        fresh = set(runner.runs.glob("*")) - before
        assert len(fresh) <= 1
        left.append(fresh.pop() if fresh else None)
    return left


def judge_what_is_left(runner: Runner, daemons: Daemons, run: Path | None) -> str:
    """Every verb works on the run or says what is known; no job was submitted twice. Returns what became of it."""
    if run is None:
        return "no run"
    if not (run / "job.sh").exists():
        said = tried(runner, "status", run.name)
        assert said.returncode == 2, said
        assert f'no run matches "{run.name}"' in said.stderr
        assert daemons.jobs_of(str(run)) == []
        return "a run without a script"
    until = time.monotonic() + _SBATCH_ENDS_S
    while (said := tried(runner, "status", run.name)).returncode != 0 and time.monotonic() < until:
        if "there is no job" in said.stderr:
            break
        time.sleep(0.3)  # sbatch goes on without the process that called it
    jobs = daemons.jobs_of(str(run))
    if said.returncode == 0:
        assert len(jobs) == 1
        assert tried(runner, "wait", run.name).returncode == 0
        assert tried(runner, "logs", "--all", run.name).returncode == 0
        assert "has already ended" in tried(runner, "cancel", run.name).stdout
        return "a job that was found again"
    assert jobs == []
    for words in (("wait", run.name), ("cancel", run.name), ("logs", "-f", run.name)):
        assert tried(runner, *words).returncode == 9
    return "a run without a job"


def tried(runner: Runner, *words: str) -> subprocess.CompletedProcess[str]:
    """A verb from another process and working directory; however it ends, it shows no traceback."""
    done = subprocess.run(
        runner.argv(*words), capture_output=True, text=True, timeout=120, check=False, cwd="/", env=runner.environment()
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done
