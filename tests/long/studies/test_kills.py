"""`scale` is killed outright at 30 seeded moments and gone on with: nothing is lost, nothing is measured twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.studies import TIMED, runs_with

KILLS = 30
LONGEST_S = 5.0  # a launch takes about three


def test_killed_at_any_moment_nothing_is_lost_or_measured_twice(tmp_path: Path) -> None:
    source = random.Random(16)
    local = Runner(Path("local"), tmp_path / "runs", tmp_path / "state", tmp_path)
    words = ("scale", "--gpus", "1,2,3", "--repeats", "1", *TIMED)
    kills, studies = 0, 0
    while kills < KILLS:
        studies += 1
        path, kept = _begun(local, words, f"s{studies}"), set[Path]()
        while True:
            child = local.start("scale", "--resume", path.name, "--attempts", "9")
            ended = _ended_within(child, source.uniform(0.0, LONGEST_S) if kills < KILLS else 120.0)
            assert ended or kills < KILLS, "it does not end, though nothing disturbs it"
            if not ended:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate(timeout=60)
                kills += 1
            now = set(path.glob("launches/*/*/result.json"))
            assert kept <= now, "a result is lost"
            kept = now
            assert max(runs_with(path, "result.json").values(), default=0) <= 1, "a launch is measured twice"
            if ended:
                assert child.returncode == 0, child.communicate()
                break
        facts = result(local("wait", path.name, "--json", code=0).out)
        assert facts["state"] == "complete"
        assert runs_with(path, "result.json") == {f"g{gpus:04d}-full-r1": 1 for gpus in (1, 2, 3)}
        assert {each["attempts"] for each in facts["launches"]} == {1}, "every run that was started is kept"


def _begun(local: Runner, words: tuple[str, ...], name: str) -> Path:
    """A study's directory, once it is there; the call that made it is killed at once."""
    child = local.start(*words, "--name", name)
    until = time.monotonic() + 60
    while not (found := list(local.state.glob(f"studies/*-{name}-study"))) and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate(timeout=60)
    return found[0].resolve()


def _ended_within(child: subprocess.Popen[bytes], seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
        return True
    return False
