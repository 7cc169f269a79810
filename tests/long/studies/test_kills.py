"""`scale` is killed outright at 30 seeded moments and gone on with: nothing is lost, nothing is measured twice."""

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.support.commands import Runner
from tests.support.daemons import Daemons, own_box
from tests.support.documents import result
from tests.support.studies import TIMED, overlapping, runs_with
from tests.support.users import AS_ROOT

KILLS = 30
LONGEST_S = 5.0  # a launch takes about three


def test_killed_at_any_moment_nothing_is_lost_or_measured_twice(local: Runner) -> None:
    source = random.Random(16)
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
    while not (studies := list(local.state.glob(f"studies/*-{name}-study"))) and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate(timeout=60)
    return studies[0].resolve()


def _ended_within(child: subprocess.Popen[bytes], seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
        return True
    return False


ALLOCATION_KILLS = 12
MOST_OF_A_STUDY = 3  # each costs the launch that runs one of its attempts
LONGEST_PAUSE_S = 7.0  # the launches of a study take about twelve
WAYS = ("scancel", "scancel --signal=KILL", "kill -9 of the batch script")


@AS_ROOT
def test_an_allocation_ended_at_any_moment_costs_no_more_than_what_ran(tmp_path: Path) -> None:
    source = random.Random(16)
    with own_box("allocations") as made:
        slurm = Runner.at(made.site, tmp_path, made.bin_dir)
        kills, studies = 0, 0
        while kills < ALLOCATION_KILLS:
            studies += 1
            kills += _a_study_with_ends(slurm, Daemons(made), f"s{studies}", source)


def _a_study_with_ends(slurm: Runner, inside: Daemons, name: str, source: random.Random) -> int:
    """How often its allocation was ended."""
    slurm("scale", "--gpus", "1,2,16", "--repeats", "1", "--same-nodes", "--name", name, *TIMED, code=0)
    (path,) = slurm.runs.glob(f"*-{name}-study")
    kept, kills = set[str](), 0
    while True:
        time.sleep(source.uniform(0.0, LONGEST_PAUSE_S))
        way = source.choice(WAYS)
        if kills < MOST_OF_A_STUDY and _end(slurm, inside, path, way):
            kills += 1
        ended = slurm.start("wait", path.name)
        out, err = ended.communicate(timeout=120)
        assert ended.returncode in (0, 6), (out, err)
        facts = result(slurm("status", path.name, "--json", code=0).out)
        proven = {each["launch"]["key"] for each in facts["launches"] if each["state"] == "proven"}
        assert kept <= proven, f"{way}: what was measured is lost"
        assert overlapping(path) == [], way
        kept = proven
        if facts["state"] == "complete":
            break
        slurm("scale", "--resume", path.name, "--attempts", "9", code=0)
    for launch in (path / "launches").iterdir():
        verdicts = [json.loads(each.read_text())["outcome"] for each in launch.glob("*/verdict.json")]
        assert verdicts.count("measured") == 1, (launch.name, verdicts)
    return kills


def _end(slurm: Runner, inside: Daemons, path: Path, way: str) -> bool:
    """End the study's last allocation; whether it was still there."""
    last = max((path / "allocations").glob("*/job.json"), key=lambda each: int(each.parent.name))
    job = json.loads(last.read_text())["job_id"]
    listed = subprocess.run(
        [slurm.clients / "squeue", "--noheader", "--jobs", job], capture_output=True, text=True, check=False, timeout=60
    )
    if not listed.stdout.strip():
        return False
    if way.startswith("scancel"):
        subprocess.run([slurm.clients / "scancel", *way.split()[1:], job], check=True, timeout=60)
        return True
    # The pattern does not match its own text in the shell that looks for it.
    inside.inside("sh", "-c", 'pkill -KILL -f "$0" || [ $? -eq 1 ]', _script(job))  # 1: all had ended
    return True


def _script(job: str) -> str:
    return f"job{int(job):05d}/[s]lurm_script"
